"""
Files of a checkpoint, on this machine or on any file system that Spark reaches (`hdfs:`, `s3a:`).

Those of other file systems are read and written in Spark's JVM: the session's, or one of its own,
which is configured as Spark is (`spark-defaults.conf`, `$PYSPARK_SUBMIT_ARGS`, `$HADOOP_CONF_DIR`).

Rule: every call has a deadline, the start of the JVM included. Hadoop's own are of many minutes; a
call that is late goes on in a thread of its own, and nothing else is asked before it has ended.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from ..errors import CheckpointError, CheckpointTimeoutError, OptionError

T = TypeVar("T")

_SHOWN: Final = 200


@contextmanager
def checkpoint_files(location: str, timeout_s: float) -> Iterator[Files]:
    """
    The files of a `checkpointLocation`.

    Args:
        timeout_s: longest wait for an answer of another file system.

    Raises:
        OptionError: There is no such directory, or it is no streaming query's.
        CheckpointError: Its file system cannot be reached.
        CheckpointTimeoutError: Nor did it answer in time.
    """
    uri = urlsplit(location)
    is_local = uri.scheme in ("", "file") and uri.netloc in ("", "localhost")
    path = Path(unquote(uri.path) if uri.scheme else location)
    files = LocalFiles(path) if is_local else HadoopFiles(location, timeout_s)
    try:
        if "metadata" not in (names := files.names("")):
            why = "it has no file metadata" if names else "there is no such directory"
            raise OptionError("checkpoint", f"no streaming query's: '{location}': {why}")
        yield files
    finally:
        files.close()


class LocalFiles:
    """A checkpoint's files in a directory of this machine, by their paths below it."""

    def __init__(self, path: Path) -> None:
        self._path, self.location = path, str(path)

    def names(self, directory: str) -> list[str]:
        """Names in a directory; none where there is no directory."""
        below = self._path / directory
        return [file.name for file in below.iterdir()] if below.is_dir() else []

    def read(self, name: str) -> bytes:
        """
        A file's content.

        Raises:
            FileNotFoundError: There is none.
        """
        return (self._path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """
        Makes or replaces a file: whoever dies meanwhile leaves it as it was, or whole.

        Hadoop's checksum goes first: with it the new content would be taken for
        damaged, and without it either content is good.
        """
        path = self._path / name
        new = path.with_name(f".{path.name}.new")
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        new.replace(path)

    def close(self) -> None:
        """Nothing is held."""


class HadoopFiles:
    """A directory on a file system of Hadoop's, by its URI."""

    def __init__(self, location: str, timeout_s: float) -> None:
        self.location, self._timeout_s = location, timeout_s
        self._late = Thread()
        self._late.start()
        self._gateway: Any = None
        """Gateway of a JVM that was started for this."""
        self._said: IO[bytes] = tempfile.TemporaryFile()
        """Output of that JVM, kept from the terminal."""
        try:
            self._jvm, self._configuration, self._root, self._files = self._within(self._reached)
        except BaseException:
            self.close()
            raise

    def names(self, directory: str) -> list[str]:
        """As `LocalFiles`."""

        def names() -> list[str]:
            path = self._path(directory)
            there = self._files.listStatus(path) if self._files.exists(path) else ()
            return [str(status.getPath().getName()) for status in there]

        return self._within(names)

    def read(self, name: str) -> bytes:
        """As `LocalFiles`."""

        def read() -> bytes | None:
            path = self._path(name)
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

        content = self._within(read)
        if content is None:
            raise FileNotFoundError(2, "no such file", f"{self.location}/{name}")
        return content

    def write(self, name: str, content: bytes) -> None:
        """As `LocalFiles`; written as Spark writes checkpoints."""

        def write() -> None:
            of = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
            managers = getattr(getattr(of, "CheckpointFileManager$"), "MODULE$")
            manager = managers.create(self._path(""), self._configuration)
            stream = manager.createAtomic(self._path(name), True)
            stream.write(bytearray(content))
            stream.close()

        self._within(write)

    def close(self) -> None:
        """Ends the JVM that was started."""
        if self._gateway is not None:
            self._gateway.proc.stdin.close()  # by which it knows that nobody needs it any more
            self._gateway = None
        self._said.close()

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}" if name else self._root)

    def _reached(self) -> tuple[Any, Any, str, Any]:
        """The JVM, its configuration, the directory's whole URI, and its file system."""
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        context: Any = SparkContext._active_spark_context
        if context is not None:
            jvm, configuration = context._jvm, context._jsc.hadoopConfiguration()
        else:
            start: Any = launch_gateway
            gateway = start(popen_kwargs={"stdout": self._said, "stderr": self._said})
            if gateway.proc is not None:  # else spark-submit's
                self._gateway = gateway
            jvm = gateway.jvm
            util = jvm.org.apache.spark.deploy.SparkHadoopUtil.get()
            configuration = util.newConfiguration(jvm.org.apache.spark.SparkConf())
        path = jvm.org.apache.hadoop.fs.Path(self.location)
        files = path.getFileSystem(configuration)
        return jvm, configuration, files.makeQualified(path).toString().rstrip("/"), files

    def _within(self, call: Callable[[], T]) -> T:
        """Result of a call in time, or its failure as an error of ours."""
        answers: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                answers.append(call())
            except BaseException as error:
                errors.append(error)

        self._late.join(self._timeout_s)
        if not self._late.is_alive():
            self._late = Thread(target=run, name="hadoop", daemon=True)
            self._late.start()
            self._late.join(self._timeout_s)
        if errors:
            raise self._error(errors[0]) from None
        if not answers:
            raise CheckpointTimeoutError(
                self.location,
                f"its file system did not answer within {self._timeout_s:g}s"
                " (--checkpoint-timeout); is it up, and reached from here?",
            )
        return answers[0]

    def _error(self, error: BaseException) -> BaseException:
        """The error of the file system, or of the JVM's start."""
        from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        if isinstance(error, Py4JJavaError):
            return CheckpointError(self.location, error.java_exception.toString().split("\n")[0])
        if isinstance(error, Py4JError):
            return CheckpointError(self.location, str(error).split("\n")[0])
        if isinstance(error, PySparkException | OSError):
            self._said.seek(0)
            said = self._said.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            why = (said.strip() or str(error))[:_SHOWN]
            detail = f"Spark's JVM, which reaches it, did not start: {why}"
            return CheckpointError(self.location, detail)
        return error


Files = LocalFiles | HadoopFiles
"""The files of a checkpoint."""

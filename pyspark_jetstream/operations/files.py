"""
Files of a checkpoint, on this machine or on any file system that Spark reaches (`hdfs:`, `s3a:`).

Those of other file systems are read and written in Spark's JVM: the session's, or one of its own,
which is configured as Spark is (`spark-defaults.conf`, `$PYSPARK_SUBMIT_ARGS`, `$HADOOP_CONF_DIR`)
and ends with the program.

Rule: every call has a deadline, the start of the JVM included. Hadoop's own are of many minutes; a
call that is late goes on in a thread of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from subprocess import DEVNULL
from threading import Thread
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from ..errors import CheckpointError, OptionError

T = TypeVar("T")

TIMEOUT_S: Final = 60.0
"""Longest wait for an answer of another file system."""


def checkpoint_files(location: str) -> Files:
    """
    The files of a `checkpointLocation`.

    Raises:
        OptionError: There is no such directory, or it is no streaming query's.
        CheckpointError: Its file system cannot be reached.
        CheckpointError: Nor did it answer in time.
    """
    uri = urlsplit(location)
    is_local = uri.scheme in ("", "file") and uri.netloc in ("", "localhost")
    path = Path(unquote(uri.path) if uri.scheme else location)
    files = LocalFiles(path) if is_local else HadoopFiles(location)
    if "metadata" not in (names := files.names("")):
        why = "it has no file metadata" if names else "there is no such directory"
        raise OptionError("checkpoint", f"no streaming query's: '{location}': {why}")
    return files


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


class HadoopFiles:
    """A directory on a file system of Hadoop's, by its URI."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._jvm, self._configuration, self._root, self._files = self._within(self._reached)

    def names(self, directory: str) -> list[str]:
        """As `LocalFiles`."""
        path = self._path(directory)

        def names() -> list[str]:
            there = self._files.listStatus(path) if self._files.exists(path) else ()
            return [str(status.getPath().getName()) for status in there]

        return self._within(names)

    def read(self, name: str) -> bytes:
        """As `LocalFiles`."""
        path = self._path(name)

        def read() -> bytes:
            stream = self._files.open(path)
            content = bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            stream.close()
            return content

        if not self._within(lambda: self._files.exists(path)):
            raise FileNotFoundError(2, "no such file", f"{self.location}/{name}")
        return self._within(read)

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
            jvm = start(popen_kwargs={"stdout": DEVNULL, "stderr": DEVNULL}).jvm
            util = jvm.org.apache.spark.deploy.SparkHadoopUtil.get()
            configuration = util.newConfiguration(jvm.org.apache.spark.SparkConf())
        path = jvm.org.apache.hadoop.fs.Path(self.location)
        files = path.getFileSystem(configuration)
        return jvm, configuration, files.makeQualified(path).toString().rstrip("/"), files

    def _within(self, call: Callable[[], T]) -> T:
        """Result of a call in time, or its failure as an error of ours."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        Thread(target=run, name="hadoop", daemon=True).start()
        try:
            return answer.result(TIMEOUT_S)
        except TimeoutError:
            raise CheckpointError(
                self.location,
                f"its file system did not answer within {TIMEOUT_S:g}s"
                "; is it up, and reached from here?",
            ) from None
        except Exception as error:
            java = getattr(error, "java_exception", None)
            why = str(java.toString() if java is not None else error).split("\n")[0]
            detail = f"{why} (Spark's JVM reads it, and needs Java)"
            raise CheckpointError(self.location, detail) from None


Files = LocalFiles | HadoopFiles
"""The files of a checkpoint."""

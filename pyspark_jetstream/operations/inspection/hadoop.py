"""
A checkpoint on any file system that Spark reaches (`hdfs:`, `s3a:`, `viewfs:`). Hadoop's FileSystem
reads it in the session's JVM, or in a JVM of its own.

What Spark is configured with holds here as well: `spark-defaults.conf`, `$PYSPARK_SUBMIT_ARGS`
(`spark.hadoop.*`, packages), `$HADOOP_CONF_DIR`, and what `spark-submit` is given.

Rule: every call has a deadline, the start of the JVM included. Hadoop's own are of many minutes; a
call that is late goes on in a thread of its own, and nothing else is asked before it has ended.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from ...errors import CheckpointError, CheckpointTimeoutError, OptionError

if TYPE_CHECKING:
    from .storage import Hadoop, Storage

T = TypeVar("T")

_SHOWN: Final = 200


class HadoopDirectory:
    """A directory, by its URI."""

    def __init__(self, location: str, timeout_s: float) -> None:
        """
        Raises:
            OptionError: There is no such directory, or it is no streaming query's.
            CheckpointError: Its file system cannot be reached.
            CheckpointTimeoutError: Nor did it answer within `timeout_s`.
        """
        self.location = location
        self._timeout_s = timeout_s
        self._late: threading.Thread | None = None
        self._gateway: Any = None
        """Gateway of a JVM that was started for this."""
        self._said: IO[bytes] = tempfile.TemporaryFile()
        """Output of that JVM, kept from the terminal."""
        try:
            self._storage: Storage = self._within(self._reached)
            if not self._within(lambda: self._storage.read("metadata")):
                found = self._within(self._storage.names)
                why = "it has no file metadata" if found else "there is no such directory"
                raise OptionError("checkpoint", f"no streaming query's: {location}: {why}")
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<HadoopDirectory {self.location}>"

    def names(self, directory: str) -> list[str]:
        """See `Directory`."""
        return self._within(lambda: self._storage.names(directory))

    def read(self, name: str) -> bytes:
        """See `Directory`."""
        content = self._within(lambda: self._storage.read(name))
        if content is None:
            raise FileNotFoundError(2, "no such file", self._storage.path(name))
        return content

    def close(self) -> None:
        """Ends the JVM that was started."""
        if self._gateway is not None:
            self._gateway.proc.stdin.close()  # by which it knows that nobody needs it any more
            self._gateway = None
        self._said.close()

    def _within(self, call: Callable[[], T]) -> T:
        """Result of a call, or its failure as an error of ours."""
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(call())
            except BaseException as error:
                errors.append(error)

        thread = self._late
        if thread is not None:
            thread.join(self._timeout_s)
        if thread is None or not thread.is_alive():
            thread = threading.Thread(target=run, name="hadoop", daemon=True)
            thread.start()
            thread.join(self._timeout_s)
        self._late = thread if thread.is_alive() else None
        if self._late is not None:
            raise CheckpointTimeoutError(
                self.location,
                f"its file system did not answer within {self._timeout_s:g}s"
                " (--checkpoint-timeout); is it up, and reached from here?",
            )
        if errors:
            raise self._error(errors[0]) from None
        return results[0]

    def _reached(self) -> Storage:
        from .storage import Storage

        return Storage(self._hadoop(), self.location)

    def _hadoop(self) -> Hadoop:
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        from .storage import Hadoop

        context: Any = SparkContext._active_spark_context
        if context is not None:
            return Hadoop(context._jvm, context._jsc.hadoopConfiguration())
        start: Any = launch_gateway
        gateway = start(popen_kwargs={"stdout": self._said, "stderr": self._said})
        if gateway.proc is not None:  # else spark-submit's
            self._gateway = gateway
        jvm = gateway.jvm
        util = jvm.org.apache.spark.deploy.SparkHadoopUtil.get()
        return Hadoop(jvm, util.newConfiguration(jvm.org.apache.spark.SparkConf()))

    def _error(self, error: BaseException) -> BaseException:
        """The error of the file system, or of the JVM's start."""
        from pyspark.errors import PySparkException

        from .storage import StorageError

        if isinstance(error, StorageError):
            return CheckpointError(self.location, str(error).removeprefix(f"{self.location}: "))
        if isinstance(error, (PySparkException, OSError)):
            self._said.seek(0)
            lines = self._said.read().decode("utf-8", "replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), str(error))
            return CheckpointError(
                self.location, f"Spark's JVM, which reaches it, did not start: {last[:_SHOWN]}"
            )
        return error

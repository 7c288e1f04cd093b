"""
NATS JetStream as a source and a sink of Apache Spark.

With the package installed, `format("jetstream")` works without any call: Spark finds
`DefaultSource` in packages named `pyspark_*`. Importing this module imports neither nats-py nor
pyarrow, because one slow or broken package here would slow or break the lookup of every source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

    from .datasource import JetStreamDataSource
    from .datasource import JetStreamDataSource as DefaultSource
    from .fetch.directcalls import DirectCalls
    from .mapping.subjectmapping import explain_mapping as explainMapping
    from .operations.throttle.throttled import is_throttled as isThrottled
    from .operations.throttle.throttled import throttled_subjects as throttledSubjects
    from .write.restoring import restored

__all__ = [
    "DefaultSource",
    "DirectCalls",
    "JetStreamDataSource",
    "__version__",
    "explainMapping",
    "isThrottled",
    "register",
    "restored",
    "throttledSubjects",
]

__version__ = "0.1.0"


_PLACES = {
    "DefaultSource": ("datasource", "JetStreamDataSource"),
    "DirectCalls": ("fetch.directcalls", "DirectCalls"),
    "JetStreamDataSource": ("datasource", "JetStreamDataSource"),
    "explainMapping": ("mapping.subjectmapping", "explain_mapping"),
    "isThrottled": ("operations.throttle.throttled", "is_throttled"),
    "restored": ("write.restoring", "restored"),
    "throttledSubjects": ("operations.throttle.throttled", "throttled_subjects"),
}
"""Public name → the module that defines it, and its name there; imported when it is asked for."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, there = _PLACES[name]
    return getattr(import_module(f"{__name__}.{module}"), there)


def register(spark: SparkSession) -> None:
    """
    Registers the format `jetstream` by hand, for who ships the package with `--py-files`.

    Spark's streaming source process on the driver does not see `--py-files`. The class registered
    here travels by value and shows it the way (nats-py, pyarrow and xxhash must be installed).

    On this machine alone (`local[…]`), where nobody has said which Python Spark's workers are
    (`PYSPARK_PYTHON`, `spark.pyspark.python`), they become the one that calls this. Else Spark
    takes the first `python3` on `PATH`, and that is another one where a virtual environment is not
    activated.

    Raises:
        OptionError: This package was shipped as a wheel, which the driver alone can import.
    """
    import os

    where = os.path.dirname(os.path.dirname(__file__))
    _refuse_a_wheel(where)
    _work_by_this_python(spark)
    spark.dataSource.register(_shipped(where))


def _refuse_a_wheel(where: str) -> None:
    """
    Spark's executors import zips of `--py-files`, and pass over a wheel without a word: the query
    would end there, with a module that is not found.
    """
    import os

    if where.endswith(".whl"):
        from .errors import OptionError

        reason = (
            f"Spark's executors do not import a wheel ({os.path.basename(where)}); give a zip that"
            " holds the folder pyspark_jetstream, or install the wheel on every host"
        )
        raise OptionError("--py-files", reason)


def _work_by_this_python(spark: SparkSession) -> None:
    """Workers beside the driver are its own interpreter, unless somebody has named another."""
    import os
    import sys

    context = getattr(spark, "sparkContext", None)  # a session of Spark Connect has none
    if context is None or not context.master.startswith("local["):
        return
    if "PYSPARK_PYTHON" not in os.environ and spark.conf.get("spark.pyspark.python", None) is None:
        context.pythonExec = sys.executable


def _shipped(where: str) -> type[DataSource]:
    """A class that is pickled by value and finds the package in the archive `where`."""
    from pyspark.sql.datasource import DataSource

    class Shipped(DataSource):
        @classmethod
        def name(cls) -> str:
            return "jetstream"

        def _found(self) -> DataSource:
            import sys

            if where not in sys.path:
                sys.path.append(where)
            from pyspark_jetstream.datasource import JetStreamDataSource

            return JetStreamDataSource(self.options)

        def schema(self) -> Any:
            return self._found().schema()

        def reader(self, schema: Any) -> Any:
            return self._found().reader(schema)

        def streamReader(self, schema: Any) -> Any:
            return self._found().streamReader(schema)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self._found().writer(schema, overwrite)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return self._found().streamWriter(schema, overwrite)

    return Shipped

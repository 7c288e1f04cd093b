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

    from .datasource import JetStreamDataSource
    from .datasource import JetStreamDataSource as DefaultSource

__all__ = ["DefaultSource", "JetStreamDataSource", "__version__", "register"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("DefaultSource", "JetStreamDataSource"):
        from .datasource import JetStreamDataSource

        return JetStreamDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """
    Registers the format `jetstream` by hand, for who ships the package with `--py-files`.

    The classes then travel by value, because Spark's streaming source process does not see
    `--py-files` (the environment still needs nats-py, pyarrow and xxhash).
    """
    import sys

    from pyspark import cloudpickle

    from .datasource import JetStreamDataSource

    for name, module in list(sys.modules.items()):
        if name == __name__ or name.startswith(f"{__name__}."):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    spark.dataSource.register(JetStreamDataSource)

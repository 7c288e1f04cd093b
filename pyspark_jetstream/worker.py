"""
Spark's Python worker processes: the set-up of each, the task that one runs, and the log of each.

A library leaves it to the program what becomes of its log. In Spark's Python workers, on the driver
and on executors, there is no program that could say: what they write to stderr is in the driver's
stderr and in that of each executor. So readers, writers and tasks say here for whom they run, and
lines go there, each with time (UTC), level, query, batch and task:

    2026-03-01T09:30:00.123Z WARNING query=orders batch=12 task=3.0 pyspark_jetstream.…: nothing …

Rule 1: nothing happens to `logging` beside the logger of this package, and in no process but those
of Spark's workers and of our own programs.
Rule 2: where anybody has set handlers up, on the root or on this logger, lines go there alone:
those of a user's function in the same worker, or Spark's own
(`spark.sql.pyspark.worker.logging.enabled`). Their records have `query`, `batch` and `task` too,
and `context`, which Spark's handler shows.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from functools import cache
from typing import Final, TextIO

from .sanitize import sanitized

_MAIN: Final = getattr(sys.modules.get("__main__"), "__spec__", None)
if _MAIN is not None and _MAIN.name.startswith("pyspark."):
    # Spark has just started this process for us, and it has no garbage yet: importing the rest need
    # not look for it. In a program of somebody else's that is not ours to do.
    gc.freeze()

MAX_NAME: Final = 200
"""Characters of a query's name; what follows is cut off."""


def query_name() -> str:
    """
    User's name of the streaming query of which a task runs here (`queryName` of the write), ""
    where it has no name.

    Spark tells a source neither name nor id. Its tasks have both in the description of their job,
    `<name>\\nid = <query id>\\nrunId = …` (measured with 4.3), unless the user has set another one.
    """
    from pyspark import TaskContext  # there already where a task runs, and slow where none does

    context = TaskContext.get()
    description = context.getLocalProperty("spark.job.description") if context is not None else None
    return (description or "").rpartition("\nid = ")[0][:MAX_NAME]


@cache
def spare_collections() -> None:
    """
    Takes what the process holds by now out of Python's cyclic garbage collection, once.

    `pyspark.daemon` collects all garbage after every task. In a worker that has read or written
    there are tens of thousands of objects to look at, nearly all of them imported code, and looking
    costs more than a small task does. To be called at the end of a task, when all is imported.
    What is freed by counting references, as data are, is freed as before.
    """
    gc.collect()
    gc.freeze()


LEVELS: Final = ("debug", "info", "warning", "error")

_LOGGER: Final = logging.getLogger(__name__.rpartition(".")[0])

_FORMAT: Final = (
    "%(asctime)s.%(msecs)03dZ %(levelname)s query=%(query)s batch=%(batch)s task=%(task)s"
    " %(name)s: %(message)s"
)

_UNKNOWN: Final = "-"

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark sets on the tasks of a streaming query."""


class _Stderr(logging.StreamHandler[TextIO]):
    """Says for whom this process runs; writes only where nobody else does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)  # the stream is whatever stderr is when something is said
        self.query = self.batch = _UNKNOWN
        self.level_is_ours = False
        """Whether the level of the logger is one that `log_for` has set."""
        self.level_before = logging.NOTSET
        """The logger's level before that."""
        formatter = logging.Formatter(_FORMAT, "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Destination of lines."""
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: sanitized(text) for name, text in self._fields().items()}
        record.__dict__.update(fields, context=fields | record.__dict__.get("context", {}))
        if logging.getLogger().handlers or len(_LOGGER.handlers) > 1:
            return
        super().emit(record)  # in one write: lines of several workers stay whole

    def _fields(self) -> dict[str, str]:
        spark = sys.modules.get("pyspark")  # there already where Spark runs us
        context = spark.TaskContext.get() if spark is not None else None
        if context is None:
            return {"query": self.query, "batch": self.batch, "task": "driver"}
        query = self.query if self.query != _UNKNOWN else query_name()
        return {
            "query": query or context.getLocalProperty(_QUERY_ID) or _UNKNOWN,
            "batch": context.getLocalProperty(_BATCH_ID) or _UNKNOWN,
            "task": f"{context.partitionId()}.{context.attemptNumber()}",
        }


_HANDLER: Final = _Stderr()


def log_for(level: str | None, query: str | None = None, batch: int | None = None) -> None:
    """
    This process runs for this query from now on.

    Args:
        level: one of `LEVELS`; None leaves it as it is elsewhere, `warning` unless somebody has
            said otherwise.
        query: as its user calls it; None where tasks know better, or nobody does.
        batch: on the driver, as far as it is known; Spark tells tasks.
    """
    _HANDLER.query = query or _UNKNOWN
    _HANDLER.batch = _UNKNOWN if batch is None else str(batch)
    if _HANDLER not in _LOGGER.handlers:
        _LOGGER.handlers.insert(0, _HANDLER)  # its fields are there for those behind it
    if level is not None or _HANDLER.level_is_ours:  # a worker's query before had one of its own
        if not _HANDLER.level_is_ours:
            _HANDLER.level_before = _LOGGER.level
        _LOGGER.setLevel(_HANDLER.level_before if level is None else level.upper())
        _HANDLER.level_is_ours = level is not None

"""Spark's Python worker processes: the set-up of each, and the task that one runs."""

from __future__ import annotations

import gc
import sys
from functools import cache
from typing import Final

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

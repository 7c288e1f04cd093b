"""Spark's Python worker processes: what is done once in each, however many tasks it runs."""

from __future__ import annotations

import gc
from functools import cache

__all__ = ["settle"]


@cache
def settle() -> None:
    """
    Takes what the process holds by now out of Python's cyclic garbage collection, once.

    `pyspark.daemon` collects all garbage after every task. In a worker that has read or written
    there are tens of thousands of objects to look at, nearly all of them imported code, and looking
    costs more than a small task does. To be called at the end of a task, when all is imported.
    What is freed by counting references, as data are, is freed as before.
    """
    gc.collect()
    gc.freeze()

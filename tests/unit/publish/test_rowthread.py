"""Blocks made on a thread of their own: handed over one by one, and nothing is left behind."""

import os
import select
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_jetstream.publish.rowthread import Supply

PATIENCE_S = 10.0


def left() -> tuple[int, int]:
    """Threads called rows, and open file descriptors."""
    threads = [each for each in threading.enumerate() if each.name == "rows"]
    return len(threads), len(os.listdir("/proc/self/fd"))


def asked(supply: Supply) -> Any:
    """The next block."""
    supply.ask()
    assert select.select([supply.fileno()], [], [], PATIENCE_S)[0]
    return supply.get()


def test_blocks_come_one_by_one_and_end():
    """Each when it was asked for; behind the last one it has ended, and nothing is left."""
    before = left()
    with Supply(iter("ab")) as supply:
        idle = supply.get()
        found = [asked(supply), supply.get(), asked(supply), supply.ended, asked(supply)]
        ended = supply.ended

    assert (idle, found, ended) == (None, ["a", None, "b", False, None], True)
    assert left() == before


@pytest.mark.parametrize("error", [ValueError("row"), KeyboardInterrupt(), SystemExit(3)])
def test_what_making_a_block_raises_surfaces(error):
    """I9: on the task's own thread, whatever it is; and nothing is left."""

    def blocks() -> Iterator[str]:
        yield "a"
        raise error

    before = left()
    with pytest.raises(type(error)), Supply(blocks()) as supply:
        asked(supply)
        asked(supply)

    assert left() == before


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_spark_holds_ends_when_spark_lets_go():
    """I10: a write that fails does not wait for a block; what was opened is closed later."""
    begun, go = threading.Event(), threading.Event()

    def blocks() -> Iterator[str]:
        begun.set()
        go.wait(PATIENCE_S)
        yield "a"

    before = left()
    with Supply(blocks()) as supply:
        supply.ask()
        assert begun.wait(PATIENCE_S)
    held, _ = left()
    go.set()
    for thread in threading.enumerate():
        if thread.name == "rows":
            thread.join(PATIENCE_S)

    assert held == before[0] + 1
    assert left() == before

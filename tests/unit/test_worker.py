"""The clock of a task's thread."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time

import pytest

from pyspark_jetstream.worker import core_time

_ENDS_S = 60.0
"""Time in which threads and processes of a test end, on a busy machine too."""


def waited_s() -> float:
    """Seconds that this thread has waited for a core, as the system says."""
    with open("/proc/thread-self/schedstat") as stat:
        return int(stat.read().split()[1]) / 1e9


def is_of_this_thread() -> bool:
    """Whether `core_time` leaves out what this thread has waited, and nothing else."""
    before_s, begin = waited_s(), time.monotonic()
    found = core_time()
    end, after_s = time.monotonic(), waited_s()
    return before_s <= end - found + 1e-6 and begin - found <= after_s + 1e-6


def say_by_status() -> None:
    sys.exit(0 if is_of_this_thread() else 1)


def keep_busy(until: float) -> None:
    while time.monotonic() < until:
        pass


# CI runs on Linux, so nothing is skipped in it. Elsewhere the clock is the monotonic one, which is
# Python's own.
@pytest.mark.skipif(
    sys.platform != "linux",
    reason="only Linux tells a thread how long it has waited for a core"
    " (/proc/thread-self/schedstat)",
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # 3.12 warns of forks beside threads
def test_the_clock_leaves_out_what_its_own_thread_has_waited_for_a_core():
    """
    Also in another thread, and in a process that a thread has forked: both have waited for less.
    """
    processes = multiprocessing.get_context("fork")
    others = [
        processes.Process(target=keep_busy, args=(time.monotonic() + 0.2,))
        for _ in range(3 * (os.cpu_count() or 1))
    ]
    for other in others:
        other.start()
    keep_busy(time.monotonic() + 0.2)
    for other in others:
        other.join(_ENDS_S)
    assert waited_s() > 0.001
    assert is_of_this_thread()

    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(is_of_this_thread()))
    thread.start()
    thread.join(_ENDS_S)
    child = processes.Process(target=say_by_status)
    child.start()
    child.join(_ENDS_S)
    assert (found, child.exitcode) == ([True], 0)

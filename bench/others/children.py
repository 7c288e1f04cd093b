"""
Processes of the references: started, ready, off all at once, counted, and always stopped.

Neither the start of Python nor the encoding of rows is in a figure: a process says when it is
ready, and begins when told. `work` is what runs in it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing import get_context
from typing import Any, Final

from ..runs import Run
from .work import done

_SPAWN: Final = get_context("spawn")
_READY_TIMEOUT_S: Final = 120.0
_TIMEOUT_S: Final = 600.0


class Children:
    """
    Reference processes, one a job; a context manager.

    A job's `do` names a function of `work`, all else that it has are the arguments.
    """

    def __init__(self, jobs: Sequence[dict[str, Any]]) -> None:
        pairs = [_SPAWN.Pipe() for _ in jobs]
        self._ends = [ours for ours, _ in pairs]
        self._processes = [
            _SPAWN.Process(target=done, args=(theirs, job), daemon=True)
            for (_, theirs), job in zip(pairs, jobs, strict=True)
        ]
        self.started = 0.0
        """When they began, on the monotonic clock."""

    def __enter__(self) -> Children:
        try:
            for process in self._processes:
                process.start()
            self._hear(_READY_TIMEOUT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.pid is not None:
                process.kill()
                process.join()

    def go(self) -> None:
        """Lets all of them begin."""
        self.started = time.monotonic()
        self.stop()

    def stop(self) -> None:
        """Tells children that go on without an end to stop."""
        for end in self._ends:
            end.send(None)

    def outcome(self) -> Run:
        """Waits for all and sums them up."""
        results = self._hear(_TIMEOUT_S)
        return Run(
            rows=sum(counted.messages for counted, _ in results),
            # CLOCK_MONOTONIC is one clock for all processes of a machine.
            seconds=max(ended for _, ended in results) - self.started,
            latencies_s=[each for counted, _ in results for each in counted.latencies_s],
        )

    def _hear(self, timeout_s: float) -> list[Any]:
        """What each says next."""
        deadline = time.monotonic() + timeout_s
        said = []
        for end, process in zip(self._ends, self._processes, strict=True):
            while not end.poll(0.1):
                if not process.is_alive():
                    raise RuntimeError("a reference process failed; its error is above")
                if time.monotonic() > deadline:
                    raise TimeoutError("a reference process took too long")
            said.append(end.recv())
        return said


def together(jobs: Sequence[dict[str, Any]]) -> Run:
    """All of them at once."""
    with Children(jobs) as children:
        children.go()
        return children.outcome()

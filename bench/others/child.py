"""
Processes of the references: started, ready, off all at once, counted, and always stopped.

What a child does is a function that its command line names, `module:function`, so that this module
knows none of them. It gets its arguments as one line of JSON, makes everything ready, says so, and
begins when told: neither the start of Python nor the encoding of rows is in a figure. `Children` is
the parent's side, `Child` what the function is handed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from ..usage import Usage
from .bare import Counted

_READY_TIMEOUT_S: Final = 120.0
_ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all children of a measurement brought."""

    messages: int
    bytes: int
    seconds: float
    """From the start to the last one's end."""
    cpu_s: float
    """Of the children."""
    usage: Usage = Usage()
    """Of the server."""
    note: str = ""
    latencies_s: tuple[float, ...] = ()
    """Of each message, where they were timed."""

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


class Children:
    """
    Reference processes, one a job.

    A job's `do` is the function, all else that it has are the arguments after the `Child`.

    >>> jobs = [{"do": "bench.others.work:publish", ...}]  # doctest: +SKIP
    >>> with Children(jobs) as children:  # doctest: +SKIP
    ...     children.go()
    ...     outcome = children.outcome()
    """

    def __init__(self, jobs: Sequence[dict[str, Any]], timeout_s: float = 600.0) -> None:
        self._jobs = jobs
        self._timeout_s = timeout_s
        self._processes: list[subprocess.Popen[str]] = []
        self.started = 0.0
        """When they began, on the monotonic clock."""
        self.ready: list[str] = []
        """What each has said beside being ready."""

    def __enter__(self) -> Children:
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        try:
            for job in self._jobs:
                arguments = dict(job)
                process = subprocess.Popen(
                    [sys.executable, "-m", "bench.others.child", arguments.pop("do")],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"PYTHONPATH": path},
                )
                self._processes.append(process)
                self._tell(process, json.dumps(arguments))
            deadline = time.monotonic() + _READY_TIMEOUT_S
            for process in self._processes:
                self.ready.append(self._hear(process, deadline).removeprefix("ready").strip())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()

    @property
    def pids(self) -> list[int]:
        """Process ids, in the order of the jobs."""
        return [process.pid for process in self._processes]

    def go(self) -> None:
        """Lets all of them begin."""
        self.started = time.monotonic()
        for process in self._processes:
            self._tell(process, "go")

    def stop(self) -> None:
        """Tells children that go on without an end to stop."""
        for process in self._processes:
            self._tell(process, "stop")

    def outcome(self) -> Outcome:
        """Waits for all and sums them up."""
        deadline = time.monotonic() + self._timeout_s
        results = [json.loads(self._hear(process, deadline)) for process in self._processes]
        return Outcome(
            messages=sum(result["messages"] for result in results),
            bytes=sum(result["bytes"] for result in results),
            seconds=max(result["ended"] for result in results) - self.started,
            cpu_s=sum(result["cpu_s"] for result in results),
            latencies_s=tuple(
                latency_s for result in results for latency_s in result["latencies_s"]
            ),
        )

    def _tell(self, process: subprocess.Popen[str], line: str) -> None:
        pipe = _pipe(process.stdin)
        pipe.write(line + "\n")
        pipe.flush()

    def _hear(self, process: subprocess.Popen[str], deadline: float) -> str:
        """One line; a child writes no more than one before it is told to go on."""
        pipe = _pipe(process.stdout)
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"a reference process took too long: {process.args!r}")
        line = pipe.readline()
        if not line:
            raise RuntimeError("a reference process failed; its error is above")
        return line


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise ValueError("started without pipes")
    return pipe


# ── the child ────────────────────────────────────────────────────────────────────────────────


class Child:
    """This process, for the function that it runs: `run` is called once, when all is ready."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def is_stopped(self) -> bool:
        """Whether the parent has told its children to stop."""
        return self._stopped.is_set()

    def run(self, work: Callable[[], Counted], more: str = "") -> None:
        """Says ready, and `more` that the parent must know; waits for go, works, says the count."""
        gc.freeze()
        _say(f"ready {more}")
        sys.stdin.readline()
        threading.Thread(target=self._listen, daemon=True).start()
        cpu = time.process_time()
        counted = work()
        # CLOCK_MONOTONIC is one clock for all processes of a machine.
        ended = time.monotonic()
        _say(
            json.dumps(
                {
                    "messages": counted.messages,
                    "bytes": counted.bytes,
                    "ended": ended,
                    "cpu_s": time.process_time() - cpu,
                    "latencies_s": counted.latencies_s,
                }
            )
        )

    def _listen(self) -> None:
        """What the parent says from now on is to stop; when its end of stdin closes, it is gone."""
        # Not sys.stdin, whose lock the interpreter wants at its own end.
        while os.read(sys.stdin.fileno(), 1 << 10):
            self._stopped.set()
        os._exit(1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Runs the function of the command line with the arguments on stdin."""
    module, _, function = sys.argv[1].partition(":")
    do = getattr(importlib.import_module(module), function)
    do(Child(), **json.loads(sys.stdin.readline()))


if __name__ == "__main__":
    main()

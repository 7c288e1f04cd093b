"""
Processes of the references: started, ready, off all at once, counted, and always stopped.

A child gets its job as one line of JSON, makes everything ready, says so, and begins when told:
neither the start of Python nor the encoding of rows is in a figure. `Children` is the parent's
side; run as a module, this file is the child's.
"""

from __future__ import annotations

import asyncio
import gc
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

from .bare import Counted
from .flights import Flights
from .payloads import Payloads
from .usage import Usage

__all__ = ["Children", "Outcome"]

_READY_TIMEOUT_S: Final = 120.0
_ROOT: Final = Path(__file__).parent.parent


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

    >>> with Children([{"do": "drain_direct", ...}]) as children:  # doctest: +SKIP
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
                process = subprocess.Popen(
                    [sys.executable, "-m", "bench.child"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"PYTHONPATH": path},
                )
                self._processes.append(process)
                self._tell(process, json.dumps(job))
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

    def go(self) -> None:
        """Lets all of them begin."""
        self.started = time.monotonic()
        for process in self._processes:
            self._tell(process, "go")

    def stop(self) -> None:
        """Asks those to end that go on until they are asked."""
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
            latencies_s=tuple(each for result in results for each in result["latencies_s"]),
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


_stopped: Final = threading.Event()


def _run(work: Callable[[], Counted], more: str = "") -> None:
    """Says ready, waits for go, works, says what came of it."""
    gc.freeze()
    _say(f"ready {more}")
    sys.stdin.readline()
    threading.Thread(target=_listen, daemon=True).start()
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


def _listen() -> None:
    """What the parent says from now on is to stop; when its end of stdin closes, it has ended."""
    # Not sys.stdin, whose lock the interpreter wants at its own end.
    while os.read(sys.stdin.fileno(), 1 << 10):
        _stopped.set()
    os._exit(1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _bare(do: str, url: str, job: dict[str, Any]) -> None:
    from .bare import Wire

    wire = Wire(url)
    if do == "publish":
        blocks = list(_rows(job).frames(job["first"], job["last"], wire.inbox, job["ids"]))
        _run(lambda: wire.publish(blocks, job["window"]))
    elif do == "publish_fast":
        payloads = Payloads(job["size"], job["rows"])
        blocks = list(payloads.batch(job["first"], job["last"], wire.inbox, job["ids"]))
        _run(lambda: wire.publish_fast(blocks))
    elif do == "publish_atomic":
        payloads = Payloads(job["size"], job["rows"])
        blocks = list(payloads.atomic(job["first"], job["last"], wire.inbox, job["ids"]))
        _run(lambda: wire.publish_atomic(blocks))
    elif do == "drain_consumer":
        _run(lambda: wire.drain_consumer(**job))
    elif do == "share_consumer":
        _run(lambda: wire.share_consumer(**job))
    elif do == "publish_paced":
        _run(lambda: wire.publish_paced(**job, stopped=_stopped.is_set))
    else:
        _run(lambda: wire.drain_direct(**job))
    wire.close()


def _nats_py(do: str, url: str, job: dict[str, Any]) -> None:
    from . import natspy

    with asyncio.Runner() as runner:
        client = runner.run(natspy.connect(url))
        if do == "natspy_publish":
            rows = _rows(job).rows_between(job["first"], job["last"])
            _run(lambda: runner.run(natspy.publish(client, rows, job["ids"], job["window"])))
        elif do == "natspy_share":
            _run(lambda: runner.run(natspy.share(client, **job)))
        elif do == "natspy_last":
            _run(lambda: runner.run(natspy.last(client, **job)))
        else:
            _run(lambda: runner.run(natspy.fetch(client, **job)))
        runner.run(client.close())


def _delay(url: str, job: dict[str, Any]) -> None:
    from .delay import Delay

    delay = Delay(url, **job)
    _run(lambda: delay.serve(_stopped.is_set), str(delay.port))


def _command(url: str, job: dict[str, Any]) -> None:
    from .commands import Commands

    commands = Commands(url)
    _run(lambda: commands.pause(**job))


def _claim(url: str, job: dict[str, Any]) -> None:
    from .sharing import claim_all

    _run(lambda: claim_all(url, **job))


def _spin() -> Counted:
    """Keeps a core busy."""
    while not _stopped.is_set():
        pass
    return Counted(0)


def _rows(job: dict[str, Any]) -> Flights | Payloads:
    if "size" in job:
        return Payloads(job["size"], job["rows"], job.get("subjects"))
    return Flights(Path(job["data"]), job["rows"])


def main() -> None:
    """One job from stdin."""
    job = json.loads(sys.stdin.readline())
    do, url = job.pop("do"), job.pop("url", "")
    if do == "spin":
        _run(_spin)
        return
    others = {"delay": _delay, "command": _command, "claim": _claim}
    if do in others:
        others[do](url, job)
        return
    (_nats_py if do.startswith("natspy_") else _bare)(do, url, job)


if __name__ == "__main__":
    main()

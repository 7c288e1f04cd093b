"""
What a reference process does: with bare sockets, or with nats-py.

It makes everything ready, says so, begins when told, and says what came of it. `Children` is the
other side.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from nats.aio.client import Client

from ..rows import frames, pairs, rows_of
from . import natspy
from .bare import Counted, Wire


def done(end: Connection, job: dict[str, Any]) -> None:
    """All that a process does, by the function that its job names."""

    def run(work: Callable[[], Counted]) -> None:
        gc.freeze()
        end.send(None)
        end.recv()
        counted = work()
        end.send((counted, time.monotonic()))

    _DO[job.pop("do")](run, end.poll, **job)


Run = Callable[[Callable[[], Counted]], None]
"""Says that all is ready, waits, works, and says the count."""

Stopped = Callable[[], bool]


def _publish(
    run: Run, _: Stopped, url: str, first: int, last: int, ids: str | None, window: int, **rows: Any
) -> None:
    """The rows `[first, last)` with a PubAck each, from a bare socket."""
    wire = Wire(url)
    blocks = list(frames(rows_of(**rows), first, last, wire.inbox, ids))
    run(lambda: wire.publish(blocks, window))


def _on_the_wire(run: Run, stopped: Stopped, url: str, call: str, **what: Any) -> None:
    """A method of `Wire`; one that goes on without an end is told when to stop."""
    if call in ("publish_paced", "publish_steadily"):
        what["stopped"] = stopped
    wire = Wire(url)
    run(lambda: getattr(wire, call)(**what))


def _natspy_publish(
    run: Run, _: Stopped, url: str, first: int, last: int, ids: str | None, window: int, **rows: Any
) -> None:
    """The rows `[first, last)` with a PubAck each."""
    published = pairs(rows_of(**rows), first, last)
    _in_nats_py(run, _, url, "publish", rows=published, ids=ids, window=window)


def _in_nats_py(run: Run, _: Stopped, url: str, call: str, **what: Any) -> None:
    """A function of `natspy`."""
    with asyncio.Runner() as runner:
        client = Client()
        runner.run(client.connect(url))
        run(lambda: runner.run(getattr(natspy, call)(client, **what)))
        runner.run(client.close())


_DO: dict[str, Callable[..., None]] = {
    "publish": _publish,
    "on_the_wire": _on_the_wire,
    "natspy_publish": _natspy_publish,
    "in_nats_py": _in_nats_py,
}

"""
What the references' processes do: with bare sockets, with nats-py, or nothing but keep a core busy.

Each function is named to a `Child`, makes ready what it needs, and has it run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from ..flights import Flights
from ..payloads import Payloads
from . import natspy
from .bare import Counted, Wire
from .child import Child


def publish(
    child: Child, url: str, first: int, last: int, ids: str | None, window: int, **rows: Any
) -> None:
    """The rows `[first, last)` with a PubAck each, from a bare socket."""
    with _wire(url) as wire:
        blocks = list(_rows(**rows).frames(first, last, wire.inbox, ids))
        child.run(lambda: wire.publish(blocks, window))


def on_the_wire(child: Child, url: str, call: str, **what: Any) -> None:
    """A method of `Wire`; one that goes on without an end is told when to stop."""
    if call in ("publish_paced", "publish_steadily"):
        what["stopped"] = child.is_stopped
    with _wire(url) as wire:
        child.run(lambda: getattr(wire, call)(**what))


def natspy_publish(
    child: Child, url: str, first: int, last: int, ids: str | None, window: int, **rows: Any
) -> None:
    """The rows `[first, last)` with a PubAck each."""
    pairs = _rows(**rows).rows_between(first, last)
    _in_nats_py(child, url, lambda client: natspy.publish(client, pairs, ids, window))


def in_nats_py(child: Child, url: str, call: str, **what: Any) -> None:
    """A function of `natspy`."""
    _in_nats_py(child, url, lambda client: getattr(natspy, call)(client, **what))


def spin(child: Child) -> None:
    """Keeps a core busy until told to stop."""

    def turn() -> Counted:
        while not child.is_stopped():
            pass
        return Counted(0)

    child.run(turn)


@contextmanager
def _wire(url: str) -> Iterator[Wire]:
    wire = Wire(url)
    yield wire
    wire.close()


def _in_nats_py(
    child: Child, url: str, work: Callable[[Client], Coroutine[Any, Any, Counted]]
) -> None:
    with asyncio.Runner() as runner:
        client = runner.run(natspy.connect(url))
        child.run(lambda: runner.run(work(client)))
        runner.run(client.close())


def _rows(
    rows: int, data: str = "", size: int = 0, subjects: int | None = None
) -> Flights | Payloads:
    """Flights of the file `data`, or payloads of so many bytes."""
    return Payloads(size, rows, subjects) if size else Flights(Path(data), rows)

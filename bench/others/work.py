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


def publish_fast(
    child: Child, url: str, first: int, last: int, ids: str | None, size: int, rows: int, **_: Any
) -> None:
    """The same as one fast-ingest batch; the server says what the window is."""
    with _wire(url) as wire:
        blocks = list(Payloads(size, rows).batch(first, last, wire.inbox, ids))
        child.run(lambda: wire.publish_fast(blocks))


def publish_atomic(
    child: Child, url: str, first: int, last: int, ids: str | None, size: int, rows: int, **_: Any
) -> None:
    """The same as atomic batches."""
    with _wire(url) as wire:
        blocks = list(Payloads(size, rows).atomic(first, last, wire.inbox, ids))
        child.run(lambda: wire.publish_atomic(blocks))


def publish_paced(child: Child, url: str, **how: Any) -> None:
    """`Wire.publish_paced` until told to stop."""
    with _wire(url) as wire:
        child.run(lambda: wire.publish_paced(**how, stopped=child.is_stopped))


def publish_steadily(child: Child, url: str, **how: Any) -> None:
    """`Wire.publish_steadily` until told to stop."""
    with _wire(url) as wire:
        child.run(lambda: wire.publish_steadily(**how, stopped=child.is_stopped))


def publish_timed(child: Child, url: str, **how: Any) -> None:
    """`Wire.publish_timed` until told to stop."""
    with _wire(url) as wire:
        child.run(lambda: wire.publish_timed(**how, stopped=child.is_stopped))


def drain_consumer(child: Child, url: str, **what: Any) -> None:
    """`Wire.drain_consumer`."""
    with _wire(url) as wire:
        child.run(lambda: wire.drain_consumer(**what))


def share_consumer(child: Child, url: str, **what: Any) -> None:
    """`Wire.share_consumer`."""
    with _wire(url) as wire:
        child.run(lambda: wire.share_consumer(**what))


def drain_direct(child: Child, url: str, **what: Any) -> None:
    """`Wire.drain_direct`."""
    with _wire(url) as wire:
        child.run(lambda: wire.drain_direct(**what))


def natspy_publish(
    child: Child, url: str, first: int, last: int, ids: str | None, window: int, **rows: Any
) -> None:
    """The rows `[first, last)` with a PubAck each."""
    pairs = _rows(**rows).rows_between(first, last)
    _in_nats_py(child, url, lambda client: natspy.publish(client, pairs, ids, window))


def natspy_fetch(child: Child, url: str, **what: Any) -> None:
    """`natspy.fetch`."""
    _in_nats_py(child, url, lambda client: natspy.fetch(client, **what))


def natspy_share(child: Child, url: str, **what: Any) -> None:
    """`natspy.share`."""
    _in_nats_py(child, url, lambda client: natspy.share(client, **what))


def natspy_last(child: Child, url: str, **what: Any) -> None:
    """`natspy.last`."""
    _in_nats_py(child, url, lambda client: natspy.last(client, **what))


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

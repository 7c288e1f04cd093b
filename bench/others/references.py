"""The same work without this package: two processes at a time, each over its part of the rows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from ..runs import Run
from ..streams import Lane, Layout, Streams
from ..usage import Sampler
from .children import Children

RAW_DRAIN: Final = "raw drain"
RAW_DIRECT: Final = "raw direct"
RAW_PUBLISH: Final = "raw publish"
NATS_PY: Final = "nats-py"
SPARK_REDUCE: Final = "Spark reduce"

_PUBLISHING: Final = {RAW_PUBLISH: "publish", NATS_PY: "natspy_publish"}
_WIRE: Final = "on_the_wire"
_NATS_PY: Final = "in_nats_py"
_PROCESSES: Final = 2


class References:
    """What reads and writes the streams without Spark."""

    def __init__(self, streams: Streams, server_pid: int) -> None:
        self._streams = streams
        self._server_pid = server_pid

    def drain_consumers(self, layout: Layout, counts: Sequence[int]) -> Run:
        """Bare sockets on consumers, one a partition, from its first message on."""
        with self._streams.consumers(layout.lanes) as names:
            return self._together(_WIRE, "drain_consumer", _pulls(layout.lanes, names, counts))

    def follow_consumers(self, layout: Layout, counts: Sequence[int]) -> Run:
        """The same on empty streams, while a producer fills them."""
        with (
            self._streams.consumers(layout.lanes) as names,
            self._children(_WIRE, "drain_consumer", _pulls(layout.lanes, names, counts)) as drains,
            Children([self._streams.publish_job()]) as producer,
            Sampler(self._server_pid) as sampler,
        ):
            drains.go()
            time.sleep(0.1)  # their first pulls are open then
            producer.go()
            produced = producer.outcome()
            run = replace(drains.outcome(), seconds=time.monotonic() - producer.started)
        return replace(run, cpu_s=sampler.cpu_s, note=f"the producer made {produced.rate:,.0f}/s")

    def drain_direct(self, layout: Layout, batch: int = 10_000) -> Run:
        """
        Bare sockets, batched direct get: a stream each, or half of the one stream each.

        `batch` messages a request; fewer are slower, and keep writers waiting for less long.
        """
        parts = [
            {"stream": stream, "start": start, "end": end, "batch": batch}
            for stream, start, end in self._ranges(layout)
        ]
        return self._together(_WIRE, "drain_direct", parts)

    def fetch(self, layout: Layout, maximum: int) -> Run:
        """
        nats-py's `fetch` on consumers without filter, as many messages of a stream at most: it has
        no batched direct get.
        """
        ranges = self._ranges(layout, maximum)
        lanes = [Lane(stream) for stream, _, _ in ranges]
        with self._streams.consumers(lanes, [start + 1 for _, start, _ in ranges]) as names:
            counts = [end - start for _, start, end in ranges]
            return self._together(_NATS_PY, "fetch", _pulls(lanes, names, counts))

    def fetch_last(self, stream: str, subjects: Sequence[str]) -> Run:
        """nats-py's `get_last_msg`, one subject after another, half of them a process."""
        halves = (subjects[part::_PROCESSES] for part in range(_PROCESSES))
        parts = [{"stream": stream, "subjects": half} for half in halves]
        return self._together(_NATS_PY, "last", parts)

    def publish(self, how: str, job: dict[str, Any], rows: int, ids: bool) -> Run:
        """
        Two publishers with half of the first `rows` of a job each: RAW_PUBLISH, from bare sockets
        in our very bytes, or NATS_PY, by its `publish_async`.
        """
        prefix = os.urandom(8).hex()
        bounds = [rows * part // _PROCESSES for part in range(_PROCESSES + 1)]
        parts = [
            job | {"first": first, "last": last, "ids": f"{prefix}-{first}" if ids else None}
            for first, last in zip(bounds, bounds[1:], strict=False)
        ]
        return self._together(_PUBLISHING[how], None, parts)

    def _ranges(self, layout: Layout, maximum: int | None = None) -> list[tuple[str, int, int]]:
        """`(start, end]` of a stream for each process."""
        ends = [min(end, maximum or end) for end in self._streams.last_sequences(layout)]
        if len(layout.subjects) > 1:
            return [(lane.stream, 0, end) for lane, end in zip(layout.lanes, ends, strict=True)]
        stream, end = layout.lanes[0].stream, ends[0]
        return [
            (stream, end * part // _PROCESSES, end * (part + 1) // _PROCESSES)
            for part in range(_PROCESSES)
        ]

    def _children(self, do: str, call: str | None, parts: Iterable[dict[str, Any]]) -> Children:
        what = {"do": do, "url": self._streams.url} | ({"call": call} if call else {})
        return Children([part | what for part in parts])

    def _together(self, do: str, call: str | None, parts: Iterable[dict[str, Any]]) -> Run:
        with self._children(do, call, parts) as children, Sampler(self._server_pid) as sampler:
            children.go()
            run = children.outcome()
        return replace(run, cpu_s=sampler.cpu_s)


def _pulls(
    lanes: Sequence[Lane], names: Sequence[str], counts: Sequence[int]
) -> list[dict[str, Any]]:
    return [
        {"stream": lane.stream, "consumer": name, "count": count}
        for lane, name, count in zip(lanes, names, counts, strict=True)
    ]

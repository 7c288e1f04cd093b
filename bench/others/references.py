"""The same work without this package: reference processes, each over its part of the rows."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ..streams import GROUP, Lane, Layout, Streams
from ..usage import Sampler
from .child import Children, Outcome

RAW_DRAIN: Final = "raw drain"
RAW_PLAIN: Final = "raw unpinned"
RAW_DIRECT: Final = "raw direct"
RAW_PUBLISH: Final = "raw publish"
NATS_PY: Final = "nats-py"
SPARK_REDUCE: Final = "Spark reduce"

_PUBLISHING: Final = {
    RAW_PUBLISH: "bench.others.work:publish",
    NATS_PY: "bench.others.work:natspy_publish",
}
"""What the children do."""

_WIRE: Final = "bench.others.work:on_the_wire"
_NATS_PY: Final = "bench.others.work:in_nats_py"
_PROCESSES: Final = 2


class References:
    """What reads and writes the streams without Spark, two processes at a time."""

    def __init__(self, streams: Streams, server_pid: int) -> None:
        self._streams = streams
        self._server_pid = server_pid

    def drain_consumers(
        self, layout: Layout, counts: Sequence[int], pinned: bool = True
    ) -> Outcome:
        """Bare sockets on consumers, one a partition, from its first message on."""
        with self._streams.consumers(layout.lanes, pinned=pinned) as names:
            return self._together(self._drains(layout, names, counts, GROUP if pinned else None))

    def follow_consumers(self, layout: Layout, counts: Sequence[int]) -> Outcome:
        """The same on empty streams, while a producer fills them."""
        with (
            self._streams.consumers(layout.lanes, pinned=True) as names,
            Children(self._drains(layout, names, counts, GROUP)) as drains,
            Children([self._streams.publish_job()]) as producer,
            Sampler(self._server_pid, None) as sampler,
        ):
            drains.go()
            time.sleep(0.1)  # their first pulls are open then
            producer.go()
            produced = producer.outcome()
            # The clock runs from the producer's start.
            outcome = replace(drains.outcome(), seconds=time.monotonic() - producer.started)
        return replace(outcome, usage=sampler.usage, note=produced_note(produced))

    def drain_direct(self, layout: Layout, batch: int = 10_000) -> Outcome:
        """
        Bare sockets, batched direct get: a stream each, or half of the one stream each.

        `batch` messages a request; fewer are slower, and keep writers waiting for less long.
        """
        return self._together(
            [
                self._job(
                    _WIRE,
                    call="drain_direct",
                    stream=stream,
                    start=start,
                    end=end,
                    batch=batch,
                )
                for stream, start, end in self._ranges(layout)
            ]
        )

    def fetch_partitions(self, layout: Layout, counts: Sequence[int]) -> Outcome:
        """nats-py's `fetch` on plain consumers, one a partition, from its first message on."""
        with self._streams.consumers(layout.lanes, pinned=False) as names:
            return self._fetch(layout.lanes, names, counts)

    def fetch_ranges(self, layout: Layout, maximum: int | None = None) -> Outcome:
        """
        nats-py's `fetch` on plain consumers without filter: it has no batched direct get.

        With `maximum` only the first so many messages of each stream.
        """
        ranges = self._ranges(layout, maximum)
        lanes = [Lane(stream, None) for stream, _, _ in ranges]
        starts = [start + 1 for _, start, _ in ranges]
        with self._streams.consumers(lanes, pinned=False, starts=starts) as names:
            return self._fetch(lanes, names, [end - start for _, start, end in ranges])

    def fetch_last(self, stream: str, subjects: Sequence[str]) -> Outcome:
        """nats-py's `get_last_msg`, one subject after another, half of them a process."""
        halves = [subjects[part::_PROCESSES] for part in range(_PROCESSES)]
        return self._together(
            [self._job(_NATS_PY, call="last", stream=stream, subjects=half) for half in halves]
        )

    def publish(self, how: str, job: dict[str, Any], rows: int, ids: bool = True) -> Outcome:
        """
        Two publishers with half of the first `rows` each.

        Args:
            how: RAW_…, from bare sockets in our very bytes; or NATS_PY, by its
                `publish_async`.
            job: says what the rows are.
            ids: whether each has a `Nats-Msg-Id`.
        """
        prefix = os.urandom(8).hex()
        return self._together(
            [
                job
                | {
                    "do": _PUBLISHING[how],
                    "first": rows * part // _PROCESSES,
                    "last": rows * (part + 1) // _PROCESSES,
                    "ids": f"{prefix}-{part}" if ids else None,
                }
                for part in range(_PROCESSES)
            ]
        )

    def _drains(
        self, layout: Layout, names: Sequence[str], counts: Sequence[int], group: str | None
    ) -> list[dict[str, Any]]:
        return [
            self._job(
                _WIRE,
                call="drain_consumer",
                stream=lane.stream,
                consumer=name,
                group=group,
                count=count,
            )
            for lane, name, count in zip(layout.lanes, names, counts, strict=True)
        ]

    def _fetch(self, lanes: Sequence[Lane], names: Sequence[str], counts: Sequence[int]) -> Outcome:
        return self._together(
            [
                self._job(_NATS_PY, call="fetch", stream=lane.stream, consumer=name, count=count)
                for lane, name, count in zip(lanes, names, counts, strict=True)
            ]
        )

    def _ranges(self, layout: Layout, maximum: int | None = None) -> list[tuple[str, int, int]]:
        """`(start, end]` of a stream for each process."""
        ends = self._streams.last_sequences(layout)
        if maximum is not None:
            ends = [min(end, maximum) for end in ends]
        if len(layout.subjects) > 1:
            return [(lane.stream, 0, end) for lane, end in zip(layout.lanes, ends, strict=True)]
        stream, end = layout.lanes[0].stream, ends[0]
        return [
            (stream, end * part // _PROCESSES, end * (part + 1) // _PROCESSES)
            for part in range(_PROCESSES)
        ]

    def _job(self, do: str, **job: Any) -> dict[str, Any]:
        return {"do": do, "url": self._streams.url, **job}

    def _together(self, jobs: list[dict[str, Any]]) -> Outcome:
        with Children(jobs) as children, Sampler(self._server_pid, None) as sampler:
            children.go()
            outcome = children.outcome()
        return replace(outcome, usage=sampler.usage)


def produced_note(produced: Outcome) -> str:
    """The producer's own rate, which bounds whoever follows it."""
    return f"the producer made {produced.rate:,.0f}/s"

"""The streams that are read and written, and the consumers that the references pull from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import ApiError
from pyspark_jetstream.options import parse_sink

from .others.children import together
from .rows import PARTITIONS, Flights
from .runs import Run, until

_NO_STORE: Final = 10049
"""The server's error for a store that it cannot make."""

WINDOW: Final = parse_sink({}).window.max_in_flight
"""Publishes without a PubAck; the sink's default."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Where one partition is: a stream, or what a filter lets through of one."""

    stream: str
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How partitions lie on streams, and the options that say so."""

    name: str
    subjects: dict[str, str]
    """The subjects of each stream."""
    lanes: tuple[Lane, ...]
    options: dict[str, str] = field(default_factory=dict)
    retention: str = "limits"


STREAMS: Final = Layout(
    "streams layout",
    {f"FLIGHTS-{p}": f"flights.{p}.>" for p in range(PARTITIONS)},
    tuple(Lane(f"FLIGHTS-{p}") for p in range(PARTITIONS)),
    {"stream": "FLIGHTS-{partition}", "partitions": str(PARTITIONS)},
)

FILTERED: Final = Layout(
    "filtered layout",
    {"FLIGHTS": "flights.>"},
    tuple(Lane("FLIGHTS", f"flights.{p}.>") for p in range(PARTITIONS)),
    {
        "stream": "FLIGHTS",
        "partitions": str(PARTITIONS),
        "partitionSubject": "flights.{partition}.>",
    },
)

INTEREST: Final = replace(STREAMS, name="interest", retention="interest")
WORKQUEUE: Final = replace(STREAMS, name="workqueue", retention="workqueue")

PAYLOADS: Final = Layout("payloads", {"PAYLOADS": "payloads.>"}, (Lane("PAYLOADS"),))


class Streams:
    """Makes, fills and deletes streams on one server."""

    def __init__(self, url: str, flights: Flights) -> None:
        self.url = url
        self.flights = flights
        self._client = Client(parse_connection({"servers": url}))
        self._js = JetStream(self._client)
        self._numbers = iter(range(1_000_000))

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    @contextmanager
    def empty(self, layout: Layout) -> Iterator[None]:
        """The layout's streams, without messages; deleted in the end."""
        made = []
        try:
            for name, subject in layout.subjects.items():
                config: dict[str, Any] = {"name": name, "subjects": [subject], "storage": "file"}
                config |= {"retention": layout.retention, "allow_direct": True}
                until(partial(self._made, config), 60.0, f"the store of stream {name}")
                made.append(name)
            yield
        finally:
            for name in made:
                self._client.request(f"{self._js.prefix}.STREAM.DELETE.{name}")

    def fresh(self, layout: Layout, rows: int, call: Callable[[], Run]) -> Callable[[], Run]:
        """`call` on streams of its own, which hold so many rows afterwards."""

        def on_fresh_streams() -> Run:
            with self.empty(layout):
                run = call()
                infos = self._js.stream_infos(list(layout.subjects))
                if (stored := sum(info.last_seq for info in infos)) != rows:
                    raise RuntimeError(f"the stream holds {stored} of {rows} rows")
                return run

        return on_fresh_streams

    def _made(self, config: dict[str, Any]) -> bool:
        """Whether a stream could be created; not while its predecessor's files are removed."""
        try:
            self._js.create_stream(config)
        except ApiError as error:
            if error.err_code != _NO_STORE:
                raise
            return False
        return True

    def publish(self, rows: int) -> Run:
        """The first `rows` flights, from a bare socket."""
        return together([self.publish_job(rows)])

    def publish_payloads(self, size: int, rows: int, subjects: int) -> Run:
        """`Payloads(size, rows, subjects)`, from a bare socket."""
        job = self.publish_job(rows) | {"size": size, "rows": rows, "subjects": subjects}
        return together([job])

    def publish_job(self, rows: int | None = None) -> dict[str, Any]:
        """A bare-socket publisher of the first flights, of all unless given."""
        last = self.flights.rows if rows is None else rows
        return {
            "do": "publish",
            "url": self.url,
            "rows": max(last, self.flights.rows),
            "first": 0,
            "last": last,
            "ids": None,
            "window": WINDOW,
        }

    def last_sequences(self, layout: Layout) -> list[int]:
        """Where the stream of each lane ends."""
        infos = self._js.stream_infos([lane.stream for lane in layout.lanes])
        return [info.last_seq for info in infos]

    @contextmanager
    def consumers(
        self, lanes: Sequence[Lane], starts: Sequence[int] | None = None, policy: str = "none"
    ) -> Iterator[list[str]]:
        """Durables with this ack policy, one a lane, from `starts` on; deleted in the end."""
        made: list[tuple[str, str]] = []
        try:
            for at, lane in enumerate(lanes):
                name = f"reference-{next(self._numbers)}"
                config: dict[str, Any] = {"durable_name": name, "ack_policy": policy}
                if starts is not None:
                    config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": starts[at]}
                if lane.filter is not None:
                    config["filter_subject"] = lane.filter
                self._js.create_consumer(lane.stream, config)
                made.append((lane.stream, name))
            yield [name for _, name in made]
        finally:
            for stream, name in made:
                self._js.call(f"CONSUMER.DELETE.{stream}.{name}")

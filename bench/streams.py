"""The streams that are read and written, and the consumers that the references pull from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import ApiError
from pyspark_jetstream.options import parse_sink

from .flights import PARTITIONS, Flights
from .others.child import Children, Outcome
from .waiting import until

GROUP: Final = "bench"

_NO_STORE: Final = 10049
"""The server's error for a store that it cannot make."""

WINDOW: Final = parse_sink({}).window.max_in_flight
"""Publishes without a PubAck; the sink's default."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Where one partition is: a stream, or what a filter lets through of one."""

    stream: str
    filter: str | None


@dataclass(frozen=True, slots=True)
class Layout:
    """How partitions lie on streams, and the options that say so."""

    name: str
    subjects: dict[str, str]
    """The subjects of each stream."""
    lanes: tuple[Lane, ...]
    options: dict[str, str]
    config: dict[str, Any] = field(default_factory=dict)
    """What else is set on its streams."""


STREAMS: Final = Layout(
    "streams layout",
    {f"FLIGHTS-{p}": f"flights.{p}.>" for p in range(PARTITIONS)},
    tuple(Lane(f"FLIGHTS-{p}", None) for p in range(PARTITIONS)),
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


class Streams:
    """Makes, fills and deletes streams on one server; a context manager."""

    def __init__(self, url: str, flights: Flights, data: Path) -> None:
        self.url = url
        self.flights = flights
        self._data = data
        self._client = Client(parse_connection({"servers": url}))
        self._js = JetStream(self._client)
        self._numbers = iter(range(1_000_000))

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @contextmanager
    def empty(self, layout: Layout) -> Iterator[None]:
        """The layout's streams, without messages; deleted in the end."""
        made = []
        try:
            for name, subject in layout.subjects.items():
                config = {"name": name, "subjects": [subject], "storage": "file"}
                create(self._js, config | {"allow_direct": True} | layout.config)
                made.append(name)
            yield
        finally:
            for name in made:
                self._client.request(f"{self._js.prefix}.STREAM.DELETE.{name}")

    def publish(self, rows: int) -> Outcome:
        """The first `rows` flights, from a bare socket."""
        return _alone(self.publish_job(0, rows))

    def publish_job(
        self, first: int = 0, last: int | None = None, ids: str | None = None
    ) -> dict[str, Any]:
        """A bare-socket publisher of the flights `[first, last)`, of all unless given."""
        last = self.flights.rows if last is None else last
        return {
            "do": "bench.others.work:publish",
            "url": self.url,
            "data": str(self._data),
            "rows": max(last, self.flights.rows),
            "first": first,
            "last": last,
            "ids": ids,
            "window": WINDOW,
        }

    def last_sequences(self, layout: Layout) -> list[int]:
        """Where the stream of each lane ends."""
        infos = self._js.stream_infos([lane.stream for lane in layout.lanes])
        return [info.last_seq for info in infos]

    @contextmanager
    def consumers(
        self, lanes: Sequence[Lane], pinned: bool, starts: Sequence[int] | None = None
    ) -> Iterator[list[str]]:
        """Durables that want no acks, one a lane; deleted in the end."""
        made: list[tuple[str, str]] = []
        try:
            for at, lane in enumerate(lanes):
                name = f"reference-{next(self._numbers)}"
                config: dict[str, Any] = {"durable_name": name, "ack_policy": "none"}
                config["deliver_policy"] = "all"
                if starts is not None:
                    config["deliver_policy"] = "by_start_sequence"
                    config["opt_start_seq"] = starts[at]
                if lane.filter is not None:
                    config["filter_subject"] = lane.filter
                if pinned:
                    config["priority_groups"] = [GROUP]
                    config["priority_policy"] = "pinned_client"
                self._js.create_consumer(lane.stream, config)
                made.append((lane.stream, name))
            yield [name for _, name in made]
        finally:
            for stream, name in made:
                self._js.delete_consumers([(stream, name)])


def create(js: JetStream, config: dict[str, Any]) -> None:
    """
    Creates a stream, also where the server still removes the files of one of the same name.

    Raises:
        TimeoutError: The server can make no store for it.
    """

    def made() -> bool:
        try:
            js.create_stream(config)
        except ApiError as error:
            if error.err_code != _NO_STORE:
                raise
            return False
        return True

    until(made, 60.0, f"the store of stream {config['name']}")


def publish_payloads(url: str, size: int, rows: int, subjects: int) -> Outcome:
    """`Payloads(size, rows, subjects)`, from a bare socket."""
    return _alone(
        {
            "do": "bench.others.work:publish",
            "url": url,
            "size": size,
            "rows": rows,
            "subjects": subjects,
            "first": 0,
            "last": rows,
            "ids": None,
            "window": WINDOW,
        }
    )


def _alone(job: dict[str, Any]) -> Outcome:
    with Children([job]) as children:
        children.go()
        return children.outcome()

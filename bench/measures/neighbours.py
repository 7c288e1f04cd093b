"""
What publishers feel of reads: PubAcks while one, two, four and eight tasks read a stream beside.

No Spark: each task is a process that reads its part of the stream over and over, as a task of
`spark.read` does, by a consumer of its own or by direct get; or it plans and reads a snapshot over
and over. A publish waits twice for what the
tasks have asked for and not got, when it arrives and for its PubAck (docs/design.md, "A good
neighbour"). So it is timed from when it was sent, and those that follow do not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Final

from rich.table import Table

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.layout import DirectRead
from pyspark_jetstream.fetch.own import Own
from pyspark_jetstream.fetch.pulling.alone import OwnAttempt
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.options import SnapshotOptions
from pyspark_jetstream.read.snapshot import JetStreamSnapshotReader
from tests.kits.servers import DevCluster, DevServer

from ..comparisons import Part, Times
from ..others.bare import Counted
from ..others.child import Child, Children
from ..results import RATE, Entry
from ..streams import publish_payloads

_ROWS: Final = 600_000
_SIZE: Final = 91
"""Bytes of a payload."""

_SUBJECTS: Final = 1_000
_SNAPSHOT_SUBJECTS: Final = 50_000
"""With so many the package looks them up by name: messages are twelve times as many."""

_TASKS: Final = (1, 2, 4, 8)
_TOGETHER: Final = (
    (("read", 50), ("read", 500), ("other", 500)),
    (("read", 5_000), ("other", 5_000)),
)
"""Publishers that are timed at the same time: where to, and how many publishes a second."""

_SETTLES_S: Final = 1.0
"""How long tasks read before publishes are timed."""

_WAYS: Final = {
    "own consumer": ("own", {}),
    "own consumer, maxPublishDelay=20ms": ("own", {"maxPublishDelay": "20ms"}),
    "direct get": ("direct", {}),
    "direct get, maxPublishDelay=20ms": ("direct", {"maxPublishDelay": "20ms"}),
}


_SNAPSHOTS: Final = {
    "snapshot": ("snapshot", {}),
    "snapshot, maxPublishDelay=20ms": ("snapshot", {"maxPublishDelay": "20ms"}),
}
_Ways = Mapping[str, tuple[str, Mapping[str, str]]]


@dataclass(slots=True)
class _Seen:
    """What tasks read, and what publishers saw meanwhile."""

    name: str
    rates: list[float] = field(default_factory=list)
    """Rows a second of all tasks, in each run."""
    times: dict[tuple[str, int], Times] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return sum(self.rates) / len(self.rates) if self.rates else 0.0


def parts(seconds: float) -> dict[str, Callable[[], Part]]:
    """
    Publishers without a read, then beside each way to read and number of tasks.

    Args:
        seconds: how long publishes are timed.
    """

    def alone() -> Part:
        with DevServer() as server:
            return _part("reads", server.url, _WAYS, _TASKS, 1, seconds)

    def replicated() -> Part:
        with DevCluster(3) as cluster:
            return _part("reads of R3", cluster.servers[0].url, _WAYS, _TASKS, 3, seconds)

    def snapshots() -> Part:
        with DevServer() as server:
            return _part("snapshots", server.url, _SNAPSHOTS, (1, 2), 1, seconds)

    return {
        "neighbours": alone,
        "neighbours on three replicas": replicated,
        "neighbours of snapshots": snapshots,
    }


def _part(
    name: str, url: str, ways: _Ways, numbers: Sequence[int], replicas: int, seconds: float
) -> Part:
    subjects = _SNAPSHOT_SUBJECTS if ways is _SNAPSHOTS else _SUBJECTS
    with closing(_client(url, {})) as client:
        js = JetStream(client)
        config = {"allow_direct": True, "num_replicas": replicas}
        js.create_stream({"name": "READ", "subjects": ["payloads.>"]} | config)
        js.create_stream({"name": "OTHER", "subjects": ["other.>"]} | config)
        publish_payloads(url, _SIZE, _ROWS, subjects)
        seen = [_beside(url, "no read", [], subjects, seconds)]
        for way, (how, options) in ways.items():
            for tasks in numbers:
                jobs = [
                    {
                        "do": "bench.measures.neighbours:read_over",
                        "url": url,
                        "way": how,
                        "after": _ROWS * task // tasks,
                        "until": _ROWS * (task + 1) // tasks,
                        "options": options,
                    }
                    for task in range(tasks)
                ]
                of = f"{way}, {tasks} tasks" if tasks > 1 else f"{way}, 1 task"
                seen.append(_beside(url, of, jobs, subjects, seconds))
    return Part(_entries(seen), _table(name, seen))


def _beside(
    url: str, name: str, jobs: list[dict[str, Any]], subjects: int, seconds: float
) -> _Seen:
    seen = _Seen(name)
    for targets in _TOGETHER:
        with ExitStack() as stack:
            tasks = stack.enter_context(Children(jobs))
            publishers = [
                stack.enter_context(
                    Children(
                        [
                            {
                                "do": "bench.others.work:on_the_wire",
                                "call": "publish_timed",
                                "url": url,
                                "subject": "payloads" if to == "read" else to,
                                "subjects": subjects,
                                "size": _SIZE,
                                "rate": rate,
                            }
                        ]
                    )
                )
                for to, rate in targets
            ]
            tasks.go()
            time.sleep(_SETTLES_S)
            for publisher in publishers:
                publisher.go()
            time.sleep(seconds)
            for (to, rate), publisher in zip(targets, publishers, strict=True):
                publisher.stop()
                each = [1e3 * latency_s for latency_s in publisher.outcome().latencies_s]
                seen.times[to, rate] = Times(f"{rate}/s to {to}, {name}", each)
            tasks.stop()
            if jobs:
                seen.rates.append(tasks.outcome().rate)
    return seen


def _entries(seen: list[_Seen]) -> list[Entry]:
    made = []
    for each in seen:
        if each.rates:
            made.append(Entry(each.name, round(each.rate), RATE))
        for target, times in each.times.items():
            made += times.entries(seen[0].times[target] if each is not seen[0] else None)
    return made


def _table(name: str, seen: list[_Seen]) -> Table:
    """A line for each way and number of tasks."""
    table = Table(f"{name} beside publishers")
    table.add_column("rows/s", justify="right")
    for to, rate in seen[0].times:
        stream = "the stream read" if to == "read" else "another"
        table.add_column(f"p99 ms,\n{rate:,}/s to {stream}", justify="right")
    for each in seen:
        p99 = (f"{times.quantile(0.99):,.1f}" for times in each.times.values())
        table.add_row(each.name, f"{each.rate:,.0f}" if each.rates else "", *p99)
    return table


def _client(url: str, options: Mapping[str, str]) -> Client:
    return Client(parse_read({"servers": url, "stream": "READ", **options}).connection)


def read_over(
    child: Child, url: str, way: str, after: int, until: int, options: dict[str, str]
) -> None:
    """For a process of its own: reads `(after, until]` over and over until told to stop."""
    with closing(_client(url, options)) as client:
        client.connection.ping(10.0)
        if way == "snapshot":
            child.run(lambda: _snapshots(url, options, child.is_stopped))
        else:
            child.run(lambda: _read(client, way, after, until, child.is_stopped))


def _snapshots(url: str, options: Mapping[str, str], is_stopped: Callable[[], bool]) -> Counted:
    rows = 0
    while not is_stopped():
        read = parse_read({"servers": url, "stream": "READ", "multiLast": ">", **options})
        assert isinstance(read, SnapshotOptions)
        reader = JetStreamSnapshotReader(read)
        for task in reader.partitions():
            for batch in reader.read(task):
                rows += batch.num_rows
            if is_stopped():
                break
    return Counted(rows)


def _read(
    client: Client, way: str, after: int, until: int, is_stopped: Callable[[], bool]
) -> Counted:
    rows = 0
    while not is_stopped():
        if way == "own":
            own = Own(0, "READ", None, after, until, None, False, True)
            batches = OwnAttempt(client, own).batches()
        else:
            direct = DirectRead(0, "READ", None, after, until, None, False, True)
            batches = read_direct(client, direct)
        for batch in batches:
            rows += batch.num_rows
            if is_stopped():
                break
    return Counted(rows)

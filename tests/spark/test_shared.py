"""Queries that share a consumer, in real Sparks, killed and restarted."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from .test_faults import deliveries, run_until_killed

SHARED = {"priorityPolicy": "overflow", "consumer": "jobs"}


def test_a_shared_read(run_query, new_stream, publish):
    """A shared read has `deliveries`; two checkpoints have the stream between them."""
    name = new_stream()
    publish([(f"{name}.a", b"m%d" % i, [("K", "v")]) for i in range(90)])
    first = run_query("one", stream=name, startingOffsets='{"0": 11}', maxRecordsPerTrigger=30,
                      includeHeaders="true", minPartitions=2, **SHARED)  # fmt: skip
    publish([(f"{name}.a", b"late")])
    second = run_query("two", stream=name, **SHARED)
    row = first.rows[0]

    assert list(row.asDict()) == [
        "subject", "data", "sequence", "timestamp", "partition", "stream", "headers", "deliveries",
    ]  # fmt: skip
    assert (row.headers, row.deliveries, row.partition, row.stream) == ({"K": ["v"]}, 1, 0, name)
    assert first.sequences == list(range(11, 91))
    assert (sum(first.sizes), max(first.sizes)) == (80, 30)
    assert second.sequences == [91]
    assert any('"claimed": 30' in str(p["sources"][0]["latestOffset"]).replace("'", '"')
               for p in first.progress)  # fmt: skip


class Lives(threading.Thread):
    """One query's lives: killed at each of these points, and then left to run."""

    def __init__(self, home, points, options):
        super().__init__(daemon=True)
        home.mkdir()
        self.home, self.points, self.options = home, points, options
        self.died: list[int] = []

    def run(self):
        for number, point in enumerate([*self.points, ""]):
            self.died.append(run_until_killed(self.home, number, point, self.options))

    @property
    def rows(self):
        """Sequences of all batches, each batch once."""
        return [row[1] for attempts in deliveries(self.home).values() for row in attempts[-1]]

    @property
    def log(self):
        return "\n".join(path.read_text()[-1500:] for path in sorted(self.home.glob("log-*")))


@pytest.mark.parametrize(
    ("ack_wait", "primary", "second"),
    [
        ("90s", ["before the commit log"], ["after some rows"]),
        ("5s", ["before the write-ahead log"], []),
    ],
    ids=["recorded", "not-recorded"],
)
def test_a_primary_and_an_overflow_query_killed(
    new_stream, publish, nats_server, tmp_path, monkeypatch, ack_wait, primary, second
):
    """A primary and an overflow query, killed at points, commit each message once."""
    name = new_stream()
    total = 600
    publish([(f"{name}.x", b"m%d" % i) for i in range(total)])
    stop = tmp_path / "stop"
    monkeypatch.setenv("FAULT_STOP", str(stop))
    options = {
        "servers": nats_server.url, "stream": name, "maxRecordsPerTrigger": 20,
        "priorityGroup": "both", "ackWait": ack_wait, **SHARED,
    }  # fmt: skip
    queries = [
        Lives(tmp_path / "primary", primary, options),
        Lives(tmp_path / "second", second, options | {"minPending": 100}),
    ]
    for each in queries:
        each.start()
    deadline = time.monotonic() + 900
    while len({row for each in queries for row in each.rows}) < total:
        assert time.monotonic() < deadline, "\n".join(each.log for each in queries)
        assert any(each.is_alive() for each in queries), "\n".join(e.log for e in queries)
        time.sleep(0.5)
    stop.touch()
    for each in queries:
        each.join(240)
    logs = "\n".join(each.log for each in queries)

    assert [e.died for e in queries] == [
        [-signal.SIGKILL] * len(points) + [0] for points in (primary, second)
    ], logs
    assert sorted(row for each in queries for row in each.rows) == list(range(1, total + 1)), logs
    assert all(each.rows for each in queries), "one had nothing to do"
    for each in queries:
        for attempts in deliveries(each.home).values():
            assert all(attempt == attempts[0] for attempt in attempts)

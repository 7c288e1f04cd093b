"""
Queries that share the streams of a pattern, which come and go while they read: each message that is
there to be read is in one batch of one query.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_jetstream.errors import DataLossError, OffsetError, OptionError, ReadError
from pyspark_jetstream.publish.metrics import READ_LAG
from pyspark_jetstream.readstream.counts import ReadCounts
from pyspark_jetstream.readstream.shared import claimdriver
from pyspark_jetstream.readstream.shared.claimedread import ClaimedRead
from pyspark_jetstream.readstream.shared.claimpulls import ClaimPulls, LastClaim
from pyspark_jetstream.readstream.shared.claims import SharedConsumer
from pyspark_jetstream.readstream.shared.manyclaims import ManyClaims
from pyspark_jetstream.tasks.rows import WarmUp

from ..kits.reading import Query
from ..kits.seeds import fresh
from ..kits.shared import eventually, query
from ..kits.tenants import Tenants, tenants

__all__ = ["query", "tenants"]

SEEDS = [1, *fresh(__name__)]


@pytest.fixture
def member(tenants: Tenants, query: Callable[..., Query]) -> Callable[..., Query]:
    """Makes queries of the pattern that takes the test's streams."""

    def make(**options: Any) -> Query:
        usual = {"ackWait": "3s", "maxRecordsPerTrigger": 10, "failOnDataLoss": "false"}
        return query(**usual | {"streamPattern": f"{tenants.prefix}-*"} | options)

    return make


def places(*queries: Query) -> list[tuple[str, int, int]]:
    """Stream, partition and sequence of all rows."""
    return sorted((r["stream"], r["partition"], r["sequence"]) for q in queries for r in q.rows)


def every(tenants: Tenants, **counts: int) -> list[tuple[str, int, int]]:
    """What streams of so many messages have."""
    return sorted((tenants.name(n), 0, s + 1) for n, count in counts.items() for s in range(count))


def dealt_out(tenants: Tenants, *queries: Query) -> None:
    """Goes on until everything is acknowledged: what was held elsewhere comes after its wait."""
    names = [name for name in tenants.js.stream_names() if name.startswith(tenants.prefix)]

    def done() -> bool:
        for each in queries:
            each.drain()
        found = tenants.js.consumer_infos([(name, "jobs") for name in names])
        return all(of is not None and of.num_ack_pending + of.num_pending == 0 for of in found)

    eventually(done)


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
def test_streams_come_while_both_read(
    tenants: Tenants, member: Callable[..., Query], retention: str
) -> None:
    """
    A stream that comes is read from its first message, by the consumer that whoever sees it first
    makes; of retention `interest` from the first message that the consumer was there for.
    """
    tenants.make("b", "d", retention=retention)
    one, two = member(), member()
    assert one.claim() is None and two.claim() is None
    tenants.fill("b", "d", count=25)
    one.step()
    tenants.make("a", "c", retention=retention)
    tenants.fill("c", count=4)  # nobody's, where a consumer has to be there
    two.step()  # now it is
    tenants.fill("a", "c", count=30)
    while one.step() + two.step():
        pass
    dealt_out(tenants, one, two)
    earlier = 4 if retention == "interest" else 0

    rows = every(tenants, a=30, b=25, c=34, d=25)
    assert places(one, two) == [r for r in rows if r[0] != tenants.name("c") or r[2] > earlier]
    assert {r["stream"] for r in one.rows} & {r["stream"] for r in two.rows}


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("when", ["planned", "committed", "idle"])
def test_a_stream_that_is_deleted(
    tenants: Tenants, member: Callable[..., Query], when: str, fails: str
) -> None:
    """
    A stream that goes is a loss, of which the error names it. With failOnDataLoss=false its claims
    are nobody's any more and the others are read on, also after a restart.
    """
    tenants.make("a", "b", "c")
    tenants.fill("a", "b", "c", count=5)
    one, two = member(maxRecordsPerTrigger=12, failOnDataLoss=fails), member()
    one.plan()
    if when != "planned":
        one.commit()
    if when == "idle":
        one.drain()
    tenants.remove("b")
    if fails == "true":
        for _ in range(2):  # and it is no less one after a restart
            with pytest.raises(DataLossError, match=f"'{tenants.name('b')}'.*deleted"):
                one.commit()
                one.claim()
            one.die()
            one.reader = one._reader()
        return
    if when == "planned":
        one.commit()
    one.drain()
    two.drain()
    tenants.fill("a", "c", count=3)
    one.restart()
    dealt_out(tenants, one, two)

    gone = tenants.name("b")
    assert [row for row in places(one, two) if row[0] != gone] == every(tenants, a=8, c=8)
    tenants.make("b")
    tenants.fill("b", count=7)
    before = len(one.rows), len(two.rows)
    dealt_out(tenants, one, two)
    later = one.rows[before[0] :] + two.rows[before[1] :]
    assert sorted((r["stream"], r["sequence"]) for r in later) == [(gone, n + 1) for n in range(7)]


def test_a_batch_that_runs_again_keeps_its_tasks(
    tenants: Tenants, member: Callable[..., Query]
) -> None:
    """
    A stream that is gone, or was made anew, when a batch runs again has a task that reads nothing;
    the others have theirs at the same places, wherever new streams stand among them.
    """
    tenants.make("b", "c", "d", "e")
    tenants.fill("b", "c", "d", "e", count=3)
    one = member(maxRecordsPerTrigger=50)
    one.plan()
    first = one.tasks()
    assert [task.work.stream for task in first] == [tenants.name(n) for n in "bcde"]
    one.die()
    tenants.remove("c", "d")
    tenants.make("a", "d", "f")
    tenants.fill("d", count=9)
    again = member(maxRecordsPerTrigger=50)
    again.planned = one.planned
    second = again.tasks()

    assert [type(task.work) for task in second] == [ClaimedRead, WarmUp, WarmUp, ClaimedRead]
    for place in (0, 3):
        assert second[place].work.claims == first[place].work.claims
        assert second[place].work.stream == first[place].work.stream
    again.commit()
    again.drain()
    assert places(again) == every(tenants, b=3, d=9, e=3)


def test_a_list_in_another_order_has_the_tasks_it_had(
    tenants: Tenants, query: Callable[..., Query]
) -> None:
    """
    Tasks are told by their places: a sink's own records go by these.
    """
    tenants.make("a", "b")
    tenants.fill("a", "b")
    a, b = tenants.name("a"), tenants.name("b")
    one = query(stream=f"{b},{a}")
    one.plan()
    first = [task.work.stream for task in one.tasks()]
    one.die()
    one.options["stream"] = f"{a},{b}"
    one.reader = one._reader()

    assert [task.work.stream for task in one.tasks()] == first == [a, b]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_that_is_deleted_amid_a_batch(
    tenants: Tenants, member: Callable[..., Query], fails: str
) -> None:
    """
    Between the plan and the task: the task says what was lost, or reads nothing.
    """
    tenants.make("a", "b")
    tenants.fill("a", "b")
    one = member(failOnDataLoss=fails, requestTimeout="2s")
    one.plan()
    tasks = one.tasks()
    tenants.remove("b")
    rows = [row for batch in one.reader.read(tasks[0]) for row in batch.to_pylist()]
    assert len(rows) == 3
    if fails == "true":
        with pytest.raises(DataLossError, match=f"'{tenants.name('b')}'.*was deleted"):
            list(one.reader.read(tasks[1]))
    else:
        assert list(one.reader.read(tasks[1])) == []


def test_a_stream_that_is_deleted_between_claim_and_look(
    tenants: Tenants, member: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    What was claimed of a stream that goes before the batch is planned is in no batch, and the
    claims of the others are.
    """
    tenants.make("a", "b")
    one = member()
    assert one.claim() is None
    tenants.fill("a", "b")
    streams = one.reader.driver._streams
    look = streams.look

    def late() -> Any:
        monkeypatch.undo()
        tenants.remove("b")
        tenants.make("b")
        tenants.fill("b", count=2)
        return look()

    monkeypatch.setattr(streams, "look", late)
    one.step()
    assert places(one) == every(tenants, a=3)
    one.drain()
    dealt_out(tenants, one)
    assert places(one) == every(tenants, a=3, b=2)
    assert "of 0 claims" in repr(one.reader.driver.member.heartbeats)


def test_a_consumer_that_waits_less(tenants: Tenants, member: Callable[..., Query]) -> None:
    """
    Heartbeats follow the consumer with the shortest ack wait, also of a stream that comes later.
    """
    tenants.make("a")
    one = member()
    del one.options["ackWait"]
    one.reader = one._reader()
    assert one.claim() is None
    heartbeats = one.reader.driver.member.heartbeats
    assert heartbeats._interval_s == 40.0
    config = tenants.js.consumer_info(tenants.name("a"), "jobs").config
    config = {key: value for key, value in config.items() if key not in ("metadata", "name")}
    tenants.make("b")
    tenants.js.create_consumer(tenants.name("b"), config | {"ack_wait": 30 * 10**9})
    assert one.claim() is None and one.claim() is None
    assert heartbeats._interval_s == 10.0


def test_a_query_that_is_killed_while_streams_go(
    tenants: Tenants, member: Callable[..., Query]
) -> None:
    """
    Its batch stays its own while it is away, but for what is gone; of that the record of open
    batches has nothing once both have seen it.
    """
    tenants.make("a", "b", "c")
    tenants.fill("a", "b", "c", count=4)
    one, two = member(maxRecordsPerTrigger=12), member()
    one.plan()
    one.die()
    tenants.remove("b")
    tenants.make("d")
    tenants.fill("d", count=4)
    two.drain()
    time.sleep(3.5)  # its claims are dealt out again
    two.drain()
    assert places(two) == every(tenants, d=4)
    one.restart()
    dealt_out(tenants, one, two)

    assert places(one, two) == every(tenants, a=4, c=4, d=4)
    for each in (one, two):
        tenants.fill("a", count=1)
        eventually(each.step)
    fence = two.reader.driver.member.batches._fence
    assert {name for name in fence.settled if name.startswith(f"{tenants.prefix}-")} == {
        tenants.name(n) for n in "acd"
    }


def test_what_a_pattern_may_become(tenants: Tenants, member: Callable[..., Query]) -> None:
    """
    Another pattern, or a list, that takes all streams of the checkpoint goes on; one that does not
    is refused, and the error says which stream, and the way out.
    """
    tenants.make("a", "b")
    tenants.fill("a", "b")
    one = member()
    one.drain()
    one.restart(streamPattern="*")
    one.restart(streamPattern=f"{tenants.prefix}-b*")
    told = f"has stream '{tenants.name('a')}', too, which is none of streamPattern="
    with pytest.raises(OffsetError, match=told):
        one.plan()
    one.restart(streamPattern=f"{tenants.prefix}-*")
    tenants.fill("b")
    one.drain()
    assert places(one) == every(tenants, a=3, b=6)
    del one.options["streamPattern"]
    one.restart(stream=f"{tenants.name('b')},{tenants.name('a')},{tenants.name('c')}")
    assert one.claim() is None
    tenants.make("c")
    tenants.fill("c")
    dealt_out(tenants, one)  # a list takes what is named, as soon as it is there
    assert places(one) == every(tenants, a=3, b=6, c=3)


def test_where_a_stream_that_comes_begins(tenants: Tenants, member: Callable[..., Query]) -> None:
    """
    At its first message, whatever word the others begin by; where `startingOffsets` names it, at
    that sequence, as soon as it is there.
    """
    tenants.make("a")
    tenants.fill("a")
    at = f'{{"{tenants.name("b")}": {{"0": 4}}, "{tenants.name("a")}": {{"0": "latest"}}}}'
    one = member(startingOffsets=at)
    assert one.claim() is None
    tenants.make("b", "c")
    tenants.fill("b", "c", count=2)
    eventually(one.step)
    one.drain()
    assert places(one) == every(tenants, c=2)
    tenants.fill("b", count=4)
    dealt_out(tenants, one)

    assert places(one) == [(tenants.name("b"), 0, n) for n in (4, 5, 6)] + every(tenants, c=2)


@pytest.mark.parametrize("meanwhile", [False, True])
def test_what_comes_is_read_whole(
    tenants: Tenants, member: Callable[..., Query], meanwhile: bool
) -> None:
    """
    With startingOffsets=latest, too, a stream that comes is read from its first message, whether
    the query runs or is away.
    """
    tenants.make("a")
    tenants.fill("a")
    one = member(startingOffsets="latest")
    assert one.claim() is None
    tenants.fill("a")
    eventually(one.step)
    if meanwhile:
        one.die()
    tenants.make("b")
    tenants.fill("b")
    if meanwhile:
        one.restart()
    dealt_out(tenants, one)

    assert places(one) == [(tenants.name("a"), 0, n) for n in (4, 5, 6)] + every(tenants, b=3)


def test_a_run_that_ends_takes_none_that_comes_later(
    tenants: Tenants, member: Callable[..., Query]
) -> None:
    """
    With availableNow the streams are those that were there when the run began.
    """
    tenants.make("a")
    tenants.fill("a", count=15)
    one = member()
    one.reader.prepareForTriggerAvailableNow()
    one.step()
    tenants.make("b")
    tenants.fill("b")
    one.drain()
    assert places(one) == every(tenants, a=15)
    one.restart()
    dealt_out(tenants, one)
    assert places(one) == every(tenants, a=15, b=3)


def test_a_stream_that_cannot_be_shared(tenants: Tenants, member: Callable[..., Query]) -> None:
    """
    One that comes is checked as those that were there are: the error names it.
    """
    tenants.make("a")
    one = member()
    assert one.claim() is None
    tenants.make("b", allow_direct=False)
    with pytest.raises(OptionError, match=f"'{tenants.name('b')}' has direct get off"):
        eventually(one.claim)


def test_all_streams_may_go(tenants: Tenants, member: Callable[..., Query]) -> None:
    """
    A query of no stream waits until one comes.
    """
    tenants.make("a")
    tenants.fill("a")
    one = member()
    one.drain()
    tenants.remove("a")
    assert one.claim() is None and one.claim() is None
    tenants.make("b")
    tenants.fill("b")
    dealt_out(tenants, one)
    assert places(one) == every(tenants, a=3, b=3)


def test_metrics_of_streams_that_come_and_go(
    tenants: Tenants, member: Callable[..., Query]
) -> None:
    """
    The report, and the gauges, are of the streams that are there, under their names.
    """
    tenants.make("a", "b")
    tenants.fill("a", "b")
    one = member(metricsSubject=f"metrics.{tenants.prefix}", metricsInterval="1s")
    one.drain()
    tenants.remove("a")
    tenants.make("c")
    one.claim()
    tenants.fill("b", "c", count=2)
    eventually(one.step)
    one.drain()
    report = one.reader.reportLatestOffset()

    assert {each["stream"] for each in report.values() if "stream" in each} == {
        tenants.name("b"), tenants.name("c"),
    }  # fmt: skip
    reporting = one.reader.driver._reporting
    with reporting.counting() as counts:
        assert isinstance(counts, ReadCounts)
        lags = counts._values[READ_LAG.name]
    assert {labels[1] for labels in lags} == {tenants.name("b"), tenants.name("c")}


def test_who_waits_at_many_streams_asks_for_the_streams_alone(
    tenants: Tenants, member: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Where all that many streams hold is acknowledged nothing comes by a claim, for whatever reason:
    until a stream has more no consumer is asked. While others hold messages, which may come back,
    each is.
    """
    monkeypatch.setattr(claimdriver, "_LOOKS_A_SECOND", 1e-6)  # the test may take long
    names = [f"s{number}" for number in range(10)]
    tenants.make(*names)
    tenants.fill(*names, count=1)
    one, other = member(maxRecordsPerTrigger=100), member(maxRecordsPerTrigger=100)
    one.drain()
    claims = counted(monkeypatch, one.reader.driver.claimant)

    eventually(lambda: (one.step(), one.reader.driver._acked)[1])
    claims.clear()
    assert [one.step() for _ in range(3)] == [0, 0, 0] and not claims
    tenants.fill("s7", count=2)
    rows = every(tenants, **dict.fromkeys(names, 1) | {"s7": 3})
    eventually(lambda: (one.step(), places(one))[1] == rows)
    assert claims
    one.drain()
    tenants.fill("s3", count=1)
    other.plan()
    eventually(lambda: other.reader.driver.member.heartbeats.held() and not one.step())
    claims.clear()
    one.step()
    assert claims, "what another query has may come back"


def counted(monkeypatch: pytest.MonkeyPatch, claimant: Any) -> list[int]:
    """The limits of the claims that are made from now on."""
    limits: list[int] = []
    claim = claimant.claim

    def counting(limit: int, wait_s: float) -> Any:
        limits.append(limit)
        return claim(limit, wait_s)

    monkeypatch.setattr(claimant, "claim", counting)
    return limits


def test_an_error_names_the_stream() -> None:
    """
    One of several streams is partition 0 of itself, whatever its place among them.
    """
    alone = SharedConsumer(0, "ORDERS", "jobs", None, is_alone=True)
    claim = LastClaim({"ORDERS": []})
    pulls = ClaimPulls({"ORDERS": alone}, {"ORDERS": 10}, ManyClaims(), claim)
    pulls.open[1] = "ORDERS"
    frame: Any = type("Frame", (), {"sid": 1, "reply": "", "headers": b"NATS/1.0 499 No\r\n\r\n"})
    with pytest.raises(ReadError, match="stream 'ORDERS', partition 0: .*499"):
        pulls.receive(frame)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_they_do(tenants: Tenants, member: Callable[..., Query], seed: int) -> None:
    """
    Three queries claim, run, end and are killed at random while streams come and go: no message is
    in two batches, and every message of a stream that stayed is in one.
    """
    rng = random.Random(seed)
    counts = {"s0": 0, "s1": 0}
    tenants.make(*counts)
    queries = [member(ackWait="2s") for _ in range(3)]
    made = len(counts)
    gone: set[str] = set()
    for _ in range(60):
        each, step = rng.choice(queries), rng.random()
        if step < 0.3:
            name = rng.choice([*counts])
            tenants.fill(name, count=(count := rng.randint(1, 15)))
            counts[name] += count
        elif step < 0.38:
            tenants.make(f"s{made}")
            counts[f"s{made}"] = 0
            made += 1
        elif step < 0.44 and len(counts) > 1:
            name = rng.choice([*counts])
            tenants.remove(name)
            del counts[name]
            gone.add(tenants.name(name))
        elif step < 0.85:
            each.step()
        else:
            # In the midst of a first batch that is in no checkpoint a query loses its name, too.
            recorded = rng.random() < 0.5 or not each.planned
            (each.plan if recorded else each.claim)()
            each.restart()
    dealt_out(tenants, *queries)

    found = places(*queries)
    assert len(found) == len(set(found))
    assert [place for place in found if place[0] not in gone] == every(tenants, **counts)

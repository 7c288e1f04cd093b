"""
Queries that share the consumers of several streams: each message is in one batch of one query,
whatever the order of their lists, and also where the lists differ.
"""

from __future__ import annotations

import random
import time

import pytest

from pyspark_jetstream.errors import OffsetError, StreamNotFoundError
from pyspark_jetstream.operations.inspection.checkpoints import LocalDirectory
from pyspark_jetstream.operations.inspection.inspector import Inspector
from pyspark_jetstream.tasks.rows import WarmUp

from ..kits.checkpoints import write_checkpoint
from ..kits.reading import Query
from ..kits.seeds import fresh
from ..kits.shared import ack_pending, eventually, numbered, query

__all__ = ["query"]

SEEDS = [1, 2569851981, *fresh(__name__)]

WAITS = {"ackWait": "3s", "maxRecordsPerTrigger": 10}


def places(*queries: Query) -> list[tuple[str, int, int]]:
    """Stream, partition and sequence of all rows."""
    return sorted((r["stream"], r["partition"], r["sequence"]) for q in queries for r in q.rows)


def every(**counts: int) -> list[tuple[str, int, int]]:
    """What streams of so many messages have."""
    return sorted((name, 0, s + 1) for name, n in counts.items() for s in range(n))


def dealt_out(js, *queries):
    """Goes on until everything is acknowledged: what was held elsewhere comes after its wait."""
    names = {name for each in queries for name in each.options["stream"].split(",")}

    def done():
        for each in queries:
            each.drain()
        return all(
            (of := js.consumer_info(name, "jobs")).num_ack_pending + of.num_pending == 0
            for name in names
        )

    eventually(done)


@pytest.fixture
def three(new_stream):
    """Three streams."""
    return [new_stream() for _ in range(3)]


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_two_queries_share_a_list(js, new_stream, publish, query, retention):
    """
    Lists in another order are the same list. Each stream has one consumer, whose name says nothing
    of a place; its rows are of partition 0.
    """
    a, b, c = (new_stream(retention=retention) for _ in range(3))
    one = query(stream=f"{a},{b},{c}", maxRecordsPerTrigger=30)
    two = query(stream=f"{c}, {a}, {b}", maxRecordsPerTrigger=30)
    assert one.claim() is None and two.claim() is None
    for name, count in ((a, 100), (b, 40), (c, 7)):
        publish(numbered(name, count))
    while one.step() + two.step():
        pass

    assert places(one, two) == every(**{a: 100, b: 40, c: 7})
    assert one.rows and two.rows
    assert {row["subject"].split(".")[0] for row in one.rows} <= {a, b, c}
    assert all(row["subject"].startswith(row["stream"]) for row in one.rows + two.rows)
    assert [ack_pending(js, name, "jobs") for name in (a, b, c)] == [0, 0, 0]
    report = two.reader.reportLatestOffset()
    assert [report[str(p)]["stream"] for p in range(3)] == [c, a, b]
    assert set(one.planned[-1]["claims"]) <= {a, b, c}


def test_the_numbers_of_a_shared_list(new_stream, publish, query):
    """
    Numbered streams of a list have their number as `partition`, also where they are shared.
    """
    a = new_stream()
    names = [a, *(new_stream(f"{a}-{number}") for number in range(2))]
    of = query(stream=f"{a},{a}-{{partition}}", partitions=2)
    assert of.claim() is None
    publish([message for name in names for message in numbered(name, 3)])
    of.drain()

    expected = [
        (name, n, s + 1) for name, n in zip(names, (0, 0, 1), strict=True) for s in range(3)
    ]
    assert places(of) == sorted(expected)


@pytest.mark.parametrize("when", ["recorded", "run", "committed"])
def test_a_query_that_is_away_keeps_its_batch(js, three, publish, query, when):
    """
    Killed wherever in its batch, and away for longer than the ack wait, a query comes back with its
    list in another order and another stream in it, and has its messages once.
    """
    a, b, c = three
    one, two = (query(stream=of, **WAITS) for of in (f"{b},{a}", f"{a},{b}"))
    assert one.claim() is None and two.claim() is None
    publish(numbered(a, 25) + numbered(b, 25) + numbered(c, 5))
    one.step()
    one.plan()
    assert set(one.planned[-1]["claims"]) == {a, b}
    if when == "run":
        one.read()
    elif when == "committed":
        one.commit()
    one.die()
    two.drain()
    time.sleep(3.5)  # its claims are dealt out again
    two.drain()
    one.restart(stream=f"{c},{a},{b}")
    dealt_out(js, one, two)

    assert places(one, two) == every(**{a: 25, b: 25, c: 5})


def test_a_query_that_is_away_for_too_long(js, three, publish, query):
    """
    After `abandonAfter` a query with another list takes what it reads of a batch. The batch runs
    without rows when its query is back, and what the other one does not read comes again.
    """
    a, b, c = three
    publish(numbered(a, 6) + numbered(b, 6))
    options = WAITS | {"maxRecordsPerTrigger": 12, "abandonAfter": "6s"}
    one = query(stream=f"{a},{b}", **options)
    one.plan()
    one.die()
    two = query(stream=f"{b},{c}", **options)
    eventually(lambda: two.drain() or len(two.rows) == 6)
    one.restart()
    tasks = one.tasks()
    dealt_out(js, one, two)

    assert {type(task.work) for task in tasks} == {WarmUp}
    assert places(two) == every(**{b: 6})
    assert places(one) == every(**{a: 6})


def test_what_a_list_may_become(js, three, publish, query):
    """
    A stream joins a list at a restart, and begins where `startingOffsets` says. None may leave it,
    and a list and one stream are not each other's: the error says what to do.
    """
    a, b, c = three
    publish(numbered(a, 5) + numbered(b, 5) + numbered(c, 5))
    one, alone = query(stream=f"{a},{b}"), query(stream=a, consumer="other")
    one.drain()
    alone.drain()
    one.restart(stream=f"{c},{b},{a}", startingOffsets=f'{{"{c}": {{"0": 4}}}}')
    one.drain()
    assert [place for place in places(one) if place[0] == c] == [(c, 0, 4), (c, 0, 5)]
    for of, stream, told in (
        (one, f"{a},{b}", f"has stream '{c}', too, which is none of stream="),
        (one, c, "written for several streams, and this query has one"),
        (alone, f"{a},{b}", "written for one stream, and this query has several"),
    ):
        of.restart(stream=stream, startingOffsets="earliest")
        with pytest.raises(OffsetError, match=told):
            of.plan()
    with pytest.raises(StreamNotFoundError):
        query(stream=f"{a},none").plan()


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_they_do(js, three, publish, query, seed):
    """
    Three queries whose lists have two or three of the streams, in any order, claim, run, end and
    are killed at random: every message is in one batch.
    """
    rng = random.Random(seed)
    counts = dict.fromkeys(three, 0)

    def listed(of=()):
        more = [name for name in three if name not in of]
        names = [*of, *rng.sample(more, rng.randint(0 if of else 2, len(more)))]
        return ",".join(rng.sample(names, len(names)))

    queries = [query(stream=listed(), **WAITS | {"ackWait": "2s"}) for _ in range(3)]
    for _ in range(60):
        each, step = rng.choice(queries), rng.random()
        if step < 0.3:
            name = rng.choice(three)
            publish(numbered(name, count := rng.randint(1, 15), start=counts[name]))
            counts[name] += count
        elif step < 0.8:
            each.step()
        else:
            # In the midst of a first batch that is in no checkpoint a query loses its name, too.
            recorded = rng.random() < 0.5 or not each.planned
            (each.plan if recorded else each.claim)()
            each.restart(stream=listed(each.options["stream"].split(",")))
    queries[0].restart(stream=listed(three))
    dealt_out(js, *queries)

    assert places(*queries) == every(**counts)


def test_what_inspect_shows(js, three, publish, query, tmp_path):
    """
    Streams by their names, each with its own consumer and partition 0; what a query holds does not
    wait for redelivery.
    """
    a, b, _ = three
    publish(numbered(a, 4) + numbered(b, 6))
    one = query(stream=f"{b},{a}")
    one.plan()
    write_checkpoint(tmp_path, [[one.planned[-1]]])
    found = Inspector(js.client, None, None, LocalDirectory(tmp_path)).look()
    (source,) = found.checkpoint.sources

    assert {(c.stream, c.index, c.claimed, c.ack_pending) for c in source.claims} == {
        (a, 0, 4, 4), (b, 0, 6, 6),
    }  # fmt: skip
    assert {(c.stream, c.name, c.progress.awaiting) for c in found.consumers} == {
        (a, "jobs", 0), (b, "jobs", 0),
    }  # fmt: skip
    assert found.problems() == []

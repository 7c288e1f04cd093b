"""A streaming read of several streams, some of which come and go while it runs."""

import json
import random
from datetime import timedelta
from typing import TypeVar
from unittest.mock import patch

import pytest

from pyspark_jetstream.client.info import parse_time
from pyspark_jetstream.errors import DataLossError, OffsetError, OptionError, StreamNotFoundError
from pyspark_jetstream.fetch.survey import Survey
from pyspark_jetstream.readstream import rangedriver

from ..kits.layouts import tenants
from ..kits.reading import query
from ..kits.seeds import fresh
from ..kits.streams import delete_messages

__all__ = ["query", "tenants"]

T = TypeVar("T")

SEEDS = [1, *fresh(__name__)]


def rows(of):
    return sorted((row["stream"], row["partition"], row["sequence"]) for row in of.rows)


def at_once(of):
    """What a query does that looks each time: one that was idle looks twice a second, or less."""
    with patch.object(rangedriver, "_LOOK_EVERY_S", 0.0):
        return of()


def drain(of):
    """Micro-batches until there is nothing."""
    at_once(of.drain)


def every(tenants, **counts):
    """All rows of streams that have so many messages."""
    of = [(tenants.name(name), 0, s + 1) for name, n in counts.items() for s in range(n)]
    return sorted(of)


def test_streams_join_from_their_first_message(tenants, query):
    """What a stream that comes has is read from its first message on; others keep their place."""
    tenants.make("b", "c")
    tenants.fill("b", "c")
    late = query(streamPattern=f"{tenants.prefix}-*", startingOffsets="latest")
    early = query(streamPattern=f"{tenants.prefix}-*")
    drain(late)
    drain(early)
    tenants.make("a", "d")
    tenants.fill("a", "b", "d", count=2)
    drain(late)
    drain(early)
    tenants.fill("a", "c", count=1)
    late.restart()
    drain(late)
    drain(early)

    assert rows(early) == every(tenants, a=3, b=5, c=4, d=2)
    assert rows(late) == sorted(
        set(every(tenants, a=3, b=5, c=4, d=2)) - set(every(tenants, b=3, c=3))
    )
    places = [name for (name,) in early.planned[-1]["layout"]["places"]]
    assert places == [tenants.name(name) for name in "bcad"]


def test_an_end_by_stream(tenants, query):
    """`endingOffsets` ends one stream, also one that comes later; read beyond it is refused."""
    tenants.make("a", "b")
    tenants.fill("a", "b")
    ends = {tenants.name("a"): {"0": 2}, tenants.name("c"): {"0": 1}}
    several = query(streamPattern=f"{tenants.prefix}-*", endingOffsets=json.dumps(ends))
    drain(several)
    tenants.make("c")
    tenants.fill("a", "b", "c")
    drain(several)

    assert rows(several) == every(tenants, a=2, b=6, c=1)
    ends[tenants.name("a")] = {"0": 1}
    with pytest.raises(
        OffsetError, match=f"stream '{tenants.name('a')}' was read up to sequence 2"
    ):
        several.restart(endingOffsets=json.dumps(ends))
        several.plan()


def test_a_moment_to_come(tenants, query):
    """Each stream is read from the moment on, also one that comes before that or later."""
    tenants.make(*"ab")
    tenants.fill(*"ab")
    now = tenants.js.stream_info(tenants.name("a")).now
    begin = now + timedelta(seconds=1)
    several = query(streamPattern=f"{tenants.prefix}-*", startingTimestamp=begin.isoformat())
    drain(several)
    assert rows(several) == []
    tenants.make(*"cd")
    while tenants.js.stream_info(tenants.name("a")).now < now + timedelta(seconds=2):
        tenants.fill(*"abcd", count=1)
        drain(several)
    tenants.fill(*"abcd")
    drain(several)

    stored = every(tenants, **{n: tenants.js.stream_info(tenants.name(n)).last_seq for n in "abcd"})
    times = [parse_time(tenants.js.message_get(name, seq=at).time) for name, _, at in stored]
    assert rows(several) == [row for row, time in zip(stored, times, strict=True) if time >= begin]


def test_a_start_that_a_new_stream_does_not_reach_yet(tenants, query):
    """A stream joins when it reaches the sequence that `startingOffsets` begins it at."""
    tenants.make("a")
    tenants.fill("a")
    starts = json.dumps({tenants.name("c"): {"0": 6}})
    several = query(streamPattern=f"{tenants.prefix}-*", startingOffsets=starts)
    drain(several)
    tenants.make("c")
    tenants.fill("a", "c", count=4)
    drain(several)
    drain(several)
    assert rows(several) == every(tenants, a=7)
    tenants.fill("c", count=4)
    drain(several)

    late = {(tenants.name("c"), 0, sequence) for sequence in range(1, 6)}
    assert rows(several) == sorted(set(every(tenants, a=7, c=8)) - late)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_that_is_deleted(tenants, query, fails):
    """A stream that goes is a named loss, or the others go on; one made then begins at 1."""
    tenants.make("a", "b", "c")
    tenants.fill("a", "b", "c")
    several = query(streamPattern=f"{tenants.prefix}-*", failOnDataLoss=fails)
    drain(several)
    tenants.fill("a", "b", "c", count=2)
    assert at_once(several.plan) is not None
    tenants.remove("b")
    if fails == "true":
        with pytest.raises(DataLossError, match=f"'{tenants.name('b')}'.*was deleted"):
            several.restart()
        return
    several.restart()
    drain(several)

    assert rows(several) == every(tenants, a=5, b=3, c=5)
    tenants.fill("c", count=1)
    drain(several)
    assert [name for name, in several.planned[-1]["layout"]["places"]] == [
        tenants.name("a"), tenants.name("c"),
    ]  # fmt: skip
    tenants.make("b")
    tenants.fill("b", count=4)
    drain(several)
    again = [row for row in several.rows[-4:] if row["stream"] == tenants.name("b")]
    assert sorted(row["sequence"] for row in again) == [1, 2, 3, 4]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_that_is_deleted_amid_a_batch(tenants, query, fails):
    """A stream that goes between plan and task is the same loss, or the task reads the others."""
    tenants.make("a", "b", "c")
    tenants.fill("a", "b", "c")
    several = query(streamPattern=f"{tenants.prefix}-*", failOnDataLoss=fails)
    several.plan()
    (task,) = several.tasks()
    tenants.remove("b")
    if fails == "true":
        with pytest.raises(DataLossError, match=f"'{tenants.name('b')}'.*was deleted"):
            list(several.reader.read(task))
        return
    several.rows = [row for batch in several.reader.read(task) for row in batch.to_pylist()]

    assert rows(several) == every(tenants, a=3, c=3)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_that_is_deleted_amid_a_plan(tenants, query, monkeypatch, fails):
    """A stream that goes amid a plan is the same loss, or ends no query."""
    tenants.make("a", "b", "c")
    tenants.fill("a", "b", "c")
    for name in "abc":  # what has gaps is counted by the server
        delete_messages(tenants.js, tenants.name(name), [2])
    several = query(streamPattern=f"{tenants.prefix}-*", failOnDataLoss=fails, requestTimeout="5s")
    counts = Survey.counts

    def late(survey, *args):
        tenants.remove("b")
        return counts(survey, *args)

    monkeypatch.setattr(Survey, "counts", late)
    if fails == "true":
        with pytest.raises(DataLossError, match=f"'{tenants.name('b')}'.*was deleted"):
            several.plan()
        return
    several.plan()
    several.commit()

    assert rows(several) == [(tenants.name(name), 0, seq) for name in "ac" for seq in (1, 3)]


def test_many_streams_are_few_tasks(tenants, query):
    """Streams with few messages share tasks, at most sixteen; the same when run again."""
    tenants.make(*range(40))
    tenants.fill(*range(40))
    tenants.fill(7, count=12_000)
    several = query(streamPattern=f"{tenants.prefix}-*")
    several.plan()
    tasks = several.tasks()
    sizes = [[read.end - read.start for read in task.work.reads] for task in tasks]

    assert sum(map(len, sizes)) >= 40
    assert max(map(len, sizes)) == 16
    assert all(sum(each) <= 10_000 or len(each) == 1 for each in sizes)
    several.restart()
    again = [[read.end - read.start for read in t.work.reads] for t in several.tasks()]
    assert again == sizes
    assert len(set(rows(several))) == len(several.rows) == 12_120
    tenants.fill(1, 2, 3, count=6_000)
    at_once(several.plan)
    assert [len(task.work.reads) for task in several.tasks()] == [1, 1, 1]
    split = query(streamPattern=f"{tenants.prefix}-*", minPartitions=40)
    split.plan()
    assert len(split.tasks()) >= 40


@pytest.mark.parametrize("cut", [{}, {"minPartitions": 60}, {"maxRecordsPerPartition": 7}], ids=str)
def test_the_tasks_of_others_stay_when_streams_go(tenants, query, cut):
    """Run again, a batch has the tasks it had, without what streams that went had."""
    tenants.make(*range(40))
    tenants.fill(*range(40), count=10)
    tenants.fill(7, count=300)
    several = query(streamPattern=f"{tenants.prefix}-*", failOnDataLoss="false", **cut)
    several.plan()

    def reads():
        return [[(r.stream, r.start, r.end) for r in task.work.reads] for task in several.tasks()]

    before = reads()
    tenants.remove(0, 7, 20)
    tenants.make(20)
    tenants.fill(20, count=30)
    several.die()
    several.reader = several._reader()
    gone = {tenants.name(name) for name in (0, 7, 20)}

    assert reads() == [[read for read in task if read[0] not in gone] for task in before]
    several.commit()
    assert rows(several) == every(tenants, **{str(i): 10 for i in range(40) if i not in (0, 7, 20)})


def test_a_run_that_ends_reads_nothing_of_a_stream_made_anew_since(tenants, query):
    """With availableNow a stream that is made anew in the run is left to the next."""
    tenants.make("a", "b")
    tenants.fill("a", "b")
    several = query(streamPattern=f"{tenants.prefix}-*", failOnDataLoss="false")
    drain(several)
    tenants.remove("b")
    several.restart()
    several.reader.prepareForTriggerAvailableNow()
    tenants.make("b")
    tenants.fill("a", "b", count=2)
    several.drain()
    assert rows(several) == every(tenants, a=3, b=3)
    several.restart()
    drain(several)

    assert rows(several) == sorted([*every(tenants, a=5, b=3), *every(tenants, b=2)])


def test_a_batch_has_its_limit_over_all_streams(tenants, query):
    """`maxRecordsPerTrigger` is shared among the streams; large ones starve no other."""
    tenants.make(*"abcd")
    tenants.fill("a", count=90)
    tenants.fill("b", "c", count=5)
    several = query(streamPattern=f"{tenants.prefix}-*", maxRecordsPerTrigger=30)
    several.plan()

    (task,) = several.tasks()  # of few messages
    assert {read.stream for read in task.work.reads} == {tenants.name(n) for n in "abc"}
    several.commit()
    assert len(several.rows) <= 30
    assert {row["stream"] for row in several.rows} == {tenants.name(n) for n in "abc"}
    drain(several)
    assert rows(several) == every(tenants, a=90, b=5, c=5)


def test_what_is_refused(nats_server, tenants, query):
    """Own consumers, interest, work queues, and a checkpoint of other streams are refused."""
    pattern = {"streamPattern": f"{tenants.prefix}-*"}
    tenants.make("a", "b")
    tenants.fill("a", "b")
    for name, value in (
        ("readMode", "consumer"), ("consumer", "c"), ("standby", "true"),
        ("priorityPolicy", "pinned_client"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=f"'{name}'"):
            query(**pattern | {name: value})
    with pytest.raises(OptionError, match="there is no stream of such a name"):
        query(streamPattern=f"{tenants.prefix}none-*").plan()
    with pytest.raises(StreamNotFoundError):
        query(stream=f"{tenants.name('a')},{tenants.name('none')}").plan()
    one = query(stream=tenants.name("a"))
    drain(one)
    one.options.pop("stream")
    with pytest.raises(OffsetError, match="1 partition of .*; this query has several"):
        one.restart(**pattern)
        one.plan()
    several = query(**pattern)
    drain(several)
    several.options.pop("streamPattern")
    with pytest.raises(OffsetError, match=f"has stream '{tenants.name('b')}', too"):
        several.restart(stream=f"{tenants.name('a')},{tenants.prefix}-c", failOnDataLoss="false")
        several.plan()
    with pytest.raises(OffsetError, match="written for several streams, .*; this query has 1 part"):
        several.restart(stream=tenants.name("a"))
        several.plan()
    tenants.make("queue", retention="workqueue")
    with pytest.raises(OptionError, match="several streams are read without consumers"):
        query(**pattern).plan()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("there", "come", "go"), [(20, 8, 4), (200, 50, 20)])
def test_streams_come_and_go_while_runs_die(tenants, query, there, come, go, seed):
    """Streams go and come, runs end at any step: what stays is read once, what goes at most so."""
    rng = random.Random(seed)
    names = [f"s{i}" for i in range(there)]
    tenants.make(*names)
    sent = set(names)
    coming = [f"t{i}" for i in range(come)]
    going = rng.sample(names, go)
    several = query(
        streamPattern=f"{tenants.prefix}-*", failOnDataLoss="false", maxRecordsPerTrigger=97
    )
    while coming or going:
        for name in rng.sample(sorted(sent), there // 6):
            tenants.fill(name, count=rng.randint(1, 3))
        if coming and rng.random() < 0.8:
            some = [coming.pop() for _ in range(min(len(coming), rng.randint(1, 8)))]
            tenants.make(*some)
            sent.update(some)
        if going and rng.random() < 0.5:
            gone = going.pop()
            tenants.remove(gone)
            sent.remove(gone)
        step = rng.choice(["step", "step", "plan and die", "read and die", "die"])
        if step == "step":
            several.step()
            continue
        planned = step != "die" and several.plan() is not None
        if planned and step == "read and die":
            several.read()
        several.restart()
    drain(several)

    found = rows(several)
    assert len(found) == len(set(found))
    for name in sent:
        info = tenants.js.stream_info(tenants.name(name))
        mine = [sequence for stream, _, sequence in found if stream == info.name]
        assert mine == list(range(1, info.last_seq + 1)), (name, seed)
    before = tenants.asked()
    for _ in range(8):
        assert at_once(several.plan) is None
    pages = -(-len(tenants.js.stream_names()) // 256)
    assert tenants.asked() - before <= 8 * (pages + 1)

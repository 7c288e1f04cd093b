"""What the driver asks a real server: counts, cuts and positions, against brute force."""

import random
import time
from datetime import UTC, datetime, timedelta

import pytest

from pyspark_jetstream import subjects
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.fetch.layout import Span
from pyspark_jetstream.fetch.survey import Survey
from pyspark_jetstream.options import parse_read

from ..kits.reading import Query
from ..kits.seeds import fresh
from ..kits.streams import delete_messages
from .test_strangers import hpub

SEEDS = [1, 2, *fresh(__name__)]


def options_of(js, stream, **given):
    return parse_read({"stream": stream, "servers": js.client.options.servers[0]} | given)


def survey(js, stream, **given):
    return Survey(js.client, options_of(js, stream, **given))


def begins(js, stream, **given):
    """Where a read with these options begins, by partition."""
    asked, options = survey(js, stream, **given), options_of(js, stream, **given)
    return asked.positions(options.starting, asked.streams(), "startingOffsets")


def ends(js, stream, **given):
    """Where it ends."""
    asked, options = survey(js, stream, **given), options_of(js, stream, **given)
    return asked.positions(options.ending, asked.streams(), "endingOffsets", True)


def delete(js, stream, *seqs):
    delete_messages(js, stream, seqs)


def random_stream(js, stream, publish, rng):
    """Fills the stream at random, deletes at random; subject by sequence of what is left."""
    letters = rng.choice(["ab", "abcdefgh"])
    there = {}
    for seq in range(1, rng.randint(200, 1200) + 1):
        skew = rng.random() < 0.9 if seq < 150 else rng.random() < 0.2
        there[seq] = f"{stream}.{'a' if skew else rng.choice(letters)}.{rng.randint(0, 30)}"
    publish([(subject, b"") for subject in there.values()])
    gone = rng.sample(sorted(there), rng.randint(0, 60))
    if rng.random() < 0.5:
        gone += list(there)[-rng.randint(1, 20) :]
    if rng.random() < 0.5:
        gone += list(there)[: rng.randint(1, 20)]
    delete(js, stream, *set(gone))
    return {seq: subject for seq, subject in there.items() if seq not in gone}


def inside(there, span):
    return [
        seq for seq, subject in there.items()
        if span.start < seq <= span.end
        and (span.filter is None or subjects.matches(span.filter, subject))
    ]  # fmt: skip


def test_partitions_of_one_stream_are_counted(js, new_stream, publish):
    """Counts are the stream's, beside messages of no partition, and where it has grown."""
    stream = new_stream()
    asked = survey(js, stream, partitions="4", partitionSubject=f"{stream}.{{partition}}.>")

    def counts():
        infos = asked.streams()
        end = infos[stream].last_seq
        spans = [Span(stream, p.filter, 0, end) for p in asked.layout]
        found = asked.counts(spans, infos)
        publish([(f"{stream}.1.late", b""), (f"{stream}.0.late", b"")])
        late = asked.counts(spans, infos)
        assert late == found
        delete_messages(js, stream, [end + 1, end + 2])
        return found

    publish([(f"{stream}.{p}.x", b"") for p in (0, 2, 2)])
    few = counts()
    publish([(f"{stream}.1.x", b""), (f"{stream}.x", b"")])
    more = counts()
    publish([(f"{stream}.9.x", b"")])
    beside = counts()
    delete_messages(js, stream, [1])
    less = counts()

    assert [few, more, beside, less] == [
        [1, 0, 2, 0], [1, 1, 2, 0], [1, 1, 2, 0], [0, 1, 2, 0],
    ]  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_and_cuts_are_exact(js, new_stream, publish, seed):
    """Spans have the count of brute force, with filters, gaps, deleted ends; cuts hold 1 to it."""
    rng = random.Random(seed)
    stream = new_stream()
    there = random_stream(js, stream, publish, rng)
    asked = survey(js, stream)
    infos = asked.streams()
    last = infos[stream].last_seq
    spans = []
    for _ in range(60):
        start, end = sorted((rng.randint(0, last), rng.randint(0, last + 5)))
        filter_ = rng.choice(
            [None, f"{stream}.a.>", f"{stream}.b.*", f"{stream}.a.7", f"{stream}.no", ">"]
        )
        spans.append(Span(stream, filter_, start, end))
    counts = asked.counts(spans, infos)

    assert counts == [len(inside(there, span)) for span in spans]
    assert asked.counts([], infos) == []
    for _ in range(25):
        start, end = sorted((rng.randint(0, last), rng.randint(0, last)))
        span = Span(stream, rng.choice([None, f"{stream}.a.>", f"{stream}.b.*"]), start, end)
        available = len(inside(there, span))
        if available < 2:
            continue
        wanted = rng.randint(1, available - 1)
        cut = asked.cut(span, available, wanted, infos)
        held = len(inside(there, Span(stream, span.filter, span.start, cut)))

        assert span.start < cut <= span.end, (span, wanted)
        assert 1 <= held <= wanted, (span, wanted, cut)


def test_without_direct_get_sequences_stand_for_messages(js, new_stream, publish):
    """Without direct get counts are upper bounds or unknown, zero only where nothing is."""
    stream = new_stream(allow_direct=False)
    publish([(f"{stream}.{'ab'[i % 2]}", b"") for i in range(100)])
    delete(js, stream, 10, 11, 100)
    js.purge(stream, None, 5)
    asked = survey(js, stream)
    infos = asked.streams()
    spans = [
        Span(stream, None, 0, 100),
        Span(stream, f"{stream}.a", 0, 100),
        Span(stream, f"{stream}.no", 0, 100),
        Span(stream, f"{stream}.b", 99, 100),
        Span(stream, None, 100, 100),
    ]

    assert asked.counts(spans, infos) == [96, None, 0, 0, 0]
    assert 0 < asked.cut(spans[1], 100, 10, infos) < 100


def at(js, stream, seq):
    """When a message was stored, in whole microseconds."""
    return datetime.fromisoformat(js.messages(stream, [{"seq": seq}])[0].time)


def test_positions(js, new_stream, publish):
    """Words, sequences and moments become the last sequence before, or the last to read."""
    stream = new_stream()
    publish([(f"{stream}.a", b"") for _ in range(10)])
    time.sleep(0.01)
    middle = datetime.now(UTC)
    time.sleep(0.01)
    publish([(f"{stream}.a", b"") for _ in range(10)])
    js.purge(stream, None, 4)

    def start(**given):
        return begins(js, stream, **given)[0]

    def end(**given):
        return ends(js, stream, **given)[0]

    assert start(startingOffsets="earliest") == 3
    assert start(startingOffsets="latest") == 20
    assert start(startingOffsets='{"0": 7}') == 6
    assert start(startingOffsets='{"0": 0}') == 0
    assert start(startingOffsets='{"0": 21}') == 20
    assert start(startingOffsets='{"0": "latest"}') == 20
    assert start(startingTimestamp=middle.isoformat()) == 10
    assert start(startingTimestamp="-1h") == 3
    assert start(startingTimestamp="-36500d") == 3
    assert start(startingTimestamp="1970-01-01T00:00:00Z") == 3
    assert start(startingTimestamp="0001-01-01T00:00:00Z") == 3
    assert start(startingTimestamp=(middle + timedelta(days=1)).isoformat()) == 20
    assert end() == 20
    assert end(endingOffsets='{"0": 7}') == 7
    assert end(endingOffsets='{"0": 0}') == 0
    assert end(endingTimestamp=middle.isoformat()) == 10
    assert end(endingTimestamp="-1h") == 3
    assert end(endingTimestamp="9999-12-31T23:59:59Z") == 20


def test_a_moment_is_inclusive(js, new_stream, publish):
    """A message stored exactly at the starting moment is read."""
    stream = new_stream()
    publish([(f"{stream}.a", b"") for _ in range(5)])
    found = begins(js, stream, startingTimestamp=at(js, stream, 3).isoformat())

    assert found[0] <= 2


def test_a_moment_of_a_deleted_message(js, new_stream, publish):
    """A moment at which nothing is left stands for the next message."""
    stream = new_stream()
    publish([(f"{stream}.a", b"x" * 100_000) for _ in range(250)])
    times = [at(js, stream, seq).isoformat() for seq in range(40, 121)]
    delete(js, stream, *range(40, 121))
    for moment in times:
        given = {"startingTimestamp": moment, "endingTimestamp": moment}

        assert begins(js, stream, **given) == (120,)
        assert ends(js, stream, **given) == (120,)


def test_an_empty_stream(js, new_stream, publish):
    """An empty stream, new or purged, starts and ends at one place."""
    stream = new_stream()
    for expected in (0, 3):
        for given in ({"startingOffsets": "earliest"}, {"startingOffsets": "latest"},
                      {"startingTimestamp": "-1h"}):  # fmt: skip
            assert begins(js, stream, **given) == (expected,)
        publish([(f"{stream}.a", b"") for _ in range(3)])
        js.purge(stream, None, 4)


def test_partitions_of_one_stream(js, new_stream, publish):
    """Each partition may start elsewhere; those left out follow the default."""
    stream = new_stream()
    publish([(f"{stream}.{i % 3}", b"") for i in range(9)])
    found = begins(
        js,
        stream,
        partitions="3",
        partitionSubject=f"{stream}.{{partition}}",
        startingOffsets='{"1": 5, "2": "latest"}',
    )

    assert found == (0, 4, 9)
    with pytest.raises(OptionError, match="partition 1 is none of 0 to 0"):
        begins(js, stream, startingOffsets='{"1": 5}')


@pytest.mark.parametrize(
    ("subject", "filters"),
    [("b.*.c", ["b.*.c", "b.z.d"]), ("b.>", ["b.>", "c.d"]), ("b.*.c", ["b.*.*", "b.*", "b.x.c"])],
)
def test_a_subject_that_is_also_a_filter(js, new_stream, subject, filters):
    """A server stores messages on subjects with wildcards; each of them counts once."""
    stream = new_stream()
    hpub(js, [(f"{stream}.{subject}".encode(), b"NATS/1.0\r\n\r\n", b"1")])
    asked = survey(js, stream)
    spans = [Span(stream, f"{stream}.{each}", 0, 1) for each in filters]
    assert asked.counts(spans, asked.streams())[0] == 1


def test_a_work_queue_with_a_subject_that_is_a_filter(nats_server, js, new_stream):
    """Such a message is there once, so nothing is lost."""
    stream = new_stream(retention="workqueue")
    names = ["b.x.c", "b.z.d", "b.*.c", "b.z.d"]
    hpub(js, [(f"{stream}.{each}".encode(), b"NATS/1.0\r\n\r\n", b"1") for each in names])
    delete_messages(js, stream, [2])
    query = Query(nats_server, stream=stream, subject=f"{stream}.b.*.c,{stream}.b.z.d")
    found = query.batch()
    query.stop()
    assert sorted(found) == [1, 3, 4]

"""Snapshots: the reduction, the plans, and what a subject's absence means."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import SubjectDecodeError
from pyspark_jetstream.fetch.decoding.rows import Texts
from pyspark_jetstream.read import snapshotplan
from pyspark_jetstream.read.lasts import LastOfEach
from pyspark_jetstream.read.snapshotplan import LaterSubject, StreamLimits


def batch(pairs) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([subject for subject, _ in pairs], pa.binary()),
            pa.array([sequence for _, sequence in pairs], pa.int64()),
            pa.array([b""] * len(pairs)),
        ],
        names=["subject", "sequence", "data"],
    )


def plan(sequences) -> pa.Table:
    last = LastOfEach()
    last.put({f"s{sequence}": sequence for sequence in sequences})
    return planned(last, "fail")


def planned(last, on_invalid) -> pa.Table:
    [found] = last
    return snapshotplan.plan_of(found, Texts("S", on_invalid))


NOW = snapshotplan.LOOKED_UP_COST
THEN = snapshotplan.past_cost(0, in_memory=False)


@pytest.mark.parametrize(
    ("subjects", "messages", "cost", "way"),
    [
        (3_313, 3_000_000, NOW, "names"),
        (3_313, 3_000_000, THEN, "names"),
        (50_000, 50_000, NOW, "range"),
        (1_000_000, 1_000_000, NOW, "range"),
        (1_000_000, 3_000_000, THEN, "range"),
        (1_000_000, 100_000_000, NOW, "names"),
        (1, 10, NOW, "names"),
    ],
)
def test_the_cheaper_way(subjects, messages, cost, way):
    """Deep streams are asked by name, shallow ones are read whole."""
    assert snapshotplan.choose_index(subjects, messages, cost) == way


def test_memory_goes_back_message_by_message():
    """In memory a subject of many as of the past costs more, and so all messages are read."""
    few, many = (snapshotplan.past_cost(subjects, in_memory=True) for subjects in (10, 50_000))
    assert few == NOW < THEN < many
    assert snapshotplan.choose_index(50_000, 5_000_000, THEN) == "names"
    assert snapshotplan.choose_index(50_000, 5_000_000, many) == "range"


def test_a_listing_that_publishes_would_wait_for():
    """With `maxPublishDelay` all is read where a page of the listing takes longer than that."""
    of_many = (14_000, 10_000_000, NOW), (15_000, 10_000_000, NOW)
    assert [snapshotplan.choose_index(*each, 0.02) for each in of_many] == ["names", "range"]
    assert [snapshotplan.choose_index(*each) for each in of_many] == ["names", "names"]


@pytest.mark.parametrize(
    ("rows", "tasks", "maximum", "sizes"),
    [
        (0, 4, None, []),
        (10, None, None, [10]),
        (10, 3, None, [3, 3, 4]),
        (10, None, 4, [3, 3, 4]),
        (10, 2, 1, [1] * 10),
        (3, 8, None, [1, 1, 1]),
        (120_000, None, None, [40_000] * 3),
        (1_000_001, 1, None, [500_000, 500_001]),
        (1_000_001, None, 5_000_000, [500_000, 500_001]),
    ],
)
@pytest.mark.parametrize("together", [1, 8_192])
def test_splitting(rows, tasks, maximum, sizes, together):
    """
    A plan is split into as many pieces as wanted, none too long, none empty, nothing left out,
    in whatever parts it comes.
    """
    together = max(together, rows // 1_000)
    sequences = pa.array(range(1, rows + 1), pa.int64())
    names = pa.nulls(rows, pa.string())
    whole = pa.table([names, sequences], schema=snapshotplan.PLANNED)
    parts = [whole.slice(low, together) for low in range(0, rows, together)]
    pieces = list(snapshotplan.split(parts, rows, tasks, maximum))

    assert [piece.num_rows for piece in pieces] == sizes
    assert [seq for p in pieces for seq in p["sequence"].to_pylist()] == list(range(1, rows + 1))


def test_a_packed_plan_is_small_and_the_same():
    """A plan travels to its task in about ten bytes a subject."""
    whole = plan(range(1, 100_001))
    piece = whole.slice(50_000, 50_000)
    packed = snapshotplan.pack(piece)

    assert snapshotplan.unpack(packed).equals(piece.combine_chunks())
    assert len(packed) < 5 * piece.num_rows

    packed = snapshotplan.pack(piece, named=False)
    unpacked = snapshotplan.unpack(packed)
    assert unpacked["sequence"].equals(piece["sequence"])
    assert unpacked["subject"].null_count == piece.num_rows
    assert len(packed) < piece.num_rows / 10


def test_later_subjects():
    """Those that have nothing at the pin, as a listing names them."""
    last = LastOfEach()
    last.put({"a": 1})
    last.put_later([b"a", b"b", b"c\xff", b"b"], [1, 2, 3, 4], [False, True, False, False])

    assert list(snapshotplan.later_subjects(last)) == [
        LaterSubject("b", 6, True), LaterSubject("c\ufffd", 3, False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("on_invalid", "expected"),
    [
        ("replace", {"subject": ["a.\ufffd", "a.\ufffd", "b"], "sequence": [3, 5, 7]}),
        ("drop", {"subject": ["b"], "sequence": [7]}),
    ],
)
def test_a_plan_is_by_stored_subject(on_invalid, expected):
    """
    Two that become the same text are two messages of it; which ones match goes by their bytes.
    """
    last = LastOfEach(lambda subject: subject != "a.\ufffd")
    last.add(
        batch([(b"a.\xff", 3), (b"a.\xfe", 5), (b"a.\xef\xbf\xbd", 6), (b"b", 7), (b"a.\xff", 2)])
    )

    assert planned(last, on_invalid).to_pydict() == expected
    with pytest.raises(SubjectDecodeError, match="sequence 3 "):
        planned(last, "fail")


def test_what_was_not_found():
    """What of the plan is missing is told by sequence, whatever else was found."""
    whole = plan([3, 5, 9, 12])
    found = [pa.array([1, 3], pa.int64()), pa.array([12, 13], pa.int64())]

    assert snapshotplan.missing(whole, found)["sequence"].to_pylist() == [5, 9]
    assert snapshotplan.missing(whole, [])["sequence"].to_pylist() == [3, 5, 9, 12]


@pytest.mark.parametrize(
    ("sequences", "dense"), [([7], True), ([1, 2, 4], True), ([1, 4], True), ([1, 100], False)]
)
def test_density(sequences, dense):
    """Sequences that lie close are read with all between them, others one by one."""
    assert snapshotplan.is_dense(plan(sequences)["sequence"]) is dense


LIMITLESS = {"max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1}


@pytest.mark.parametrize(
    ("config", "messages", "purged", "gone_now", "gone_then"),
    [
        ({}, 1, False, False, True),
        ({"max_age": 5}, 1, False, False, True),
        ({"max_msgs_per_subject": 1}, 1, False, True, True),
        ({"max_msgs_per_subject": 5}, 4, False, False, False),
        ({"max_msgs_per_subject": 5}, 5, False, True, True),
        ({"max_msgs_per_subject": 5}, 4, True, True, True),
        ({"max_msgs_per_subject": 5, "max_age": 9}, 4, False, False, True),
        ({"max_msgs_per_subject": 5, "max_bytes": 9}, 4, False, False, True),
        ({"max_msgs_per_subject": 5, "allow_msg_ttl": True}, 4, False, False, True),
        ({}, 1, True, True, True),
    ],
)
def test_what_may_be_gone(config, messages, purged, gone_now, gone_then):
    """
    A subject with newer messages only may have lost its value where a limit, a purge or a deletion
    can have taken it; of the stream's end, only what took its place meanwhile counts.
    """
    keeping = StreamLimits.of(LIMITLESS | config)
    stranger = LaterSubject("a", messages, purged)

    assert snapshotplan.past_is_gone(stranger, keeping, asked_for_past=False) is gone_now
    assert snapshotplan.past_is_gone(stranger, keeping, asked_for_past=True) is gone_then

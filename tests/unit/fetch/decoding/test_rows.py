"""Replies into Arrow, against a slow decoder that looks at one message at a time."""

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import ReadError
from pyspark_jetstream.fetch.decoding.deliveries import MAX_BATCH_BYTES, MAX_BATCH_ROWS, Deliveries
from pyspark_jetstream.fetch.decoding.replies import cut
from pyspark_jetstream.fetch.decoding.rows import RowBuilder, StoredBuilder, arrow_schema, kept
from pyspark_jetstream.subjects import raw

from ....kits.messages import PREFIX, SID, Message


def columns(messages, headers=False):
    """The messages as a direct get brought them."""
    found = cut(b"".join(m.got(0, 9) for m in messages), PREFIX, "S")
    assert found is not None
    return found.columns(headers)


def test_schema_is_sparks():
    """The columns are exactly those of the design, with the types Spark takes."""
    headers = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))

    assert arrow_schema(False) == pa.schema(
        [
            ("subject", pa.string()),
            ("data", pa.binary()),
            ("sequence", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("partition", pa.int32()),
            ("stream", pa.string()),
        ]
    )
    assert arrow_schema(True).field("headers").type == headers


def scanned(stream):
    frames = Deliveries(False)
    return frames, frames.scan(stream, 0, SID)


def test_scans_stop_when_a_batch_is_full():
    """No scan gathers more rows or bytes than a record batch may hold."""
    many = b"".join(Message(i).delivered(i, 1) for i in range(1, 3 * MAX_BATCH_ROWS))
    frames, _ = scanned(many)
    large, _ = scanned(Message(1, data=bytes(MAX_BATCH_BYTES)).delivered(1, 0))

    assert MAX_BATCH_ROWS <= len(frames) <= 2 * MAX_BATCH_ROWS
    assert frames.full and large.full


def test_a_range_cuts_both_ends():
    """Only `after < sequence <= upto` becomes rows, in both decoders."""
    messages = [Message(s) for s in (5, 6, 8, 9)]
    frames, builder = Deliveries(False), RowBuilder("S", False)
    frames.scan(b"".join(m.delivered(i, 9) for i, m in enumerate(messages)), 0, SID)
    direct = columns(messages)

    for after, upto, expected in ((5, 8, [6, 8]), (0, 99, [5, 6, 8, 9]), (6, 7, []), (9, 99, [])):
        consumed = builder.batch(frames.columns(), after, upto)
        got = builder.batch(direct, after, upto)

        assert consumed.column("sequence").to_pylist() == expected
        assert got.column("sequence").to_pylist() == expected


@pytest.mark.parametrize(
    ("partition", "expected"),
    [(1, [(2, 1), (4, 1)]), (0, [(1, 0)]), (None, [(1, 0), (2, 1), (4, 1)]), (7, [])],
    ids=str,
)
def test_classified_rows(partition, expected):
    """With a classifier a direct read keeps the rows of its partition, or of any partition."""
    subjects = ["p.0.a", "p.1.a", "other", "p.1.b"]
    direct = columns([Message(i, s) for i, s in enumerate(subjects, 1)], True)
    codes = {"p.0.a": 0, "p.1.a": 1, "p.1.b": 1}
    batch = RowBuilder("S", True, partition=partition, classify=codes.get).batch(direct, 0, 99)

    rows_ = [(row["sequence"], row["partition"]) for row in batch.to_pylist()]
    assert rows_ == expected
    assert batch.schema == arrow_schema(True)


INVALID = {
    b"a.\xff": "a.\ufffd", b"\xc3.x": "\ufffd.x", b"\xed\xa0\x80.x": "\ufffd\ufffd\ufffd.x",
    b"\xe2\x82.x": "\ufffd\ufffd.x", b"\xf0\x9f\x92": "\ufffd\ufffd\ufffd",
    b"\xc0\x80": "\ufffd\ufffd", b"a\xffb\xc3\xa9": "a\ufffdb\u00e9",
}  # fmt: skip
"""Subjects that no STRING can hold, and what the server's JSON makes of them (`tests/live`)."""


def strange(bad):
    """Three messages, the second of which has this subject, as they come in both ways."""
    place = "Z" * len(bad)
    messages = [Message(41), Message(42, place), Message(43)]
    frames = Deliveries(False)
    stream = b"".join(m.delivered(i, 9) for i, m in enumerate(messages))
    frames.scan(stream.replace(place.encode(), bad), 0, SID)
    stream = b"".join(m.got(0, 9) for m in messages).replace(place.encode(), bad)
    found = cut(stream, PREFIX, "S")
    assert found is not None
    return frames, found.columns(False)


@pytest.mark.parametrize("bad", INVALID, ids=repr)
def test_a_subject_that_is_no_utf8_names_its_sequence(bad):
    """A subject that no STRING can hold is an error that says which sequence it is of."""
    frames, direct = strange(bad)
    builder = RowBuilder("S", False)

    with pytest.raises(ReadError, match="sequence 42"):
        builder.batch(frames.columns(), 0, 99)
    with pytest.raises(ReadError, match="sequence 42"):
        builder.batch(direct, 0, 99)


@pytest.mark.parametrize("bad", INVALID, ids=repr)
@pytest.mark.parametrize("on_invalid", ["replace", "drop"])
def test_a_subject_that_is_no_utf8_may_be_a_row(bad, on_invalid, caplog):
    """Each byte that is no UTF-8 becomes U+FFFD, or the row is left out; logged at times ten."""
    frames, direct = strange(bad)
    builder = RowBuilder("S", False, on_invalid)
    batches = [builder.batch(frames.columns(), 0, 99), builder.batch(direct, 0, 99)]
    for batch in batches:
        text = INVALID[bad] if on_invalid == "replace" else None
        assert batch.column("subject").to_pylist()[1] == text
        assert batch.column("sequence").to_pylist() == [41, 42, 43]
    left = [row["sequence"] for batch in kept(iter(batches)) for row in batch.to_pylist()]
    assert left == [41, 42, 43] * 2 if on_invalid == "replace" else [41, 43] * 2

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    said = caplog.records[0].getMessage()
    assert "stream=S" in said and f"42 {bad!r}" in said and on_invalid in said
    for _ in range(9):
        builder.batch(direct, 0, 99)
    assert len(caplog.records) == 2 and " 10 messages" in caplog.records[1].getMessage()


def test_subjects_of_messages_that_do_not_count_may_be_anything():
    """What a range, a partition or a choice of sequences leaves out is no error."""
    _, direct = strange(b"a.\xff")
    builder = RowBuilder("S", False)
    assert builder.batch(direct, 42, 99)["sequence"].to_pylist() == [43]
    assert builder.batch(direct, 0, 41)["sequence"].to_pylist() == [41]
    codes = {raw(b"a.\xff"): None}
    some = RowBuilder("S", False, partition=3, classify=lambda subject: codes.get(subject, 3))
    batch = some.batch(direct, 0, 99)
    assert batch["sequence"].to_pylist() == [41, 43]
    some = RowBuilder("S", False, only=pa.array([41, 43, 99], pa.int64()))
    assert some.batch(direct, 0, 99)["sequence"].to_pylist() == [41, 43]


def test_rows_that_are_left_out_leave_no_empty_batch():
    """Batches that have none are handed on as they are."""
    _, direct = strange(b"a.\xff")
    builder = RowBuilder("S", False, "drop")
    none, all_ = (builder.batch(direct, after, 42) for after in (41, 0))
    sound = builder.batch(direct, 42, 99)

    found = list(kept(iter([none, all_, sound])))
    assert [batch["sequence"].to_pylist() for batch in found] == [[41], [43]]
    assert found[1] is sound


def test_messages_as_they_are_stored():
    """Whatever their subjects are; headers only where they were asked for."""
    _, direct = strange(b"a.\xff")
    batch = StoredBuilder().batch(direct, 41, 42)
    assert batch["subject"].to_pylist() == [b"a.\xff"]
    assert batch.schema.names == ["subject", "sequence", "time", "data"]


@pytest.mark.parametrize(
    ("sequence", "pending", "end", "reached"),
    [(5, 1, 5, True), (6, 1, 5, True), (4, 1, 5, False), (4, 0, 5, True)],
)
@pytest.mark.parametrize("prefix", ["$JS.ACK.S.c.1", "$JS.ACK.d.h.S.c.1"], ids=["v1", "v2"])
def test_reaching_the_end(sequence, pending, end, reached, prefix):
    """The end is reached by a delivery there or beyond, or with nothing behind it."""
    frames = Deliveries(False)
    frames.scan(Message(sequence).delivered(1, pending, prefix), 0, SID)

    assert frames.reaches(end) is reached

"""Rows as messages: numbers, ids and the bytes of each row on the wire; messages in parts."""

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.client import wire
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.publish.lanes.flight import framed
from pyspark_jetstream.serverheaders import FIRST, UNTRACED

from ...kits.encoder import LISTS, TEXTS, Encoder, batch, frames, plain_builder
from ...kits.options import targets_of


def test_a_row_without_headers_is_a_pub():
    """Without headers and ids a row is a PUB with its number in the reply subject."""
    rows = pa.record_batch({"subject": ["a.b", "c"], "data": pa.array([b"x", b""])})

    assert frames(Encoder("IN"), rows) == [b"PUB a.b IN.0 1\r\nx\r\n", b"PUB c IN.1 0\r\n\r\n"]


def test_rows_are_numbered_through_all_batches():
    """The number of a row is its position in the task's input, whatever the batches."""
    encoder = Encoder("IN", subject="s", id_prefix="P-7")
    encoder.encode(batch(3))
    encoder.encode(batch(0))

    assert frames(encoder, batch(1)) == [
        b"HPUB s IN.3 32 33\r\nNATS/1.0\r\nNats-Msg-Id: P-7-3\r\n\r\nx\r\n"
    ]
    assert encoder.rows == 4


@pytest.mark.parametrize(
    "type",
    [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()],
    ids=str,
)
def test_data_may_be_text_or_bytes(type):
    """The payload is the text's UTF-8 or the bytes."""
    data = pa.array(["é"]).cast(pa.binary()).cast(type)

    assert frames(Encoder("IN", subject="s"), pa.record_batch({"data": data})) == [
        "PUB s IN.0 2\r\né\r\n".encode()
    ]


def test_the_option_subject_wins_over_the_column():
    """The option names the subject of all rows, as the Kafka sink's topic does."""
    rows = batch(2, subject=pa.array(["a", None]))

    assert [f.split()[1] for f in frames(Encoder("IN", subject="s"), rows)] == [b"s", b"s"]


def test_ids_of_rows():
    """A row's id is its msg_id, else the one among its headers, else a made one."""
    headers = pa.array([None, [("Nats-Msg-Id", "h")], None], TEXTS)
    rows = batch(3, headers=headers, msg_id=pa.array(["m", None, None]))
    ids = [dict(wire.parse_headers(f.split(b"\r\n", 1)[1])).get("Nats-Msg-Id")
           for f in frames(Encoder("IN", subject="s", id_prefix="P"), rows)]  # fmt: skip

    assert ids == ["m", "h", "P-2"]


def test_an_empty_batch_is_no_publishes():
    """No rows, no frames."""
    block = Encoder("IN").encode(batch(0, subject=pa.array([], pa.string())))

    assert (block.first, block.end, list(block.offsets)) == (0, 0, [0])


NAMES = st.sampled_from(
    ["H0", "H1", "Nats-Rollup", "Nats-Expected-Stream", "Nats-Trace-Only", "TraceParent"]
)
VALUES = st.sampled_from(["", "v", "wörter  und", "sub"])


def rows_of(values):
    """Subject, data, id and headers with such values."""
    headers = st.none() | st.dictionaries(NAMES, values, max_size=3).map(lambda d: [*d.items()])
    subjects, ids = st.sampled_from(["a", "b.c", "d.é"]), st.none() | st.sampled_from(["i", "id"])
    return st.lists(st.tuples(subjects, st.binary(max_size=19), ids, headers), min_size=1)


@given(
    st.tuples(st.just(TEXTS), rows_of(VALUES))
    | st.tuples(st.just(LISTS), rows_of(st.lists(VALUES, max_size=2))),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from([None, "P"]),
)
def test_any_slice_equals_the_general_path(rows, before, after, prefix):
    """Vectorised frames equal those built one by one, for any mix of nulls, headers and slices."""
    kind, (subject, data, ids, headers) = rows[0], zip(*rows[1], strict=True)
    low = before % len(subject)
    high = max(low + 1, len(subject) - after)
    whole = pa.record_batch(
        {
            "msg_id": pa.array(ids, pa.string()),
            "headers": pa.array(headers, kind),
            "data": pa.array(data, pa.binary()),
            "subject": pa.array(subject),
        }
    )

    def expected(row):
        pairs = []
        for name, values in headers[row] or []:
            for each in values if isinstance(values, list) else [values]:
                pairs.append((name, each))
                if name == "TraceParent":
                    pairs.append(UNTRACED)
        pairs = [pair for pair in pairs if pair[0] != "Nats-Trace-Only"]
        pairs = [pair for pair in pairs if pair[0] != "Nats-Rollup" or pair[1] == "sub"]
        own = ids[row] or (f"{prefix}-{row - low}" if prefix else None)
        if own:
            pairs.append(("Nats-Msg-Id", own))
        # What the server acts on comes first, and the id before all.
        pairs.sort(key=lambda pair: (pair[0] not in FIRST, pair[0] != "Nats-Msg-Id"))
        block = wire.header_block(pairs) if pairs else b""
        return wire.pub(subject[row], data[row], f"IN.{row - low}", block)

    found = frames(Encoder("IN", id_prefix=prefix, allow_rollup=True), whole.slice(low, high - low))

    assert found == [expected(row) for row in range(low, high)]


def stream(name: str, *subjects: str) -> Target:
    return Target.parse({"name": name, "subjects": list(subjects)})


def test_messages_of_several_blocks_in_one():
    """Joined, each message keeps its subject, stream, headers, data, id, number and priority."""
    known = {"a": stream("A", "a"), "b": stream("B", "b"), "c": stream("C", "c")}
    builder = plain_builder(targets=targets_of(known.get))
    given = [
        batch(3, subject=["a", "b", "a"]),
        batch(3, subject=["c", "x", "b"], msg_id=["1", None, "3"]),
        batch(1, subject=["b"]),
    ]
    parts = [builder.build(each) for each in given]
    parts[2] = replace(parts[2], priorities=pa.array([0], pa.int8()))
    joined = Messages.joined(parts)
    streams = joined.row_targets.to_pylist()
    expected = [place for part in parts for place in part.row_targets.to_pylist()]

    assert joined.subject.to_pylist() == [b"a", b"b", b"a", b"c", b"x", b"b", b"b"]
    assert [joined.distinct[code] for code in joined.codes] == list("abacxbb")
    assert sorted(joined.distinct) == list("abcx")
    assert streams == expected
    assert joined.rows.to_pylist() == list(range(7))
    assert joined.ids.to_pylist() == [None] * 3 + [b"1", None, b"3", None]
    assert joined.lines.to_pylist()[2:5] == [b"", b"Nats-Msg-Id: 1\r\n", b""]
    assert joined.priorities.to_pylist() == [1] * 6 + [0]
    assert Messages.joined(parts[:1]) is parts[0]
    assert Messages.joined([parts[0], parts[0]]).lines is None


def test_messages_in_another_order():
    """Taken by their places, messages are whole."""
    builder = plain_builder(id_prefix="p")
    found = builder.build(batch(4, subject=list("abcb")))
    found = replace(found, priorities=pa.array([0, 1, 2, 1], pa.int8()))
    taken = found.take(pa.array([3, 0]))

    assert [taken.distinct[code] for code in taken.codes] == ["b", "a"]
    assert taken.rows.to_pylist() == [3, 0]
    assert taken.ids.to_pylist() == [b"p-3", b"p-0"]
    assert taken.priorities.to_pylist() == [1, 0]
    assert bytes(framed(taken, 0, "r").slice(0, 1)).startswith(b"HPUB b r.0 ")

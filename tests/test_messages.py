"""Rows as messages: the columns of a write and the bytes of each row on the wire."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream import wire
from pyspark_jetstream.errors import ColumnError, RowError
from pyspark_jetstream.lanes import framed
from pyspark_jetstream.mapping import SubjectMapping
from pyspark_jetstream.messages import MessageBuilder, Messages, check_schema
from pyspark_jetstream.priority import Priorities, Priority
from pyspark_jetstream.targets import Target, Targets
from pyspark_jetstream.window import Publishes

TEXTS = pa.map_(pa.string(), pa.string())
LISTS = pa.map_(pa.string(), pa.list_(pa.string()))


class Encoder:
    """Builds messages and frames them with PubAcks to `<inbox>.<ordinal>`."""

    def __init__(self, inbox: str, **arguments) -> None:
        self.inbox, self.builder, self.offered = inbox, MessageBuilder(**arguments), 0

    @property
    def rows(self) -> int:
        return self.builder.rows

    def encode(self, batch: pa.RecordBatch) -> Publishes:
        messages = self.builder.build(batch)
        self.offered += len(messages)
        return framed(messages, self.offered - len(messages), self.inbox)


def frames(encoder: Encoder, batch: pa.RecordBatch) -> list[bytes]:
    """The frame of each row, and a check that each goes where the block says."""
    block = encoder.encode(batch)
    found = [bytes(block.slice(i, i + 1)) for i in range(block.first, block.end)]
    for i, one in enumerate(found):
        assert one.split(b" ")[1].decode() == block.subject(block.first + i)
    assert b"".join(found) == bytes(block.wire[block.offsets[0] : block.offsets[-1]])
    return found


def batch(count: int = 1, **columns) -> pa.RecordBatch:
    """A batch with data unless it is given."""
    return pa.record_batch({"data": pa.array(["x"] * count, pa.string())} | columns)


def test_a_row_without_headers_is_a_pub():
    """
    Without headers and ids a row is a PUB with its number in the reply subject.
    """
    rows = pa.record_batch({"subject": ["a.b", "c"], "data": pa.array([b"x", b""])})

    assert frames(Encoder("IN"), rows) == [b"PUB a.b IN.0 1\r\nx\r\n", b"PUB c IN.1 0\r\n\r\n"]


def test_rows_are_numbered_through_all_batches():
    """
    The number of a row is its position in the task's input, whatever the batches.
    """
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
    """
    The payload is the text's UTF-8 or the bytes.
    """
    data = pa.array(["é"]).cast(pa.binary()).cast(type)

    assert frames(Encoder("IN", subject="s"), pa.record_batch({"data": data})) == [
        "PUB s IN.0 2\r\né\r\n".encode()
    ]


def test_the_option_subject_wins_over_the_column():
    """
    The option names the subject of all rows, as the Kafka sink's topic does.
    """
    rows = batch(2, subject=pa.array(["a", None]))

    assert [f.split()[1] for f in frames(Encoder("IN", subject="s"), rows)] == [b"s", b"s"]


def test_subjects_are_mapped():
    """
    The mapping is applied to the column's and to the option's subject.
    """
    mapping = SubjectMapping.parse('{"flights.*.*": "flights.{{partition(4,1)}}.$1.$2"}')
    rows = batch(2, subject=pa.array(["flights.JFK.LAX", "other"]))
    expected = mapping.map("flights.JFK.LAX").encode()
    of_column = frames(Encoder("IN", mapping=mapping), rows)
    of_option = frames(Encoder("IN", mapping=mapping, subject="flights.JFK.LAX"), batch(1))

    assert [f.split()[1] for f in of_column] == [expected, b"other"]
    assert of_option[0].split()[1] == expected


@pytest.mark.parametrize(
    ("type", "headers"),
    [(TEXTS, [("a", "1"), ("b", "2"), ("a", "3")]), (LISTS, [("a", ["1"]), ("b", ["2", "3"])])],
    ids=["text", "list"],
)
def test_headers_are_written_in_order(type, headers):
    """
    Each header value is a line, in the order of the map, before the id.
    """
    rows = batch(3, headers=pa.array([headers, None, []], type))
    lines = [
        (name, value)
        for name, values in headers
        for value in (values if isinstance(values, list) else [values])
    ]
    with_ids = frames(Encoder("IN", subject="s", id_prefix="P"), rows)
    without = frames(Encoder("IN", subject="s"), rows)

    assert with_ids == [
        wire.pub("s", b"x", f"IN.{i}", wire.header_block([*own, ("Nats-Msg-Id", f"P-{i}")]))
        for i, own in enumerate([lines, [], []])
    ]
    assert without == [
        wire.pub("s", b"x", "IN.0", wire.header_block(lines)),
        wire.pub("s", b"x", "IN.1"),
        wire.pub("s", b"x", "IN.2"),
    ]


def test_null_lists_of_headers_have_no_lines():
    """
    A header whose list is empty or null is no line.
    """
    rows = batch(1, headers=pa.array([[("a", None), ("b", []), ("c", ["1"])]], LISTS))

    assert frames(Encoder("IN", subject="s"), rows) == [
        wire.pub("s", b"x", "IN.0", wire.header_block([("c", "1")]))
    ]


def test_ids_of_rows():
    """
    A row's id is its msg_id, else the one among its headers, else a made one.
    """
    headers = pa.array([None, [("Nats-Msg-Id", "h")], None], TEXTS)
    rows = batch(3, headers=headers, msg_id=pa.array(["m", None, None]))
    ids = [dict(wire.parse_headers(f.split(b"\r\n", 1)[1])).get("Nats-Msg-Id")
           for f in frames(Encoder("IN", subject="s", id_prefix="P"), rows)]  # fmt: skip

    assert ids == ["m", "h", "P-2"]


def test_no_ids_are_made_without_a_prefix():
    """
    With exactlyOnce=false only given ids are sent.
    """
    rows = batch(2, msg_id=pa.array(["m", None]))

    assert frames(Encoder("IN", subject="s"), rows) == [
        wire.pub("s", b"x", "IN.0", wire.header_block([("Nats-Msg-Id", "m")])),
        wire.pub("s", b"x", "IN.1"),
    ]


def test_an_empty_batch_is_no_publishes():
    """
    No rows, no frames.
    """
    block = Encoder("IN").encode(batch(0, subject=pa.array([], pa.string())))

    assert (block.first, block.end, list(block.offsets)) == (0, 0, [0])


_NOT_UTF8 = (
    pa.string(),
    2,
    [None, pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1, 5))),
     pa.py_buffer(b"acaf\xe9")],
)  # fmt: skip
"""The subjects a and caf\\xe9, as Spark gives whatever bytes were cast to STRING."""


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (batch(2, data=pa.array(["x", None])), "row 1 of partition 5: data is null"),
        (batch(2, subject=pa.array(["a", None])), "row 1 of partition 5: subject is null"),
        (
            batch(3, subject=pa.array(["a", "b c", "b c"])),
            r"publish to 'b c': row 1 of partition 5: .*white space",
        ),
        (batch(1, subject=pa.array(["a.*"])), r"publish to 'a\.\*': row 0 of .*wildcard"),
        (batch(1, subject=pa.array([""])), "row 0 of partition 5: .*empty"),
        (
            batch(2, subject=pa.Array.from_buffers(*_NOT_UTF8)),
            r"row 1 of partition 5: the subject is not UTF-8: b'caf\\xe9'",
        ),
        (
            batch(1, subject=pa.array(["a" * 5000])),
            "row 0 of partition 5: the subject is longer than",
        ),
        (batch(1, subject=pa.array(["$JS.API.STREAM.DELETE.S"])), "a command to the server"),
        (batch(1, msg_id=pa.array(["a\nb"])), "row 0 of partition 5: msg_id .* line break"),
        (batch(2, msg_id=pa.array(["a", ""])), "row 1 of partition 5: msg_id is empty"),
        (
            batch(2, headers=pa.array([None, [("a b", "1")]], TEXTS)),
            "row 1 of partition 5: header 'a b': the name is not printable ASCII",
        ),
        (batch(1, headers=pa.array([[("a:", "1")]], TEXTS)), "header 'a:': the name"),
        (batch(1, headers=pa.array([[("", "1")]], TEXTS)), "header '': the name"),
        (batch(1, headers=pa.array([[("a", "1\r\nb: 2")]], TEXTS)), "header 'a': .*line break"),
        (batch(1, headers=pa.array([[("a", ["1", "\n"])]], LISTS)), "header 'a': .*line break"),
        (batch(1, headers=pa.array([[("a", None)]], TEXTS)), "header 'a': the value is null"),
        (
            batch(1, headers=pa.array([[("Nats-Msg-Id", "h")]], TEXTS), msg_id=pa.array(["m"])),
            "row 0 of partition 5: both a msg_id and the header Nats-Msg-Id",
        ),
        (
            batch(3, data=pa.array(["x", "y" * 101, "z" * 102])),
            r"row 1 of partition 5: 101 bytes .* max_payload of 100",
        ),
    ],
    ids=lambda value: None if isinstance(value, pa.RecordBatch) else str(value)[:40],
)
def test_a_row_that_is_no_message_is_named(rows, message):
    """
    What cannot be a message is an error with the row's number, before anything is sent.
    """
    if "subject" not in rows.schema.names:
        rows = rows.append_column("subject", pa.array(["s"] * rows.num_rows))
    encoder = Encoder("IN", partition=5, max_payload=100)

    with pytest.raises(RowError, match=message):
        encoder.encode(rows)
    assert encoder.rows == 0


def test_max_payload_counts_the_headers():
    """
    Headers and data together must fit what the server takes.
    """
    rows = batch(1, data=pa.array(["y" * 80]))

    with pytest.raises(RowError, match="max_payload"):
        Encoder("IN", subject="s", id_prefix="P", max_payload=100).encode(rows)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"subject": pa.string()}, "column 'data': required"),
        ({"data": pa.string()}, "column 'subject': required, unless the option"),
        ({"data": pa.int64(), "subject": pa.string()}, "column 'data': expected BINARY or STRING"),
        ({"data": pa.string(), "subject": pa.int32()}, "column 'subject': expected STRING"),
        (
            {"data": pa.string(), "subject": pa.string(), "msg_id": pa.binary()},
            "column 'msg_id': expected STRING",
        ),
        (
            {"data": pa.string(), "subject": pa.string(), "headers": pa.string()},
            "column 'headers': expected MAP<STRING,STRING> or MAP<STRING,ARRAY<STRING>>",
        ),
        (
            {"data": pa.string(), "subject": pa.string(), "priority": pa.int32()},
            "column 'priority': expected STRING",
        ),
        (
            {"data": pa.string(), "subject": pa.string(), "claims": pa.string()},
            "column 'claims': expected MAP<STRING,STRING>",
        ),
        (
            {"data": pa.string(), "subject": pa.string(), "ttl": pa.int64()},
            "column 'ttl': expected STRING",
        ),
        (
            {"data": pa.string(), "subject": pa.string(), "value": pa.string()},
            "column 'value': unknown; a row to write consists of data, subject, headers, msg_id",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value)[:40],
)
def test_a_wrong_column_is_named(columns, message):
    """
    A column that cannot be written is an error naming it.
    """
    with pytest.raises(ColumnError, match=message):
        check_schema(pa.schema(columns), False)


def test_two_columns_of_one_name_are_refused():
    """
    Which of two is meant, nobody can say.
    """
    with pytest.raises(ColumnError, match="column 'data': there are two"):
        check_schema(pa.schema([("data", pa.string()), ("data", pa.string())]), True)


def test_column_errors_pickle():
    """
    The error crosses processes as it is.
    """
    error = pickle.loads(pickle.dumps(ColumnError("x", "no")))

    assert str(error) == "column 'x': no"


@pytest.mark.parametrize("seed", range(20))
def test_any_slice_equals_the_general_path(seed):
    """
    Vectorised frames equal those built one by one, for any mix of nulls, headers and slices.
    """
    rng = random.Random(seed)
    kind = rng.choice([TEXTS, LISTS])
    count = rng.randrange(1, 60)
    subject = [rng.choice(["a", "b.c", "d.é"]) for _ in range(count)]
    data = [rng.randbytes(rng.randrange(20)) for _ in range(count)]
    ids = [rng.choice([None, f"id{i}"]) for i in range(count)]

    def value():
        return rng.choice(["", "v", "wörter  und"])

    def header():
        if rng.random() < 0.4:
            return None
        return [
            (f"H{i}", [value() for _ in range(rng.randrange(3))] if kind is LISTS else value())
            for i in range(rng.randrange(3))
        ]

    headers = [header() for _ in range(count)]
    whole = pa.record_batch(
        {
            "msg_id": pa.array(ids, pa.string()),
            "headers": pa.array(headers, kind),
            "data": pa.array(data, pa.binary()),
            "subject": pa.array(subject),
        }
    )
    low = rng.randrange(count)
    high = rng.randrange(low, count) + 1
    prefix = rng.choice([None, "P"])

    def expected(row):
        pairs = []
        for name, values in headers[row] or []:
            pairs += [(name, v) for v in (values if isinstance(values, list) else [values])]
        own = ids[row] or (f"{prefix}-{row - low}" if prefix else None)
        if own:
            pairs.append(("Nats-Msg-Id", own))
        block = wire.header_block(pairs) if pairs else b""
        return wire.pub(subject[row], data[row], f"IN.{row - low}", block)

    found = frames(Encoder("IN", id_prefix=prefix), whole.slice(low, high - low))

    assert found == [expected(row) for row in range(low, high)]


def test_headers_that_are_the_servers_are_left_out():
    """
    What a server would refuse, or overwrite, of a row that was read from a stream does not go out.
    """
    refused = [("Nats-Stream-Source", "S 1"), ("Nats-Batch-Id", "b"), ("Nats-Sequence", "7")]
    rows = batch(2, headers=pa.array([[("a", "1"), *refused, ("b", "2")], refused], TEXTS))

    assert frames(Encoder("IN", subject="s"), rows) == [
        wire.pub("s", b"x", "IN.0", wire.header_block([("a", "1"), ("b", "2")])),
        wire.pub("s", b"x", "IN.1"),
    ]


def test_what_a_row_expects_of_the_stream_is_kept():
    """
    Expected sequences are the row's own.
    """
    expects = [("Nats-Expected-Last-Sequence", "4"), ("Nats-Expected-Last-Subject-Sequence", "2")]
    rows = batch(1, headers=pa.array([expects], TEXTS))

    assert frames(Encoder("IN", subject="s"), rows) == [
        wire.pub("s", b"x", "IN.0", wire.header_block(expects))
    ]


def test_ttls_and_rollups_go_where_the_stream_takes_them():
    """
    A copied TTL or roll-up stays where the target allows it, and is left out where it does not.
    """
    known = {
        "a": Target.parse({"name": "A", "subjects": ["a"], "allow_msg_ttl": True}),
        "b": Target.parse({"name": "B", "subjects": ["b"], "allow_rollup_hdrs": True}),
    }
    targets = Targets(known.get)
    both = [("Nats-TTL", "5s"), ("Nats-Rollup", "sub"), ("n", "1")]
    rows = batch(3, subject=pa.array(["a", "b", "c"]), headers=pa.array([both] * 3, TEXTS))
    sent = frames(Encoder("IN", targets=targets), rows)

    assert [[name for name, _ in wire.parse_headers(f.split(b"\r\n", 1)[1])] for f in sent] == [
        ["Nats-TTL", "n"],
        ["Nats-Rollup", "n"],
        ["Nats-TTL", "Nats-Rollup", "n"],
    ]


@pytest.mark.parametrize("ttl", ["never", "5", "90s", "1h30m", "1.5h", "100ms", None])
def test_a_ttl_is_a_header(ttl):
    """
    The column goes out as the message's TTL; null is none.
    """
    expected = wire.header_block([("Nats-TTL", ttl)]) if ttl else b""

    assert frames(Encoder("IN", subject="s"), batch(1, ttl=pa.array([ttl], pa.string()))) == [
        wire.pub("s", b"x", "IN.0", expected)
    ]


@pytest.mark.parametrize("ttl", ["", "soon", "5 s", "-5s", "5S", "1h30", "1s\r\nX: 1"])
def test_a_ttl_that_is_none_is_named(ttl):
    """
    The row, and the forms a TTL has.
    """
    with pytest.raises(RowError, match=r"row 1 of partition 5: ttl is none: expected never"):
        Encoder("IN", subject="s", partition=5).encode(batch(2, ttl=pa.array(["5s", ttl])))


def test_a_ttl_column_and_header_contradict():
    """
    Which of two is meant, nobody can say.
    """
    rows = batch(1, ttl=pa.array(["5s"]), headers=pa.array([[("Nats-TTL", "6s")]], TEXTS))

    with pytest.raises(RowError, match="both a ttl and the header Nats-TTL"):
        Encoder("IN", subject="s").encode(rows)


LOSSY = '{"foo": [{"destination": "foo", "weight": "30%"}, {"destination": "bar", "weight": 30}]}'


def test_rows_the_mapping_loses_are_counted_and_left_out():
    """
    Rows keep their numbers and ids, whichever of them are lost.
    """
    encoder = Encoder("IN", subject="foo", mapping=SubjectMapping.parse(LOSSY), id_prefix="P")
    first, second = (encoder.builder.build(batch(500)) for _ in range(2))
    kept = [*first.rows.to_pylist(), *second.rows.to_pylist()]

    assert len(kept) + encoder.builder.lost == encoder.rows == 1000
    assert 300 < encoder.builder.lost < 500
    assert kept == sorted(set(kept))
    assert [int(line.split(b"P-")[1]) for line in first.lines.to_pylist()] == first.rows.to_pylist()


def test_weights_choose_by_the_id_wherever_the_row_stands():
    """
    A row with an id goes the same way at every place of the input.
    """
    mapping = SubjectMapping.parse(LOSSY)
    ids = [f"order-{i}" for i in range(200)]

    def routes(ids):
        messages = MessageBuilder(subject="foo", mapping=mapping).build(
            batch(len(ids), msg_id=pa.array(ids))
        )
        return dict(zip(messages.ids.to_pylist(), messages.subject.to_pylist(), strict=True))

    assert routes(ids) == routes(ids[::-1])
    assert set(routes(ids).values()) == {b"foo", b"bar"}


@pytest.mark.parametrize("key", ["subject", "customer"])
def test_a_key_chooses_instead_of_the_id(key):
    """
    Rows of one key go one way, whatever their ids.
    """
    rule = {"o.*": [{"destination": "a.$1", "weight": 50}, {"destination": "b.$1", "weight": 50}]}
    builder = MessageBuilder(mapping=SubjectMapping.parse(json.dumps(rule)), mapping_key=key)
    messages = builder.build(
        batch(
            400,
            subject=pa.array([f"o.{i % 20}" for i in range(400)]),
            headers=pa.array([[("customer", str(i % 20))] for i in range(400)], TEXTS),
            msg_id=pa.array([f"m{i}" for i in range(400)]),
        )
    )
    of_key = {(row % 20, s.split(b".")[0]) for row, s in enumerate(messages.subject.to_pylist())}

    assert len(of_key) == 20
    assert {where for _, where in of_key} == {b"a", b"b"}


# ── blocks ───────────────────────────────────────────────────────────────────────────────────


def stream(name: str, *subjects: str) -> Target:
    return Target.parse({"name": name, "subjects": list(subjects)})


def test_messages_of_several_blocks_in_one():
    """
    Joined, each message keeps its subject, stream, headers, data, id, number and priority.
    """
    known = {"a": stream("A", "a"), "b": stream("B", "b"), "c": stream("C", "c")}
    builder = MessageBuilder(targets=Targets(known.get))
    given = [
        batch(3, subject=["a", "b", "a"]),
        batch(3, subject=["c", "x", "b"], msg_id=["1", None, "3"]),
        batch(1, subject=["b"]),
    ]
    parts = [builder.build(each) for each in given]
    parts[2] = replace(parts[2], priorities=pa.array([0], pa.int8()))
    joined = Messages.joined(parts)
    streams = joined.targets.take(joined.indices).to_pylist()
    expected = [place for part in parts for place in part.targets.take(part.indices).to_pylist()]

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
    """
    Taken by their places, messages are whole.
    """
    builder = MessageBuilder(id_prefix="p")
    found = builder.build(batch(4, subject=list("abcb")))
    found = replace(found, priorities=pa.array([0, 1, 2, 1], pa.int8()))
    taken = found.take(pa.array([3, 0]))

    assert [taken.distinct[code] for code in taken.codes] == ["b", "a"]
    assert taken.rows.to_pylist() == [3, 0]
    assert taken.ids.to_pylist() == [b"p-3", b"p-0"]
    assert taken.priorities.to_pylist() == [1, 0]
    assert bytes(framed(taken, 0, "r").slice(0, 1)).startswith(b"HPUB b r.0 ")


# ── priorities ───────────────────────────────────────────────────────────────────────────────


def test_priorities_of_rows():
    """
    A3 to A7 over a batch: by subject, column, header, claim, the claim of a header, and none.
    """
    rules = Priorities(
        subjects=(("vip.>", Priority.CRITICAL),),
        header="X-Priority",
        claim="tenant",
        claim_values=(("free", Priority.NON_CRITICAL),),
    )
    names = ["vip.a", "b", "b", "b", "b", "b"]
    headers = [None, None, [("X-Priority", "critical")], None, [("tenant", "free")], None]
    claims = [None, None, None, [("tenant", "free")], None, [("tenant", "other")]]
    batch = pa.record_batch(
        {
            "subject": pa.array(names),
            "data": pa.array(["x"] * 6),
            "priority": pa.array(["non-critical", "critical", None, None, None, "what?"]),
            "headers": pa.array(headers, pa.map_(pa.string(), pa.string())),
            "claims": pa.array(claims, pa.map_(pa.string(), pa.string())),
        }
    )
    builder = MessageBuilder(priorities=rules)
    found = builder.build(batch.slice(1)).priorities, builder.build(batch).priorities

    assert found[0].to_pylist() == [0, 0, 2, 2, 1]
    assert found[1].to_pylist() == [0, 0, 0, 2, 2, 1]
    assert builder.unrecognised == 2


def test_a_resolver_sees_the_row():
    """
    A6: a function of the user's gets subject, payload and headers of rows without a priority.
    """
    seen = []

    def resolve(publish):
        seen.append(publish)
        return "critical" if publish.data == b"urgent" else None

    batch = pa.record_batch(
        {
            "subject": pa.array(["a", "b"]),
            "data": pa.array(["urgent", "not"]),
            "headers": pa.array(
                [[("h", ["1", "2"])], None], pa.map_(pa.string(), pa.list_(pa.string()))
            ),
        }
    )
    found = MessageBuilder(priorities=Priorities(resolver=resolve)).build(batch).priorities

    assert found.to_pylist() == [0, 1]
    assert [tuple(each) for each in seen] == [("a", b"urgent", {"h": "1"}), ("b", b"not", {})]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_a_claim_is_found_whatever_form_its_texts_have(text):
    """
    Spark may send LARGE_STRING; a slice of a batch keeps to its own rows.
    """
    rows = [[("t", "free")], None, [("x", "free"), ("t", "acme")], [], [("t", None)]]
    batch = pa.record_batch(
        {
            "data": pa.array([b""] * 5),
            "subject": pa.array(["a"] * 5),
            "claims": pa.array(rows, pa.map_(text, text)),
        }
    )
    values = (("acme", Priority.CRITICAL), ("free", Priority.NON_CRITICAL))
    priorities = Priorities(claim="t", claim_values=values)
    found = [
        MessageBuilder(priorities=priorities).build(each).priorities
        for each in (batch, batch.slice(1, 3))
    ]

    assert [each.to_pylist() for each in found if each is not None] == [[2, 1, 0, 1, 1], [1, 0, 1]]


@pytest.mark.parametrize("values", [None, []])
def test_a_resolver_does_not_see_headers_without_a_value(values):
    """
    They go out as no header, too.
    """
    headers = pa.array([[("h", values)]], pa.map_(pa.string(), pa.list_(pa.string())))
    batch = pa.record_batch({"data": [b""], "subject": ["a"], "headers": headers})
    seen = []
    MessageBuilder(priorities=Priorities(resolver=seen.append)).build(batch)

    assert [each.headers for each in seen] == [{}]

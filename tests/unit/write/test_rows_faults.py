"""Rows and columns that are no messages, and what the errors name."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.errors import ColumnError, RowError
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.subjects import reserved
from pyspark_jetstream.write.exactlyonce.ledger import BUCKET as LEDGER
from pyspark_jetstream.write.preparation import check_schema

from ...kits.encoder import LISTS, TEXTS, Encoder, batch, builder
from ...kits.seeds import examples

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
        (
            batch(2, subject=pa.array(["a", None])),
            "^row 1 of partition 5: column subject is null; correct the row, or let onReject",
        ),
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
        (batch(1, subject=pa.array(["$JS.API.STREAM.DELETE.S"])), "row 0 .* a command, an answer"),
        (batch(1, subject=pa.array(["$SYS.REQ.SERVER.PING"])), "row 0 .* a command, an answer"),
        (batch(1, subject=pa.array(["$SRV.STATS"])), "row 0 .* a command, an answer"),
        (batch(2, subject=pa.array(["_INBOX", "_INBOX.x"])), "row 1 .* a command, an answer"),
        (batch(1, subject=pa.array(["spark.jetstream.throttle"])), "row 0 .* a command, an answer"),
        (batch(1, subject=pa.array(["spark.jetstream.throttle.7"])), "row 0 .* a command"),
        (batch(2, subject=pa.array(["a", f"$KV.{LEDGER}.q.committed"])), "row 1 .* a record of"),
        (batch(1, msg_id=pa.array(["a\nb"])), "row 0 of partition 5: msg_id .* line break"),
        (batch(2, msg_id=pa.array(["", " a"])), "row 1 of partition 5: msg_id .* outer blanks"),
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
    """What cannot be a message is an error with the row's number, before anything is sent."""
    if "subject" not in rows.schema.names:
        rows = rows.append_column("subject", pa.array(["s"] * rows.num_rows))
    encoder = Encoder("IN", partition=5, max_payload=100)

    with pytest.raises(RowError, match=message):
        encoder.encode(rows)
    assert encoder.rows == 0


def test_max_payload_counts_the_headers():
    """Headers and data together must fit what the server takes."""
    rows = batch(1, data=pa.array(["y" * 80]))

    with pytest.raises(RowError, match="max_payload"):
        Encoder("IN", subject="s", id_prefix="P", max_payload=100).encode(rows)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"data": None}, "column 'data': required"),
        ({"subject": None}, "column 'subject': required, unless the option"),
        ({"data": pa.int64()}, "column 'data': expected BINARY or STRING"),
        ({"subject": pa.int32()}, "column 'subject': expected STRING"),
        ({"msg_id": pa.binary()}, "column 'msg_id': expected STRING"),
        ({"headers": pa.string()}, "'headers': expected MAP<STRING,STRING> or MAP<STRING,ARRAY<"),
        ({"priority": pa.int32()}, "column 'priority': expected STRING"),
        ({"claims": pa.string()}, "column 'claims': expected MAP<STRING,STRING>"),
        ({"ttl": pa.int64()}, "column 'ttl': expected STRING"),
        ({"data": pa.struct([("a", pa.int64())])}, "got struct<.*>; make text of it with to_json"),
        ({"data": pa.decimal128(9, 2)}, r"STRING, got decimal128\(9, 2\); cast it"),
        ({"headers": pa.map_(pa.string(), pa.int32())}, "got map<string, int32>; cast it"),
        ({"headers": pa.timestamp("us", "UTC")}, r"got timestamp\[us, tz=UTC\]; make a map"),
        (
            {"value": pa.string()},
            "column 'value': unknown; rename it to data, or drop it; a row to write"
            " consists of data, subject, headers, msg_id",
        ),
        ({"Msg_ids": pa.string()}, "column 'Msg_ids': unknown; rename it to msg_id, or drop it"),
        ({"zzz": pa.string()}, "column 'zzz': unknown; drop it; a row"),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value)[:40],
)
def test_a_wrong_column_is_named(columns, message):
    """A column that cannot be written is an error naming it."""
    columns = {"data": pa.string(), "subject": pa.string()} | columns
    schema = pa.schema({name: each for name, each in columns.items() if each is not None})
    with pytest.raises(ColumnError, match=message):
        check_schema(schema, False)


def test_rows_go_into_buckets_of_others():
    """Key-Value buckets are streams like others, but for those of queries' records."""
    rows = batch(2, subject=pa.array(["$KV.USERS.1", f"$KV.{LEDGER}S.1"]))

    assert builder().build(rows).subjects == ["$KV.USERS.1", f"$KV.{LEDGER}S.1"]
    with pytest.raises(RowError, match=r"hub.*row 1 .*: a message on hub.STREAM.* is a command"):
        builder(reserved=reserved("hub.")).build(
            batch(2, subject=pa.array(["hub", "hub.STREAM.DELETE.S"]))
        )


def test_two_columns_of_one_name_are_refused():
    """Which of two is meant, nobody can say."""
    with pytest.raises(ColumnError, match="column 'data': there are two"):
        check_schema(pa.schema([("data", pa.string()), ("data", pa.string())]), True)
    with pytest.raises(ColumnError, match="column 'DATA': there are two"):
        check_schema(pa.schema([("DATA", pa.string()), ("data", pa.string())]), True)


def test_names_of_columns_have_no_case():
    """They match whatever their case, as everywhere in Spark."""
    rows = {"Subject": ["a"], "DATA": ["x"], "Msg_Id": ["m"], "Ttl": ["5s"]}
    keys = {"KEY": ["k"], "Value": ["x"], "Operation": ["put"]}
    messages = builder().build(pa.record_batch(rows))

    assert messages.lines.to_pylist() == [b"Nats-Msg-Id: m\r\nNats-TTL: 5s\r\n"]
    assert builder(bucket="B").build(pa.record_batch(keys)).subjects == ["$KV.B.k"]


def test_column_errors_pickle():
    """The error crosses processes as it is."""
    error = pickle.loads(pickle.dumps(ColumnError("x", "no")))

    assert str(error) == "column 'x': no"


# ── a row's fault is its own (onReject) ──────────────────────────────────────────────────────

SOUND = {"subject": "a.b", "data": "x", "msg_id": None, "ttl": None, "headers": None}

FAULTS = [
    {"subject": None},
    {"subject": "a b"},
    {"subject": "$SYS.x"},
    {"subject": "cut.*x"},
    {"data": None},
    {"data": "y" * 200},
    {"msg_id": "a\rb"},
    {"msg_id": "m", "headers": [("Nats-Msg-Id", "h")]},
    {"headers": [("a b", "1")]},
    {"headers": [("a", None)]},
    {"ttl": "5s\nx: y"},
]

MAPPINGS = {
    "none": None,
    "by subject": '{"cut.*": "a.{{left(1,1)}}"}',
    "by row": '{"cut.*": [{"destination": "a.{{left(1,1)}}", "weight": 50},'
    ' {"destination": "a.c", "weight": 50}]}',
}
"""Of some subjects they make none."""

CUT = {"subject": "cut.*x"}


def table(rows) -> pa.RecordBatch:
    columns = {name: [row[name] for row in rows] for name in SOUND}
    types = {"headers": TEXTS}
    return pa.record_batch(
        {name: pa.array(each, types.get(name, pa.string())) for name, each in columns.items()}
    )


def whole(messages) -> list[tuple]:
    lines = messages.lines or pa.array([b""] * len(messages))
    arrays = (messages.rows, messages.subject, messages.data, lines, messages.ids)
    return list(zip(*(each.to_pylist() for each in arrays), strict=True))


@pytest.mark.parametrize("mapping", MAPPINGS)
@examples(30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 7, 300]),
            st.lists(st.none() | st.sampled_from(FAULTS), min_size=1),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_the_others_are_what_they_were(mapping, blocks):
    """Whatever rows can be no messages, all others are those that they would be without."""
    options = {"rejects": True, "id_prefix": "P", "max_payload": 100}
    if MAPPINGS[mapping] is not None:
        options["mapping"] = SubjectMapping.parse(MAPPINGS[mapping])
    with_faults, without = builder(**options), builder(**options)
    for count, faults in blocks:  # those are had in turns
        bad = {n: fault for n in range(count) if (fault := faults[n % len(faults)]) is not None}
        found, unfit = with_faults.build(
            table([SOUND | bad.get(n, {}) for n in range(count)])
        ).parted()
        expected = without.build(table([SOUND] * count))
        refused = set() if unfit is None else set(unfit.rows.to_pylist())
        cut = {row for row, subject, *_ in whole(found) if subject in (b"cut.*x", b"a.c")}
        first = expected.rows[0].as_py()

        assert [row for row in whole(found) if row[0] not in cut] == [
            row for row in whole(expected) if row[0] not in cut | refused
        ]
        assert len(found) + len(refused) == count
        assert cut | refused == {first + n for n in bad}
        assert cut <= {first + n for n, fault in bad.items() if fault == CUT}
        assert cut == set() or mapping != "by subject"
        assert unfit is None or all(unfit.faults.to_pylist())
    assert with_faults.rows == without.rows


def test_what_of_an_unfit_row_can_be_written_is_kept():
    """Its payload, its sound headers, and an id: its own, else one that is made."""
    rows = [
        SOUND | {"data": None, "msg_id": "m"},
        SOUND | {"msg_id": " m", "headers": [("a b", "1"), ("K", "v"), ("Nats-Batch-Id", "b")]},
        SOUND | {"subject": "a b", "ttl": "a\nb", "headers": [("Nats-Msg-Id", "h")]},
    ]
    unfit = builder(rejects=True, id_prefix="P").build(table(rows)).parted()[1]
    found = sorted(whole(unfit))

    assert found == [
        (0, b"a.b", b"", b"Nats-Msg-Id: m\r\n", b"m"),
        (1, b"a.b", b"x", b"Nats-Msg-Id: P-1\r\nK: v\r\n", b"P-1"),
        (2, b"a b", b"x", b"Nats-Msg-Id: h\r\n", b"h"),
    ]


def test_columns_of_views():
    """Arrow cannot filter them as they are."""
    views = {"data": pa.string_view(), "subject": pa.string_view()}
    rows = pa.record_batch({name: pa.array(["a", "b c"], type) for name, type in views.items()})
    sound, unfit = builder(rejects=True).build(rows).parted()

    assert (sound.subjects, unfit.subjects) == (["a"], ["b c"])


def test_a_subject_that_is_no_text_is_none():
    """What is not UTF-8 cannot stand in a dead letter; its reason shows it."""
    rows = batch(2, subject=pa.Array.from_buffers(*_NOT_UTF8))
    sound, unfit = builder(rejects=True).build(rows).parted()

    assert sound.subjects == ["a"]
    assert (unfit.subjects, unfit.faults.to_pylist()) == (
        [""], ["the subject is not UTF-8: b'caf\\xe9'"],
    )  # fmt: skip

"""Shed rows as dead letters, and dead letters as the rows they were."""

from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.errors import RowError
from pyspark_jetstream.outbox.deadletters import DeadLetters
from pyspark_jetstream.outbox.lettersubjects import template_fault
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.subjects import reserved

from ...kits.encoder import builder
from ...kits.lanes import messages

LISTS = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))


def built(rows, **arguments) -> Messages:
    """Messages of (subject, data, headers, id) rows."""
    subjects, data, headers, ids = zip(*rows, strict=True)
    batch = {
        "subject": pa.array(subjects, pa.string()),
        "data": pa.array(data, pa.binary()),
        "headers": pa.array(headers, LISTS),
        "msg_id": pa.array(ids, pa.string()),
    }
    return builder(allow_rollup=True, **arguments).build(pa.record_batch(batch))


def lines_of(messages: Messages) -> list[list[tuple[str, str]]]:
    """Names and values of each message's headers, in order."""
    if messages.lines is None:
        return [[] for _ in range(len(messages))]
    return [wire.parse_headers(b"NATS/1.0\r\n" + each) for each in messages.lines.to_pylist()]


ROW = ("a.b", b"x", [("X", ["1", "2"])], "i-7")


def test_a_dead_letter_says_where_it_should_have_gone():
    """A21: it keeps payload, headers and number, and says subject, reason and origin."""
    messages = built([ROW])
    letter = DeadLetters("dlq.{subject}", "q1", 5).of(messages, "QueueTimeout")

    assert letter.distinct == ["dlq.a.b"]
    assert letter.subject.to_pylist() == [b"dlq.a.b"]
    assert letter.data.to_pylist() == [b"x"]
    assert lines_of(letter) == [
        [
            ("Nats-Msg-Id", "i-7.dlq"),
            ("Jetstream-Sink-Original-Nats-Msg-Id", "i-7"),
            ("X", "1"),
            ("X", "2"),
            ("Jetstream-Sink-Original-Subject", "a.b"),
            ("Jetstream-Sink-Reason", "QueueTimeout"),
            ("Jetstream-Sink-Priority", "normal"),
            ("Jetstream-Sink-Query-Id", "q1"),
            ("Jetstream-Sink-Batch-Id", "5"),
            ("Jetstream-Sink-Ordinal", "0"),
        ]
    ]
    assert letter.ids is not None
    assert letter.ids.to_pylist() == [b"i-7.dlq"]


@pytest.mark.parametrize(
    ("name", "becomes"),
    [
        ("Nats-TTL", "Jetstream-Sink-Original-Nats-TTL"),
        ("Nats-Rollup", "Jetstream-Sink-Original-Nats-Rollup"),
        ("KV-Operation", "Jetstream-Sink-Original-KV-Operation"),
        ("Nats-Expected-Stream", "Jetstream-Sink-Original-Nats-Expected-Stream"),
        ("Nats-Expected-Last-Sequence", "Jetstream-Sink-Original-Nats-Expected-Last-Sequence"),
        ("Jetstream-Sink-Reason", "Jetstream-Sink-Original-Jetstream-Sink-Reason"),
        ("Jetstream-Sink-Original-Subject",
         "Jetstream-Sink-Original-Jetstream-Sink-Original-Subject"),
        ("Nats-TTL-Of-Mine", "Nats-TTL-Of-Mine"),
        ("nats-ttl", "nats-ttl"),  # not to the server either
        ("X-Nats-TTL", "X-Nats-TTL"),
    ],
)  # fmt: skip
def test_headers_for_the_rows_own_stream_are_renamed(name, becomes):
    """What the dead letters' stream would act on has another name."""
    value = "sub" if name == "Nats-Rollup" else "5"
    messages = built([("a", b"x", [("A", ["Nats-TTL: 1"]), (name, [value])], None)])
    letter = DeadLetters("dlq", "q", 0).of(messages, "r")

    assert sorted(lines_of(letter)[0][:2]) == sorted([("A", "Nats-TTL: 1"), (becomes, value)])


def test_rows_without_headers_ids_and_priorities():
    """A row that has nothing but subject and payload has no id as a dead letter either."""
    rows = pa.record_batch({"subject": ["a", "b"], "data": ["x", "y"]})
    letters = DeadLetters("dlq", "q", 0).of(builder().build(rows), "r")

    assert letters.ids is None
    assert letters.distinct == ["dlq"]
    assert letters.indices.to_pylist() == [0, 0]
    assert [dict(each)["Jetstream-Sink-Ordinal"] for each in lines_of(letters)] == ["0", "1"]
    assert all("Nats-Msg-Id" not in dict(each) for each in lines_of(letters))


def test_rows_out_of_the_middle_keep_their_numbers_and_priorities():
    """Each dead letter has its row's number and priority."""
    messages = replace(
        built([(f"s.{i % 3}", b"%d" % i, None, f"i{i}" if i % 2 else None) for i in range(6)]),
        priorities=pa.array([0, 1, 2, 2, 1, 2], pa.int8()),
        targets=pa.array([0, 0, 0], pa.int32()),
    ).take(pa.array([2, 3, 5]))
    letters = DeadLetters("{subject}.dead", "q", 0).of(messages, "r")
    found = [dict(each) for each in lines_of(letters)]

    assert [each["Jetstream-Sink-Ordinal"] for each in found] == ["2", "3", "5"]
    assert [each["Jetstream-Sink-Priority"] for each in found] == ["noncritical"] * 3
    assert [each.get("Nats-Msg-Id") for each in found] == [None, "i3.dlq", "i5.dlq"]
    assert letters.rows.to_pylist() == [2, 3, 5]
    assert letters.subject.to_pylist() == [b"s.2.dead", b"s.0.dead", b"s.2.dead"]
    assert (letters.targets.null_count, letters.since) == (3, None)
    assert letters.priorities is not None
    assert letters.priorities.to_pylist() == [int(Priority.NON_CRITICAL)] * 3


def test_no_rows():
    """No rows are no dead letters."""
    letters = DeadLetters("dlq.{subject}", "q", 0, max_payload=10).of(built([ROW]).slice(0, 0), "r")

    assert len(letters) == 0


@pytest.mark.parametrize(
    ("template", "subject", "says"),
    [
        ("dlq", None, None),
        ("dlq.{subject}", "orders.1", None),
        ("{subject}.dlq", "orders.1", None),
        ("dlq-{subject}", "orders.1", None),
        ("dlq", "dlq.x", None),
        ("a.{subject}.b", "a.b", None),
        ("", None, "the subject is empty"),
        ("dlq.", None, "token 2 is empty"),
        ("dlq.*", None, "wildcard"),
        ("dlq.{subject}.>", None, "wildcard"),
        ("dlq {subject}", None, "white space"),
        ("$JS.{subject}", None, "a command, an answer, or a record"),
        ("{subject}.{subject}", None, "more than once"),
        ("{subject}", None, "where their rows should"),
        ("dlq", "dlq", "'dlq' is a subject of dead letters"),
        ("dlq.{subject}", "dlq.orders.1", "is a subject of dead letters"),
        ("{subject}.dlq", "orders.dlq", "is a subject of dead letters"),
        ("a.{subject}.b", "a.x.y.b", "is a subject of dead letters"),
    ],
)
def test_templates(template, subject, says):
    """A template must give subjects to publish on, and none of the write's own."""
    found = template_fault(template, subject)

    assert (found is None) if says is None else (found is not None and says in found)


@pytest.mark.parametrize(
    ("template", "subjects", "says"),
    [
        ("dlq.{subject}", ["a", "dlq.a"], "'dlq.a': row 1 cannot be a dead letter: 'dlq.a' is"),
        ("dlq", ["a", "b", "dlq"], "'dlq': row 2 cannot"),
        ("dlq.{subject}", ["a" * 3902], "longer than a protocol line"),
        ("$J{subject}", ["S.x"], "a command, an answer, or a record"),
    ],
)
def test_rows_that_cannot_be_dead_letters(template, subjects, says):
    """A row that is a dead letter already, or whose subject has no room for more, is an error."""
    messages = built([(subject, b"", None, None) for subject in subjects])
    with pytest.raises(RowError) as raised:
        DeadLetters(template, "q", 0).of(messages, "r")

    assert says in str(raised.value)


def test_only_subjects_of_the_rows_count():
    """A block may know subjects that none of its rows has; those are not looked at."""
    messages = built([("dlq.a", b"", None, None), ("b", b"", None, None)]).slice(1, 1)

    assert len(DeadLetters("dlq.{subject}", "q", 0).of(messages, "r")) == 1


def test_a_dead_letter_is_larger_than_its_row():
    """A row whose dead letter the server would not take is an error that names it."""
    messages = built([ROW, ("a.c", b"x" * 240, None, None)], max_payload=260)
    with pytest.raises(RowError, match=r"'a\.c': row 1 .* max_payload of 400"):
        DeadLetters("dlq", "q", 0, max_payload=400).of(messages, "r")

    assert len(DeadLetters("dlq", "q", 0, max_payload=500).of(messages, "r")) == 2


# ── rows that are rejected ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("template", "subject", "to", "kept"),
    [
        ("dead.{subject}", "a.b", "dead.a.b", True),
        ("dead.{subject}", "a\x1bb", "dead.no-subject", False),
        ("dead.{subject}", "a\r\nNats-Rollup: all", "dead.no-subject", False),
        ("dead.{subject}", "", "dead.no-subject", False),
        ("dead.{subject}", "a" * 3904, "dead.no-subject", True),
        ("dead.{subject}", "a" * 3905, "dead.no-subject", False),
        ("dead.{subject}", "a" * 70_000, "dead.no-subject", False),
        ("dead.{subject}", "$JS.API.x", "dead.$JS.API.x", False),
        ("dead.{subject}", "dead.x", "dead.no-subject", True),
        ("{subject}.dead", "$JS.API.x", "no-subject.dead", False),
        ("{subject}.dead", "ops.pause", "no-subject.dead", False),
        ("dead", "a\x1bb", "dead", False),
        ("dead", "dead", "dead", True),
    ],
)
def test_a_rejected_row_is_a_dead_letter_whatever_its_subject(template, subject, to, kept):
    """It must not stop the write; a subject that is none, or too long for a header, is left out."""
    row = replace(messages([subject]), faults=pa.array(["why"]))
    letters = DeadLetters(template, "q", 0, 1 << 20, reserved("ops.pause"))
    found = letters.of(row, pa.array(["Rejected: why"]), rejected=True)
    headers = dict(lines_of(found)[0])

    assert (found.subjects, found.faults) == ([to], None)
    assert headers.get("Jetstream-Sink-Original-Subject") == (subject if kept else None)
    assert headers["Jetstream-Sink-Reason"] == "Rejected: why"


@pytest.mark.parametrize("id", [None, "m", "m" * 70_000])
@pytest.mark.parametrize(("data", "header"), [(1000, 10), (10, 70_000), (900, 10)])
def test_what_is_too_large_for_a_dead_letter_is_left_out(id, data, header):
    """So that it goes out; the reason says so, and no replay takes it for the row."""
    row = built([("a", b"x" * data, [("A", ["y" * header])], id)], max_payload=1 << 20)
    limit = 1200 if header == 10 else 1 << 20
    found = DeadLetters("dead", "q", 0, limit).of(row, pa.array(["Rejected: why"]), rejected=True)
    headers = dict(lines_of(found)[0])
    size = len(found.lines[0].as_py()) + len(found.data[0].as_py()) + 12
    is_whole = (data, header) == (900, 10) and len(id or "") < 70_000

    assert size <= limit and len(found.lines[0].as_py()) + 12 < 1 << 16
    assert ("A" in headers) == (found.data[0].as_py() != b"") == is_whole
    assert ("left out" in headers["Jetstream-Sink-Reason"]) == (not is_whole)
    assert ("Jetstream-Sink-Original-Subject" in headers) == is_whole
    assert headers.get("Nats-Msg-Id") == ("m.dlq" if id == "m" else None)


def test_a_reason_without_end_is_cut():
    """It may show what a stranger wrote."""
    found = DeadLetters("dead", "q", 0).of(messages(["a"]), pa.array(["é" * 70_000]), rejected=True)

    assert dict(lines_of(found)[0])["Jetstream-Sink-Reason"] == "é" * 1000

"""Dead letters of a read are the rows that they were, and are written as any rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pyspark_jetstream import restored
from pyspark_jetstream.errors import ColumnError
from pyspark_jetstream.fetch.decoding.rows import user_headers
from pyspark_jetstream.outbox.deadletters import DeadLetters
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.priority import Priority

from ..kits.encoder import LISTS, builder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ = (
    "data binary, headers map<string, array<string>>, n int, subject string, id string,"
    " was map<string, array<string>>, urgency string"
)
NAMES = (
    "X", "Y", "Nats-Msg-Id", "Nats-TTL", "Nats-Rollup", "KV-Operation", "Nats-Expected-Stream",
    "Jetstream-Sink-Reason", "Jetstream-Sink-Original-Subject", "Jetstream-Sink-Other",
    "Jetstream-Sink-Original-Nats-TTL",
)  # fmt: skip
Row = tuple[str, bytes, list[tuple[str, list[str]]], str | None]


def built(rows: list[Row]) -> Messages:
    """Messages of these rows."""
    subjects, data, headers, ids = zip(*rows, strict=True)
    columns = {
        "subject": pa.array(subjects, pa.string()),
        "data": pa.array(data, pa.binary()),
        "headers": pa.array(headers, LISTS),
        "msg_id": pa.array(ids, pa.string()),
    }
    messages: Messages = builder(allow_rollup=True).build(pa.record_batch(columns))
    return messages


def header_columns(messages: Messages) -> list[dict[str, list[str]]]:
    """The column `headers` of a read of them."""
    assert messages.lines is not None
    return [dict(user_headers(lines)) for lines in messages.lines.to_pylist()]


def test_rows_are_what_they_were(spark: SparkSession) -> None:
    """Restored as often as it was shed, it is the row, whatever its headers."""
    chance = random.Random(7)
    rows: list[Row] = []
    for number in range(300):
        names = chance.sample(NAMES, chance.randrange(4))
        headers = [(name, chance.choices("123", k=chance.randrange(1, 3))) for name in names]
        headers = [(n, v if n != "Nats-Rollup" else ["sub"]) for n, v in headers]
        headers = [(n, v[:1] if n == "Nats-Msg-Id" else v) for n, v in headers]
        id = None if "Nats-Msg-Id" in names else chance.choice([None, "i", "ï.dlq", "a b"])
        subject = ".".join(chance.choices(["a", "é", "{x}"], k=chance.randrange(1, 4)))
        rows.append((subject, b"%d" % number, headers, id))
    once = DeadLetters("dead.{subject}", "q", 0).of(built(rows), "QueueTimeout")
    twice = DeadLetters("again.{subject}", "q", 1).of(once, "Rejected: why")
    urgency = Priority.NORMAL.label
    for letters, depth in ((once, 1), (twice, 2)):
        found = spark.createDataFrame(
            [
                (data, headers, number, "", "", {}, "")
                for number, (data, headers) in enumerate(
                    zip(letters.data.to_pylist(), header_columns(letters), strict=True)
                )
            ],
            READ,
        ).select("data", "headers")
        for _ in range(depth):
            found = restored(found)
        got = {row.data: row for row in found.collect()}

        assert found.columns == ["subject", "data", "headers", "msg_id", "priority"]
        for subject, data, headers, id in rows:
            row = got[data]
            named = dict(headers).get("Nats-Msg-Id")
            expected = {
                n: v for n, v in headers if n != "Nats-Msg-Id" and not n.startswith("Nats-Expected")
            } | {n: v for n, v in headers if n.startswith("Nats-Expected")}
            assert (row.subject, row.priority) == (subject, urgency)
            assert row.msg_id == (id if named is None else named[0])
            assert row.headers == expected


def test_what_is_no_dead_letter_is_left_out(spark: SparkSession) -> None:
    """Nor does what a stranger wrote as one stop the query."""
    subject = {"Jetstream-Sink-Original-Subject": ["a.b"]}
    headers: list[Any] = [
        None,
        {},
        {"Jetstream-Sink-Original-Subject": []},
        {"Jetstream-Sink-Reason": ["r"]},
        subject | {"X": ["1"], "Jetstream-Sink-Original-X": ["2", "3"], "Y": []},
    ]
    rows = spark.createDataFrame(
        [(b"x", each) for each in headers], "data binary, headers map<string, array<string>>"
    )
    (row,) = restored(rows).collect()

    assert row.asDict() == {
        "subject": "a.b", "data": b"x", "headers": {"X": ["2", "3"], "Y": []},
        "msg_id": None, "priority": None,
    }  # fmt: skip
    with pytest.raises(ColumnError, match="includeHeaders=true"):
        restored(rows.select("data"))

"""JSON of strangers."""

from __future__ import annotations

import pytest

from pyspark_jetstream.client.connection import Client, Reply
from pyspark_jetstream.client.info import Message
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import JetStreamError, LedgerError, OffsetError
from pyspark_jetstream.foreign import read_json
from pyspark_jetstream.operations.inspection.checkpoints import parse_offsets
from pyspark_jetstream.outbox import throttleprotocol
from pyspark_jetstream.outbox.limits import Kind
from pyspark_jetstream.publish.answers import Says, classify, understand
from pyspark_jetstream.publish.metrics import Report
from pyspark_jetstream.readstream.standby import Record
from pyspark_jetstream.write import ledger

from ..kits.options import connection_of

DEEP = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
"""JSON that no reader is deep enough for."""


@pytest.mark.parametrize("text", [DEEP, DEEP.decode(), b"", b"{", b"\xff", "\ud800", b"9" * 5000])
def test_what_cannot_be_read_is_a_value_error(text):
    """
    Be it no JSON, no UTF-8, a number of too many digits or too many brackets.
    """
    with pytest.raises(ValueError):
        read_json(text)


def test_what_is_json_is_read():
    """
    As by Python's own reader, with its hook.
    """
    assert read_json(b'{"a": [1, null]}') == {"a": [1, None]}
    assert read_json('{"a": 1, "a": 2}', object_pairs_hook=list) == [("a", 1), ("a", 2)]


def answered(data: bytes) -> None:
    js = JetStream(Client(connection_of("nats://127.0.0.1:4222")))
    js._json("$JS.API.INFO", Reply(0, "", b"", data))


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (Record.from_bytes, OffsetError),
        (Report.decode, ValueError),
        (throttleprotocol.understand, ValueError),
        (answered, JetStreamError),
        (lambda data: ledger._content(Message(1, "k", [], data, b"", "")), LedgerError),
    ],
    ids=["lease", "report", "command", "answer", "ledger"],
)
@pytest.mark.parametrize("data", [DEEP, b'{"owner": %s}' % DEEP, b"[]", b"7"])
def test_who_reads_it_says_what_it_is_not(read, error, data):
    """
    Records, reports, commands and answers of strangers end in the error of whoever reads them.
    """
    with pytest.raises(error):
        read(data)


@pytest.mark.parametrize("data", [DEEP, b'{"error": {"code": 1e999}}', b'{"seq": 1, "error": 7}'])
def test_what_answers_a_publish_is_rejected(data):
    """
    Whoever listens on a subject can answer a publish on it.
    """
    assert classify(0, "", data).kind is Kind.REJECTED
    assert understand(0, "", data).says is Says.REFUSED


def test_another_source_s_offset_stays_text():
    """
    In a checkpoint of Spark's, too.
    """
    assert parse_offsets(f"v1\n{{}}\n{DEEP.decode()}\n7") == {"0": DEEP.decode(), "1": 7}

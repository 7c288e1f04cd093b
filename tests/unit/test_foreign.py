"""JSON of strangers."""

import pytest

from pyspark_jetstream.client.connection import Client, Reply
from pyspark_jetstream.client.info import StoredMessage
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import LedgerError, ProtocolError
from pyspark_jetstream.foreign import (
    base64_bytes,
    each,
    flag,
    number,
    read_json,
    record,
    text,
    time,
)
from pyspark_jetstream.operations.batches import offsets_of
from pyspark_jetstream.outbox.throttling import throttleprotocol
from pyspark_jetstream.publish.lanes.answers import Fate, classify
from pyspark_jetstream.publish.metrics import MetricsReport
from pyspark_jetstream.write.exactlyonce.records import committed_of

from ..kits.options import connection_of

DEEP = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
"""JSON that no reader is deep enough for."""


@pytest.mark.parametrize("text", [DEEP, DEEP.decode(), b"", b"{", b"\xff", "\ud800", b"9" * 5000])
def test_what_cannot_be_read_is_a_value_error(text):
    """Be it no JSON, no UTF-8, a number of too many digits or too many brackets."""
    with pytest.raises(ValueError):
        read_json(text)


def test_what_is_json_is_read():
    """As by Python's own reader, with its hook."""
    assert read_json(b'{"a": [1, null]}') == {"a": [1, None]}
    assert read_json('{"a": 1, "a": 2}', object_pairs_hook=list) == [("a", 1), ("a", 2)]


PAIR = record({"name": text}, {"counts": each(number(0, 9), dict), "many": each(flag)})


@pytest.mark.parametrize(
    ("reader", "value", "place"),
    [
        (text, 7, " is 7, no text"),
        (text, "\ud800", r" is '\ud800', no text"),
        (flag, 1, " is 1, neither true nor false"),
        (number(0, 9), True, " is True, no number from 0 to 9"),
        (number(0, 9), 10, " is 10, "),
        (number(0, 9), -1, " is -1, "),
        (number(0, 9), 1.0, " is 1.0, "),
        (number(0, 9), "1", " is '1', "),
        (time, "2026-01-02T03:04:05", " is '2026-01-02T03:04:05', no time with an offset"),
        (time, "yesterday", " is 'yesterday', "),
        (time, 7, " is 7, "),
        (base64_bytes, "a!b=", " is 'a!b=', no base64"),
        (base64_bytes, "abc", " is 'abc', no base64"),
        (base64_bytes, None, " is None, "),
        (PAIR, [], " is [], no object"),
        (PAIR, {}, ".name is missing"),
        (PAIR, {"name": None}, ".name is missing"),
        (PAIR, {"name": "a", "counts": []}, ".counts is [], no object"),
        (PAIR, {"name": "a", "counts": {"b": "c"}}, ".counts['b'] is 'c', no number"),
        (PAIR, {"name": "a", "many": {}}, ".many is {}, no list"),
        (PAIR, {"name": "a", "many": [True, None]}, ".many[1] is None, neither"),
        (text, ["x" * 10_000] * 1000, " is ['xxx"),
    ],
)  # fmt: skip
def test_a_reader_says_where_and_what_is_wrong(reader, value, place):
    """In a few words, however large the value is."""
    with pytest.raises(ValueError) as caught:
        reader(value)

    assert str(caught.value).startswith(place)
    assert len(str(caught.value)) < 300


def test_a_reader_gives_what_it_is_for():
    """Members that it knows are read, null ones are taken out, all others stay as they are."""
    value = {"name": "a", "counts": {"b": 3}, "many": None, "other": None, "x": [1.5]}

    assert PAIR(value) == {"name": "a", "counts": {"b": 3}, "other": None, "x": [1.5]}
    assert base64_bytes("AP8=") == b"\x00\xff"
    assert time("2026-11-23T18:22:20.367115321Z") == "2026-11-23T18:22:20.367115321Z"
    assert time("0001-01-01T00:00:00Z") == "0001-01-01T00:00:00Z"


def answered(data):
    js = JetStream(Client(connection_of("nats://127.0.0.1:4222")))
    js.answer("$JS.API.INFO", Reply(0, "", b"", data))


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (MetricsReport.decode, ValueError),
        (throttleprotocol.understand, ValueError),
        (answered, ProtocolError),
        (lambda data: committed_of(StoredMessage(1, "k", [], data, b"", "")), LedgerError),
    ],
    ids=["report", "command", "answer", "ledger"],
)
@pytest.mark.parametrize("data", [DEEP, b'{"owner": %s}' % DEEP, b"[]", b"7"])
def test_who_reads_it_says_what_it_is_not(read, error, data):
    """Records, reports and answers of strangers end in the error of who reads them."""
    with pytest.raises(error):
        read(data)


@pytest.mark.parametrize("data", [DEEP, b'{"error": {"code": 1e999}}', b'{"seq": 1, "error": 7}'])
def test_what_answers_a_publish_is_rejected(data):
    """Whoever listens on a subject can answer a publish on it."""
    assert classify(0, "", data).kind is Fate.REJECTED


def test_another_source_s_offset_stays_text():
    """In a checkpoint of Spark's, too."""
    assert offsets_of(f"v1\n{{}}\n{DEEP.decode()}\n7") == {"0": DEEP.decode(), "1": 7}

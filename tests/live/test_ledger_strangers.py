"""Records of the ledger that somebody else has stored, or that are none: an error each."""

import json

import pytest

from pyspark_jetstream.errors import LedgerError, RecordError
from pyspark_jetstream.write.exactlyonce.ids import TaskName
from pyspark_jetstream.write.exactlyonce.ledger import STREAM

from .test_writes import options, rows, write

__all__ = ["options"]

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
"""What queries store their records with."""


@pytest.mark.parametrize(
    ("data", "headers", "message"),
    [
        (b'{"batch": 7, "rows": 10}', [], "committed': sequence .* compare-and-set"),
        (b"", [], "it is empty, and no delete of a key"),
        (b'{"batch": "7", "streams": {}}', [(EXPECTED, "SEEN")], "this is no record"),
        (b'{"batch": -7, "streams": {}}', [(EXPECTED, "SEEN")], "this is no record"),
        (b"{}", [(EXPECTED, "SEEN")], "this is no record"),
        (b'{"batch": 6, "streams": {"T": 1}}', [(EXPECTED, "SEEN")], "this is no record"),
        (b'{"batch": 6, "streams": {"T.*": ["x", 1]}}', [(EXPECTED, "SEEN")], "this is no record"),
    ],
    ids=["put", "empty", "text", "negative", "nothing", "no end", "no stream"],
)
def test_a_record_of_a_stranger_skips_no_batch(
    js, ledger, options, new_stream, data, headers, message
):
    """Whoever may publish in the ledger's bucket may say that a batch is committed."""
    name = new_stream()
    query = f"q3f{name}"
    task = TaskName(query, 7, 0)
    ledger.commit(query, 6, 1, {"rows": 10})
    key = f"$KV.SPARK_LEDGER.{query}.committed"
    (own,) = js.last_messages(STREAM, [key])
    js.publish(key, data, [(n, v.replace("SEEN", str(own.sequence))) for n, v in headers])

    with pytest.raises((RecordError, LedgerError), match=message):
        write(options, task, rows(name, 10))
    with pytest.raises((RecordError, LedgerError), match=message):
        ledger.commit(query, 7, 1, {"rows": 10})
    assert js.stream_info(name).messages == 0
    js.publish(key, b"", [("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")])
    assert write(options, task, rows(name, 10)).acked == 10


@pytest.mark.parametrize(
    "content",
    [
        b'{"streams": {"S": ["x", 0]}}',
        b'{"attempt": "a", "streams": []}',
        b'{"attempt": "a", "streams": {"S": 0}}',
        b'{"attempt": "a", "streams": {"S": ["x", -1]}}',
        b'{"attempt": "a", "streams": {"S": [1, 1]}}',
    ],
)
def test_a_task_s_record_that_is_none_is_an_error(js, ledger, options, new_stream, content):
    """Where an earlier attempt began decides what is left out: only a record of ours says it."""
    name, task = new_stream(), TaskName("q3g", 0, 0)
    js.purge(STREAM, f"$KV.SPARK_LEDGER.{task}", None)
    js.publish(f"$KV.SPARK_LEDGER.{task}", content, [(EXPECTED, "0")])

    with pytest.raises(LedgerError, match="this is no record"):
        write(options, task, rows(name, 10))
    js.publish(f"$KV.SPARK_LEDGER.{task}", b"", [("KV-Operation", "DEL")])
    assert write(options, task, rows(name, 10)).acked == 10


@pytest.mark.parametrize("key", ["foo", "-1", "1_0", "\u0663", "9" * 30])
def test_a_key_that_is_no_task_s_stops_no_commit(js, ledger, key):
    """It goes with the batch."""
    ledger.begin_attempt(TaskName("q3j", 0, 0), [])
    subject = f"$KV.SPARK_LEDGER.q3j.0.{key}"
    js.publish(subject, b"x", [])
    ledger.commit("q3j", 0, 1, {"rows": 10})

    assert list(js.subject_counts(STREAM, ["$KV.SPARK_LEDGER.q3j.>"])[1]) == [
        "$KV.SPARK_LEDGER.q3j.committed"
    ]
    ledger.forget("q3j", 0)
    js.purge(STREAM, "$KV.SPARK_LEDGER.q3j.>", None)


@pytest.mark.parametrize("stream", ["S 0\r\n\r\nPUB x 8\r\ninjected", "a b", "a.b", "*", ""])
def test_a_record_that_names_no_stream_is_none(js, ledger, options, new_stream, stream):
    """What a record has for streams becomes part of a request: a name that is none is no record."""
    name, task = new_stream(), TaskName(f"q3h{abs(hash(stream))}", 0, 0)
    content = json.dumps({"attempt": "a", "streams": {stream: ["x", 0]}}).encode()
    js.publish(f"$KV.SPARK_LEDGER.{task}", content, [(EXPECTED, "0")])

    with pytest.raises(LedgerError, match="this is no record"):
        write(options, task, rows(name, 10))

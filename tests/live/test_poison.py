"""Messages that are delivered again and again become dead letters."""

import pytest

from pyspark_jetstream.errors import OptionError, RowError
from pyspark_jetstream.readstream.shared import poison

from ..kits.reading import jobs as query
from ..kits.shared import ack_pending, eventually, numbered
from .test_serverheaders import stored_raw

__all__ = ["query"]


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_message_delivered_too_often_is_a_dead_letter(js, new_stream, publish, query, retention):
    """Beyond `maxDeliver` a message becomes a dead letter, and the next query does not see it."""
    name = new_stream(retention=retention)
    dead = new_stream()
    publish([(f"{name}.a", b"poison", [("Nats-Msg-Id", "7"), ("K", "v")])])
    options = {"stream": name, "ackWait": "4s", "maxDeliver": 2,
               "deadLetterSubject": f"{dead}.{{subject}}"}  # fmt: skip
    for delivery in (1, 2):
        one = query(maxRecordsPerTrigger=1, **options)
        end = eventually(one.claim)
        assert end["claims"] == {"0": {str(delivery): "1"}}
        one.die()
    publish([(f"{name}.b", b"good")])
    last = query(**options)
    eventually(lambda: last.drain() or len(last.rows) == 1)
    eventually(lambda: ack_pending(js, name) == 0 or last.drain())
    (letter,) = js.messages(dead, [{"seq": 1}])
    headers = dict(letter.headers)

    assert [row["data"] for row in last.rows] == [b"good"]
    assert (letter.subject, letter.data) == (f"{dead}.{name}.a", b"poison")
    assert headers["Jetstream-Sink-Original-Subject"] == f"{name}.a"
    assert headers["Jetstream-Sink-Original-Nats-Msg-Id"] == "7"
    assert headers["Nats-Msg-Id"] == f"{name}-1.dlq"
    assert headers["Jetstream-Sink-Reason"].startswith("MaxDeliver: delivered 3 times")
    assert headers["K"] == "v"
    assert js.stream_info(dead).messages == 1
    assert last.reader.reportLatestOffset()["0"]["deadLetters"] == 1
    if retention == "workqueue":
        eventually(lambda: last.claim() or js.stream_info(name).messages == 0)


def test_a_dead_letter_is_stored_whatever_its_headers_say(js, new_stream, query):
    """Headers that the server acts on, or that hide its id, keep no dead letter from the stream."""
    name, dead = new_stream(), new_stream()
    said = [("Nats-Trace-Dest", f"{dead}.trace"), ("Nats-Trace-Only", "true"), ("K", "v"),
            ("Nats-Schedule", "@every 1m"), ("a", "Nats-Msg-IdNats-Msg-Id")]  # fmt: skip
    stored_raw(js, f"{name}.a", said)
    one = query(stream=name, ackWait="4s")
    one.claim()
    one.die()
    two = query(stream=name, maxDeliver=1, deadLetterSubject=f"{dead}.{{subject}}")  # fmt: skip
    eventually(lambda: two.claim() or ack_pending(js, name) == 0)
    (letter,) = js.messages(dead, [{"seq": 1}])

    assert letter.headers[:3] == [("Nats-Msg-Id", f"{name}-1.dlq"), ("K", "v"), said[-1]]
    assert {each for each, _ in letter.headers[3:]} == {
        "Jetstream-Sink-Original-Subject", "Jetstream-Sink-Reason"
    }  # fmt: skip
    assert js.stream_info(dead).messages == 1


def test_a_dead_letter_that_is_too_large(js, new_stream, publish, query):
    """A message without room for a dead letter's headers is one error, and stays claimed."""
    name, dead = new_stream(), new_stream()
    maximum = js.client.connection.max_payload
    publish([(f"{name}.a", bytes(maximum))])
    one = query(stream=name, ackWait="4s")
    one.claim()
    one.die()
    two = query(stream=name, maxDeliver=1, deadLetterSubject=f"{dead}.{{subject}}")  # fmt: skip

    with pytest.raises(RowError, match=f"message 1 of stream '{name}' .* max_payload of {maximum}"):
        eventually(two.claim)
    assert js.stream_info(dead).messages == 0
    assert ack_pending(js, name) == 1


def test_many_dead_letters(js, new_stream, publish, query, monkeypatch):
    """All that was delivered too often is fetched in parts, each a dead letter."""
    monkeypatch.setattr(poison, "_TOGETHER", 2)
    name, dead = new_stream(), new_stream()
    publish(numbered(name, 5))
    one = query(stream=name, ackWait="4s")
    one.claim()
    one.die()
    two = query(stream=name, maxDeliver=1, deadLetterSubject=f"{dead}.{{subject}}")  # fmt: skip
    eventually(lambda: two.claim() or js.stream_info(dead).messages == 5)

    letters = js.messages(dead, [{"seq": each} for each in range(1, 6)])
    assert [letter.data for letter in letters] == [b"m%d" % i for i in range(5)]
    assert ack_pending(js, name) == 0
    assert two.reader.reportLatestOffset()["0"]["deadLetters"] == 5


def test_dead_letters_need_a_stream_of_their_own(js, new_stream, query):
    """A dead-letter subject that no stream takes, or that the query reads, is refused."""
    name = new_stream()
    new_stream(subjects=[f"dead.{name}.*"])
    assert query(stream=name, maxDeliver=2, deadLetterSubject="dead.{subject}").claim() is None
    with pytest.raises(OptionError, match=f"no stream takes 'died.{name}.x'"):
        query(stream=name, maxDeliver=2, deadLetterSubject="died.{subject}").claim()
    with pytest.raises(OptionError, match="no stream takes"):
        query(stream=name, maxDeliver=2, deadLetterSubject="nowhere.x").claim()
    with pytest.raises(OptionError, match="would come back"):
        query(stream=name, maxDeliver=2, deadLetterSubject=f"{name}.dead").claim()

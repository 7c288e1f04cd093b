"""Clients that take a pin from a query, and pulls that wait for one message at a time."""

from __future__ import annotations

import time

import pytest

from pyspark_jetstream.errors import ConsumerFencedError, ForeignClientError
from pyspark_jetstream.fetch.pulling import pinned as pinned_module

from .test_pins import puller, query

__all__ = ["puller", "query"]


@pytest.fixture
def begun(js, new_stream, publish, query):
    """A query, its only task, and the rows of that, of which the first have been read."""
    stream = new_stream()
    for _ in range(3):
        publish([(f"{stream}.x", bytes(10_000))] * 500)
    one = query(stream=stream, consumer="hit", readMode="consumer", requestTimeout="10s")
    _, (task,) = one.plan()
    rows = one.reader.read(task)
    assert next(rows).num_rows < 1500
    return stream, one, task, rows


def test_a_stranger_who_takes_over_is_named(js, begun, puller):
    """
    Another client that takes the pin in the middle of a task is told from another attempt: the
    task's error says that it is none, and what the server tells of it.
    """
    stream, _, _, rows = begun
    other = puller(stream, "hit-0")
    js.unpin(stream, "hit-0", "spark")
    other.pull(1000, expires_s=60.0)
    with pytest.raises(ForeignClientError) as caught:
        list(rows)
    other.next()
    since = js.consumer_info(stream, "hit-0").pinned_ts

    said = str(caught.value)
    assert "another client took consumer 'hit-0' over" in said
    assert "has not said within 2s that it is an attempt of this query" in said
    assert f"pinned with id '{other.pin}' since {since}" in said
    assert "option consumer" in said


def test_another_attempt_is_no_stranger(begun, monkeypatch):
    """
    Another attempt of the same task, which announced its pin, is called one.
    """
    monkeypatch.setattr(pinned_module, "ANNOUNCED_WITHIN_S", 20.0)
    _, one, task, rows = begun
    other = one.reader.read(task)
    next(other)
    with pytest.raises(ConsumerFencedError, match="another attempt took consumer"):
        list(rows)
    other.close()


def test_without_the_driver_nobody_is_called_a_stranger(js, begun, puller):
    """
    Where no driver answers, the error is as before, and comes at once.
    """
    stream, one, _, rows = begun
    one.stop()
    other = puller(stream, "hit-0")
    js.unpin(stream, "hit-0", "spark")
    other.pull(1000, expires_s=60.0)
    with pytest.raises(ConsumerFencedError, match="another attempt took consumer"):
        list(rows)


# ── ADR-42: one message at a time ────────────────────────────────────────────────────────────


def test_overflow_with_one_message_at_a_time(js, new_stream, publish, puller):
    """
    ADR-42: with `max_ack_pending` 1 a pull with `min_pending` 1 is to be served only when no other
    pull waits. nats-server 2.15.1 differs: it serves pulls in turn, also this one, and to anybody
    one message at a time.
    """
    stream = new_stream()
    js.create_consumer(
        stream,
        {
            "durable_name": "c", "ack_policy": "explicit", "max_ack_pending": 1,
            "priority_policy": "overflow", "priority_groups": ["spark"],
        },
    )  # fmt: skip
    conditional, other = puller(stream, "c"), puller(stream, "c")
    for waiting, (one, fields) in enumerate([(conditional, {"min_pending": 1}), (other, {})], 1):
        one.pull(10, **fields)
        deadline = time.monotonic() + 60
        while js.consumer_info(stream, "c").num_waiting < waiting:
            assert time.monotonic() < deadline
    publish([(f"{stream}.x", b"%d" % i) for i in range(4)])
    for i, one in enumerate([conditional, other, conditional, other]):
        frame = one.connection.next_frame(time.monotonic() + 60)
        assert frame is not None and frame.data == b"%d" % i
        info = js.consumer_info(stream, "c")
        assert (info.num_ack_pending, info.num_pending) == (1, 3 - i)
        js.client.request(frame.reply.decode(), b"+ACK")

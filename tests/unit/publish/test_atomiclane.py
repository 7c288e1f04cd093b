"""Atomic batches that go well: what is sent together, what is wanted, what is in flight."""

from __future__ import annotations

import pytest

from pyspark_jetstream.publish.lanes.atomiclane import HEADER_BYTES, MAX_ROWS, AtomicLane

from ...kits.atomic import lane
from ...kits.lanes import (
    MANY,
    PREFIX,
    FixedLimit,
    ModelServer,
    hear,
    joined,
    messages,
    parse,
    sent,
    terms,
)


def test_a_batch_says_so_in_its_headers():
    """
    Id, place and commit, before the row's own headers; replies to the first and the last row.
    """
    one = lane()
    one.offer(messages(["a", "b", "a"], headers=[b"H: 1\r\nNats-Batch-Id: x\r\n", b"", b""]))
    found = sent(one)

    name = f"{PREFIX.split('.')[1]}-0-1-1"
    assert [each.headers for each in found] == [
        {"Nats-Batch-Id": name, "Nats-Batch-Sequence": "1", "H": "1", "Nats-Msg-Id": "t-0"},
        {"Nats-Batch-Id": name, "Nats-Batch-Sequence": "2", "Nats-Msg-Id": "t-1"},
        {
            "Nats-Batch-Id": name,
            "Nats-Batch-Sequence": "3",
            "Nats-Batch-Commit": "1",
            "Nats-Msg-Id": "t-2",
        },
    ]
    assert [each.reply for each in found] == [f"{PREFIX}.{name}.1", "", f"{PREFIX}.{name}.3"]
    assert [each.subject for each in found] == ["a", "b", "a"]


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 1000])
def test_a_batch_is_stored(count, ids):
    """
    The answer to the last row stands for all.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * count, ids=ids))
    found = sent(one)
    wanting = one.wants_rows
    for each in found:
        hear(one, server.publish(each))

    assert wanting
    assert len(found) == len(server.stored) == one.tally.acked == count
    assert (one.busy, one.tally.retries, one.bytes_in_flight) == (False, 0, 0)


def test_one_batch_at_a_time():
    """
    Offers are cut at 1,000 rows, and a batch waits for the one before it.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 2500))
    one.offer(messages(["a"] * 10, first=2500))
    sizes = []
    while one.busy:
        part = sent(one)
        sizes.append(len(part))
        for each in part:
            hear(one, server.publish(each))

    assert sizes == [1000, 1000, 500, 10]
    assert server.data == [b"%d" % row for row in range(2510)]


def test_rows_in_flight_are_bounded():
    """
    A batch has no more rows than `maxInFlight`.
    """
    one, server = lane(maximum=7), ModelServer()
    one.offer(messages(["a"] * 20))
    sizes = []
    while one.busy:
        part = sent(one)
        sizes.append(len(part))
        for each in part:
            hear(one, server.publish(each))

    assert sizes == [7, 7, 6]


def test_rows_are_wanted_when_all_are_on_their_way():
    """
    Not while an offer waits for the batch before it, nor while a batch waits to go again.
    """
    one, server = lane(), ModelServer()
    wanting = [one.wants_rows]
    one.offer(messages(["a"] * 2))
    one.offer(messages(["a"] * 2, first=2))
    first = sent(one)
    wanting.append(one.wants_rows)  # the second offer waits
    for each in first:
        hear(one, server.publish(each))
    second = sent(one)
    wanting.append(one.wants_rows)
    hear(one, server.refused(second[-1], 503, 10077))
    wanting.append(one.wants_rows)  # to be sent again

    assert wanting == [True, False, True, False]


def test_bytes_in_flight_are_bounded():
    """
    A batch is no larger than a quarter of `bufferMemory`, unless one row is, and goes out in
    chunks.
    """
    one, server = lane(max_bytes=20_000), ModelServer()
    one.offer(messages(["a"] * 50, [b"x" * 1000] * 49 + [b"y" * 50_000]))
    maximum = 0
    while one.busy:
        part = parse(joined(one.frames_to_send(0.0, 3000)))
        assert len(part) <= 3
        if part[0].data[:1] == b"x":
            maximum = max(maximum, one.bytes_in_flight)
        for each in part:
            hear(one, server.publish(each))

    assert one.tally.acked == 50
    assert 10_000 < maximum <= 20_000


def test_what_a_batch_adds_to_a_row_is_known():
    """
    `max_payload` minus `HEADER_BYTES` is what a row may have: the longest names fit.
    """
    one = AtomicLane(f"_INBOX.{'f' * 22}.9999", terms(FixedLimit(4096), MANY, 5.0, 120.0))
    one._batches = 999_999
    one.offer(messages(["a"] * MAX_ROWS, ids=False))
    for _ in range(99):
        one.frames_to_send(0.0, 1)
        one.on_disconnect()
    last = parse(bytes(one.frames_to_send(0.0, MANY) or b""))[-1]

    added = last.size - len(last.data) - len(f"HPUB a {last.reply} 111 11111\r\n\r\n")
    assert added <= HEADER_BYTES


def test_repr_shows_the_state():
    """
    The lane says what it is doing.
    """
    one = lane()
    one.offer(messages(["a"] * 3))
    sent(one)

    assert repr(one).startswith("<AtomicLane 3/3, 1. sent/rows, attempt, 0 acked, one by one:")


@pytest.mark.parametrize("data", [b"", b'{"stream":"S","seq":1,"batch":"b","count":2}', b"["])
def test_replies_that_nobody_awaits(data):
    """
    Whoever knows the inbox may send on any subject below it: what is no reply to a row is nothing.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 2))
    found = sent(one)
    name, _, row = found[-1].reply.removeprefix(f"{PREFIX}.").rpartition(".")
    for token in ("", "x", name, f"{name}.x", f"{name}.", f"{name}-x.{row}", f"x{name}.{row}",
                  f"{name}.-1", f"{name}.{'9' * 5000}", f"{name}.{row}.9"):  # fmt: skip
        one.on_reply(token.encode(), 0, "", data, 0.0)
    assert (one.tally.acked, one.busy) == (0, True)
    for each in found:
        hear(one, server.publish(each))

    assert (one.tally.acked, one.tally.retries, one.busy) == (2, 0, False)

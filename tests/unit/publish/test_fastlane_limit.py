"""Fast-ingest batches and the limit in flight: what it hears of them, how it holds them back."""

from __future__ import annotations

import pytest

from pyspark_jetstream.outbox.limits import GradientLimit

from ...kits.fast import lane
from ...kits.lanes import FixedLimit, ModelServer, exchange, hear, messages, reply, sent


class Ear(FixedLimit):
    """A limit that notes what it hears."""

    def __init__(self, maximum: int) -> None:
        super().__init__(maximum)
        self.heard: list[tuple[float, ...]] = []

    def acked(self, count: int, rtt_s: float, in_flight: int, now: float) -> None:
        self.heard.append((count, round(rtt_s, 6), in_flight, now))

    def dropped(self, now: float) -> None:
        self.heard.append((now,))


def test_the_limit_hears_of_acks():
    """
    Each ack is as many samples as it has news, with the round trip of its last row.
    """
    one = lane(ear := Ear(8))
    one.offer(messages(["a"] * 9))
    (start,) = sent(one, 0.0)
    hear(one, reply(start, type="ack", seq=0, msgs=4), now=0.1)
    rows = sent(one, 0.2)
    hear(one, reply(rows[2], type="ack", seq=4, msgs=4), now=0.5)
    sent(one, 0.6)
    hear(one, reply(rows[6], type="ack", seq=8, msgs=4), now=0.9)

    assert ear.heard == [(4, 0.3, 8, 0.5), (4, 0.7, 5, 0.9)]


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "gap", "last_seq": 1, "seq": 3},
        {"error": {"code": 429, "err_code": 10167, "description": "full"}},
        {"type": "err", "seq": 2, "error": {"code": 503, "err_code": 10077, "description": "max"}},
    ],
    ids=["gap", "429", "limit"],
)
def test_gaps_and_refusals_are_push_backs(answer):
    """
    A gap, a refusal for load or of a limit is a drop, and it is known on which subject (A12).
    """
    one = lane(ear := Ear(8))
    one.offer(messages(["a"] * 9))
    (start,) = sent(one, 0.0)
    hear(one, reply(start, type="ack", seq=0, msgs=4), now=0.1)
    rows = sent(one, 0.2)
    hear(one, reply(rows[1], **answer), now=0.5)

    assert ear.heard == [(0.5,)]
    assert one.tally.push_backs == {"a": 0.5}


def test_silence_is_a_push_back():
    """
    A batch of which nothing is heard for `ackTimeout` is a drop.
    """
    one = lane(ear := Ear(8), ack=1.0)
    one.offer(messages(["a"] * 9))
    sent(one, 0.0)
    one.expire(1.0)

    assert ear.heard == [(1.0,)]
    assert one.tally.push_backs == {"a": 1.0}


def test_a_lower_limit_holds_back_the_batch_but_never_its_acks():
    """
    A limit that falls leaves one ack's worth of rows on the wire, and the next batch asks for less.
    """
    limit = GradientLimit(1, 100, 100)
    one, server = lane(limit), ModelServer()
    one.offer(messages(["a"] * 200))
    (start,) = sent(one, 0.0)
    hear(one, server.publish(start))
    for now in (1.0, 2.0, 3.0):
        limit.dropped(now)
    held = sent(one, 3.0)
    for each in held:
        hear(one, server.publish(each))
    exchange(one, server)
    one.offer(messages(["a"] * 9, first=200))
    (start,) = sent(one, 3.0)

    assert len(held) == 50 - 1  # the first row counts
    assert start.reply.split(".")[4] == "17"

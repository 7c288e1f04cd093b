"""What a writer counts of sendings that failed: ignored, rejected, bypassed."""

import random

import pytest

from pyspark_jetstream.errors import PublishRejectedError
from pyspark_jetstream.publish import telemetry
from pyspark_jetstream.publish.lanes.lane import Lane

from ...kits.lanes import PREFIX, FixedLimit, messages, sent, terms
from ...kits.model import ModelStream, error
from ...kits.world import World, block, command, is_row
from .test_rejected import TOO_LARGE, picky
from .test_waits import START_S, world_of


def lane_of() -> Lane:
    """A lane with plenty of room; silence is noticed after 5 s."""
    return Lane(PREFIX, *terms(FixedLimit(1000), 1 << 30, 5.0, 1e6))


def hear(one, replies, now=0.0):
    for subject, status, data in replies:
        one.on_reply(subject.removeprefix(f"{PREFIX}.").encode(), status, "", data, now)


def exchange(one, stream, now=0.0):
    """Sends and answers until there is nothing to send."""
    while part := sent(one, now):
        for each in part:
            hear(one, stream.publish(each), now)


def outcome(world: World, status: str) -> int:
    """So many of this outcome."""
    counts = world.telemetry.snapshot()
    return counts.total("jetstream_publish_outcomes_total", status=status)[0]


# ── ignored ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "err_code", "is_ignored"),
    [(503, 0, True), (409, 10158, True), (429, 10167, False)],
    ids=["no-stream", "in-process", "429"],
)
def test_what_says_nothing_of_the_load_is_ignored(monkeypatch, status, err_code, is_ignored):
    """A stream that is not there for a moment, or an id in process; push-back is not."""
    world = World(monkeypatch, [block("a", 0)], random.Random(1))
    one = world.stream
    one.answers = lambda sent: one.refused(sent, status, err_code) if len(one.heard) == 1 else None

    assert world.run().acked == 1
    assert outcome(world, "success") == 1
    assert outcome(world, "ignored") == int(is_ignored)


def test_a_subject_at_its_own_limit_is_ignored():
    """I6: it says nothing of the others; the limit of the stream does."""
    lane = lane_of()
    lane.offer(messages(["a", "b"]))
    rows, server = sent(lane), ModelStream()
    server.refuse = {
        b"0": error(503, 10077, "maximum messages per subject exceeded"),
        b"1": error(503, 10077, "maximum messages exceeded"),
    }
    for each in rows:
        hear(lane, server.publish(each))

    assert lane.tally.ignored == 1


def test_what_a_broken_connection_loses_is_ignored():
    """Everything on the wire that has to go again."""
    lane, server = lane_of(), ModelStream()
    lane.offer(messages(["a"] * 7))
    sent(lane)
    lane.on_disconnect()
    exchange(lane, server, 1.0)
    exchange(lane, server, 2.0)

    assert lane.tally.acked == 7
    assert lane.tally.ignored == 7


def test_silence_is_not_ignored():
    """It is push-back."""
    lane = lane_of()
    lane.offer(messages(["a"] * 7))
    sent(lane)
    lane.expire(5.0)
    exchange(lane, ModelStream(), 6.0)

    assert (lane.tally.acked, lane.tally.retries, lane.tally.ignored) == (7, 7, 0)


# ── rejected ─────────────────────────────────────────────────────────────────────────────────


def test_what_is_refused_for_good_is_rejected(monkeypatch):
    """Each row that becomes a dead letter for it; and the one for which a task fails."""
    never = dict.fromkeys([3, 5, 11], TOO_LARGE)
    options = {"dead_letter_subject": "dlq", "rejects": True}
    world, _ = picky(monkeypatch, random.Random(1), 20, never, **options)
    world.run()
    failing, _ = picky(monkeypatch, random.Random(1), 20, never)
    with pytest.raises(PublishRejectedError):
        failing.run()

    assert (outcome(world, "success"), outcome(world, "rejected")) == (17, 3)
    assert outcome(failing, "rejected") == 1


# ── bypassed ─────────────────────────────────────────────────────────────────────────────────


def test_receipts_and_reports_bypass_the_limit(monkeypatch):
    """Each that was sent counts once."""
    monkeypatch.setattr(telemetry, "REPORT_S", 0.5)
    world = world_of(monkeypatch, metrics_subject="m")
    net, offered, reports = world.net, world.net.offer, []
    net.on_sent = lambda each: not is_row(each) or world.clock.now >= START_S + 3
    net.commands += [(START_S + 1, command(1, "b", 1.0)), (START_S + 2, command(2, "a", 1.0))]

    def offer(subject, *said):
        if subject == "m":
            reports.append(said)
        return offered(subject, *said)

    monkeypatch.setattr(net, "offer", offer)
    world.run()

    assert len(reports) > 5
    assert outcome(world, "bypassed") == len(reports) + 2


@pytest.mark.parametrize("may", [True, False])
def test_reports_that_were_not_sent_bypass_nothing(monkeypatch, may):
    """Where the user may not publish them none is sent, from the second on."""
    monkeypatch.setattr(telemetry, "REPORT_S", 0.5)
    world = world_of(monkeypatch, metrics_subject="m")
    world.net.on_sent = lambda each: not is_row(each) or world.clock.now >= START_S + 3
    monkeypatch.setattr(world.net, "offer", lambda *said: may)
    world.run()

    assert (outcome(world, "bypassed") > 5) == may
    assert (outcome(world, "bypassed") == 0) != may

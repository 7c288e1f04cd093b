"""The lane of plain publishes: frames made as they are needed, PubAcks taken many at a time."""

import json

import pytest

from pyspark_jetstream.errors import PublishTimeoutError
from pyspark_jetstream.publish.lanes.lane import Lane
from pyspark_jetstream.publish.sender import absorb

from ...kits.lanes import INBOX, PREFIX, FixedLimit, messages, sent, terms
from ...kits.model import error, parse

MIB = 1 << 20


def new_lane(max_bytes: int = 32 * MIB) -> Lane:
    return Lane(PREFIX, *terms(FixedLimit(4096), max_bytes, 5.0, 120.0))


def pubacks(ordinals, mark: bytes = b"") -> bytes:
    """What the server answers on subscription 7 when it has stored these."""
    return b"".join(
        b'MSG %b.%d 7 %d\r\n{"stream":"S","seq":%d%b}\r\n'
        % (PREFIX.encode(), each, 21 + len(b"%d" % (each + 1)) + len(mark), each + 1, mark)
        for each in ordinals
    )


def test_a_large_offer_is_framed_a_part_at_a_time():
    """Frames of a part of the rows are made when the part before is sent, in row order."""
    lane = new_lane(64 * MIB)
    lane.offer(messages(["a"] * 3072, [b"x" * (MIB // 128)] * 3072))
    sent, blocks = [], set()
    while not lane.wants_rows:
        assert lane.busy
        frames = lane.frames_to_send(0.0, 1 << 17)
        blocks.add(id(frames.obj))
        assert frames.obj.size < 10 * MIB
        sent += parse(bytes(frames))

    assert len(blocks) > 2
    assert [each.reply for each in sent] == [f"{PREFIX}.{row}" for row in range(3072)]
    assert [each.headers["Nats-Msg-Id"] for each in sent] == [f"t-{row}" for row in range(3072)]


def test_rows_that_are_not_framed_wait_for_room():
    """A lane whose bytes are all on the wire takes no rows, and goes on with PubAcks."""
    lane = new_lane(4 * MIB)
    lane.offer(messages(["a"] * 16, [b"x" * MIB] * 16))
    while lane.frames_to_send(0.0, 1 << 17) is not None:
        pass
    before = lane.in_flight
    refused = (lane.wants_rows, lane.busy)
    lane.on_pubacks([0, 1], 0.2)

    assert before == 3  # a fourth would be more than four MiB with its header
    assert refused == (False, True)
    assert lane.frames_to_send(0.0, 1 << 17) is not None


def test_rows_of_later_offers_follow():
    """Ordinals go on from offer to offer, whatever the parts; the rows keep their numbers."""
    lane = new_lane()
    lane.offer(messages(["a"] * 3))
    lane.offer(messages([]))
    lane.offer(messages(["b"] * 2, first=7))
    sent = []
    while not lane.wants_rows:
        sent += parse(bytes(lane.frames_to_send(0.0, 1 << 17)))
    lane.on_pubacks(list(range(5)), 0.2)

    assert [(each.reply.rpartition(".")[2], each.subject) for each in sent] == [
        ("0", "a"), ("1", "a"), ("2", "a"), ("3", "b"), ("4", "b"),
    ]  # fmt: skip
    assert [each.headers["Nats-Msg-Id"] for each in sent][3:] == ["t-7", "t-8"]
    assert (lane.tally.acked, lane.busy) == (5, False)


@pytest.mark.parametrize("mark", [b"", b',"duplicate": true'], ids=["stored", "duplicates"])
def test_a_run_of_pubacks_is_taken_at_one_go(mark):
    """A buffer of nothing but PubAcks settles their rows, as duplicates if it says so of all."""
    lane = new_lane()
    lane.offer(messages(["a"] * 9))
    lane.frames_to_send(0.0, 1 << 17)
    found = b"PING\r\n" + pubacks(range(9), mark)

    assert absorb([lane], 7, found, 6, len(found), 0.2)
    assert (lane.tally.acked, lane.tally.duplicates) == (9, 9 if mark else 0)


@pytest.mark.parametrize(
    "stranger",
    [
        b"PING\r\n",
        b"MSG %b.2 7 2\r\n{}\r\n" % PREFIX.encode(),
        b"MSG %b.2 8 23\r\n" % PREFIX.encode() + b'{"stream":"S","seq":3}\r\n',
        b'MSG other 7 9\r\n{"a": "\n"}\r\n',
        pubacks([2], b',"duplicate": true'),
        b"MSG other 7 99\r\n" + pubacks([2]) + b"}\r\n",
        b"X" + pubacks([2]),
        b'MSG %b.2 7 23\r\n{"stream":"S","seq":3}\r\n' % PREFIX.encode()
        + b'MSG %b.2 7 22\r\n{"stream":"S","seq":33}\r\n' % PREFIX.encode(),
        b'MSG %b.2 7 22\r\n{"stream":"S","seq":0}\r\n' % PREFIX.encode(),
    ],
    ids=[
        "ping",
        "no PubAck",
        "other sid",
        "bare line feed",
        "a duplicate",
        "in a payload",
        "in a line",
        "sizes of one another",
        "no sequence",
    ],
)
def test_what_is_not_only_pubacks_is_left_to_the_general_path(stranger):
    """One frame of another kind among the PubAcks, and none of them is taken."""
    lane = new_lane()
    lane.offer(messages(["a"] * 9))
    lane.frames_to_send(0.0, 1 << 17)
    found = pubacks(range(2)) + stranger + pubacks(range(3, 9))

    assert not absorb([lane], 7, found, 0, len(found), 0.2)
    assert lane.tally.acked == 0


@pytest.mark.parametrize("seqs", [range(1, 9), range(7, 15), range(95, 103)], ids=str)
def test_pubacks_that_are_not_alike_are_taken_as_well(seqs):
    """Where the sequence gets another digit, or a stream has another name, the run is still one."""
    lane = new_lane()
    lane.offer(messages(["a"] * 9))
    lane.frames_to_send(0.0, 1 << 17)
    names = [b"S"] * 7 + [b"LONGER"]
    payloads = [b'{"stream":"%b","seq":%d}' % each for each in zip(names, seqs, strict=True)]
    found = b"".join(
        b"MSG %b.%d 7 %d\r\n%b\r\n" % (PREFIX.encode(), place, len(payload), payload)
        for place, payload in enumerate(payloads)
    )

    assert absorb([lane], 7, found, 0, len(found), 0.2)
    assert lane.tally.acked == 8


def test_pubacks_of_counters_are_taken_at_one_go():
    """Each has the sum of its counter."""
    lane = new_lane()
    lane.offer(messages(["a"] * 9))
    lane.frames_to_send(0.0, 1 << 17)
    found = b"".join(pubacks([i], b',"val":"%d"' % (7 * i - 20)) for i in range(9))

    assert absorb([lane], 7, found, 0, len(found), 0.2)
    assert (lane.tally.acked, lane.tally.duplicates) == (9, 0)


def test_pubacks_of_two_lanes_are_taken_at_one_go():
    """One that is neither's is left to the general path, with all others."""
    one, other = (Lane(f"{INBOX}.{n}", *terms(FixedLimit(9), MIB, 5.0, 120.0)) for n in (0, 1))
    for lane in (one, other):
        lane.offer(messages(["a"] * 5))
        lane.frames_to_send(0.0, 1 << 17)
    letters = pubacks(range(3)).replace(f"{INBOX}.0".encode(), f"{INBOX}.1".encode())
    found = pubacks(range(2)) + letters + pubacks(range(2, 4))
    strange = found + pubacks([4]).replace(f"{INBOX}.0".encode(), b"elsewhere.0")

    assert not absorb([one, other], 7, strange, 0, len(strange), 0.2)
    assert absorb([one, other], 7, found, 0, len(found), 0.2)
    assert (one.tally.acked, other.tally.acked) == (4, 3)


def test_strict_has_one_of_a_subject_on_the_wire():
    """Of each subject the next row goes when the one before it is stored, sent again or not."""
    lane = Lane(PREFIX, *terms(FixedLimit(100), 1 << 20, 5.0, 60.0, strict=True))
    lane.offer(messages(["a", "b", "a", "a"]))
    first = parse(bytes(lane.frames_to_send(0.0, 1 << 20)))
    again = lane.frames_to_send(0.0, 1 << 20)
    lane.on_reply(b"1", 0, "", b'{"stream":"S","seq":1}', 0.1)
    lane.on_reply(b"0", 0, "", b'{"error":{"code":429,"err_code":10167}}', 0.1)
    refused = parse(bytes(lane.frames_to_send(1.0, 1 << 20)))
    held = lane.frames_to_send(1.0, 1 << 20)
    lane.on_reply(b"0", 0, "", b'{"stream":"S","seq":2}', 1.1)
    then = parse(bytes(lane.frames_to_send(1.1, 1 << 20)))

    assert [each.data for each in first] == [b"0", b"1"]
    assert again is held is None
    assert [each.data for each in refused] == [b"0"]
    assert [each.data for each in then] == [b"2"]
    assert [each.rows.to_pylist() for each in lane.recall()] == [[3]]


@pytest.mark.parametrize("is_full", [False, True], ids=["room", "full"])
@pytest.mark.parametrize("limit", [2, 64])
def test_strict_awaits_what_did_not_fit(limit, is_full):
    """A turn that did not fit is not over when what was sent of it is stored."""
    lane = Lane(PREFIX, *terms(FixedLimit(limit), 1 << 20, 5.0, 60.0, strict=True))
    lane.offer(messages("abcdeedcba"))
    rows = 0
    while lane.busy:
        assert not (is_full and lane.frames_to_send(0.0, 0))
        found = []
        while (frames := lane.frames_to_send(0.0, MIB)) is not None:
            found += parse(bytes(frames))
        assert len({each.subject for each in found}) == len(found) > 0
        rows += len(found)
        lane.on_pubacks([int(each.reply.rpartition(".")[2]) for each in found], 0.0)

    assert rows == 10


def test_rows_that_wait_have_no_more_time_than_narrowed_to():
    """A row that waits to go again goes no more when its time was cut meanwhile."""
    lane = new_lane()
    lane.offer(messages(["a", "b"]))
    lane.frames_to_send(0.0, 1 << 20)
    lane.on_disconnect()
    lane.lower_timeout(0.6)

    with pytest.raises(PublishTimeoutError):
        lane.expire(1.0)


def test_rows_whose_connection_broke_say_why():
    """Rows that a server cuts off each time tell, once their time is over, what it said."""
    lane = new_lane()
    lane.offer(messages(["a", "b"]))
    lane.frames_to_send(0.0, 1 << 20)
    lane.on_disconnect("the connection broke: Maximum Payload Violation")

    with pytest.raises(
        PublishTimeoutError, match="the connection broke: Maximum Payload Violation"
    ):
        lane.expire(200.0)


def test_a_late_puback_ends_the_pause_of_a_refusal():
    """The first sending's PubAck comes behind the refusal of the second: rows go at once."""
    lane = Lane(PREFIX, *terms(FixedLimit(1), ack=5.0))
    lane.offer(messages(["a", "a"]))
    assert len(sent(lane)) == 1
    lane.expire(5.0)
    assert len(sent(lane, 5.0)) == 1
    refused = json.dumps({"error": error(409, 10158), "stream": "S", "seq": 0})
    lane.on_reply(b"0", 0, "", refused.encode(), 5.01)
    assert lane.next_deadline(5.01) < 5.5
    lane.on_pubacks([0], 5.02)

    assert [each.reply for each in sent(lane, 5.02)] == [f"{PREFIX}.1"]

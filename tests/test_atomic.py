"""Atomic batches: what is sent together, what is sent again, what goes one by one."""

from __future__ import annotations

import json
import random

import pytest

from pyspark_jetstream.atomic import HEADER_BYTES, MAX_ROWS, AtomicLane
from pyspark_jetstream.errors import PublishRejectedError, PublishTimeoutError
from pyspark_jetstream.limits import FixedLimit

from .lanekit import PREFIX, ModelServer, Reply, Sent, error, messages, parse

MANY = 1 << 30


def lane(most: int = 4096, most_bytes: int = MANY, ack: float = 5.0, publish: float = 120.0):
    """A lane without limits, unless given."""
    return AtomicLane(PREFIX, FixedLimit(most), most_bytes, ack, publish)


def sent(one: AtomicLane, now: float = 0.0, chunk: int = MANY) -> list[Sent]:
    """Everything the lane sends now."""
    found: list[Sent] = []
    while (frames := one.ready(now, chunk)) is not None:
        found += parse(bytes(frames))
    return found


def hear(one: AtomicLane, replies: list[Reply], now: float = 0.0) -> None:
    for token, status, data in replies:
        one.answered(token, status, "", data, now)


def exchange(one: AtomicLane, server: ModelServer, now: float = 0.0) -> list[Sent]:
    """Sends and answers until there is nothing to send."""
    log: list[Sent] = []
    while part := sent(one, now):
        log += part
        for each in part:
            hear(one, server.publish(each), now)
    return log


def reply(each: Sent, status: int = 0, **content: object) -> list[Reply]:
    """An answer to this message."""
    data = json.dumps(content).encode() if content else b""
    return [Reply(each.reply[len(PREFIX) + 1 :].encode(), status, data)]


def plain(found: list[Sent]) -> int:
    """How many are no part of a batch."""
    return sum("Nats-Batch-Id" not in each.headers for each in found)


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
    assert len(found) == len(server.stored) == one.acked == count
    assert (one.busy, one.retries, one.bytes_in_flight) == (False, 0, 0)


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
    one, server = lane(most=7), ModelServer()
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


def test_slow_sending_is_no_silence():
    """
    A batch is not answered before its last row; how long that takes to send does not count.
    """
    one, server = lane(ack=2.0), ModelServer()
    one.offer(messages(["a"] * 3))
    log = []
    for now in (0.0, 10.0, 20.0):
        one.expire(now)
        log += parse(bytes(one.ready(now, 1) or b""))
    for each in log:
        hear(one, server.publish(each), 20.0)

    assert (one.acked, one.retries) == (3, 0)


def test_bytes_in_flight_are_bounded():
    """
    A batch is no larger than `maxInFlightBytes`, unless one row is, and goes out in chunks.
    """
    one, server = lane(most_bytes=20_000), ModelServer()
    one.offer(messages(["a"] * 50, [b"x" * 1000] * 49 + [b"y" * 50_000]))
    most = 0
    while one.busy:
        part = parse(bytes(one.ready(0.0, 3000) or b""))
        assert len(part) <= 3
        if part[0].data[:1] == b"x":
            most = max(most, one.bytes_in_flight)
        for each in part:
            hear(one, server.publish(each))

    assert one.acked == 50
    assert 10_000 < most <= 20_000


def test_what_a_batch_adds_to_a_row_is_known():
    """
    `max_payload` minus `HEADER_BYTES` is what a row may have: the longest names fit.
    """
    one = AtomicLane(f"_INBOX.{'f' * 22}.9999", FixedLimit(4096), MANY, 5.0, 120.0)
    one._batches = 999_999
    one.offer(messages(["a"] * MAX_ROWS, ids=False))
    for _ in range(99):
        one.ready(0.0, 1)
        one.broken()
    last = parse(bytes(one.ready(0.0, MANY) or b""))[-1]

    added = last.size - len(last.data) - len(f"HPUB a {last.reply} 111 11111\r\n\r\n")
    assert added <= HEADER_BYTES


@pytest.mark.parametrize("twice", ["in the stream", "in the batch"])
def test_rows_that_were_stored_before_go_one_by_one(twice):
    """
    10201 says that some row is there already: each goes alone, none is lost, none stored twice.
    """
    one, server = lane(), ModelServer()
    if twice == "in the stream":
        server.ids |= {"t-1", "t-2"}
        one.offer(messages(["a"] * 5))
    else:
        headers = [b"Nats-Msg-Id: %b\r\n" % name for name in (b"p", b"q", b"p", b"q", b"r")]
        one.offer(messages(["a"] * 5, ids=False, headers=headers))
    one.offer(messages(["a"] * 2, first=5))
    log = exchange(one, server)

    assert plain(log) == 5
    assert "Nats-Batch-Id" in log[-1].headers
    assert (one.acked, one.duplicates, one.retries) == (7, 2, 5)
    assert len(server.stored) == 5


def test_a_commit_whose_answer_was_lost_is_not_stored_twice():
    """
    After a broken connection the batch goes again under a new id; 10201 tells that rows are there,
    and one by one they turn out to be duplicates.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 4))
    for each in sent(one):
        server.publish(each)
    one.broken()
    log = exchange(one, server)

    assert len({each.headers.get("Nats-Batch-Id") for each in server.stored + log}) == 3
    assert (one.acked, one.duplicates, len(server.stored)) == (4, 4, 4)


def test_a_lost_refusal_is_not_taken_for_a_commit():
    """
    The lost answer was itself a 10201 (some rows are there, others are not): the others are stored.
    """
    one, server = lane(), ModelServer()
    server.ids.add("t-1")
    one.offer(messages(["a"] * 4))
    for each in sent(one):
        server.publish(each)
    one.broken()
    exchange(one, server)

    assert server.data == [b"0", b"2", b"3"]
    assert (one.acked, one.duplicates) == (4, 1)


def test_a_batch_that_lost_rows_goes_again_and_asks():
    """
    10176: something did not arrive. The next attempt has another id and a reply for every row.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 5))
    found = sent(one)
    for each in (*found[:2], *found[3:]):
        hear(one, server.publish(each))
    early = sent(one)
    again = sent(one, 0.01)
    for each in again:
        hear(one, server.publish(each), 0.01)

    assert early == []
    assert all(each.reply for each in again)
    assert again[0].headers["Nats-Batch-Id"] != found[0].headers["Nats-Batch-Id"]
    assert (one.acked, one.retries) == (5, 5)
    assert server.data == [b"%d" % row for row in range(5)]


def test_a_limit_is_looked_for_by_halves():
    """
    10077 does not say which row's subject is full: halves go at once, until it is one row.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 5))
    sizes = []
    for _ in range(3):
        found = sent(one)
        sizes.append(len(found))
        hear(one, server.refused(found[-1], 503, 10077))

    assert sizes == [5, 2, 1]
    assert {(each.subject, each.err_code) for each in one.refusals} == {("a", 10077)}
    assert sent(one, 0.0) == []
    back = one.recall(lambda subject: subject == "a")
    assert [each.rows.to_pylist() for each in back] == [[0], [1, 2, 3, 4]]
    assert [each.was_sent for each in back] == [True, False]
    assert not one.busy


@pytest.mark.parametrize(
    ("code", "err_code", "again_at"),
    [
        (429, 10210, 0.01),
        (429, 10167, 0.01),
        (503, 10023, 0.01),
        (503, 0, 0.25),
    ],
)
@pytest.mark.parametrize("place", [0, -1])
def test_what_may_pass_is_tried_again(code, err_code, again_at, place):
    """
    Overload, limits, no responders: the whole batch after a pause, and none of it before.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 5))
    found = sent(one)
    hear(one, server.refused(found[place], code, err_code))
    hear(one, server.refused(found[-1], 400, 10176))  # what follows says nothing new

    assert sent(one, again_at - 0.001) == []
    assert one.next_deadline(0.0) == pytest.approx(again_at)
    assert len(sent(one, again_at)) == (2 if err_code == 10167 else 5)
    one.broken()
    exchange(one, server, again_at)
    assert server.data == [b"%d" % row for row in range(5)]


def test_pauses_double():
    """
    A server that stays overloaded is asked less and less often.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))
    now, gaps = 0.0, []
    for _ in range(10):
        hear(one, server.refused(sent(one, now)[-1], 429, 10167), now)
        gaps.append(round(one.next_deadline(now) - now, 3))
        now += gaps[-1]

    assert gaps == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]


def test_a_limit_that_stays_is_a_timeout():
    """
    The error names the row that is refused, its subject, the cause and what to do.
    """
    one, server = lane(publish=3.0), ModelServer()
    server.refuse[b"8"] = error(503, 10077, "maximum messages exceeded")
    one.offer(messages(["s.7", "s.8", "s.9"], first=7))

    with pytest.raises(
        PublishTimeoutError, match=r"'s\.8': row 8: .*maximum messages exceeded; lift.*10077"
    ):
        for tick in range(100):
            exchange(one, server, tick / 10)
            one.expire(tick / 10)
    assert [each.data for each in server.stored] == [b"7"]


def test_an_overload_that_stays_is_a_timeout():
    """
    However small the batch has become, the time counts from the first sending of its rows.
    """
    one, server = lane(publish=5.0), ModelServer()
    one.offer(messages(["a"] * 64))
    now = 0.0

    with pytest.raises(PublishTimeoutError, match=r"row 0: not stored 5\.\d+s.*\(err_code 10167\)"):
        while True:
            for each in sent(one, now)[-1:]:
                hear(one, server.refused(each, 429, 10167), now)
            one.expire(now)
            now += 0.1
    assert now < 5.5


def test_a_timeout_before_a_smaller_batch_went_out_says_why():
    """
    The cause stays with the rows.
    """
    one, server = lane(publish=5.0), ModelServer()
    one.offer(messages(["a"] * 4))
    hear(one, server.refused(sent(one)[-1], 429, 10167), 4.995)

    with pytest.raises(PublishTimeoutError, match=r"rows 0 to 1, .*\(1 times .*err_code 10167\)"):
        one.expire(5.0)


def test_nobody_listening_is_an_error_soon_unless_rows_were_stored():
    """
    A stream that is missing from the beginning is told after seconds; one that went away is
    waited for.
    """
    for stored_before in (False, True):
        one, server = lane(), ModelServer()
        if stored_before:
            one.offer(messages(["a"]))
            exchange(one, server)
        one.offer(messages(["a"] * 2, first=1))
        failed_at = None
        for tick in range(200):
            now = tick / 10
            try:
                for each in sent(one, now):
                    hear(one, server.refused(each, 503, 0), now)
                one.expire(now)
            except PublishTimeoutError as raised:
                assert "no stream listens" in str(raised)
                failed_at = now
                break

        assert (failed_at is None) is stored_before
        assert failed_at is None or 10.0 <= failed_at < 12.0


@pytest.mark.parametrize("count", [1, 3])
def test_a_refusal_of_the_batch_names_its_rows(count):
    """
    The server does not say which row it was; the error says which it may have been.
    """
    one, server = lane(), ModelServer()
    server.refuse[b"5"] = error(400, 10071, "wrong last sequence: 9")
    one.offer(messages(["s.5", "s.6", "s.7"][:count], first=5))

    where = "row 5" if count == 1 else "rows 5 to 7, an atomic batch"
    with pytest.raises(PublishRejectedError, match=rf"'s\.5': {where}: wrong last sequence: 9"):
        exchange(one, server)
    assert server.stored == []


def test_a_refusal_of_a_row_names_it():
    """
    A row that cannot be set aside is told on its own reply, when there is one.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["s.0", "s.1", "s.2", "s.3"]))
    found = sent(one)
    hear(one, server.refused(found[-1], 400, 10176))
    found = sent(one, 1.0)

    with pytest.raises(PublishRejectedError, match=r"'s\.2': row 2: no \(err_code 10054\)"):
        hear(one, server.refused(found[2], 400, 10054), 1.0)


def test_a_stream_without_batches_says_so():
    """
    10174 tells what to set.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))

    with pytest.raises(PublishRejectedError, match=r"allow_atomic.*publishMode=async.*10174"):
        hear(one, server.refused(sent(one)[0], 400, 10174))


def test_a_server_without_batches_is_told():
    """
    An older server stores each row by itself: its PubAck says nothing of a batch.
    """
    one = lane()
    one.offer(messages(["a"] * 3))

    with pytest.raises(PublishRejectedError, match=r"needs nats-server 2\.12"):
        hear(one, reply(sent(one)[-1], stream="S", seq=3))


def test_a_wrong_count_is_no_success():
    """
    Fewer stored than sent cannot be; if it is, it is said.
    """
    one = lane()
    one.offer(messages(["a"] * 3))
    last = sent(one)[-1]

    with pytest.raises(PublishRejectedError, match=r"2 of 3 rows"):
        hear(one, reply(last, stream="S", seq=3, batch="b", count=2))


def test_a_server_with_a_lower_limit_gets_smaller_batches():
    """
    10199: batches are halved until they are small enough, and stay so.
    """
    one, server = lane(), ModelServer(largest_batch=300)
    one.offer(messages(["a"] * 2000))
    log = exchange(one, server)
    names = [each.headers["Nats-Batch-Id"] for each in server.stored]

    assert server.data == [b"%d" % row for row in range(2000)]
    assert [names.count(name) for name in dict.fromkeys(names)] == [250] * 8
    assert len(log) == 2000 + 1000 + 500


def test_an_overloaded_server_gets_smaller_batches_for_a_while():
    """
    Each 429 halves what goes again, however often the next attempt is refused; each success
    doubles it.
    """
    one, server = lane(publish=100.0), ModelServer()
    one.offer(messages(["a"] * 3000))
    now, sizes = 0.0, []
    while one.busy:
        now = max(now, min(one.next_deadline(now), now + 1.0))
        part = sent(one, now)
        sizes.append(len(part))
        for each in part:
            lost = len(sizes) <= 3 and each is part[-1]
            replies = server.refused(each, 429, 10167) if lost else server.publish(each)
            hear(one, replies, now)

    assert sizes == [1000, 500, 250, 125, 250, 500, 1000, 1000, 125]
    assert server.data == [b"%d" % row for row in range(3000)]
    assert one.retries == 1750


def test_silence_means_sending_again():
    """
    Without an answer within `ackTimeout` the batch goes again; the late answer still counts.
    """
    one, server = lane(ack=2.0), ModelServer()
    one.offer(messages(["a"] * 3, ids=False))
    found = sent(one)
    answers = [heard for each in found for heard in server.publish(each)]
    one.expire(1.9)
    before = sent(one, 1.9)
    one.expire(2.0)
    again = sent(one, 2.3)
    hear(one, answers, 2.4)

    assert before == []
    assert len(again) == 3
    assert (one.acked, one.retries, one.busy) == (3, 3, False)


def test_late_answers_of_settled_batches_are_ignored():
    """
    Replies carry id and attempt; a refusal of an earlier attempt is no news.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))
    first = sent(one)
    one.broken()
    second = sent(one)
    hear(one, server.refused(first[-1], 400, 10054))
    for each in second:
        hear(one, server.publish(each))
    one.offer(messages(["a"] * 3, first=3))
    sent(one)
    hear(one, server.refused(second[-1], 400, 10054))
    name = second[0].headers["Nats-Batch-Id"]
    hear(one, reply(second[-1], stream="S", seq=3, batch=name, count=3))

    assert (one.acked, one.busy) == (3, True)


def test_no_more_time_than_narrowed_to():
    """
    `narrow` shortens what a batch may take, and never lengthens it.
    """
    one = lane()
    one.narrow(2.0)
    one.narrow(30.0)
    one.offer(messages(["a"] * 3))
    sent(one)

    assert one.give_up_at == 2.0
    with pytest.raises(PublishTimeoutError, match="no answer within ackTimeout"):
        one.expire(2.0)


def test_rows_one_by_one_have_no_more_time_than_narrowed_to():
    """
    Nor have rows of a batch that was there before.
    """
    one, server = lane(), ModelServer()
    server.ids.add("t-1")
    one.narrow(2.0)
    one.offer(messages(["a"] * 3))
    for each in sent(one):
        hear(one, server.publish(each))
    sent(one)

    with pytest.raises(PublishTimeoutError):
        one.expire(2.0)


def test_deadlines_are_known_in_advance():
    """
    When the answer is late, and when time is up.
    """
    one = lane(ack=6.0, publish=10.0)
    idle = one.next_deadline(0.0)
    one.offer(messages(["a"] * 3))
    one.ready(0.0, 1)
    while_sending = one.next_deadline(0.0)
    sent(one, 1.0)

    assert (idle, while_sending) == (float("inf"), 10.0)
    assert (one.next_deadline(1.0), one.give_up_at) == (7.0, 10.0)


def test_rows_one_by_one_are_watched_like_the_others():
    """
    Their bytes count, their deadlines hold, and after a lost connection they go again.
    """
    one, server = lane(ack=6.0, publish=10.0), ModelServer()
    server.ids.add("t-1")
    one.offer(messages(["a"] * 3))
    for each in sent(one):
        hear(one, server.publish(each))
    found = sent(one)
    before = one.bytes_in_flight, one.next_deadline(0.0), one.give_up_at
    one.broken()

    assert before == (found[0].size, 6.0, 10.0)
    assert one.bytes_in_flight == before[0]
    assert plain(exchange(one, server)) == 3


def test_rows_one_by_one_have_what_is_left_of_their_time():
    """
    `publishTimeout` counts from the sending of the batch; and the stream is there, as one of its
    ids is, so nobody listening for a while is waited out.
    """
    one, server = lane(publish=60.0), ModelServer()
    server.ids.add("t-1")
    one.offer(messages(["a"] * 3))
    for each in sent(one):
        hear(one, server.publish(each), 2.0)

    with pytest.raises(PublishTimeoutError, match=r"row 0: not stored 60\.0s after"):
        for tick in range(20, 700):
            now = tick / 10
            for each in sent(one, now):
                hear(one, server.refused(each, 503, 0), now)
            one.expire(now)
    assert now == 60.0


def test_repr_shows_the_state():
    """
    The lane says what it is doing.
    """
    one = lane()
    one.offer(messages(["a"] * 3))
    sent(one)

    assert repr(one).startswith("<AtomicLane 3/3, 1. sent/rows, attempt, 0 acked, one by one:")


@pytest.mark.parametrize("seed", range(40))
def test_random_walk(seed):
    """
    Whatever the server and the network do, every row is stored: once with ids, in order where no
    plain publish was dropped between others; limits hold, and the count is right.
    """
    rng = random.Random(seed)
    ids = seed % 4 > 0
    drops_plain = seed % 3 == 0
    most, most_bytes = rng.choice([(1, MANY), (7, 3000), (64, MANY), (4096, 30_000)])
    one = lane(most, most_bytes, ack=2.0, publish=1e9)
    server = ModelServer(largest_batch=rng.choice([1000, 1000, 20]))
    total = rng.randrange(1, 800)
    known = {row for row in range(total) if ids and seed % 5 == 0 and rng.random() < 0.02}
    server.ids |= {f"t-{row}" for row in known}
    offered, now = 0, 0.0
    up: list[Sent] = []  # on the way to the server
    down: list[Reply] = []  # on the way back
    while offered < total or one.busy:
        if one.wants_rows and offered < total:
            count = min(rng.choice([1, 2, 30, 700]), total - offered)
            subjects = [rng.choice("abc") for _ in range(count)]
            data = [
                b"%d" % row + b"." * rng.randrange(60) for row in range(offered, offered + count)
            ]
            one.offer(messages(subjects, data, first=offered, ids=ids))
            offered += count
        frames = one.ready(now, rng.choice([1, 300, MANY]))
        if frames is not None:
            up += parse(bytes(frames))
            assert one.bytes_in_flight <= most_bytes
        event = rng.random()
        if event < 0.02:
            del up[rng.randrange(len(up) + 1) :]
            for each in up:
                server.publish(each)
            up, down = [], []
            one.broken()
        elif event < 0.03:
            server.forget()
        elif event < 0.035:
            down = []  # a leader that has gone took its replies along
        for _ in range(rng.randrange(30)):
            if not up:
                break
            each = up.pop(0)
            server.now = now
            is_plain = "Nats-Batch-Id" not in each.headers
            if rng.random() < 0.002 and (drops_plain or not is_plain):
                code, err_code = rng.choice([(429, 10167), (503, 0), (0, 10023)])
                down += server.refused(each, code, err_code)
                continue
            if rng.random() < 0.002 and (drops_plain or not is_plain):
                server.refuse[each.data] = error(503, 10077)
            down += server.publish(each)
            server.refuse.clear()
        heard = down[: rng.randrange(20)]
        del down[: len(heard)]
        hear(one, heard, now)
        now += rng.choice([0.0, 0.001, 0.3, 0.3, 12.0 if rng.random() < 0.02 else 0.0])
        one.expire(now)

    rows = [int(each.split(b".")[0]) for each in server.data]
    assert set(rows) == set(range(total)) - known, f"seed {seed}"
    assert one.acked == total, f"seed {seed}"
    assert one.bytes_in_flight == 0
    if ids:
        assert len(rows) == total - len(known), f"seed {seed}"
        if not drops_plain:
            assert rows == sorted(rows), f"seed {seed}"

"""Atomic batches that are refused: what is sent again, what goes one by one, what is an error."""

from __future__ import annotations

import pytest

from pyspark_jetstream.errors import PublishRejectedError, PublishTimeoutError
from pyspark_jetstream.publish.lanes.atomiclane import AtomicLane

from ...kits.atomic import lane, plain
from ...kits.lanes import (
    PREFIX,
    FixedLimit,
    ModelServer,
    error,
    exchange,
    hear,
    messages,
    reply,
    sent,
    terms,
)


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
    assert (one.tally.acked, one.tally.duplicates, one.tally.retries) == (7, 2, 5)
    assert len(server.stored) == 5


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
    assert {(each.subject, each.outcome.err_code) for each in one.tally.refusals} == {("a", 10077)}
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
        (429, 10211, 0.01),
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
    one.on_disconnect()
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


def test_a_batch_that_was_halved_is_not_on_its_way():
    """
    None of its rows is, nor of those that it has no more; what was sent goes again, less of it.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 8))
    first = sent(one)
    on_the_way = one.unanswered, one.bytes_in_flight > 0
    hear(one, server.refused(first[-1], 429, 10167), 0.1)
    halved = one.unanswered, one.bytes_in_flight

    assert (on_the_way, halved) == ((8, True), (0, 0))
    assert [each.data for each in sent(one, 1.0)] == [each.data for each in first[:4]]


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

    with pytest.raises(
        PublishTimeoutError,
        match=r"row 0: not stored 5\.\d+s after the first of \d+ sendings; no \(err",
    ):
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

    with pytest.raises(PublishTimeoutError, match=r"rows 0 to 1, .*err_code 10167\)"):
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
    assert one.tally.retries == 1750


@pytest.mark.parametrize(
    ("code", "err_code", "detail", "is_push_back"),
    [
        (429, 10167, "too many requests", True),
        (429, 10210, "too many inflight", True),
        (503, 10077, "maximum messages exceeded", True),
        (503, 10077, "maximum messages per subject exceeded", False),
        (400, 10176, "incomplete", False),
        (503, 0, "", False),
    ],
)
def test_the_limit_is_told_of_push_back(code, err_code, detail, is_push_back):
    """
    A12, §6: once for a batch that is refused for load or for a limit of more than its subject, and
    on which subject that was.
    """
    limit = FixedLimit(1000)
    one = AtomicLane(PREFIX, terms(limit, 1 << 30, 5.0, 60.0))
    one.offer(messages(["a", "b", "c"]))
    *_, last = sent(one)
    content = {"error": error(code, err_code, detail)} if err_code else {}
    hear(one, reply(last, code, **content), 1.0)

    assert limit.drops == int(is_push_back)
    assert set(one.tally.push_backs) == ({"a"} if is_push_back else set())
    assert all(at >= 1.0 for at in one.tally.push_backs.values())


def test_the_limit_is_told_of_silence():
    """
    §6: no answer within `ackTimeout` is push-back, too.
    """
    limit = FixedLimit(1000)
    one = AtomicLane(PREFIX, terms(limit, 1 << 30, 5.0, 60.0))
    one.offer(messages(["a"] * 3))
    sent(one)
    one.expire(4.9)
    early = limit.drops
    one.expire(5.0)

    assert (early, limit.drops, one.tally.push_backs) == (0, 1, {"a": 5.0})


@pytest.mark.parametrize("again", [False, True])
def test_the_limit_is_told_of_round_trips(again):
    """
    §5: of a batch that was sent once.
    """
    limit, server, seen = FixedLimit(1000), ModelServer(), []
    limit.acked = lambda *sample: seen.append(sample)
    one = AtomicLane(PREFIX, terms(limit, 1 << 30, 5.0, 60.0))
    one.offer(messages(["a"] * 3))
    rows = sent(one)
    if again:
        one.expire(5.0)
        rows = sent(one, 6.0)
    for each in rows:
        hear(one, server.publish(each), 6.5)

    assert one.tally.acked == 3
    assert seen == ([] if again else [(3, 6.5, 3, 6.5)])


def test_the_answer_to_another_batch_stores_nothing():
    """
    What says that a batch is stored is the answer to its commit, with its own id; nothing else is
    believed, and the right answer still is.
    """
    one, server = lane(2), ModelServer()
    one.offer(messages(["a"] * 4))
    first = sent(one)
    (stored,) = [reply for each in first for reply in server.publish(each) if reply.data]
    hear(one, [stored])
    begins, commits = sent(one)
    answers = [reply for each in (begins, commits) for reply in server.publish(each)]
    tokens = [each.reply[len(PREFIX) + 1 :].encode() for each in (begins, commits)]
    counts = []
    for token in tokens:
        hear(one, [stored._replace(token=token)])
        counts.append(one.tally.acked)
    hear(one, [answers[-1]._replace(token=tokens[0])])
    counts.append(one.tally.acked)
    hear(one, answers)

    assert counts == [2, 2, 2]
    assert one.tally.acked == 4


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_id_that_is_there_is_told_unless_the_batch_may_be(is_lost):
    """
    10201 to the first attempt of a batch: nothing of it is stored, and the row whose id is there
    was stored by somebody else. If the answer to an attempt before was lost, it may be by that.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 3))
    if is_lost:
        for each in sent(one):
            server.publish(each)
        one.on_disconnect()
    else:
        server.ids.add("t-1")
    exchange(one, server, 1.0)

    assert one.tally.acked == 3
    assert [part.rows.to_pylist() for part in one.tally.repeated] == ([] if is_lost else [[1]])


@pytest.mark.parametrize("err_code", [10002, 10023])
@pytest.mark.parametrize("place", [0, -1])
def test_no_room_in_account_or_server(err_code, place):
    """
    The first row is refused before any is stored: halves go at once, until it is one row. Where the
    last one is, rows before it may be stored: they go one by one, and are no new rows.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 5))
    found = sent(one)
    hear(one, server.refused(found[place], 400, err_code))

    if place:
        (again,) = sent(one)
        assert "Nats-Batch-Id" not in again.headers
        hear(one, server.refused(again, 400, err_code))
        back = one.recall(lambda subject: True)
        assert [at for part in back for at in part.unsure.to_pylist()] == [0.0] * 5
    else:
        assert [len(sent(one)), one.tally.refusals] == [2, set()]


def test_the_other_half_of_a_batch_that_may_be_stored_may_be_as_well():
    """
    No answer at first, then no room: whichever rows are stored, none goes again as a new one.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 4))
    sent(one)
    one.expire(5.0)
    hear(one, server.refused(sent(one, 6.0)[0], 503, 10077), 6.0)
    server.ids |= {f"t-{row}" for row in range(4)}
    exchange(one, server, 7.0)

    assert (one.tally.acked, one.tally.duplicates, one.tally.repeated) == (4, 4, [])
    assert server.stored == []


def test_a_batch_that_found_no_room_may_be_stored_in_part():
    """
    A limit that somebody sets while a batch is stored leaves some of its rows: they are its own.
    """
    one, server = lane(), ModelServer()
    one.offer(messages(["a"] * 4))
    hear(one, server.refused(sent(one)[-1], 503, 10077))
    server.ids |= {"t-0", "t-1"}
    exchange(one, server, 1.0)

    assert (one.tally.acked, one.tally.duplicates, one.tally.repeated) == (4, 2, [])

"""Fast-ingest batches far from the server: one stays open while rows come, and ends in time."""

from __future__ import annotations

import pytest

from ...kits.fast import lane, steps
from ...kits.lanes import MANY, FixedLimit, ModelServer, error, exchange, hear, messages, sent


def away(round_trip_s=0.04, **settings):
    """A lane whose server is so far away, and of which more rows are to come."""
    one = lane(**settings)
    one.terms.outlook.round_trip_s = round_trip_s
    one.terms.outlook.more = True
    return one


def names(server: ModelServer) -> list[str]:
    """The batches of what arrived, in order."""
    return list(dict.fromkeys(each.reply.split(".")[3] for each in server.heard))


def waits(one, server: ModelServer) -> int:
    """How often all that the lane could send was answered: round trips until all is stored."""
    count = 0
    while part := sent(one):
        count += 1
        for each in part:
            hear(one, server.publish(each))
    return count


@pytest.mark.parametrize("round_trip_s", [0.0, 0.04])
def test_a_batch_stays_open_for_the_next_offers(round_trip_s):
    """
    Rows of later offers follow without a wait; at the end a commit without a row.
    """
    one, server = away(round_trip_s), ModelServer()
    one.offer(messages(["a"] * 3))
    first = steps(exchange(one, server))
    wanting = one.wants_rows
    one.offer(messages(["b"] * 2, first=3))
    second = steps(exchange(one, server))
    one.offer(messages(["b"], first=5))
    third = steps(exchange(one, server))
    open_rows = one.busy
    one.terms.outlook.more = False
    end = steps(exchange(one, server))

    assert first == ["1.0", "2.1", "3.1"]
    assert wanting
    assert second == ["4.1", "5.1"]
    assert (third, open_rows, end) == (["6.1"], True, ["7.3"])
    assert len(names(server)) == 1
    assert server.data == [b"%d" % row for row in range(6)]
    assert (one.tally.acked, one.tally.retries, one.busy, one.bytes_in_flight) == (6, 0, False, 0)


@pytest.mark.parametrize(("round_trip_s", "expected"), [(0.0, 52), (0.04, 17)])
def test_a_write_waits_at_its_beginning_and_its_end(round_trip_s, expected):
    """
    50,000 rows, 10,000 an offer, are one batch: near the server two acks are outstanding, so 1,000
    rows go in a round trip; far away they wait only for `maxInFlight`, 4,096 a round trip.
    """
    one, server = lane(), ModelServer()
    one.terms.outlook.round_trip_s = round_trip_s
    count = 0
    for first in range(0, 50_000, 10_000):
        one.terms.outlook.more = True
        one.offer(messages(["a"] * 10_000, first=first))
        while not one.wants_rows:
            for each in sent(one):
                hear(one, server.publish(each))
            count += 1
    one.terms.outlook.more = False
    count += waits(one, server)

    assert one.tally.acked == 50_000
    assert len(names(server)) == 1
    assert count == expected


def test_the_last_rows_commit_if_no_more_are_expected():
    """
    Rows that come when the batch is open, and are known to be the last, bring its commit.
    """
    one, server = away(), ModelServer()
    one.offer(messages(["a"] * 3))
    exchange(one, server)
    one.terms.outlook.more = False
    one.offer(messages(["a"] * 2, first=3))

    assert steps(exchange(one, server)) == ["4.1", "5.2"]
    assert not one.busy


def test_a_single_row_is_a_commit_far_away_too():
    """
    One row is stored after one round trip.
    """
    one, server = away(), ModelServer()
    one.offer(messages(["a"]))

    assert steps(exchange(one, server)) == ["1.2"]
    assert not one.busy


@pytest.mark.parametrize("round_trip_s", [0.0, 0.04])
def test_a_batch_without_rows_ends_after_a_while(round_trip_s):
    """
    What is behind the last ack is not stored for all that is known: not for long.
    """
    one, server = away(round_trip_s), ModelServer()
    one.offer(messages(["a"] * 3))
    exchange(one, server, now=1.0)
    before = one.next_deadline(1.0)
    early = steps(exchange(one, server, now=before - 0.01))
    late = steps(exchange(one, server, now=before))

    assert 1.0 < before < 1.5
    assert early == []
    assert late == ["4.3"]
    assert not one.busy


def test_rows_too_few_for_an_ack_are_stored_in_time():
    """
    Two rows now and then, as of a stream that few rows are for, would wait for an ack of hundreds.
    """
    one, server = away(publish=30.0), ModelServer()
    kept = []
    for turn in range(400):
        now = turn * 0.15
        one.offer(messages(["a"] * 2, first=2 * turn))
        exchange(one, server, now=now)
        one.expire(now)
        kept.append(len(one._backlog))
    one.terms.outlook.more = False
    exchange(one, server, now=60.0)

    assert max(kept) < 50
    assert server.data == [b"%d" % row for row in range(800)]
    assert (one.tally.acked, one.tally.retries, one.busy) == (800, 0, False)


def test_what_came_before_an_ack_is_not_kept():
    """
    Rows that are stored leave the lane although the batch goes on.
    """
    one, server = away(), ModelServer()
    for first in range(0, 20_000, 2_000):
        one.offer(messages(["a"] * 2_000, first=first))
        exchange(one, server)
        assert len(one._backlog) <= 2_500
        assert len(one._batch.rows._runs) <= 2

    assert one.tally.acked == 20_000


def test_rows_too_large_for_the_flow_begin_a_batch_of_their_own():
    """
    A flow that was asked for small rows would never bring an ack for large ones.
    """
    one, server = away(max_bytes=20_000), ModelServer()
    one.offer(messages(["a"] * 300))
    exchange(one, server)
    one.offer(messages(["a"] * 300, [b"x" * 900] * 300, first=300))
    found = steps(exchange(one, server))
    one.terms.outlook.more = False
    exchange(one, server)

    assert found[:2] == ["301.3", "1.0"]
    assert len(names(server)) == 2
    assert (one.tally.acked, one.busy) == (600, False)


def test_few_large_rows_at_a_time_get_their_acks():
    """
    An offer is smaller than a run of rows between two acks: as many of its like are not to be more
    than a quarter of `bufferMemory`, else the ack would never come.
    """
    one, server = away(max_bytes=20_000), ModelServer()
    for first in range(0, 100, 5):
        one.offer(messages(["a"] * 5, [b"x" * 900] * 5, first=first))
        exchange(one, server)
    one.terms.outlook.more = False
    exchange(one, server)

    assert len(names(server)) == 1
    assert (one.tally.acked, one.busy) == (100, False)


def test_large_rows_on_both_sides_of_an_offers_end_get_their_ack():
    """
    A run of rows between two acks lies in two offers, each of which has fewer large ones.
    """
    one, server = away(max_bytes=20_000), ModelServer()
    small, large = b"x", b"x" * 1650
    one.offer(messages(["a"] * 24, [small] * 15 + [large] * 9))
    exchange(one, server)
    one.offer(messages(["a"] * 21, [large] * 6 + [small] * 15, first=24))
    exchange(one, server)
    one.terms.outlook.more = False
    exchange(one, server)

    assert (one.tally.acked, one.busy) == (45, False)


def test_rows_that_no_batch_takes_end_it():
    """
    They go one by one behind its end.
    """
    one, server = away(), ModelServer()
    one.offer(messages(["a"] * 3))
    exchange(one, server)
    lines = [b"Nats-Expected-Last-Msg-Id: t-2\r\n", b""]
    one.offer(messages(["a"] * 2, first=3, headers=lines))

    assert steps(exchange(one, server)) == ["4.3", "one", "one"]
    assert server.data == [b"0", b"1", b"2", b"3", b"4"]


def test_what_an_open_batch_lost_goes_one_by_one():
    """
    The connection breaks, the server has forgotten the batch: rows of two offers are undecided.
    """
    one, server = away(), ModelServer()
    one.offer(messages(["a"] * 700))
    exchange(one, server)
    one.offer(messages(["a"] * 100, first=700))
    lost = sent(one)
    server.forget()
    one.on_disconnect()
    again = exchange(one, server)

    assert steps(lost) == [f"{row}.1" for row in range(701, 801)]
    assert steps(again) == ["800.4"] + ["one"] * 300
    assert server.data == [b"%d" % row for row in range(800)]
    assert (one.tally.acked, one.tally.retries, one.busy) == (800, 300, False)


def test_an_open_batch_goes_on_after_a_reconnect():
    """
    Where nothing is lost, the batch goes on with the rows of the next offer.
    """
    one, server = away(), ModelServer()
    one.offer(messages(["a"] * 3))
    exchange(one, server)
    one.on_disconnect()
    pinged = steps(exchange(one, server))
    one.offer(messages(["a"] * 2, first=3))
    one.terms.outlook.more = False

    assert pinged == ["3.4"]
    assert steps(exchange(one, server)) == ["4.1", "5.2"]
    assert len(names(server)) == 1
    assert server.data == [b"0", b"1", b"2", b"3", b"4"]


def test_a_commit_that_was_lost_is_sent_again():
    """
    The ping says that the batch is open.
    """
    one, server = away(), ModelServer()
    one.offer(messages(["a"] * 3))
    exchange(one, server)
    one.terms.outlook.more = False
    lost = steps(sent(one))
    one.on_disconnect()

    assert lost == ["4.3"]
    assert steps(exchange(one, server)) == ["3.4", "4.3"]
    assert (one.tally.acked, one.busy) == (3, False)


@pytest.mark.parametrize("row", [3, 4, 5])
def test_a_row_of_a_later_offer_is_named(row):
    """
    Rows are numbered through the task, whichever offer they came with.
    """
    one, server = away(), ModelServer()
    one.offer(messages(["a"] * 3))
    exchange(one, server)
    server.refuse[b"%d" % row] = error(400, 10166)
    one.offer(messages(["a", "b", "c"], first=3))

    with pytest.raises(Exception, match=rf"row {row}\b"):
        exchange(one, server)


def test_what_is_paused_comes_back_from_an_open_batch():
    """
    Rows that were not sent are given back, and a commit ends the batch behind those that were.
    """
    one, server = away(), ModelServer()
    one.offer(messages(["a"] * 3))
    exchange(one, server)
    one.offer(messages(["a"] * 4, [b"x" * 900] * 4, first=3))
    part = one.frames_to_send(0.0, 1000)
    one.offer(messages(["a"] * 2, first=7))
    back = one.recall(lambda subject: True)
    end = sent(one)

    assert part is not None and part.nbytes < 2000
    assert [rows.rows.to_pylist() for rows in back] == [[4, 5, 6], [7, 8]]
    assert steps(end) == ["5.3"]
    assert one.bytes_in_flight > 0
    assert one.frames_to_send(0.0, MANY) is None


def test_the_limit_hears_of_the_commit_as_it_was_sent():
    """
    Not of the time for which the batch was open: that is no round trip. Every row is counted.
    """
    heard = []

    class Listening(FixedLimit):
        def acked(self, count: int, trip_s: float, in_flight: int, now: float) -> None:
            heard.append((count, round(trip_s, 6)))

    one, server = away(maximum=Listening(4096)), ModelServer()
    one.offer(messages(["a"] * 3))
    exchange(one, server, now=1.0)
    one.terms.outlook.more = False
    (commit,) = sent(one, now=1.5)
    hear(one, server.publish(commit), now=1.54)

    assert heard == [(3, 0.04)]

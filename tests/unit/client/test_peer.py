"""Round trips: PINGs and their PONGs."""

from __future__ import annotations

import socket

from pyspark_jetstream.client.peer import RoundTrips, unsent


def test_the_shortest_of_the_round_trips_counts():
    trips = RoundTrips()
    assert trips.shortest_s == 0
    trips.asked(1.0)
    trips.asked(1.5)
    assert trips.under_way == 2
    trips.answered(1.75)
    assert trips.shortest_s == 0.75
    trips.answered(1.75)
    assert (trips.shortest_s, trips.under_way) == (0.25, 0)
    trips.asked(2.0)
    trips.answered(9.0)
    assert trips.shortest_s == 0.25


def test_a_pong_that_nobody_asked_for_tells_nothing():
    trips = RoundTrips()
    trips.answered(5.0)
    assert (trips.shortest_s, trips.under_way) == (0, 0)


def test_what_was_sent_and_taken_waits_no_more():
    one, other = socket.socketpair()
    with one, other:
        assert unsent(one) == 0

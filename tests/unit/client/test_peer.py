"""Round trips: PINGs and their PONGs."""

import socket

import pytest

from pyspark_jetstream.client.peer import Peer, Presence
from pyspark_jetstream.errors import TlsError


def test_the_shortest_of_the_round_trips_counts():
    trips = Presence(0.0)
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
    trips = Presence(0.0)
    trips.answered(5.0)
    assert (trips.shortest_s, trips.under_way) == (0, 0)


def test_nothing_is_written_before_tls_where_an_option_asks_for_it():
    """Whoever greets: the peer itself refuses, and names the option."""
    one, other = socket.socketpair()
    peer = Peer(5.0, tls_asked_by=("tlsCaFile",))
    with one, other:
        peer.sock = one
        with pytest.raises(TlsError, match="tlsCaFile asks for it"):
            peer.send(b"CONNECT {}\r\n")
        one.close()

        assert other.recv(100) == b""


@pytest.mark.parametrize(
    ("server", "port", "named"),
    [("::1", None, "[::1]:4222"), ("127.0.0.1", None, "127.0.0.1:4222"), ("::1", 9, "[::1]:9")],
)
def test_an_error_names_the_port_that_was_dialled(monkeypatch, server, port, named):
    """Also where the URL has none; an IPv6 address stands in brackets, as in a URL."""

    def refuse(*_):
        raise ConnectionRefusedError

    peer = Peer(1.0)
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ConnectionRefusedError):
        peer.dial(server, port)

    assert peer.name == named

"""Round trips: PINGs and their PONGs; bytes that go out in pieces."""

import random
import socket
import threading

import pytest

from pyspark_jetstream.client.peer import Peer, Presence, send_all
from pyspark_jetstream.errors import TlsError

from ...kits.seeds import fresh


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


@pytest.mark.parametrize("seed", fresh(__name__, 3))
def test_pieces_arrive_whole_and_in_order(seed):
    """Pieces arrive whole by a socket that takes few bytes at a time."""
    chance = random.Random(seed)
    sizes = [chance.choice([0, 1, chance.randrange(9000)]) for _ in range(3000)]
    pieces = [memoryview(chance.randbytes(size)) for size in sizes]
    given, whole = list(pieces), b"".join(pieces)
    came = bytearray()

    def read():
        while chunk := other.recv(chance.randint(1, 1 << 16)):
            came.extend(chunk)

    one, other = socket.socketpair()
    with one, other:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        send_all(one, pieces, 60)
        one.shutdown(socket.SHUT_WR)
        reader.join(60)

    assert came == whole
    assert pieces == given


def test_pieces_that_nobody_takes_end_in_time():
    one, other = socket.socketpair()
    with one, other, pytest.raises(TimeoutError):
        send_all(one, [memoryview(bytes(1 << 20))] * 64, 0.2)


def test_pieces_that_are_taken_too_slowly_end_in_time():
    """The deadline is that of all pieces, though a few bytes go now and then."""
    one, other = socket.socketpair()
    over = threading.Event()

    def read():
        while not over.wait(0.01):
            other.recv(4096)

    reader = threading.Thread(target=read, daemon=True)
    with one, other:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        reader.start()
        with pytest.raises(TimeoutError):
            send_all(one, [memoryview(bytes(1 << 20))] * 4, 0.3)
        over.set()
        reader.join(10)


def test_pieces_to_one_who_is_gone_are_an_error():
    one, other = socket.socketpair()
    other.close()
    with one, pytest.raises(OSError, match="Broken pipe"):
        send_all(one, [memoryview(b"a"), memoryview(b"b")], 5)


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

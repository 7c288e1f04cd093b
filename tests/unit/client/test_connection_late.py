"""A connection whose process gets no time: deadlines that pass while answers wait in the socket."""

import math
import re
import socket
import time

import pytest

from pyspark_jetstream.client import connection as module
from pyspark_jetstream.client.connection import Connection
from pyspark_jetstream.errors import NotConnectedError, RequestTimeoutError


class Clock:
    """`time`, whose monotonic clock can be put forward."""

    def __init__(self):
        self.ahead_s = 0.0

    def __getattr__(self, name):
        return getattr(time, name)

    def monotonic(self):
        return time.monotonic() + self.ahead_s


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def pair():
    """A connection, and the socket of its peer."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connection(ours, {}), theirs


def test_a_server_that_is_gone_behind_its_handshake_leaves_no_socket():
    """It was killed between its PONG and our first words: nobody else would close the socket."""
    ours, theirs = socket.socketpair()
    theirs.close()

    with pytest.raises(NotConnectedError):
        Connection(ours, {})
    assert ours.fileno() == -1


@pytest.mark.parametrize("late_s", [0.0, 1.0, 3600.0])
def test_what_has_arrived_counts_after_the_deadline(pair, late_s):
    """A deadline that has passed hides nothing that is there; where nothing is, nobody waits."""
    connection, peer = pair
    peer.sendall(b"PING\r\n")
    found = connection.fill(time.monotonic() - late_s)
    more = connection.fill(time.monotonic() - late_s)

    assert found and connection.buffer == b"PING\r\n"
    assert not more and connection.buffer == b"PING\r\n"


def test_less_than_is_needed_is_kept(pair):
    """Of an answer that has not come whole before the deadline nothing is lost."""
    connection, peer = pair
    peer.sendall(b"PI")
    whole = connection.fill(time.monotonic() - 1, need=6)
    peer.sendall(b"NG\r\n")

    assert not whole
    assert connection.fill(time.monotonic() - 1, need=4)
    assert connection.buffer == b"PING\r\n"


def test_a_peer_that_sends_frame_after_frame_is_not_read_for_ever(pair, clock, monkeypatch):
    """After a deadline a bounded amount is read, in however many frames."""
    monkeypatch.setattr(module, "_LATE_BYTES", 1 << 14)
    monkeypatch.setattr(module, "_RECV_BYTES", 1 << 10)
    connection, peer = pair
    frame = b"MSG flood 99 5\r\nhello\r\n"
    peer.sendall(frame * ((1 << 15) // len(frame)) + b"MSG last 99 4\r\nlast\r\n")
    deadline = clock.monotonic()
    found = []
    while (received := connection.next_frame(deadline)) is not None:
        found.append(received.subject)

    assert len(found) * len(frame) <= (1 << 14) + (1 << 10)
    assert len(found) * len(frame) > (1 << 14) - (1 << 10)
    while received is None or received.subject != b"last":
        received = connection.next_frame(clock.monotonic() + 10)
        assert received is not None


def test_an_answer_to_a_process_that_stood_still(pair, clock):
    """A process that stood still until its deadline finds the answer."""
    connection, peer = pair

    def answer():
        asked = b""
        while b"ask" not in asked:
            asked += peer.recv(4096)
        inbox = re.search(rb"PUB ask (\S+) ", asked)
        assert inbox is not None
        peer.sendall(b"MSG %b 1 2\r\nhi\r\n" % inbox[1])

    send = connection.send

    def send_and_stand_still(data, timeout_s=30.0):
        send(data, timeout_s)
        answer()  # it is in our socket now
        clock.ahead_s += 3600

    connection.send = send_and_stand_still  # type: ignore[method-assign]
    reply = connection.request("ask", b"", 3.0)

    assert reply.data == b"hi"


def test_no_answer_is_still_an_error(pair, clock):
    """Silence until after the deadline is what it was."""
    connection, _ = pair
    send = connection.send

    def send_and_stand_still(data, timeout_s=30.0):
        send(data, timeout_s)
        clock.ahead_s += 3600

    connection.send = send_and_stand_still  # type: ignore[method-assign]

    with pytest.raises(RequestTimeoutError, match="ask"):
        connection.request("ask", b"", 3.0)


def test_what_is_in_the_buffer_alone(pair):
    """Who wants no more than was read already reads no more."""
    connection, peer = pair
    peer.sendall(b"PING\r\n")

    assert connection.next_frame(-math.inf) is None
    assert connection.buffer == b""

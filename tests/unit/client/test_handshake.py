"""Handshakes with what is no server, or a hostile one: they end in time, with an error."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from urllib.parse import urlparse

import pytest

from pyspark_jetstream.client import handshake, login
from pyspark_jetstream.client import peer as greeting
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import NotConnectedError

from ...kits.options import connection_of

INFO = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true}\r\n'


@contextmanager
def peer(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Something that listens, and talks like this to who comes; its URL."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock, suppress(OSError):
                        talk(sock, over)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(20)
        assert not thread.is_alive()


def drip(sock: socket.socket, over: threading.Event) -> None:
    """An INFO, a byte at a time, faster than any timeout of one byte, and without an end."""
    for byte in INFO[:-2] + b" " * 100_000:
        sock.sendall(bytes([byte]))
        if over.wait(0.02):
            return


def drip_later(sock: socket.socket, over: threading.Event) -> None:
    """Likewise once it was asked something."""
    sock.sendall(INFO)
    sock.recv(1)
    drip(sock, over)


def babble(sock: socket.socket, over: threading.Event) -> None:
    """A line without an end, as fast as it is taken."""
    while not over.is_set():
        sock.sendall(b"x" * (1 << 16))


def say_nothing(sock: socket.socket, over: threading.Event) -> None:
    """Nothing."""
    over.wait(30)


@pytest.mark.parametrize("who", [handshake, login], ids=["nats-py", "ourselves"])
@pytest.mark.parametrize("talk", [drip, drip_later, babble, say_nothing])
@pytest.mark.parametrize("count", [1, 2])
def test_a_handshake_ends(who, talk, count):
    """
    However a peer goes about it, and whoever greets it, the handshake ends at its deadline, or
    earlier, and says with whom. A peer that drips would go on for half an hour.
    """
    with peer(talk) as url:
        options = connection_of(*[url] * count, connect_timeout_s=0.6, request_timeout_s=5.0)
        start = time.monotonic()
        with pytest.raises(NotConnectedError) as caught:
            who.shake_hands(options)
        took = time.monotonic() - start

    assert took < 100 * 0.6
    assert url in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_what_was_tried_is_told(caplog):
    """
    A wrong port and a wrong name are errors that name each, and what to check, in one line; the log
    says so before the time of a request is over.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = f"127.0.0.1:{listener.getsockname()[1]}"
    options = connection_of(
        f"nats://{free}", "nats://nobody.invalid:4222", connect_timeout_s=0.5, request_timeout_s=2.0
    )
    client = Client(options)
    with pytest.raises(NotConnectedError) as caught:
        client.request("$JS.API.INFO")
    text = str(caught.value)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]

    assert f"{free}: [Errno 111] Connection refused" in text
    assert "nobody.invalid:4222: [Errno -" in text
    assert "check host and port in option servers" in text
    assert "\n" not in text and caught.value.__suppress_context__
    assert len(warnings) == 1 and free in warnings[0]


class Silent:
    """A socket to where nobody is: it waits as long as it may."""

    def __init__(self, clock, waits):
        self._clock, self._waits = clock, waits

    def settimeout(self, timeout_s):
        self._timeout_s = timeout_s

    def connect(self, address):
        self._waits.append((address[0], self._timeout_s))
        self._clock[0] += self._timeout_s
        raise TimeoutError(f"{address[0]} timed out")

    def close(self):
        self._waits.append("closed")


def create_connection(clock, waits, found, address, timeout_s):
    """As Python's own goes about it."""
    for *_, place in found:
        with suppress(TimeoutError):
            one = Silent(clock, waits)
            one.settimeout(timeout_s)
            one.connect(place)
    raise TimeoutError("10.0.0.0 timed out")


def test_the_addresses_of_one_host_share_its_time(monkeypatch):
    """
    Each is tried, the last one, too, and all together get as long as one server may take.
    """
    clock, waits = [100.0], []
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.0.{n}", 4222)) for n in range(4)]
    sockets = SimpleNamespace(
        getaddrinfo=lambda *_, **__: found,
        socket=lambda *_: Silent(clock, waits),
        SOCK_STREAM=socket.SOCK_STREAM,
        create_connection=partial(create_connection, clock, waits, found),
    )
    monkeypatch.setattr(greeting, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(greeting, "socket", sockets)
    connecting = handshake._HandshakeTransport(2.0, ()).connect(urlparse("nats://host:4222"), 1, 1)

    with pytest.raises(TimeoutError, match=r"10\.0\.0\.0 timed out"):
        connecting.send(None)  # it awaits nothing
    assert [wait for wait in waits if wait != "closed"] == [
        (f"10.0.0.{number}", pytest.approx(0.5)) for number in range(4)
    ]
    assert waits.count("closed") == 4

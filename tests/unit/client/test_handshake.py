"""Handshakes with what is no server, or a hostile one: they end in time, with an error."""

from __future__ import annotations

import json
import socket
import time
from types import SimpleNamespace

import pytest

from pyspark_jetstream.client import handshake
from pyspark_jetstream.client import peer as greeting
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.handshake import shake_hands
from pyspark_jetstream.errors import AuthenticationError, NotConnectedError, TlsError
from pyspark_jetstream.values import Secret

from ...kits.options import connection_of
from ...kits.proxy import Peer
from ...kits.servers import DevServer

INFO = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true}\r\n'


def drip(sock, over):
    """An INFO, a byte at a time, faster than any timeout of one byte, and without an end."""
    for byte in INFO[:-2] + b" " * 100_000:
        sock.sendall(bytes([byte]))
        if over.wait(0.02):
            return


def drip_later(sock, over):
    """Likewise once it was asked something."""
    sock.sendall(INFO)
    sock.recv(1)
    drip(sock, over)


def babble(sock, over):
    """A line without an end, as fast as it is taken."""
    while not over.is_set():
        sock.sendall(b"x" * (1 << 16))


def say_nothing(sock, over):
    """Nothing."""
    over.wait(30)


@pytest.mark.parametrize("talk", [drip, drip_later, babble, say_nothing])
@pytest.mark.parametrize("count", [1, 2])
def test_a_handshake_ends(talk, count):
    """However a peer goes about it, the handshake ends at its deadline and says with whom."""
    with Peer(talk) as peer:
        options = connection_of(*[peer.url] * count, connect_timeout_s=0.6, request_timeout_s=5.0)
        start = time.monotonic()
        with pytest.raises(NotConnectedError) as caught:
            shake_hands(options)
        took = time.monotonic() - start

    assert took < 100 * 0.6
    assert peer.url in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_what_was_tried_is_told(caplog):
    """A wrong port and a wrong name are one line, named early in the log."""
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


def test_the_addresses_of_one_host_share_its_time(monkeypatch):
    """Each is tried, the last one, too, and all together get as long as one server may take."""
    waits = []

    def create_connection(address, timeout):
        waits.append((address, timeout))
        raise TimeoutError

    monkeypatch.setattr(greeting, "time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr(greeting.socket, "getaddrinfo", lambda *_, **__: range(4))
    monkeypatch.setattr(greeting.socket, "create_connection", create_connection)
    with pytest.raises(TimeoutError):
        greeting.Peer(2.0).dial("host", 4222)
    assert waits == [((b"host", 4222), 0.5)]


SERVER = {"server_id": "x", "version": "2.15.1", "max_payload": 1 << 20, "headers": True}


def enter(said, told=None, **options):
    """What comes of entering a server that says this, one part a turn; and what it was told."""
    told = [] if told is None else told

    def serve(sock, _):
        for number, part in enumerate(said):
            if number:
                told.append(sock.recv(1 << 16))
            sock.sendall(part)
        if said[-1].endswith(b"\n"):  # else it hangs up
            sock.recv(1)

    with Peer(serve) as peer:
        sock, info, leftover = shake_hands(
            connection_of(peer.url, connect_timeout_s=10.0, **options)
        )
        sock.close()
    return info, leftover, told


def info(**more):
    return b"INFO %s\r\n" % json.dumps(SERVER | more).encode()


@pytest.mark.parametrize(
    ("given", "asked", "wanted"),
    [
        ({"user": "ann", "password": Secret("pw")}, True, {"user": "ann", "pass": "pw"}),
        ({"user": "ann", "password": Secret("pw")}, False, {"user": "ann", "pass": "pw"}),
        ({"token": Secret("t")}, False, {"auth_token": "t"}),
        ({"token": Secret("t")}, True, {"auth_token": "t"}),
        ({}, True, {}),
    ],
)
def test_what_a_server_is_told(given, asked, wanted):
    """A server that asks gets user and password, or the token; no other does."""
    _, leftover, told = enter([info(auth_required=asked), b"PONG\r\nPING\r\n"], **given)
    connect = json.loads(told[0].partition(b" ")[2].partition(b"\r\n")[0])

    assert {name: connect[name] for name in ("user", "pass", "auth_token") if name in connect} == (
        wanted
    )
    assert (connect["headers"], connect["no_responders"], connect["protocol"]) == (True, True, 1)
    assert told[0].endswith(b"\r\nPING\r\n")
    assert leftover == b"PING\r\n"


def test_what_a_server_says_before_it_lets_in():
    """A later INFO counts, a PING is answered, what is behind PONG is the connection's."""
    said, leftover, told = enter(
        [info(), b"PING\r\n", info(max_payload=7) + b"+OK\r\nPONG\r\nMSG a 1 0\r\n"]
    )

    assert said["max_payload"] == 7
    assert leftover == b"MSG a 1 0\r\n"
    assert told[1] == b"PONG\r\n"


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ([info(auth_required=True), b"-ERR 'Authorization Violation'\r\n"], AuthenticationError,
         "Authorization Violation"),
        ([info(auth_required=True), b"-ERR 'Authorization Violation: hunter2'\r\n"],
         AuthenticationError, "Authorization Violation"),
        ([info(auth_required=True), b"-ERR 'Authentication Timeout'\r\n"], NotConnectedError,
         "Authentication Timeout"),
        ([info(), b"-ERR 'maximum connections exceeded'\r\n"], NotConnectedError,
         "maximum connections exceeded"),
        ([b"HTTP/1.1 400 Bad Request\r\n"], NotConnectedError, "when expecting INFO message"),
        ([b"INFO {\r\n"], NotConnectedError, "no INFO of a server"),
        ([b"INFO []\r\n"], NotConnectedError, "no INFO of a server"),
        ([info()[:-2]], NotConnectedError, "closed the connection"),
    ],
)  # fmt: skip
def test_who_does_not_let_in_is_named(said, kind, words):
    """Who does not let in is named, without a secret."""
    with pytest.raises(kind) as caught:
        enter(said, user="ann", password=Secret("hunter2"))

    assert words in str(caught.value)
    assert "nats://127.0.0.1:" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize("how", ["hangs", "full"])
def test_another_server_lets_in(monkeypatch, how):
    """A server that says nothing, or has no room, does not keep us from the next."""
    monkeypatch.setattr(handshake.random, "shuffle", lambda servers: None)
    with Peer(say_nothing if how == "hangs" else refuse) as first, DevServer() as second:
        sock, said, _ = shake_hands(connection_of(first.url, second.url, connect_timeout_s=5.0))
        sock.close()

    assert said["version"]


def refuse(sock, _):
    """Lets nobody in."""
    sock.sendall(info() + b"-ERR 'maximum connections exceeded'\r\n")
    sock.recv(1000)


@pytest.mark.parametrize("more", [{}, {"tls_available": True}])
def test_a_server_that_asks_for_tls_is_told_nothing_in_clear(more):
    """TLS begins behind its INFO, without an option, and nothing of the login goes out before."""
    told: list[bytes] = []
    with pytest.raises(NotConnectedError) as caught:
        enter([info(tls_required=True, **more), b"no TLS\r\n"], told, token=Secret("hunter2"))

    assert told[0].startswith(b"\x16\x03") and b"hunter2" not in told[0]  # a TLS handshake record
    assert type(caught.value) is NotConnectedError  # it may be full: tried again
    assert caught.value.__context__ is None


def test_what_came_behind_an_info_that_asks_for_tls():
    """Bytes in clear that TLS would hide are an error that is not tried again."""
    told: list[bytes] = []
    with pytest.raises(TlsError, match="7 bytes came in clear after its INFO"):
        enter([info(tls_required=True) + b"forged!", b""], told, token=Secret("hunter2"))

    assert told == [b""]


@pytest.mark.parametrize("nonce", [7, ["x"]])
def test_a_challenge_that_is_none(nonce):
    """What is no text is nothing to sign."""
    with pytest.raises(NotConnectedError, match="no INFO of a server"):
        enter([info(nonce=nonce)])


@pytest.mark.parametrize(
    "text",
    [
        {"nkey_seed": Secret("hunter2")},
        {"credentials": Secret("BEGIN NATS USER JWT\nhunter2\n")},
        {"credentials": Secret("BEGIN NATS USER JWT\nx\nBEGIN USER NKEY SEED\nhunter2\n")},
    ],
    ids=["seed", "no seed", "no seed of a user"],
)
def test_keys_that_are_none(text):
    """An error at once, before any server is dialled, that names the option and not the text."""
    with pytest.raises(AuthenticationError) as caught:
        shake_hands(connection_of("nats://127.0.0.1:1", **text))

    assert next(iter(text)).split("_")[0] in str(caught.value).replace("nkeySeed", "nkey")
    assert "hunter2" not in str(caught.value) and not caught.value.retryable

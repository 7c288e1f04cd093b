"""Who enters a server that wants neither TLS nor a signature, and how it goes about it."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import closing

import pytest

from pyspark_jetstream.client import handshake, login
from pyspark_jetstream.devserver import DevServer
from pyspark_jetstream.errors import AuthenticationError, NotConnectedError
from pyspark_jetstream.values import Secret

from ...kits.options import connection_of

INFO = {"server_id": "x", "version": "2.15.1", "max_payload": 1 << 20, "headers": True}


def enter(said: list[bytes], **options):
    """What comes of entering a server that says this, one part a turn; and what it was told."""
    told = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                for number, part in enumerate(said):
                    if number:
                        told.append(sock.recv(1 << 16))
                    sock.sendall(part)
                if said[-1].endswith(b"\n"):  # else it hangs up
                    sock.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        try:
            sock, info, leftover = login.shake_hands(
                connection_of(url, connect_timeout_s=10.0, **options)
            )
            sock.close()
        finally:
            thread.join(20)
    return info, leftover, told


def info(**more) -> bytes:
    return b"INFO %s\r\n" % json.dumps(INFO | more).encode()


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
def test_what_a_server_is_told(monkeypatch, given, asked, wanted):
    """
    A server that asks for a login gets user and password, or the token; no other server gets them.
    """
    monkeypatch.setattr(handshake, "shake_hands", None)
    _, leftover, told = enter([info(auth_required=asked), b"PONG\r\nPING\r\n"], **given)
    connect = json.loads(told[0].partition(b" ")[2].partition(b"\r\n")[0])

    assert {name: connect[name] for name in ("user", "pass", "auth_token") if name in connect} == (
        wanted
    )
    assert (connect["headers"], connect["no_responders"], connect["protocol"]) == (True, True, 1)
    assert told[0].endswith(b"\r\nPING\r\n")
    assert leftover == b"PING\r\n"


def test_what_a_server_says_before_it_lets_in(monkeypatch):
    """
    An INFO that comes later counts, a PING is answered, what comes behind PONG is the connection's.
    """
    monkeypatch.setattr(handshake, "shake_hands", None)
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
        ([b"INFO {\r\n"], NotConnectedError, "json parse error"),
        ([b"INFO []\r\n"], NotConnectedError, "json parse error"),
        ([info()[:-2]], NotConnectedError, "closed the connection"),
    ],
)  # fmt: skip
def test_who_does_not_let_in_is_named(monkeypatch, said, kind, words):
    """
    A refusal, no NATS server, one that hangs up: an error that says so, names the server, and has
    no secret.
    """
    monkeypatch.setattr(handshake, "shake_hands", None)
    with pytest.raises(kind) as caught:
        enter(said, user="ann", password=Secret("hunter2"))

    assert words in str(caught.value)
    assert "nats://127.0.0.1:" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize("how", ["hangs", "full"])
def test_another_server_lets_in(monkeypatch, how):
    """
    A server that was dialled and says nothing, or has no room, does not keep us from the next one.
    """
    monkeypatch.setattr(login.random, "shuffle", lambda servers: None)
    with socket.create_server(("127.0.0.1", 0)) as first, DevServer() as second:
        if how == "full":
            refusing = threading.Thread(target=refuse, args=(first,), daemon=True)
            refusing.start()
        urls = [f"nats://127.0.0.1:{first.getsockname()[1]}", second.url]
        sock, said, _ = login.shake_hands(connection_of(*urls, connect_timeout_s=5.0))
        sock.close()

    assert said["version"]


def refuse(listener) -> None:
    """Lets nobody in."""
    there, _ = listener.accept()
    with there:
        there.sendall(info() + b"-ERR 'maximum connections exceeded'\r\n")
        there.recv(1000)


@pytest.mark.parametrize(
    "options",
    [{"credentials": Secret("x")}, {"nkey_seed": Secret("x")}, {"tls_ca_file": "ca.pem"},
     {"tls_handshake_first": True}],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_what_signs_or_hides_is_not_done_here(monkeypatch, options):
    """
    Where options sign or ask for TLS nothing is dialled here.
    """
    monkeypatch.setattr(login, "Peer", None)
    monkeypatch.setattr(handshake, "shake_hands", lambda *given: given)
    given = connection_of("nats://127.0.0.1:1", **options)

    assert login.shake_hands(given, True) == (given, True)


@pytest.mark.parametrize("asks", ["tls_required", "tls_verify"])
def test_a_server_that_asks_for_tls_is_told_nothing(monkeypatch, asks):
    """
    The connection to it is closed, and nats-py begins anew.
    """
    ends = [closing(sock) for sock in socket.socketpair()]
    with ends[0] as ours, ends[1]:
        monkeypatch.setattr(handshake, "shake_hands", lambda *_: (ours, {}, b"its"))
        said, leftover, told = enter([info(**{asks: True})], user="ann", password=Secret("pw"))

    assert (said, leftover, told) == ({}, b"its", [])

"""A server that repeats what it was told: no secret comes through it into an error or the log."""

import json
import logging
import traceback
from functools import partial

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.values import Secret

from ...kits.options import connection_of
from ...kits.proxy import Peer
from ..test_sanitize import EVIL, assert_plain

INFO = {"server_id": "x", "version": "2.15.1", "max_payload": 1 << 20, "headers": True}
SECRETS = {
    "password": "hunter2-unmistakable", "token": "tok3n-unmistakable", "short": "s3kr!t",
}  # fmt: skip


def echo(form, place, sock, _):
    """Lets a client in, or does not, and answers each line with what it was told."""
    sock.sendall(b"INFO %s\r\n" % json.dumps(INFO | {"auth_required": True}).encode())
    lines = sock.makefile("rb")
    told = form(lines.readline().strip())
    line = told.replace(b"\r", b"").replace(b"\n", b"")
    if place == "login":
        sock.sendall(b"-ERR 'no %b'\r\n" % line)
    elif place == "login, a word of it":
        sock.sendall(b"-ERR 'Authorization Violation: %b'\r\n" % line)
    elif place == "another line":
        lines.readline()
        sock.sendall(b"PONG\r\n%b\r\n" % line)
    elif place == "INFO":
        info = INFO | {"server_name": told.decode("utf-8", "replace"), "max_payload": 9}
        lines.readline()
        sock.sendall(b"INFO %b\r\nPONG\r\n-ERR 'x'\r\n" % json.dumps(info).encode())
    else:
        lines.readline()
        sock.sendall(b"PONG\r\n")
        while (asked := lines.readline().strip()) and not asked.startswith(b"PUB"):
            if asked == b"PING":
                sock.sendall(b"PONG\r\n")
        if place == "-ERR":
            sock.sendall(b"-ERR '%b'\r\n" % line)
        elif place == "permissions":
            sock.sendall(b"-ERR 'Permissions Violation for Publish to \"%b\"'\r\n" % line)
        else:
            said = told.decode("utf-8", "replace")
            error = {"code": 500, "err_code": 10_001, "description": said}
            answer = json.dumps({"error": error} if place == "API" else said).encode()
            inbox = asked.split()[2]
            sock.sendall(b"MSG %b 1 %d\r\n%b\r\n" % (inbox, len(answer), answer))
    while sock.recv(1 << 16):
        pass


PLACES = [
    "login", "login, a word of it", "another line", "INFO", "-ERR", "permissions", "API", "no API",
]  # fmt: skip


def shown(options, form, place):
    """All that people see of a request to such a server: the error as Spark would print it."""
    with Peer(partial(echo, form, place)) as server:
        connection = connection_of(
            server.url, connect_timeout_s=0.2, request_timeout_s=0.2, **options
        )
        client = Client(connection)
        try:
            JetStream(client).stream_info("S")
        except JetStreamError as error:
            return "".join(traceback.format_exception(error))
        finally:
            client.close()
    raise AssertionError("no error")


LOGINS = {
    "password": {"user": "ann", "password": Secret(SECRETS["password"])},
    "token": {"token": Secret(SECRETS["token"])},
    "short": {"user": "ann", "password": Secret(SECRETS["short"])},
}


def secret_of(told):
    said = json.loads(told.partition(b" ")[2])
    return (said.get("pass") or said["auth_token"]).encode()


CASES = [("password", place) for place in PLACES] + [(login, "-ERR") for login in LOGINS]


@pytest.mark.parametrize("form", [lambda told: told, secret_of], ids=["CONNECT", "the secret"])
@pytest.mark.parametrize(("login", "place"), CASES)
def test_what_a_server_repeats_is_masked(login, place, form, caplog):
    """Neither error nor log has the secret of the CONNECT that a server repeats."""
    with caplog.at_level(logging.DEBUG, "pyspark_jetstream"):
        text = shown(dict(LOGINS[login]), form, place)
    seen = text + "".join(record.getMessage() for record in caplog.records)

    assert SECRETS[login] not in seen
    assert SECRETS[login][:6] not in seen


@pytest.mark.parametrize("place", PLACES)
def test_what_a_server_says_steers_no_terminal(place, caplog):
    """Escapes and line ends of a server are shown as such, in one line."""
    evil = EVIL.encode("utf-8", "replace")
    with caplog.at_level(logging.DEBUG, "pyspark_jetstream"):
        text = shown({"user": "ann", "password": Secret("pw")}, lambda _: evil, place)

    assert_plain(text, lines=True)
    for record in caplog.records:
        assert_plain(record.getMessage())

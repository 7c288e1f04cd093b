"""Where an option asks for TLS: nothing goes out in clear, nothing in clear is believed."""

import json
import ssl

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.handshake import shake_hands
from pyspark_jetstream.errors import AuthenticationError, NotConnectedError, TlsError
from pyspark_jetstream.values import Secret

from ..kits.clients import SECRET, account_info, options, refused
from ..kits.proxy import Peer, Proxy, info_with
from ..kits.tls import tls_server
from .test_client import free_port

USERS = f'authorization {{ users: [ {{ user: ann, password: "{SECRET}" }} ] }}'
LOGIN = {"user": "ann", "password": Secret(SECRET)}
STRIPPED = info_with(tls_required=None)


@pytest.fixture(scope="module")
def server(certificates):
    """A server that wants TLS, and a password inside."""
    with tls_server(certificates, config=USERS) as server:
        yield server


def asking(home, how, *ports, **changes):
    """Options that ask for TLS in one of the ways there are."""
    urls = [f"nats://127.0.0.1:{port}" for port in ports]
    ca = {"tls_ca_file": str(home / "ca.pem")}
    client = {
        "tls_cert_file": str(home / "client.pem"),
        "tls_key_file": str(home / "client.key"),
    }
    given = {"servers": {}, "tlsCaFile": ca, "tlsCertFile": client}[how]
    if how == "servers":  # one of them is enough
        urls.append(f"tls://127.0.0.1:{ports[0]}")
    return options(*urls, **LOGIN | given | changes)


@pytest.mark.parametrize("how", ["servers", "tlsCaFile", "tlsCertFile"])
def test_a_server_that_offers_no_tls_hears_nothing(certificates, server, how):
    """A server whose INFO lacks TLS gets not one byte; the error says what to do."""
    with Proxy(server.port, STRIPPED) as proxy:
        error = refused(asking(certificates, how, proxy.port))

    assert proxy.heard == [b""]
    assert isinstance(error, TlsError) and not error.retryable
    for word in (f"127.0.0.1:{proxy.port}", how, "tls { }", "proxy on the way"):
        assert word in str(error)


@pytest.mark.parametrize(
    "info",
    [
        info_with(tls_required=False),
        info_with(tls_required=0, tls_available=None),
        lambda line: STRIPPED(line).replace(b"INFO {", b"info INFO {"),
        lambda line: b"\r\n",
        lambda line: b"INFO {\r\n",
        lambda line: b"INFO []\r\n",
        lambda line: b"+OK\r\n",
    ],
    ids=["false", "0", "twice", "empty", "cut", "list", "ok"],
)
def test_whatever_a_server_says_first(certificates, server, info):
    """A first line that is no INFO with TLS, however it is made, is answered with nothing."""
    with Proxy(server.port, info) as proxy:
        opts = asking(certificates, "tlsCaFile", proxy.port, request_timeout_s=0.5)
        error = refused(opts)

    assert set(proxy.heard) == {b""}
    assert isinstance(error, NotConnectedError)


def test_every_server_of_the_list(certificates, server):
    """It holds for servers tried later; none that a server without TLS names is dialled."""
    with Proxy(server.port) as named:
        change = info_with(tls_required=None, connect_urls=[f"127.0.0.1:{named.port}"])
        with Proxy(server.port, change) as proxy:
            for _ in range(6):
                opts = asking(certificates, "tlsCaFile", free_port(), free_port(), proxy.port)
                assert isinstance(refused(opts), TlsError)

    assert proxy.heard == [b""] * 6
    assert named.heard == []


def test_a_connection_that_is_dialled_again(certificates, server):
    """A proxy that strips TLS only later gets nothing in clear, either."""
    with Proxy(server.port) as proxy:
        client = Client(asking(certificates, "tlsCaFile", proxy.port))
        assert "memory" in json.loads(client.request("$JS.API.INFO").data)
        client.drop()
        proxy.change = STRIPPED
        with pytest.raises(TlsError):
            client.request("$JS.API.INFO")
        client.close()

    inside, outside = proxy.heard
    assert len(inside) > 200 and b"CONNECT" not in inside and SECRET.encode() not in inside
    assert outside == b""


def test_a_server_that_takes_both(certificates):
    """A server with and without TLS is entered by TLS where an option asks for it."""
    with (
        tls_server(certificates, config=f"{USERS}\nallow_non_tls: true") as server,
        Proxy(server.port) as proxy,
    ):
        opts = asking(certificates, "tlsCaFile", proxy.port)
        assert "memory" in account_info(opts)

    assert len(proxy.heard) == 1
    assert b"CONNECT" not in proxy.heard[0] and SECRET.encode() not in proxy.heard[0]


FORGED = b'{"type":"io.nats.jetstream.api.v1.account_info_response","memory":666}'
INJECTED = b"PONG\r\nMSG x.1 1 %d\r\n%s\r\n" % (len(FORGED), FORGED)


def test_bytes_behind_info_are_an_error(certificates, server):
    """What stands behind INFO before TLS is an error before any login."""
    with Proxy(server.port, lambda line: line + INJECTED) as proxy:
        error = refused(asking(certificates, "tlsCaFile", proxy.port))

    assert isinstance(error, TlsError) and not error.retryable
    assert f"127.0.0.1:{proxy.port}" in str(error) and "in clear after its INFO" in str(error)
    assert proxy.heard == [b""]


def test_bytes_in_clear_while_tls_begins(certificates, server):
    """The same a moment later, in the middle of TLS's own handshake."""
    with Proxy(server.port, retort=INJECTED) as proxy:
        error = refused(asking(certificates, "tlsCaFile", proxy.port, request_timeout_s=6.0))

    assert isinstance(error, NotConnectedError)  # who is full speaks in clear there, too
    assert proxy.heard and not any(SECRET.encode() in each for each in proxy.heard)


def test_a_server_that_is_full_is_tried_again(certificates, server):
    """A full server says so before TLS: an error that is tried again."""
    full = b"-ERR 'maximum connections exceeded'\r\n"
    with Proxy(server.port, lambda line: line + full) as proxy:
        error = refused(asking(certificates, "tlsCaFile", proxy.port, request_timeout_s=6.0))

    assert type(error) is NotConnectedError and error.retryable
    assert "before TLS" in str(error)
    assert set(proxy.heard) == {b""}


def test_what_the_server_is_comes_from_inside_tls(certificates, server):
    """What an INFO in clear says holds until TLS has begun, not afterwards."""
    lie = info_with(max_payload=77, version="9.9.9", server_name="x", unheard_of=True)
    with Proxy(server.port, lie) as proxy:
        client = Client(asking(certificates, "tlsCaFile", proxy.port))
        connection = client.connection
        found = connection.max_payload, connection.info["server_name"], dict(connection.info)
        assert client.request("$JS.API.INFO").status == 0
        client.close()

    assert found[:2] == (1 << 20, server.name)
    assert found[2]["version"] != "9.9.9" and "unheard_of" not in found[2]


CLEAR = b'INFO {"tls_required": true, "max_payload": 77, "unheard_of": true}\r\n'
TRUE = b'INFO {"max_payload": 5}\r\n'


@pytest.mark.parametrize(
    ("parts", "payload", "left"),
    [
        ([TRUE + b"PONG\r\n", b"PONG\r\n"], 5, b""),
        ([b"PONG\r\n" + TRUE, b"PONG\r\nMSG a 1 0\r\n"], 5, b"MSG a 1 0\r\n"),
        ([b"PONG\r\n", b"PING\r\n" + TRUE + b"PONG\r\n"], 5, b""),
        ([b"PONG\r\n", b"PONG\r\nPING\r\n"], 77, b"PING\r\n"),
    ],
    ids=["2.14", "late", "pinged", "old server"],
)
def test_the_second_info(certificates, parts, payload, left):
    """The INFO inside TLS is waited for; nothing is left of the one before."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    heard = []

    def serve(sock, _):
        sock.sendall(CLEAR)
        with serving.wrap_socket(sock, server_side=True) as inside:
            for part in parts:
                heard.append(inside.recv(1 << 16))
                inside.sendall(part)
            inside.recv(1 << 16)

    with Peer(serve) as peer:
        sock, info, leftover = shake_hands(asking(certificates, "tlsCaFile", peer.port))
        sock.close()

    assert (info["max_payload"], leftover) == (payload, left)
    assert ("unheard_of" in info) == (payload == 77)
    assert heard[0].startswith(b"CONNECT {") and heard[0].endswith(b"PING\r\n")
    assert heard[1] == b"PING\r\n"


def first(home, url, **changes):
    """Options that begin with TLS."""
    given = {"tls_ca_file": str(home / "ca.pem"), "tls_handshake_first": True}
    return options(url, **LOGIN | given | changes)


@pytest.mark.parametrize("value", ["true", "30s"])
def test_handshake_first(certificates, value):
    """A server that says nothing before TLS, or waits long for it, is entered."""
    with (
        tls_server(certificates, f"handshake_first: {value}", USERS) as server,
        Proxy(server.port) as proxy,
    ):
        assert "memory" in account_info(first(certificates, proxy.url))

    assert len(proxy.heard) == 1 and proxy.heard[0][:2] == b"\x16\x03"  # a TLS handshake record
    assert b"CONNECT" not in proxy.heard[0] and SECRET.encode() not in proxy.heard[0]


def test_handshake_first_asks_for_tls_by_itself(certificates):
    """Without any other option the certificate is checked against the system's CAs."""
    with tls_server(certificates, "handshake_first: true", USERS) as server:
        error = refused(first(certificates, server.url, tls_ca_file=None))

    assert isinstance(error, AuthenticationError) and "TLS" in str(error)


@pytest.mark.parametrize("stripped", [False, True])
def test_handshake_first_with_a_server_that_speaks_first(certificates, server, stripped):
    """A server without `handshake_first` is an error; nothing goes out in clear."""
    with Proxy(server.port, STRIPPED if stripped else info_with()) as proxy:
        error = refused(first(certificates, proxy.url))

    assert isinstance(error, NotConnectedError)
    assert "tlsHandshakeFirst" in str(error)
    assert {heard[:2] for heard in proxy.heard} == {b"\x16\x03"}
    assert not any(SECRET.encode() in heard for heard in proxy.heard)


def test_handshake_first_without_the_certificate_it_wants(certificates):
    """A server that demands a client certificate is named as that, though its INFO never came."""
    with tls_server(certificates, "handshake_first: true, verify: true", USERS) as server:
        error = refused(first(certificates, server.url))

        assert isinstance(error, AuthenticationError) and "tlsCertFile" in str(error)
        files = {f"tls_{each}_file": str(certificates / f"client.{ext}")
                 for each, ext in (("cert", "pem"), ("key", "key"))}  # fmt: skip
        assert "memory" in account_info(first(certificates, server.url, **files))

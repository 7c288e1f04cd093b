"""TLS to real servers, and what the errors tell."""

from __future__ import annotations

import socket
import ssl
import threading
import time

import pytest

from pyspark_jetstream.client.connection import Client, Connection
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import AuthenticationError, NotConnectedError
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.layout import Slice

from ..kits.clients import account_info, options, refused
from ..kits.tls import make_certificates, strict, tls_server


def test_tls_with_a_ca_of_ones_own(certificates, tmp_path):
    """The CA given, as its file is then, is trusted by tls:// and nats://; large requests pass."""
    make_certificates(tmp_path)
    with tls_server(certificates) as server:
        renewed = options(server.url, tls_ca_file=str(tmp_path / "ca.pem"))
        assert "certificate" in str(refused(renewed))
        (tmp_path / "ca.pem").write_bytes((certificates / "ca.pem").read_bytes())
        assert "memory" in account_info(renewed)
        for url in (server.url, server.url.replace("nats://", "tls://")):
            opts = options(url, tls_ca_file=str(certificates / "ca.pem"))
            assert "memory" in account_info(opts)
        client = Client(opts)
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        for _ in range(5):
            assert b'"seq"' in client.request("S.a", bytes(900_000)).data
        found = list(read_direct(client, Slice(0, "S", None, 0, 5, 5, False, True)))
        client.close()

        assert [len(row["data"]) for batch in found for row in batch.to_pylist()] == [900_000] * 5


def test_all_records_that_have_come_are_read_at_one_time(certificates):
    """All records that have come are there after one read, also before the peer went away."""
    ours, theirs = socket.socketpair()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    trusting = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    made: list[ssl.SSLSocket] = []
    thread = threading.Thread(
        target=lambda: made.append(serving.wrap_socket(theirs, server_side=True)), daemon=True
    )
    thread.start()
    ours.settimeout(30)
    with trusting.wrap_socket(ours, server_hostname="127.0.0.1") as sock:
        thread.join(60)
        connection, (peer,) = Connection(sock, {}), made
        for _ in range(100):
            peer.sendall(bytes(500))
        came = connection.fill(time.monotonic() + 60), len(connection.buffer)
        more = connection.poll()
        peer.sendall(bytes(500))
        peer.close()
        last = connection.poll(), len(connection.buffer)
        with pytest.raises(NotConnectedError):
            connection.poll()

    assert came == (True, 50_000)
    assert not more
    assert last == (True, 50_500)


def test_a_certificate_that_is_no_more_good_enough(tmp_path, monkeypatch):
    """A certificate that Python 3.13 refuses is refused by its own reason."""
    strict(monkeypatch)
    make_certificates(tmp_path, signer_named="none")
    with tls_server(tmp_path) as server:
        error = refused(options(server.url, tls_ca_file=str(tmp_path / "ca.pem")))

        assert isinstance(error, AuthenticationError)
        assert "Missing Authority Key Identifier" in str(error)

"""Connections to real servers: every way in, every way out, and what the errors tell."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import threading
import time

import nkeys
import pytest

from pyspark_jetstream.client import Client, borrow
from pyspark_jetstream.consumer import ConsumerRead, consumer_config, read_consumer
from pyspark_jetstream.devserver import DevCluster, DevServer
from pyspark_jetstream.directget import DirectRead, read_direct
from pyspark_jetstream.errors import (
    ApiError,
    AuthenticationError,
    JetStreamError,
    NotConnectedError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from pyspark_jetstream.jetstream import JetStream
from pyspark_jetstream.options import ConnectionOptions
from pyspark_jetstream.values import Secret

SECRET = "hunter2-unmistakable"


def options(*servers, **changes) -> ConnectionOptions:
    defaults = {"request_timeout_s": 5.0, "connect_timeout_s": 2.0}
    return ConnectionOptions(servers=tuple(servers), **defaults | changes)


def account_info(opts) -> dict:
    """One JetStream request over a client of its own."""
    client = Client(opts)
    try:
        return json.loads(client.request("$JS.API.INFO").data)
    finally:
        client.close()


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def refused(opts) -> JetStreamError:
    """The error that a first request ends in; never with the secret in it."""
    client = Client(opts)
    with pytest.raises(JetStreamError) as caught:
        client.request("$JS.API.INFO")
    client.close()
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r} {error.args}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return caught.value


# ── authentication ───────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def password_server():
    with DevServer(
        f"""authorization {{ users: [
              {{ user: ann, password: "{SECRET}" }}
              {{ user: bob, password: "{SECRET}", permissions: {{
                   publish: "$JS.API.INFO", subscribe: "_INBOX.>" }} }}
              {{ user: cyd, password: "{SECRET}", permissions: {{
                   publish: "$JS.API.>", subscribe: "other.>" }} }} ] }}"""
    ) as server:
        yield server


def keys(prefix: int) -> tuple[nkeys.KeyPair, str, str]:
    """A new key pair, its seed and its public key."""
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    pair = nkeys.from_seed(bytearray(seed))
    return pair, bytes(seed).decode(), pair.public_key.decode()


def jwt(issuer: tuple, subject: str, name: str, claims: dict) -> str:
    """A NATS JWT (version 2), signed by the issuer."""

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    body = {"jti": name, "iat": int(time.time()), "iss": issuer[2], "name": name, "sub": subject}
    body["nats"] = claims | {"version": 2}
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    text = ".".join(part(json.dumps(each).encode()) for each in (header, body))
    return f"{text}.{part(issuer[0].sign(text.encode()))}"


def test_no_authentication(nats_server):
    """
    A server without authentication is entered without options.
    """
    assert "memory" in account_info(options(nats_server.url))


@pytest.mark.parametrize("where", ["options", "url"])
def test_user_and_password(password_server, where):
    """
    User and password are taken from the options or from the URL.
    """
    if where == "options":
        opts = options(password_server.url, user="ann", password=Secret(SECRET))
    else:
        opts = options(password_server.url.replace("//", f"//ann:{SECRET}@"))

    assert "memory" in account_info(opts)
    assert SECRET not in f"{opts!r} {opts.display_servers}"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"user": "ann", "password": Secret("wrong " + SECRET)},
        {"user": "nobody", "password": Secret(SECRET)},
        {"token": Secret(SECRET)},
    ],
    ids=["nothing", "password", "user", "token"],
)
def test_wrong_credentials_are_not_tried_twice(password_server, changes):
    """
    Refused credentials are an `AuthenticationError` at once, without the secret in it.
    """
    before = password_server.log.count("authentication error")
    error = refused(options(password_server.url, **changes))

    assert isinstance(error, AuthenticationError)
    assert not error.retryable
    assert "check user, password" in str(error)
    assert password_server.log.count("authentication error") <= before + 1


def test_a_wrong_password_in_the_url_does_not_show(password_server):
    """
    A refused URL is named without its password.
    """
    error = refused(options(password_server.url.replace("//", f"//ann:{SECRET}x@")))

    assert isinstance(error, AuthenticationError)
    assert password_server.url in str(error)


def test_token():
    """
    A token opens a server that asks for one; a wrong one does not.
    """
    with DevServer(f'authorization {{ token: "{SECRET}" }}') as server:
        assert "memory" in account_info(options(server.url, token=Secret(SECRET)))
        assert isinstance(refused(options(server.url, token=Secret("x"))), AuthenticationError)


def test_nkey():
    """
    An nkey seed, with the line end its file has, signs the server's challenge.
    """
    _, seed, public = keys(nkeys.PREFIX_BYTE_USER)
    _, other, _ = keys(nkeys.PREFIX_BYTE_USER)
    with DevServer(f"authorization {{ users: [ {{ nkey: {public} }} ] }}") as server:
        assert "memory" in account_info(options(server.url, nkey_seed=Secret(seed + "\n")))
        error = refused(options(server.url, nkey_seed=Secret(other)))
        assert isinstance(error, AuthenticationError)
        assert seed not in str(error) and other not in str(error)


def test_a_seed_that_is_none_is_refused_without_showing_it(nats_server):
    """
    A text that is no nkey seed ends in an error that does not quote it.
    """
    refused(options(nats_server.url, nkey_seed=Secret(SECRET), request_timeout_s=1.0))


def test_credentials_file():
    """
    The content of a .creds file (operator mode, JWT) opens the account it belongs to.
    """
    operator = keys(nkeys.PREFIX_BYTE_OPERATOR)
    account, system = keys(nkeys.PREFIX_BYTE_ACCOUNT), keys(nkeys.PREFIX_BYTE_ACCOUNT)
    user = keys(nkeys.PREFIX_BYTE_USER)
    limits = dict.fromkeys(
        ["subs", "data", "payload", "imports", "exports", "conn", "leaf",
         "mem_storage", "disk_storage", "streams", "consumer"], -1,
    )  # fmt: skip
    accounts = {
        "A": (account, {"type": "account", "limits": limits | {"wildcards": True}}),
        "SYS": (
            system,
            {
                "type": "account",
                "limits": {k: v for k, v in limits.items() if "storage" not in k}
                | {"wildcards": True, "streams": 0, "consumer": 0},
            },
        ),
    }
    preload = "".join(
        f"{pair[2]}: {jwt(operator, pair[2], name, claims)}\n"
        for name, (pair, claims) in accounts.items()
    )
    operator_jwt = jwt(operator, operator[2], "O", {"type": "operator"})
    user_jwt = jwt(
        account, user[2], "U",
        {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1},
    )  # fmt: skip
    creds = (
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user[1]}\n------END USER NKEY SEED------\n"
    )
    other = creds.replace(user[1], keys(nkeys.PREFIX_BYTE_USER)[1])
    with DevServer(
        f"operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{\n{preload}}}\n"
        f"system_account: {system[2]}"
    ) as server:
        assert "memory" in account_info(options(server.url, credentials=Secret(creds)))
        error = refused(options(server.url, credentials=Secret(other)))

        assert isinstance(error, AuthenticationError)
        assert user_jwt not in str(error)


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A CA, a server's and a client's certificate signed by it, and another CA."""
    home = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=home, check=True, capture_output=True, timeout=60)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for ca in ("ca", "other"):
        files = ["-keyout", f"{ca}.key", "-out", f"{ca}.pem"]
        openssl("req", "-x509", *key, *files, "-subj", f"/CN={ca}", "-days", "2")
    for name, alternative in (("server", "IP:127.0.0.1"), ("client", "DNS:client")):
        (home / f"{name}.ext").write_text(f"subjectAltName={alternative}")
        files = ["-keyout", f"{name}.key", "-out", f"{name}.csr"]
        openssl("req", *key, *files, "-subj", f"/CN={name}")
        signer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        files = ["-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", f"{name}.ext"]
        openssl("x509", "-req", *signer, *files)
    return home


def tls_server(home, verify=False) -> DevServer:
    """A server with our certificate, which may demand one of its clients."""
    return DevServer(
        f"""tls {{
          cert_file: "{home}/server.pem"
          key_file: "{home}/server.key"
          ca_file: "{home}/ca.pem"
          verify: {str(verify).lower()}
        }}"""
    )


def test_tls_with_a_ca_of_ones_own(certificates):
    """
    A server is trusted by the CA given, with a tls:// or a nats:// URL; requests larger than a
    TLS record pass.
    """
    with tls_server(certificates) as server:
        for url in (server.url, server.url.replace("nats://", "tls://")):
            opts = options(url, tls_ca_file=str(certificates / "ca.pem"))
            assert "memory" in account_info(opts)
        client = Client(opts)
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        for _ in range(3):
            assert b'"seq"' in client.request("S.a", bytes(900_000)).data
        found = list(read_direct(client, DirectRead(0, "S", None, 0, 3, 3, False, True), None))
        client.close()

        assert [len(row["data"]) for batch in found for row in batch.to_pylist()] == [900_000] * 3


@pytest.mark.parametrize("ca", ["other.pem", None])
def test_a_server_that_cannot_be_verified_is_refused(certificates, ca):
    """
    A certificate of a CA nobody gave is an `AuthenticationError` at once.
    """
    with tls_server(certificates) as server:
        error = refused(options(server.url, tls_ca_file=ca and str(certificates / ca)))

        assert isinstance(error, AuthenticationError)
        assert "TLS" in str(error)


def test_mutual_tls(certificates):
    """
    A server that demands a client certificate takes ours.
    """
    with tls_server(certificates, verify=True) as server:
        opts = options(
            server.url,
            tls_ca_file=str(certificates / "ca.pem"),
            tls_cert_file=str(certificates / "client.pem"),
            tls_key_file=str(certificates / "client.key"),
        )

        assert "memory" in account_info(opts)


def test_a_missing_client_certificate_is_an_error(certificates):
    """
    Without the client certificate that the server demands, there is a typed error.
    """
    with tls_server(certificates, verify=True) as server:
        error = refused(
            options(server.url, tls_ca_file=str(certificates / "ca.pem"), request_timeout_s=1.5)
        )

        assert isinstance(error, NotConnectedError)
        assert server.url in str(error)


# ── reaching servers ─────────────────────────────────────────────────────────────────────────


def test_a_server_that_is_down_is_passed_over(nats_server):
    """
    Of several servers the first that is up is taken.
    """
    for down in (f"nats://127.0.0.1:{free_port()}", "nats://no-such-host.invalid:4222"):
        assert "memory" in account_info(options(down, nats_server.url))


def test_no_server_at_all():
    """
    Where nobody listens, the error names the servers and why, after requestTimeout.
    """
    down = f"nats://127.0.0.1:{free_port()}"
    error = refused(options(down, request_timeout_s=0.5))

    assert isinstance(error, NotConnectedError) and error.retryable
    assert down in str(error)


def test_a_restart_between_requests_does_not_show():
    """
    Requests reconnect to a server that was killed and came back.
    """
    with DevServer() as server:
        client = Client(options(server.url, request_timeout_s=15.0))
        first = client.request("$JS.API.INFO")
        server.kill()
        timer = threading.Timer(1.0, server.restart)
        timer.start()
        second = client.request("$JS.API.INFO")
        timer.join()
        client.close()

    assert first.status == second.status == 0


def test_a_server_that_does_not_answer():
    """
    A frozen server ends in a typed error, on an open connection and on a new one.
    """
    with DevServer() as server:
        client = Client(options(server.url, request_timeout_s=1.0, connect_timeout_s=1.0))
        client.request("$JS.API.INFO")
        server.pause()
        try:
            with pytest.raises(RequestTimeoutError, match="requestTimeout"):
                client.request("$JS.API.INFO")
            with pytest.raises(NotConnectedError):
                client.request("$JS.API.INFO")
        finally:
            server.resume()
        assert client.request("$JS.API.INFO").status == 0
        client.close()


def test_something_else_listens():
    """
    A peer that is no NATS server ends in a typed error.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            for _ in range(50):
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                peer.sendall(b"SSH-2.0-OpenSSH_9\r\n")
                peer.close()

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        error = refused(
            options(f"nats://127.0.0.1:{listener.getsockname()[1]}", request_timeout_s=0.5)
        )
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()

    assert isinstance(error, JetStreamError)


# ── permissions, prefixes ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("user", ["bob", "cyd"])
def test_a_missing_permission_is_named(password_server, user):
    """
    A user who may not publish, or not subscribe to its inbox, learns which permission is missing.
    """
    client = Client(options(password_server.url, user=user, password=Secret(SECRET)))
    with pytest.raises(JetStreamError, match="(?i)permissions violation.*grant it"):
        JetStream(client).stream_info("S")
    client.close()


@pytest.mark.parametrize(
    "prefix", ["$JS.nowhere.API", "JS.imported"], ids=["jsDomain", "jsApiPrefix"]
)
def test_a_wrong_prefix_is_named(nats_server, prefix):
    """
    A domain or prefix nobody answers on is an error that names the options.
    """
    client = Client(options(nats_server.url, api_prefix=prefix))
    with pytest.raises(ApiError, match="jsDomain.*jsApiPrefix is wrong"):
        JetStream(client).stream_info("S")
    client.close()


def test_without_jetstream_there_is_a_clear_error():
    """
    An account without JetStream is said to have none.
    """
    with DevServer("accounts { A { users: [{user: a, password: a}] } }\nno_auth_user: a") as server:
        client = Client(options(server.url))
        with pytest.raises(ApiError, match="(?i)jetstream"):
            JetStream(client).stream_info("S")
        client.close()


def test_a_domain_is_a_prefix():
    """
    Requests under a domain's prefix reach the server of that domain.
    """
    with DevServer("jetstream { domain: hub }") as server:
        client = Client(options(server.url, api_prefix="$JS.hub.API"))
        js = JetStream(client)
        js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        client.request("S.a", b"1")
        read = ConsumerRead(0, "S", None, "c", "g", None, "limits", 0, 1, 1, False, True)
        js.create_consumer("S", consumer_config(read))
        direct = DirectRead(0, "S", None, 0, 1, 1, False, True)

        for batches in (read_consumer(client, read), read_direct(client, direct, None)):
            assert [row["data"] for batch in batches for row in batch.to_pylist()] == [b"1"]
        with pytest.raises(StreamNotFoundError, match="stream 'T' not found"):
            js.stream_info("T")
        client.close()


# ── lending ──────────────────────────────────────────────────────────────────────────────────


def test_messages_are_deleted_by_sequence(js, new_stream, publish):
    """
    Messages go by their sequences; those that are gone already are fine, a stream's no is not.
    """
    name, kept = new_stream(), new_stream(deny_delete=True)
    publish([(f"{name}.x", b"x")] * 5 + [(f"{kept}.x", b"x")])
    js.delete_messages(name, [2, 4])
    js.delete_messages(name, [1, 2, 4, 9, 0])
    js.delete_messages(name, [])

    assert (js.stream_info(name).messages, js.stream_info(name).first_seq) == (2, 3)
    with pytest.raises(ApiError, match="not permitted"):
        js.delete_messages(kept, [1])


def test_a_client_is_lent_again_after_success_only(nats_server):
    """
    The next task of a thread gets the open connection of one that ended well, and a new one
    after a failure.
    """
    opts = options(nats_server.url, client_name="lending")
    with borrow(opts) as first:
        kept = first.connection
    with pytest.raises(ValueError), borrow(opts) as second:
        assert second.connection is kept
        raise ValueError
    with borrow(opts) as third:
        assert third.connection is not kept
        third.request("$JS.API.INFO")
    with borrow(opts) as last:
        last.close()


def test_two_tasks_at_once_have_two_connections(nats_server):
    """
    A client that is lent is not lent a second time.
    """
    opts = options(nats_server.url, client_name="twice")
    with borrow(opts) as one, borrow(opts) as two:
        assert one.connection is not two.connection
    with borrow(opts) as last:
        last.close()
    two.close()


def test_a_connection_of_a_server_that_went_away_is_not_lent():
    """
    A kept connection is tried before it is lent.
    """
    with DevServer() as server:
        opts = options(server.url)
        with borrow(opts) as client:
            client.request("$JS.API.INFO")
        server.restart()
        with borrow(opts) as client:
            assert client.request("$JS.API.INFO").status == 0
            client.close()


def test_many_requests_at_once(js, new_stream):
    """
    Requests sent together are answered in the order they were asked.
    """
    streams = [new_stream() for _ in range(20)]
    infos = js.stream_infos(streams)

    assert [info.name for info in infos] == streams


# ── a cluster ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def cluster():
    with DevCluster(3) as cluster:
        yield cluster


def leader(js: JetStream, stream: str, consumer: str = "") -> str:
    api = f"CONSUMER.INFO.{stream}.{consumer}" if consumer else f"STREAM.INFO.{stream}"
    return js._call(api).get("cluster", {}).get("leader") or ""


def replicated(js: JetStream, name: str, count: int) -> None:
    """A stream of three replicas with `count` messages."""
    js.create_stream(
        {"name": name, "subjects": [f"{name}.>"], "num_replicas": 3, "allow_direct": True}
    )
    while not leader(js, name):
        time.sleep(0.05)
    connection = js.client.connection
    frame = b"PUB %b.a 200\r\n%b\r\n" % (name.encode(), b"x" * 200)
    for low in range(0, count, 1000):
        connection.send(frame * 1000)
        while js.stream_info(name).last_seq < low + 1000:
            time.sleep(0.01)


def start(js, client, name: str, way: str):
    """A read of 50,000 messages in the given way, and its consumer's name."""
    if way == "direct":
        return read_direct(client, DirectRead(0, name, None, 0, 50_000, 50_000, False, True), None)
    read = ConsumerRead(
        0, name, None, f"{name}-c", "g", None, "limits", 0, 50_000, 50_000, False, True
    )
    js.create_consumer(name, consumer_config(read))
    return read_consumer(client, read)


def numbers(batches) -> list[int]:
    return [seq for batch in batches for seq in batch.column("sequence").to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["stream", "consumer", "direct"])
def test_a_leader_steps_down(cluster, what):
    """
    A read goes on exactly when the leader of its stream or consumer steps down in the middle.
    """
    admin = Client(options(*cluster.urls.split(","), request_timeout_s=30.0))
    js, client = JetStream(admin), Client(admin.options)
    name = f"STEP-{what}"
    replicated(js, name, 50_000)
    batches = start(js, client, name, "direct" if what == "direct" else "consumer")
    found = numbers([next(batches)])
    subject = f"CONSUMER.LEADER.STEPDOWN.{name}.{name}-c"
    js._call(subject if what == "consumer" else f"STREAM.LEADER.STEPDOWN.{name}")
    found += numbers(batches)
    js._call(f"STREAM.DELETE.{name}")
    admin.close()
    client.close()

    assert found == list(range(1, 50_001))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["connected", "leader"])
@pytest.mark.parametrize("way", ["consumer", "direct"])
def test_a_server_dies(cluster, victim, way):
    """
    A read goes on exactly when the server it is connected to, or the leader it reads from, is
    killed in the middle.
    """
    admin = Client(options(*cluster.urls.split(","), request_timeout_s=30.0))
    js = JetStream(admin)
    name = f"DIE-{victim}-{way}"
    replicated(js, name, 50_000)
    by_name = {server.name: server for server in cluster.servers}
    leading = by_name[leader(js, name)]
    others = [server for server in cluster.servers if server is not leading]
    if victim == "leader":
        # Connected to another one, so that only the leader goes.
        client = Client(options(others[0].url, others[1].url, request_timeout_s=30.0))
        batches = start(js, client, name, way)
        found = numbers([next(batches)])
        if way == "consumer":
            leading = by_name[leader(js, name, f"{name}-c")]
        if leading.name == client.connection.info["server_name"]:
            client.drop()
        dead = leading
    else:
        client = Client(options(*cluster.urls.split(","), request_timeout_s=30.0))
        batches = start(js, client, name, way)
        found = numbers([next(batches)])
        dead = by_name[client.connection.info["server_name"]]
    dead.kill()
    try:
        found += numbers(batches)
    finally:
        dead.restart()
        cluster.await_leader()
        js._call(f"STREAM.DELETE.{name}")
        admin.close()
        client.close()

    assert found == list(range(1, 50_001))

"""Every way to log in to real servers, what they refuse, and what the errors tell."""

import json
import pickle
import time
from contextlib import closing

import nkeys
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.errors import AuthenticationError
from pyspark_jetstream.values import Secret

from ..kits.clients import SECRET, account_info, options, refused
from ..kits.logins import creds_of, keys, operator_mode
from ..kits.servers import DevServer
from ..kits.shared import eventually


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
def test_wrong_credentials_are_tried_four_times(password_server, changes):
    """Refused ones are an `AuthenticationError` without the secret in it."""
    before = password_server.log.count("authentication error")
    error = refused(options(password_server.url, **changes))

    assert isinstance(error, AuthenticationError)
    assert not error.retryable
    assert "check option user and option password" in str(error)
    assert password_server.log.count("authentication error") <= before + 4


def test_nkey(tmp_path):
    """An nkey seed signs the server's challenge: its file's as it is at the login."""
    file = tmp_path / "seed"
    _, seed, public = keys(nkeys.PREFIX_BYTE_USER)
    _, other, _ = keys(nkeys.PREFIX_BYTE_USER)
    with DevServer(f"authorization {{ users: [ {{ nkey: {public} }} ] }}") as server:
        assert "memory" in account_info(options(server.url, nkey_seed=Secret(seed + "\n")))
        error = refused(options(server.url, nkey_seed=Secret(other)))
        assert isinstance(error, AuthenticationError)
        assert seed not in str(error) and other not in str(error)
        file.write_text(other)
        parsed = parse_connection({"servers": server.url, "nkeySeedFile": str(file)})
        file.write_text(f"{seed}\n")
        assert "memory" in account_info(parsed)


def test_credentials_file():
    """The content of a .creds file (operator mode, JWT) opens the account it belongs to."""
    mode = operator_mode()
    other = creds_of(mode.jwt, keys(nkeys.PREFIX_BYTE_USER)[1])
    with DevServer(mode.config) as server:
        assert "memory" in account_info(options(server.url, credentials=Secret(mode.creds)))
        error = refused(options(server.url, credentials=Secret(other)))

        assert isinstance(error, AuthenticationError)
        assert mode.jwt not in str(error)


def test_a_credentials_file_that_is_renewed(tmp_path):
    """When its JWT expires the next connection logs in with the file as it is then."""
    mode = operator_mode()
    creds = tmp_path / "user.creds"
    creds.write_text(creds_of(mode.issued(exp=int(time.time()) + 4), mode.seed))
    with DevServer(mode.config) as server:
        given = {"servers": server.url, "credentialsFile": str(creds), "requestTimeout": "10s"}
        parsed = parse_connection(given)
        pickled = pickle.dumps(parsed)
        with closing(Client(parsed)) as client:
            client.request("$JS.API.INFO")
            expiring = client.connection
            creds.write_text(mode.creds)

            def is_another():
                assert "memory" in json.loads(client.request("$JS.API.INFO").data)
                return client.connection is not expiring

            eventually(is_another)

        assert "memory" in account_info(pickle.loads(pickled))

        creds.unlink()

        assert "memory" in account_info(pickle.loads(pickle.dumps(parsed)))

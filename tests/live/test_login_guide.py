"""The logins of docs/guides/login.md, against servers that are set up so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import nkeys
import pytest

from pyspark_jetstream.options import parse_read

from ..kits.clients import SECRET, account_info, refused
from ..kits.logins import keys, operator_mode
from ..kits.places import ROOT
from ..kits.servers import DevServer
from ..kits.tls import strict, tls_server
from ..tools.snippets import snippets

PAGE = ROOT / "docs" / "guides" / "login.md"

TRIED = "localhost:4222"
"""Where the server runs that the page makes to try it."""

USER = f'authorization {{ users: [ {{ user: spark, password: "{SECRET}" }} ] }}'


def blocks():
    """The dictionaries of the page, by their last option."""
    found = {}
    for each in snippets(PAGE):
        if each.language == "python" and "login =" in each.text and TRIED not in each.text:
            names = [line.split('"')[-4] for line in each.text.splitlines() if '": ' in line]
            found[names[-1]] = each.text
    return found


@contextmanager
def a_server(what, home, certificates, monkeypatch):
    """One that wants this login, whose secrets are where the page says; and its files."""
    mode, (_, seed, public) = operator_mode(), keys(nkeys.PREFIX_BYTE_USER)
    (home / "spark.creds").write_text(mode.creds)
    (home / "spark.nk").write_text(f"{seed}\n")
    for name, there in (("ca", "ca"), ("spark", "client")):
        (home / f"{name}.pem").write_bytes((certificates / f"{there}.pem").read_bytes())
    (home / "spark.key").write_bytes((certificates / "client.key").read_bytes())
    for name, value in (
        ("SPARK_PASSWORD", SECRET),
        ("SPARK_TOKEN", SECRET),
        ("SPARK_CREDS", mode.creds),
    ):
        monkeypatch.setenv(name, value)
    match what:
        case "tlsCaFile" | "tlsKeyFile":
            server = tls_server(certificates, "verify: true" if what == "tlsKeyFile" else "")
        case "nkeySeedFile":
            server = DevServer(f"authorization {{ users: [ {{ nkey: {public} }} ] }}")
        case "credentialsFile" | "credentials":
            server = DevServer(mode.config)
        case "token":
            server = DevServer(f'authorization {{ token: "{SECRET}" }}')
        case "inboxPrefix":
            monkeypatch.setenv("READER_PASSWORD", SECRET)
            rights = 'permissions: { subscribe: "_INBOX.reader.>" }'
            reader = f'{{ user: reader, password: "{SECRET}", {rights} }}'
            server = DevServer(f"authorization {{ users: [ {reader} ] }}")
        case "password":
            server = DevServer(USER)
        case "servers":
            server = DevServer()
    with server as running:
        yield running


def login_of(text, server, home):
    """What the block makes, with this server and these files in place of the example's."""
    names: dict = {}
    for host in ("n1", "n2"):
        text = text.replace(f"{host}.example.com:4222", server.url.partition("//")[2])
    exec(text.replace("/etc/nats/", f"{home}/"), names)
    return names["login"]


@pytest.mark.parametrize("what", blocks())
def test_a_login_of_the_guide(what, tmp_path, certificates, monkeypatch):
    """The server is entered, and is not without the login."""
    with a_server(what, tmp_path, certificates, monkeypatch) as server:
        login = login_of(blocks()[what], server, tmp_path)
        connection = parse_read(login | {"stream": "S"}).connection

        assert "memory" in account_info(connection)
        assert SECRET not in repr(connection)
        if what != "servers":
            bare = {"servers": login["servers"], "stream": "S", "connectTimeout": "1s"}
            refused(parse_read(bare).connection)


def test_the_guide_has_every_way_to_log_in():
    """As many as the options have; a dictionary that the test does not find is not run."""
    ways = [
        "servers",
        "password",
        "inboxPrefix",
        "token",
        "credentialsFile",
        "credentials",
        "nkeySeedFile",
    ]

    assert list(blocks()) == [*ways, "tlsCaFile", "tlsKeyFile"]


def shown(language, word):
    """The blocks of the page that have the word."""
    found = [each.text for each in snippets(PAGE) if each.language == language]
    return [text for text in found if word in text]


def program(text):
    """A run of the page's command."""
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", text], env=os.environ | {"PATH": beside},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_server_with_tls_to_try_it(tmp_path, monkeypatch):
    """By the page's certificates and configuration a server runs that its user trusts."""
    strict(monkeypatch)
    monkeypatch.setenv("SPARK_PASSWORD", "secret")
    (made,), (block,) = shown("bash", "openssl"), shown("text", "cert_file")
    subprocess.run(["bash", "-ec", made], cwd=tmp_path, check=True, timeout=60, capture_output=True)
    own = re.sub(r"(?m)^(listen|jetstream ).*\n", "", block)  # the port and the store are ours
    with DevServer(own.replace('_file: "', f'_file: "{tmp_path}/')) as server:
        port = server.url.rpartition(":")[2]
        for host in ("localhost", "127.0.0.1"):
            login = {"servers": f"tls://{host}:{port}", "tlsCaFile": str(tmp_path / "ca.pem")}
            login |= {"user": "spark", "password": "secret"}

            assert "memory" in account_info(parse_read(login | {"stream": "S"}).connection)
        monkeypatch.chdir(tmp_path)
        (options,), (command,) = shown("python", TRIED), shown("bash", "JETSTREAM_PASSWORD=secret")
        names: dict = {}
        exec(options.replace(TRIED, f"localhost:{port}"), names)
        done = program(command.replace(TRIED, f"localhost:{port}"))

        assert "memory" in account_info(parse_read(names["login"] | {"stream": "S"}).connection)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_command_logs_in(tmp_path, certificates, monkeypatch):
    """By the environment's password: it comes as far as to miss the stream."""
    (block,) = shown("bash", "export JETSTREAM_PASSWORD")
    with a_server("password", tmp_path, certificates, monkeypatch) as server:
        done = program(block.replace("nats://n1.example.com:4222", server.url))

    assert "stream 'FLIGHTS' not found" in done.stderr

"""The server for users' tests: it serves, is brought back, and never outlives its user."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.testing import NatsServer, find_server

from ..kits.clients import options
from ..kits.places import ROOT
from ..kits.shared import eventually

pytestmark = pytest.mark.live

HOST_PROGRAM = """
import signal, time
from pyspark_jetstream.testing import NatsServer
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
with NatsServer() as server:
    print(server._home, flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def jetstream(server: NatsServer) -> Iterator[JetStream]:
    """A connection of its own."""
    with contextlib.closing(Client(options(server.url))) as client:
        yield JetStream(client)


def processes(home: Path) -> list[str]:
    """Command lines of this machine that name the server's directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(each.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return [line for line in found if str(home) in line]


def test_finds_a_server_that_starts() -> None:
    """What `find_server` returns is an absolute path; a free port on loopback is the server's."""
    assert find_server().is_absolute()
    with NatsServer() as one, NatsServer() as other:
        assert one.port != other.port
        assert one.url == f"nats://127.0.0.1:{one.port}"


@pytest.mark.parametrize("killed", [False, True], ids=["restart", "kill"])
def test_restart_keeps_port_and_streams(killed: bool) -> None:
    """After a clean stop as after a crash the same port has the same streams."""
    with NatsServer() as server:
        with jetstream(server) as js:
            js.create_stream({"name": "S", "subjects": ["s.>"]})
        port = server.port
        if killed:
            server.kill()
        server.restart()

        assert server.port == port
        with jetstream(server) as js:
            assert js.stream_info("S").name == "S"
        assert server.log.count("Server is ready") == 2


def test_nothing_is_left_after_with() -> None:
    """Leaving `with` ends the processes, and removes the files."""
    with NatsServer() as server:
        home = server._home
        assert processes(home)

    assert not processes(home)
    assert not home.exists()


def test_a_server_that_cannot_start_shows_its_log() -> None:
    """A configuration that the server refuses is an error with the server's own words."""
    server = NatsServer("max_payload: {{{")
    with pytest.raises(RuntimeError, match=r"(?s)did not become ready.*Parse error"):
        server.__enter__()

    assert not server._home.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_is_gone_when_its_process_is(number: signal.Signals) -> None:
    """Whatever signal ends the process that started a server, server and files go with it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOST_PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        home = Path(process.stdout.readline().strip())
        try:
            assert processes(home)
            process.send_signal(number)

            eventually(lambda: not processes(home))
            eventually(lambda: not home.exists())
        finally:
            process.kill()
            shutil.rmtree(home, ignore_errors=True)

"""The development server for real: found, started, restarted, and above all always stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext

from pyspark_jetstream.devserver import DevCluster, DevServer, ServerStartError, find_server

from ..kits.places import ROOT

pytestmark = pytest.mark.live


HOST_PROGRAM = """
import signal, sys, time
from pyspark_jetstream.devserver import DevServer
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
with DevServer() as server:
    print(server.pid, server._supervisor.pid, server._home, flush=True)
    time.sleep(60)
"""


def ask(server: DevServer, question: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
    """The answer to one question over a connection of its own."""

    async def connected() -> Any:
        connection = await nats.connect(server.url)
        try:
            return await question(connection.jetstream())
        finally:
            await connection.close()

    return asyncio.run(connected())


def greeting(server: DevServer, timeout_s: float = 20.0) -> bytes:
    """What the server says first to whoever connects."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s) as connection:
        return connection.recv(4096)


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def host_process() -> Iterator[tuple[subprocess.Popen[str], int, int, Path]]:
    """Another Python process with a server: the process, the two pids under it, the files."""
    with subprocess.Popen(
        [sys.executable, "-c", HOST_PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        home = ""
        try:
            assert process.stdout is not None
            server, supervisor, home = process.stdout.readline().split()
            yield process, int(server), int(supervisor), Path(home)
        finally:
            process.kill()
            process.wait()
            if home:
                eventually(lambda: not Path(home).exists(), timeout_s=1)
                shutil.rmtree(home, ignore_errors=True)  # nobody does if the supervisor is killed


def test_finds_a_server_that_starts() -> None:
    """What `find_server` returns is an absolute path of a nats-server, and it runs."""
    binary = find_server()

    assert binary.is_absolute()
    with DevServer(binary=binary) as server:
        assert server.running


def test_serves_jetstream_on_a_free_port() -> None:
    """Inside `with`, clients reach JetStream at `url`, on loopback, on a port nobody chose."""
    with DevServer() as one, DevServer() as other:
        assert one.port != other.port
        assert one.url == f"nats://127.0.0.1:{one.port}"
        assert ask(one, lambda js: js.account_info()).streams == 0
        assert one.name in repr(one)


@pytest.mark.parametrize("down", [DevServer.stop, DevServer.kill], ids=["stop", "kill"])
def test_restart_keeps_port_and_data(down: Callable[[DevServer], None]) -> None:
    """After `stop` or `kill`, `restart` is a new process on the same port with the same data."""
    with DevServer() as server:
        ask(server, lambda js: js.add_stream(name="S", subjects=["s.>"]))
        ask(server, lambda js: js.publish("s.a", b"kept"))
        port, pid = server.port, server.pid
        down(server)
        assert not server.running
        server.restart()

        assert (server.port, server.pid == pid) == (port, False)
        assert ask(server, lambda js: js.get_msg("S", seq=1)).data == b"kept"


def test_pause_freezes_and_resume_thaws() -> None:
    """A paused server answers nobody, yet counts as running; resumed, it answers again."""
    with DevServer() as server:
        server.pause()
        with pytest.raises(TimeoutError):
            greeting(server, 0.3)
        assert server.running
        server.resume()

        assert greeting(server).startswith(b"INFO {")


def test_is_gone_after_with_even_while_paused() -> None:
    """Leaving `with` ends process and files; the log stays readable."""
    with DevServer() as server:
        home = server._home
        assert home is not None
        server.pause()

    assert not is_alive(server.pid)
    assert not home.exists()
    assert "Server is ready" in server.log


def test_keeps_a_store_directory_of_the_caller(tmp_path: Path) -> None:
    """Streams in a directory given by the caller are there for the next server."""
    with DevServer(store_dir=tmp_path) as first:
        ask(first, lambda js: js.add_stream(name="S", subjects=["s.>"]))
    with DevServer(store_dir=tmp_path) as second:
        assert ask(second, lambda js: js.stream_info("S")).config.subjects == ["s.>"]


@pytest.mark.parametrize(
    ("config", "logged"),
    [
        ("jetstream { max_mem: 3MB }", "Max Memory:      3.00 MB"),
        ("jetstream: disabled", None),
    ],
    ids=["limits", "disabled"],
)
def test_the_callers_jetstream_block_wins(config: str, logged: str | None) -> None:
    """A `jetstream` key in the caller's configuration replaces ours, but for the store."""
    with DevServer(config) as server:
        assert (logged or "Server is ready") in server.log
        assert ("Starting JetStream" in server.log) == (logged is not None)
        if logged:
            assert f'Store Directory: "{server._home}' in server.log


def test_a_server_that_cannot_start_shows_its_log() -> None:
    """A configuration the server refuses is an error with the server's own words."""
    server = DevServer("max_payload: {{{", name="broken")
    with pytest.raises(ServerStartError, match=r"(?s)nats-server broken: ended .*Parse error"):
        server.start()

    assert not server.running


def test_outlives_the_thread_that_started_it() -> None:
    """The server belongs to the process, not to the thread that happened to call `start`."""
    server = DevServer()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        time.sleep(0.3)
        assert ask(server, lambda js: js.account_info()).streams == 0
    finally:
        server.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_is_gone_when_its_process_is(number: signal.Signals) -> None:
    """Whatever signal ends the process that started a server, server and files go with it."""
    with host_process() as (process, server, supervisor, home):
        assert is_alive(server)
        process.send_signal(number)

        assert eventually(lambda: not is_alive(server))
        assert eventually(lambda: not is_alive(supervisor))
        assert eventually(lambda: not home.exists())


# DevServer promises this for Linux alone. CI runs there, so nothing is skipped in it.
@pytest.mark.skipif(
    sys.platform != "linux",
    reason="only Linux ends a process with its parent (PR_SET_PDEATHSIG); elsewhere the supervisor "
    "ends the server, and DevServer promises nothing when that is killed as well",
)
def test_is_gone_when_process_and_supervisor_are_killed_together() -> None:
    """Killing every Python process at once leaves no server behind."""
    with host_process() as (process, server, supervisor, _):
        os.kill(supervisor, signal.SIGKILL)
        process.kill()

        assert eventually(lambda: not is_alive(server))


def test_three_servers_form_a_cluster_that_survives_its_leader() -> None:
    """Three servers elect a meta leader, store a replicated stream, and elect again."""
    with DevCluster(3) as cluster:
        first = cluster.await_leader()
        assert len({server.name for server in cluster.servers}) == 3
        assert cluster.urls.count("nats://127.0.0.1:") == 3
        survivor, leader = sorted(cluster.servers, key=lambda each: each.name == first)[1:]
        assert leader.name == first
        ask(survivor, lambda js: js.add_stream(name="S", subjects=["s.>"], num_replicas=3))
        leader.kill()
        assert eventually(lambda: cluster.await_leader() != first)
        leader.restart()
        cluster.await_leader()

        assert ask(leader, lambda js: js.stream_info("S")).config.num_replicas == 3
    assert not any(is_alive(server.pid) for server in cluster.servers)


def test_the_command_line_runs_a_server_until_interrupted() -> None:
    """`python -m pyspark_jetstream.devserver` prints its URL and ends in order on SIGINT."""
    with subprocess.Popen(
        [sys.executable, "-m", "pyspark_jetstream.devserver", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # see HOST_PROGRAM
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            process.send_signal(signal.SIGINT)

            assert url.startswith("nats://127.0.0.1:")
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_the_file_alone_is_a_program() -> None:
    """As a script, without its package and by an interpreter that has no other, it runs."""
    path = str(ROOT / "pyspark_jetstream" / "devserver.py")
    env = {**os.environ, "NATS_SERVER": str(find_server())}
    with subprocess.Popen(
        [sys.executable, "-I", "-S", path, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("nats://127.0.0.1:")
            process.terminate()

            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.timeout(60)
def test_a_signal_ends_the_wait_for_a_server() -> None:
    """
    Also one that the call does not see because it came just before: here another thread has it.
    """

    class Told(Exception):
        pass

    def tell(*_: Any) -> None:
        raise Told

    def signal_itself() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    with DevServer() as server:
        before = signal.signal(signal.SIGUSR1, tell)
        try:
            with pytest.raises(Told):
                threading.Timer(0.2, signal_itself).start()
                server.wait()
        finally:
            signal.signal(signal.SIGUSR1, before)

"""
A real nats-server for our own tests and benchmarks: one, or several as a cluster.

Users' tests have the small `pyspark_jetstream.testing`; this one can freeze a server and keep its
store. As there, a server is the child of a *supervisor* (this file, as a script) and never outlives
the process that started it; signals go down a pipe, and each is delivered when its call returns.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, NoReturn

HOST: Final = "127.0.0.1"
SUPERVISE: Final = "--supervise"

_START_S: Final = 60.0
"""Longest time until a server, or a cluster, is ready."""

_STOP_S: Final = 60.0
"""Longest time until a server has ended after SIGTERM."""

_FOREVER_S: Final = 1e9

_log = logging.getLogger("tests.kits.servers")


class ServerStartError(RuntimeError):
    """A server (or cluster) that did not become ready; shows the end of the server's own log."""

    def __init__(self, name: str, problem: str, log: str) -> None:
        super().__init__(name, problem, log)
        self.name = name
        self.problem = problem
        self.log = log

    def __str__(self) -> str:
        tail = "\n".join(self.log.splitlines()[-20:]) or "(empty)"
        return f"nats-server {self.name}: {self.problem}; the end of its log:\n{tail}"


# ── running it ──────────────────────────────────────────────────────────────────────────────


class DevServer:
    """
    One nats-server on the loopback interface, JetStream on, its files in a temporary directory.

    A context manager: running inside `with`, gone after it, together with its files. `stop`,
    `kill` and `restart` keep port and data in between. For use by one thread at a time.

    Args:
        config: text for the server's configuration file (`authorization {}`, `tls {}`,
            `jetstream {}`, limits). What it says wins, but for the address, which is loopback.
        name: the server's name; unique unless given.
        store_dir: where streams live; a directory given here is kept afterwards.
        port: for clients; 0 lets the server pick a free one.
        binary: which nats-server; `find_server()` unless given.
    """

    def __init__(
        self,
        config: str = "",
        *,
        name: str | None = None,
        store_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        binary: Path | None = None,
    ) -> None:
        self.name = name or f"dev-{os.urandom(4).hex()}"
        self.port = port
        """Port for clients; 0 before the first start unless chosen."""
        self.pid = 0
        """Process id of the last started server, 0 before the first start."""
        self._config = config
        self._store_dir = store_dir
        self._monitor_port = 0
        self._binary = binary
        self._home: Path | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._old_log = ""

    def __enter__(self) -> DevServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether the server's process lives (paused counts as living)."""
        return self._supervisor is not None and self._supervisor.poll() is None

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"nats://{HOST}:{self.port}"

    @property
    def monitor_url(self) -> str:
        """The server's HTTP monitoring endpoint."""
        return f"http://{HOST}:{self._monitor_port}"

    @property
    def log(self) -> str:
        """All that the server has logged, over all its restarts."""
        if self._home is None:
            return self._old_log
        with contextlib.suppress(FileNotFoundError):
            return (self._home / "server.log").read_text(errors="replace")
        return ""

    def start(self) -> DevServer:
        """Starts the server and waits until clients can connect. Nothing to do if it runs."""
        if self.running:
            return self
        try:
            self._launch_again()
        except BaseException:
            self.kill()
            self.close()
            raise
        return self

    def stop(self) -> None:
        """Stops it in order (SIGTERM), by force at the deadline. Port and data stay ours."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        if not self.wait(_STOP_S):
            _log.warning(
                "the server %s (pid %d) is killed, because it did not end within %g s of SIGTERM."
                " Its streams may lack the last messages",
                self.name, self.pid, _STOP_S,
            )  # fmt: skip
            self.kill()

    def kill(self) -> None:
        """Ends it at once (SIGKILL), as a crash would. Port and data stay ours."""
        self._signal(signal.SIGKILL)
        self.wait()

    def restart(self) -> None:
        """Stops it, unless it is down already, and starts it on the same port and store."""
        self.stop()
        self._launch_again()

    def _launch_again(self) -> None:
        deadline = time.monotonic() + _START_S
        while not self.running:
            try:
                self._launch()
            except ServerStartError as problem:
                # Somebody's outgoing connection may have borrowed our port meanwhile.
                borrowed = self.port and "address already in use" in problem.log
                if not borrowed or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def pause(self) -> None:
        """Freezes the process (SIGSTOP): connections stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undoes `pause`."""
        self._signal(signal.SIGCONT)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the server to end; whether it has."""
        if self._supervisor is None:
            return True
        try:
            # Never without end: a signal that came just before would be handled at that end only.
            self._supervisor.wait(_FOREVER_S if timeout_s is None else timeout_s)
        except subprocess.TimeoutExpired:
            return False
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                pipe.close()
        return True

    def close(self) -> None:
        """Stops the server for good and removes its temporary files; `log` stays readable."""
        self.stop()
        if self._home is not None:
            self._old_log = self.log
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if os.getpid() == self._owner:  # a forked child leaves its parent's server alone
            self.close()

    def _command(self, home: Path) -> list[str]:
        from pyspark_jetstream.testing import find_server

        (home / "server.conf").write_text(
            f"server_name: {json.dumps(self.name)}\njetstream: enabled\n{self._config}\n"
        )
        # Flags win over the file; of two equal keys in the file the later one wins.
        command = [str(self._binary or find_server()), "-c", str(home / "server.conf"), "-a", HOST]
        command += ["-p", str(self.port or -1), "-m", "-1", "--ports_file_dir", str(home)]
        if not re.search(r"(?i)\bstore_?dir\b", self._config):
            command += ["-sd", str(self._store_dir or home / "store")]
        return command

    def _launch(self) -> None:
        deadline = time.monotonic() + _START_S
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="pyspark-jetstream-"))
            atexit.register(self._at_exit)
        home = self._home
        for stale in home.glob("*.ports"):
            stale.unlink()
        with (home / "server.log").open("ab") as log:
            logged = log.tell()
            supervisor = subprocess.Popen(
                # Isolated and without site: our neighbours' names cannot shadow the library's.
                [sys.executable, "-I", "-S", __file__, SUPERVISE, str(home)] + self._command(home),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is ours to handle, not the server's
                bufsize=0,
            )
        self._supervisor = supervisor
        self.pid = int(_read_line(supervisor.stdout, deadline) or 0)
        while (ports := _read_ports(home)) is None:
            if not self.running or time.monotonic() > deadline:
                late = f"not ready within {_START_S:.0f}s"
                problem = late if self.running else "ended before it was ready"
                self.kill()
                raise ServerStartError(self.name, problem, self.log[logged:])
            time.sleep(0.01)
        self.port, self._monitor_port = ports
        _log.info("started name=%s pid=%d port=%d", self.name, self.pid, self.port)

    def _signal(self, number: signal.Signals) -> None:
        """Has the supervisor deliver a signal; returns once it has, or once the server is gone."""
        supervisor = self._supervisor
        if supervisor is None or supervisor.poll() is not None:
            return
        with contextlib.suppress(BrokenPipeError):  # it ended just now
            os.write(_fd(supervisor.stdin), bytes([number]))
            os.read(_fd(supervisor.stdout), 1)


class DevCluster:
    """
    `n` JetStream servers on the loopback interface that form one cluster with a meta leader.

    A context manager, as `DevServer` is; to take a member down, use that one's own methods.

    Args:
        n: how many servers; odd, for a majority.
        config: configuration text that every member gets.
    """

    def __init__(self, n: int = 3, config: str = "") -> None:
        self.name = f"cluster-{os.urandom(4).hex()}"
        self.servers: list[DevServer] = []
        self._n = n
        self._config = config

    def __enter__(self) -> DevCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def urls(self) -> str:
        """All members' URLs, separated by commas."""
        return ",".join(server.url for server in self.servers)

    def start(self) -> DevCluster:
        """Starts all members and waits until they agree on a meta leader."""
        for attempts_left in (2, 1, 0):
            self.servers = self._members()
            try:
                for server in self.servers:
                    server.start()
                self.await_leader()
                return self
            except BaseException as problem:
                self.close()
                # A route port must be known before its server starts, so it can be lost again.
                taken = isinstance(problem, ServerStartError) and "in use" in problem.log
                if not (taken and attempts_left):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def await_leader(self) -> str:
        """Waits until every running member sees the same meta leader and all peers; its name."""
        deadline = time.monotonic() + _START_S
        seen: list[Any] = []
        while time.monotonic() < deadline:
            seen = [_get_json(server, "/jsz").get("meta_cluster") for server in self._up()]
            leaders = {meta and meta.get("leader") for meta in seen}
            sizes = {meta and meta.get("cluster_size") for meta in seen}
            healthy = all(
                _get_json(server, "/healthz").get("status") == "ok" for server in self._up()
            )
            if len(leaders) == 1 and all(leaders) and sizes == {self._n} and healthy:
                return str(leaders.pop())
            time.sleep(0.1)
        problem = f"no JetStream meta leader within {_START_S:.0f}s, saw {seen}"
        raise ServerStartError(self.name, problem, "\n".join(server.log for server in self.servers))

    def close(self) -> None:
        """Stops all members for good."""
        for server in self.servers:
            server.close()

    def _up(self) -> list[DevServer]:
        return [server for server in self.servers if server.running]

    def _members(self) -> list[DevServer]:
        ports = free_ports(self._n)
        routes = ", ".join(f"nats://{HOST}:{port}" for port in ports)
        block = "cluster {{ name: {}, listen: {}:{}, routes: [{}] }}\n"
        return [
            DevServer(
                block.format(self.name, HOST, port, routes) + self._config,
                name=f"{self.name}-n{number}",
            )
            for number, port in enumerate(ports, start=1)
        ]


def free_ports(n: int) -> list[int]:
    """`n` ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(n)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [sock.getsockname()[1] for sock in sockets]


def _get_json(server: DevServer, path: str) -> dict[str, Any]:
    """JSON of the server's monitoring endpoint; empty while it does not answer."""
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(server.monitor_url.removeprefix("http://"), timeout=2)
    try:
        connection.request("GET", path)
        answer = json.load(connection.getresponse())
    except (OSError, HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}


def _read_ports(home: Path) -> tuple[int, int] | None:
    """Client and monitoring port out of the ports file, once the server has written all of it."""
    for path in home.glob("*.ports"):
        with contextlib.suppress(ValueError, KeyError, IndexError, FileNotFoundError):
            ports = json.loads(path.read_text())
            client, monitor = ports["nats"][0], ports["monitoring"][0]
            return int(client.rpartition(":")[2]), int(monitor.rpartition(":")[2])
    return None


def _read_line(pipe: IO[bytes] | None, deadline: float) -> bytes:
    ready, _, _ = select.select([_fd(pipe)], [], [], max(0.0, deadline - time.monotonic()))
    return pipe.readline() if ready and pipe is not None else b""


def _fd(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise ValueError("the supervisor was started without pipes")
    return pipe.fileno()


# ── the supervisor: this file as a script, in a process of its own ──────────────────────────


def _supervise(home: str, command: list[str]) -> NoReturn:
    """Runs the server; obeys signal numbers on stdin; at its end stops the server and tidies."""
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        stderr=sys.stderr.fileno(),
        preexec_fn=_tie_to(os.getpid()) if sys.platform == "linux" else None,
    )
    os.write(sys.stdout.fileno(), b"%d\n" % server.pid)
    orphaned = threading.Event()
    threading.Thread(target=_obey, args=(server, orphaned), daemon=True).start()
    code = server.wait()
    if orphaned.is_set():
        shutil.rmtree(home, ignore_errors=True)
    os._exit(code if code >= 0 else 128 - code)  # not held up by the thread that reads stdin


def _obey(server: subprocess.Popen[bytes], orphaned: threading.Event) -> None:
    while number := os.read(sys.stdin.fileno(), 1):
        server.send_signal(number[0])
        if number[0] == signal.SIGSTOP and hasattr(os, "waitid"):
            # A signal is only sent: until it has stopped, a server still answers what it has.
            os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        os.write(sys.stdout.fileno(), b".")
    orphaned.set()
    server.send_signal(signal.SIGCONT)
    server.terminate()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:
        server.kill()


def _tie_to(parent: int) -> Callable[[], None]:
    """For between fork and exec: die when `parent` dies, even if that was just now."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    pr_set_pdeathsig = 1

    def tie() -> None:
        prctl(pr_set_pdeathsig, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)

    return tie


if __name__ == "__main__":
    _supervise(sys.argv[2], sys.argv[3:])

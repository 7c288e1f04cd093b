"""The server of users' tests with more levers: it freezes, keeps its store, has a cluster."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Self
from urllib.request import urlopen

from pyspark_jetstream.testing import NatsServer

from .shared import eventually

HOST: Final = "127.0.0.1"

_START_S: Final = 60.0
"""Longest time until a cluster is ready, or a port is ours again."""

_TAKEN: Final = "address already in use"
_RELOADED: Final = "Reloaded server configuration"

ACCOUNT: Final = """
accounts {
  A { jetstream: enabled, users: [{user: a, password: a}] }
  SYS { users: [{user: s, password: s}] }
}
system_account: SYS
no_auth_user: a
"""
"""Configuration of a server with an account that a reload can change."""


class DevServer(NatsServer):
    """
    A server with monitoring.

    Args:
        config: as of `NatsServer`.
        name: unique unless given.
        store_dir: where streams live, also after the server, unless `config` says it.
    """

    def __init__(
        self, config: str = "", *, name: str = "", store_dir: str | os.PathLike[str] | None = None
    ) -> None:
        self.name = name or f"dev-{secrets.token_hex(4)}"
        super().__init__(f'server_name: "{self.name}"\n{config}')  # of a flag no reload knows
        self.pid = 0
        self.monitor_url = ""
        self._given = store_dir

    @property
    def store(self) -> Path:
        """Where its streams live."""
        return Path(self._given or self._home / "store")

    @property
    def running(self) -> bool:
        """Whether the server's process lives; a paused one does."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def stop(self) -> None:
        """Stops it in order; `restart` brings it back."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                super().restart()
                break
            except RuntimeError as problem:
                # Somebody's outgoing connection may have borrowed our port meanwhile.
                if not self.port or _TAKEN not in str(problem) or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)
        (ports,) = self._home.glob("*.ports")
        self.pid = int(ports.stem.rpartition("_")[2])
        (self.monitor_url,) = json.loads(ports.read_text())["monitoring"]

    def reload(self, pattern: str, text: str) -> None:
        """Takes its configuration anew, with this text in place of the pattern's match."""
        conf, before = self._home / "server.conf", self.log.count(_RELOADED)
        conf.write_text(re.sub(pattern, lambda _: text, conf.read_text(), count=1))
        os.kill(self.pid, signal.SIGHUP)
        eventually(lambda: self.log.count(_RELOADED) > before)

    def copy(self) -> None:
        """Keeps what is stored now, for `take_back`."""
        self.stop()
        shutil.copytree(self.store, self._home / "older")
        self.restart()

    def take_back(self, *streams: str) -> None:
        """Puts the copies of these streams in place of what they hold, as a restored backup."""
        self.stop()
        for name in streams:
            (there,) = self.store.glob(f"**/streams/{name}")
            shutil.rmtree(there)
            shutil.copytree(self._home / "older" / there.relative_to(self.store), there)
        self.restart()

    def pause(self) -> None:
        """Freezes the process: connections stay open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        # A signal is only sent: until it has stopped, a server still answers what it has.
        stat = Path(f"/proc/{self.pid}/stat")
        eventually(lambda: ") T " in stat.read_text())

    def resume(self) -> None:
        """Undoes `pause`."""
        if self.running:
            os.kill(self.pid, signal.SIGCONT)

    def ask(self, path: str) -> dict[str, Any]:
        """What its monitoring says; nothing while it is not well."""
        try:
            with urlopen(self.monitor_url + path, timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, HTTPException, ValueError):
            return {}

    def _command(self) -> list[str]:
        command = [*super()._command()[:-2], "-m", "-1"]
        if "store_dir" in self._config:  # a flag beside it is refused
            return command
        return [*command, "-sd", str(self.store)]

    def _end(self, number: signal.Signals) -> None:
        if number == signal.SIGTERM:
            self.resume()
        super()._end(number)


class DevCluster:
    """
    Servers that form one cluster with a meta leader.

    A context manager, as `DevServer` is; to take a member down, use that one's own methods.

    Args:
        n: how many servers; odd, for a majority.
        config: configuration text that every member gets.
    """

    def __init__(self, n: int = 3, config: str = "") -> None:
        self.name = f"cluster-{secrets.token_hex(4)}"
        self.servers: list[DevServer] = []
        self._n = n
        self._config = config
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Starts all members and waits until they agree on a meta leader."""
        for is_last in (False, False, True):
            with ExitStack() as opened:
                try:
                    self.servers = [opened.enter_context(each) for each in self._members()]
                    self.await_leader()
                    self._open = opened.pop_all()
                    return self
                except RuntimeError as problem:
                    # A route's port must be known before its server starts, so it can be lost.
                    if is_last or "in use" not in str(problem):
                        raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def urls(self) -> str:
        """All members' URLs, separated by commas."""
        return ",".join(server.url for server in self.servers)

    def await_leader(self) -> None:
        """Waits until every running member sees the same meta leader and all peers."""
        eventually(self._agrees)

    def _agrees(self) -> bool:
        up = [server for server in self.servers if server.running]
        seen = [server.ask("/jsz").get("meta_cluster") or {} for server in up]
        (leader, size), *others = {(meta.get("leader"), meta.get("cluster_size")) for meta in seen}
        healthy = all(server.ask("/healthz").get("status") == "ok" for server in up)
        return bool(leader) and size == self._n and not others and healthy

    def _members(self) -> Sequence[DevServer]:
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
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(n)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [sock.getsockname()[1] for sock in sockets]

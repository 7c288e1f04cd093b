"""The servers, one or a cluster of three, and a link before each."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from pyspark_jetstream.devserver import DevCluster, DevServer

from ..kits.accounts import ACCOUNT
from .link import Link

__all__ = ["Servers"]


class _Cluster(DevCluster):
    """Names no member's own address to clients, so that they stay behind their links."""

    def _members(self) -> list[DevServer]:
        members = super()._members()
        for each in members:
            each._config = each._config.replace("routes:", "no_advertise: true, routes:", 1)
        return members


class Servers:
    """All servers of a run."""

    def __init__(self, count: int) -> None:
        self.all: list[DevServer] = []
        self.links: list[Link] = []
        self.down = asyncio.Lock()
        """Who holds it may take one server away, or a majority is gone."""
        self._cluster = _Cluster(3) if count == 3 else None

    async def start(self) -> None:
        if self._cluster is not None:
            await asyncio.to_thread(self._cluster.start)
            self.all = self._cluster.servers
        else:
            self.all = [DevServer(ACCOUNT)]
            await asyncio.to_thread(self.all[0].start)
        self.links = [Link(server.port) for server in self.all]
        for link in self.links:
            await link.start()

    @property
    def urls(self) -> list[str]:
        """Of the servers themselves."""
        return [server.url for server in self.all]

    @property
    def behind_links(self) -> str:
        """What queries connect to."""
        return ",".join(link.url for link in self.links)

    def named(self, name: str) -> DevServer | None:
        """The member of this name."""
        return next((server for server in self.all if server.name == name), None)

    async def back(self, server: DevServer) -> None:
        """Starts it again, and waits until it says that it is well."""
        if not server.running:
            await asyncio.to_thread(server.restart)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if (await asyncio.to_thread(self.ask, server, "/healthz")).get("status") == "ok":
                return
            await asyncio.sleep(0.1)

    def ask(self, server: DevServer, path: str) -> dict[str, Any]:
        """What a server's monitoring says."""
        try:
            with urllib.request.urlopen(server.monitor_url + path, timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError) as problem:
            return {"problem": str(problem)}

    async def differing(self, streams: Sequence[str], within_s: float) -> list[str]:
        """What replicas hold of streams of which they do not hold the same, even after a while."""
        deadline = time.monotonic() + within_s
        while True:
            held: dict[str, list[str]] = {name: [] for name in streams}
            for server in self.all:
                said = await asyncio.to_thread(self.ask, server, "/jsz?streams=1")
                for account in said.get("account_details", []):
                    for stream in account.get("stream_detail", []):
                        if stream["name"] in held:
                            names = ("messages", "first_seq", "last_seq", "num_deleted")
                            words = (str(stream["state"].get(name, 0)) for name in names)
                            held[stream["name"]].append("/".join(words))
            found = [f"{name}: {held[name]}" for name in streams if len({*held[name]}) > 1]
            if not found or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.5)

    async def heal(self) -> None:
        """All run, none is frozen, every link is as fast as it goes."""
        for link in self.links:
            link.heal()
        for server in self.all:
            await asyncio.to_thread(server.resume)
            await self.back(server)

    async def close(self) -> None:
        for link in self.links:
            await link.close()
        for server in self.all:
            await asyncio.to_thread(server.close)

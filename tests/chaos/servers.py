"""The servers, one or a cluster of three, a link before each, and links between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from ..kits.servers import ACCOUNT, DevCluster, DevServer, free_ports
from .link import Link

__all__ = ["Servers"]


_MEMBERS: Final = 3


class _Cluster(DevCluster):
    """
    Its members dial each other through links, and name no address of their own to clients, so that
    those stay behind their links as well.
    """

    def __init__(
        self, home: Path, ports: Sequence[int], routes: dict[tuple[int, int], Link]
    ) -> None:
        super().__init__(len(ports))
        self._home, self._ports, self._routes = home, ports, routes

    def _members(self) -> list[DevServer]:
        return [self._member(number) for number in range(len(self._ports))]

    def _member(self, number: int) -> DevServer:
        urls = ", ".join(link.url for (of, _), link in self._routes.items() if of == number)
        config = (
            f"cluster {{ name: {self.name}, listen: 127.0.0.1:{self._ports[number]},"
            f' no_advertise: true, advertise: "127.0.0.1:1", routes: [{urls}] }}\n'
            f"server_tags: [n{number + 1}]\n{ACCOUNT}"
        )
        name = f"{self.name}-n{number + 1}"
        return DevServer(config, name=name, store_dir=self._home / f"store-{name}")


class Servers:
    """All servers of a run."""

    def __init__(self, count: int, home: Path) -> None:
        self.all: list[DevServer] = []
        self.links: list[Link] = []
        self.routes: dict[tuple[int, int], Link] = {}
        """By number who dials whom."""
        self.down = asyncio.Lock()
        """Who holds it may take one server away, or a majority is gone."""
        self._count, self._home = count, home

    async def start(self) -> None:
        if self._count == _MEMBERS:
            ports = free_ports(_MEMBERS)
            self.routes = {(i, j): Link(ports[j]) for i, j in permutations(range(_MEMBERS), 2)}
            for link in self.routes.values():
                await link.start()
            cluster = _Cluster(self._home, ports, self.routes)
            await asyncio.to_thread(cluster.__enter__)
            self.all = cluster.servers
        else:
            self.all = [DevServer(ACCOUNT, name="single", store_dir=self._home / "store-single")]
            await asyncio.to_thread(self.all[0].__enter__)
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

    def store(self, server: DevServer) -> Path:
        """Where a server keeps its streams."""
        return self._home / f"store-{server.name}"

    def between(self, *pairs: tuple[DevServer, DevServer]) -> list[Link]:
        """The ways between the two members of each pair."""
        numbers = [{self.all.index(each) for each in pair} for pair in pairs]
        return [link for ends, link in self.routes.items() if {*ends} in numbers]

    async def back(self, server: DevServer) -> None:
        """Starts it again, and waits until it says that it is well."""
        if not server.running:
            await asyncio.to_thread(server.restart)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if (await asyncio.to_thread(server.ask, "/healthz")).get("status") == "ok":
                return
            await asyncio.sleep(0.1)

    async def replicas(self, streams: Sequence[str]) -> list[dict[str, Any]]:
        """Each replica of these streams with its consumers, as its server says of itself."""
        found = []
        for server in self.all:
            said = await asyncio.to_thread(server.ask, "/jsz?streams=1&consumers=1")
            for account in said.get("account_details", []):
                of = account.get("stream_detail", [])
                found += [stream for stream in of if stream["name"] in streams]
        return found

    async def heal(self) -> None:
        """All run, none is frozen, every link is as fast as it goes."""
        for link in (*self.links, *self.routes.values()):
            link.heal()
        for server in self.all:
            await asyncio.to_thread(server.resume)
            await self.back(server)

    async def close(self) -> None:
        for link in (*self.links, *self.routes.values()):
            await link.close()
        for server in self.all:
            await asyncio.to_thread(server.__exit__)

"""All that a run consists of: servers, links, streams, the publisher and the queries."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

from .admin import Admin, connect, end
from .cases import TARGET, Case, Settings
from .publisher import Publisher
from .query import Query
from .servers import Servers


class World:
    """One run's world, of a seed."""

    def __init__(self, case: Case, seed: int, home: Path) -> None:
        rng = random.Random(f"{seed} {case.name}")
        self.case, self.seed, self.home = case, seed, home
        self.settings = Settings.draw(case, rng)
        self.servers = Servers(case.servers, home)
        self.admin = Admin()
        self.publisher = Publisher(case.subjects, random.Random(f"{seed} publisher"))
        self.queries: list[Query] = []
        self.keeps_all = case.retention == "limits"
        """Whether the source holds all that it was given, and says what the copy must hold."""

    @property
    def streams(self) -> list[str]:
        """All streams, the target last."""
        return [*(config["name"] for config in self.case.sources()), TARGET]

    @property
    def source_streams(self) -> list[str]:
        return self.streams[:-1]

    async def build(self) -> None:
        """Servers, streams and connections; nothing is published, and no query runs."""
        await self.servers.start()
        await self.admin.connect(self.servers.urls)
        for config in (*self.case.sources(), self.case.target(self.settings.window_s)):
            await self.admin.insist(f"STREAM.CREATE.{config['name']}", config)
        await connect(self.publisher.nc, self.servers.urls)
        behind = self.servers.behind_links
        for number in range(self.case.queries):
            arguments = [
                self.settings.source(self.case, behind, number),
                self.settings.sink(self.case, behind),
                self.case.sharing == "standby",
            ]
            rng = random.Random(f"{self.seed} query {number}")
            self.queries.append(Query(self.home / f"query-{number}", arguments, rng))

    async def consumers_made(self, within_s: float) -> None:
        """
        Waits for the consumers of the queries: an interest stream drops what comes before.

        Each replica is asked: the meta leader names a consumer, and its leader answers for it,
        before the other replicas have it.
        """
        deadline = time.monotonic() + within_s
        wanted = 2
        while True:
            held: dict[str, list[set[str]]] = {name: [] for name in self.source_streams}
            for stream in await self.servers.replicas(self.source_streams):
                consumers = {each["name"] for each in stream.get("consumer_detail") or []}
                held[stream["name"]].append(consumers)
            found = {(name, each) for name, all in held.items() for each in set().union(*all)}
            if len(found) >= wanted and all(
                each == replicas[0] for replicas in held.values() for each in replicas
            ):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the query made no consumers: {found}")
            await asyncio.sleep(0.2)

    async def heal(self) -> None:
        """Nothing is wrong any more but what it has led to."""
        await self.servers.heal()
        for stream in self.streams:
            await self.heal_stream(stream)

    async def heal_stream(self, stream: str) -> None:
        """Its configuration is as it was made."""
        configs = (*self.case.sources(), self.case.target(self.settings.window_s))
        (made,) = [config for config in configs if config["name"] == stream]
        limits = {"max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1, "placement": None}
        await self.admin.change(stream, insist=True, **(made | limits))

    async def close(self) -> None:
        """Ends all processes, also where there is no connection yet."""
        try:
            for query in self.queries:
                await asyncio.to_thread(query.kill)
            await self.admin.close()
            await end(self.publisher.nc)
        finally:
            await self.servers.close()

"""What an administrator does to streams and consumers, over a connection past the links."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from nats.aio.client import Client
from nats.errors import Error


class RefusedError(Exception):
    """The server did not do what was asked, or did not answer."""


async def _quiet(_: Exception) -> None:
    """Broken connections are what this is about."""


async def connect(nc: Client, urls: Sequence[str]) -> None:
    """Connects, and again for ever."""
    await nc.connect(
        list(urls), max_reconnect_attempts=-1, reconnect_time_wait=1, connect_timeout=2,
        ping_interval=2, max_outstanding_pings=2, error_cb=_quiet,
    )  # fmt: skip


class Admin:
    """Requests to JetStream's API."""

    def __init__(self) -> None:
        self.nc = Client()
        self.locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Of each stream: who changes its configuration until it is back."""

    async def connect(self, urls: Sequence[str]) -> None:
        await connect(self.nc, urls)

    async def call(
        self, api: str, body: dict[str, Any] | None = None, timeout_s: float = 4.0
    ) -> Any:
        """
        The answer of `$JS.API.<api>`.

        Raises:
            RefusedError: It is an error, or there is none.
        """
        try:
            reply = await self.nc.request(
                f"$JS.API.{api}", json.dumps(body).encode() if body else b"", timeout=timeout_s
            )
            answer = json.loads(reply.data or b"{}")
        except (TimeoutError, Error, OSError, ValueError) as problem:
            raise RefusedError(f"{api}: {problem!r}") from problem
        if answer.get("error"):
            raise RefusedError(f"{api}: {answer['error']}")
        return answer

    async def insist(
        self, api: str, body: dict[str, Any] | None = None, within_s: float = 300.0
    ) -> Any:
        """Likewise, again and again while it is refused."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                return await self.call(api, body)
            except RefusedError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def change(self, stream: str, insist: bool = False, **changes: Any) -> dict[str, Any]:
        """Other values in a stream's configuration; what they were before."""
        ask = self.insist if insist else self.call
        config = (await ask(f"STREAM.INFO.{stream}"))["config"]
        await ask(f"STREAM.UPDATE.{stream}", config | changes)
        return {key: config.get(key) for key in changes}

    async def state(self, stream: str) -> dict[str, Any]:
        """How much a stream holds."""
        return dict((await self.insist(f"STREAM.INFO.{stream}"))["state"])

    async def leader(self, stream: str) -> str:
        """The server that leads a stream."""
        info = await self.call(f"STREAM.INFO.{stream}")
        return str(info.get("cluster", {}).get("leader") or "")

    async def contents(self, stream: str) -> list[tuple[str, bytes]]:
        """Subject and payload of all messages, by nats-py: nothing of the package under test."""
        last = (await self.state(stream))["last_seq"]
        found: list[tuple[str, bytes]] = []
        sub = await self.nc.jetstream().subscribe(">", stream=stream, ordered_consumer=True)
        sequence = 0
        while sequence < last:
            message = await sub.next_msg(timeout=60)
            sequence = message.metadata.sequence.stream
            found.append((message.subject, message.data))
        await sub.unsubscribe()
        return found

    async def close(self) -> None:
        await end(self.nc)


async def end(nc: Client) -> None:
    """Closes a connection, if it was ever made."""
    if nc.is_connected or nc.is_reconnecting:
        await nc.close()

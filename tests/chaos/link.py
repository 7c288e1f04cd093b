"""The way between the queries and one server: it delays, breaks, and falls silent."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class _Pair:
    """A client's connection and the one to the server behind it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.cut = False
        """Of what comes next a half goes through, and then no more."""
        self.silent: set[str] = set()
        """The ways, `up` or `down`, on which nothing goes through."""

    def close(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


class Link:
    """Hands bytes on both ways between any number of clients and a server on this machine."""

    def __init__(self, server_port: int) -> None:
        self.delay_s = 0.0
        """How long each piece waits on its way."""
        self.severed = False
        """Whether new connections are refused."""
        self.port = 0
        self._server_port = server_port
        self._pairs: set[_Pair] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def heal(self) -> None:
        """As fast as it goes from now on; connections that fell silent are broken."""
        self.delay_s, self.severed = 0.0, False
        for pair in [pair for pair in self._pairs if pair.silent]:
            pair.close()

    def sever(self, silently: bool) -> None:
        """Nothing comes through until it is healed; silently: nobody is told."""
        self.severed = True
        for pair in list(self._pairs):
            if silently:
                pair.silent = {"up", "down"}
            else:
                pair.close()

    async def cut(self) -> int:
        """Breaks all connections, in the middle of a frame where one is on its way; how many."""
        pairs = list(self._pairs)
        for pair in pairs:
            pair.cut = True
        await asyncio.sleep(0.3)
        for pair in pairs:
            pair.close()
        return len(pairs)

    async def fall_silent(self, ways: set[str], seconds: float) -> int:
        """Connections that are open now stay so, and hand on nothing; then they break."""
        pairs = list(self._pairs)
        for pair in pairs:
            pair.silent = ways
        await asyncio.sleep(seconds)
        for pair in pairs:
            pair.close()
        return len(pairs)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for pair in list(self._pairs):
            pair.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.severed:
            writer.transport.abort()
            return
        try:
            behind = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(writer, behind[1])
        self._pairs.add(pair)
        ways = [
            asyncio.create_task(self._pump("up", reader, behind[1], pair)),
            asyncio.create_task(self._pump("down", behind[0], writer, pair)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        pair.close()
        for way in ways:
            way.cancel()
        self._pairs.discard(pair)

    async def _pump(
        self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: _Pair
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if way in pair.silent:
                    continue
                if pair.cut:
                    writer.write(data[: len(data) // 2])
                    await asyncio.sleep(0.05)
                    return
                writer.write(data)
                await writer.drain()

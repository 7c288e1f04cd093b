"""A server that is far away: bytes between it and its clients are passed on so much later."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

from .bare import Counted
from .child import Child, Children

_HOST: Final = "127.0.0.1"
_CHUNK: Final = 1 << 18
_LOOK_S: Final = 0.05
_Chunks = asyncio.Queue[tuple[float, bytes]]


@contextlib.contextmanager
def far(url: str, rtt_s: float) -> Iterator[str]:
    """Where the same server is so many seconds away, there and back."""
    with Children([{"do": "bench.others.delay:serve", "url": url, "delay_s": rtt_s / 2}]) as proxy:
        proxy.go()
        yield f"nats://{_HOST}:{proxy.ready[0]}"


def serve(child: Child, url: str, delay_s: float) -> None:
    """For a process of its own: passes on until told to stop; the parent learns the port."""
    delay = Delay(url, delay_s)
    child.run(lambda: delay.serve(child.is_stopped), str(delay.port))


class Delay:
    """A port from which bytes are passed on late."""

    def __init__(self, url: str, delay_s: float) -> None:
        self._to = url.removeprefix("nats://").split(":")
        self._delay_s = delay_s
        self.listener = socket.create_server((_HOST, 0))
        # For whoever is accepted: asyncio sets it on connections that it has opened itself. Without
        # it the end of each answer waits 40 ms for an acknowledgement that is delayed.
        self.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = self.listener.getsockname()[1]

    def serve(self, stopped: Callable[[], bool]) -> Counted:
        """Passes on until told to stop."""
        asyncio.run(self._serve(stopped))
        return Counted(0)

    async def _serve(self, stopped: Callable[[], bool]) -> None:
        async with await asyncio.start_server(self._connected, sock=self.listener):
            while not stopped():
                await asyncio.sleep(_LOOK_S)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._to
        answers, requests = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._pass(reader, requests), self._pass(answers, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunks: _Chunks = asyncio.Queue()
        sending = asyncio.create_task(_send_late(chunks, writer))
        data = b"?"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except ConnectionError:
                data = b""
            chunks.put_nowait((asyncio.get_running_loop().time() + self._delay_s, data))
        await sending


async def _send_late(chunks: _Chunks, writer: asyncio.StreamWriter) -> None:
    data = b"?"
    while data:
        due, data = await chunks.get()
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        writer.write(data)
        await writer.drain()
    writer.close()

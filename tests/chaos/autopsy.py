"""What can be seen of a run that failed: stacks, streams, and the logs of servers."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from . import processes
from .world import World


async def write(world: World, home: Path) -> None:
    """Writes it to files in `home`."""
    await asyncio.to_thread(_write, world, home)
    for stream in world.streams:
        try:
            found = await world.admin.contents(stream)
            lines = [f"{subject} {data.partition(b'|')[0].decode()}" for subject, data in found]
            (home / f"stream-{stream}").write_text("\n".join(lines))
        except Exception as problem:  # a work queue takes no reader beside the query's
            (home / f"stream-{stream}").write_text(repr(problem))
    sent = [
        f"{subject} {each.key[0]}.{each.key[1]} {'acked' if each.acked else 'unacked'}"
        for subject, all_sent in world.publisher.sent.items()
        for each in all_sent
    ]
    (home / "published").write_text("\n".join(sent))


def _write(world: World, home: Path) -> None:
    for query in world.queries:
        for pid, role in query.pids().items():  # its stacks stand in the query's log
            if role in ("JVM", "driver"):
                processes.send(pid, signal.SIGQUIT if role == "JVM" else signal.SIGUSR1)
    for number, server in enumerate(world.servers.all):
        (home / f"server-{number}.log").write_text(server.log)

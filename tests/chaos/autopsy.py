"""What can be seen of a run that failed: stacks, and what the servers say."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from . import processes
from .admin import Admin
from .cases import PARTITIONS
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
    (home / "views").write_text("\n".join([view async for view in _views(world)]))
    sent = [
        f"{subject} {each.key[0]}.{each.key[1]} {'acked' if each.acked else 'unacked'}"
        for subject, all_sent in world.publisher.sent.items()
        for each in all_sent
    ]
    (home / "published").write_text("\n".join(sent))


async def _views(world: World) -> AsyncIterator[str]:
    """How many messages of each partition follow, as each server says of its own replica."""
    for server in world.servers.all:
        admin = Admin()
        try:
            await admin.connect([server.url])
            for stream in world.source_streams:
                state = await admin.state(stream)
                first, last = state["first_seq"], state["last_seq"]
                for at in sorted({first, *range(first, last, max(1, (last - first) // 8)), last}):
                    for partition in range(PARTITIONS):
                        query = {"seq": at, "next_by_subj": f"in.{partition}.>", "batch": 1}
                        reply = await admin.nc.request(
                            f"$JS.API.DIRECT.GET.{stream}", json.dumps(query).encode(), timeout=5
                        )
                        head = reply.headers or {}
                        left, found = head.get("Nats-Num-Pending"), head.get("Nats-Sequence")
                        yield f"{server.name} {stream} in.{partition} {at}: {found} and {left}"
        except Exception as problem:
            yield f"{server.name}: {problem!r}"
        finally:
            await admin.close()


def _write(world: World, home: Path) -> None:
    spy = os.environ.get("PY_SPY") or shutil.which("py-spy")
    for number, query in enumerate(world.queries):
        stacks = []
        for pid, role in query.pids().items():
            if role == "JVM":
                processes.send(pid, signal.SIGQUIT)  # its stacks stand in the query's log
            elif spy:
                done = subprocess.run(
                    [spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=30
                )
                stacks.append(f"== {role} {pid}\n{done.stdout}{done.stderr}")
            elif role == "driver":
                processes.send(pid, signal.SIGUSR1)  # likewise
        (home / f"stacks-{number}").write_text("\n".join(stacks))
    for number, server in enumerate(world.servers.all):
        for path in ("jsz?streams=1&consumers=1&config=1&raft=1", "connz?subs=1", "healthz"):
            said = world.servers.ask(server, f"/{path}")
            (home / f"server-{number}-{path.split('?')[0]}.json").write_text(
                json.dumps(said, indent=1)
            )
        (home / f"server-{number}.log").write_text(server.log)

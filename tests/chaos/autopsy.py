"""What can be seen of a run that failed: stacks, and what the servers say."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

from . import processes
from .cases import TARGET
from .world import World

__all__ = ["write"]


async def write(world: World, home: Path) -> None:
    """Writes it to files in `home`."""
    await asyncio.to_thread(_write, world, home)
    try:
        for stream in world.streams:
            found = await world.admin.contents(stream)
            lines = [f"{subject} {data.partition(b'|')[0].decode()}" for subject, data in found]
            (home / f"stream-{stream}").write_text("\n".join(lines))
        info = await world.admin.call(f"STREAM.INFO.{TARGET}")
        (home / "target.json").write_text(json.dumps(info, indent=1))
    except Exception as problem:
        (home / "stream-problem").write_text(repr(problem))
    sent = [
        f"{subject} {each.key[0]}.{each.key[1]} {'acked' if each.acked else 'unacked'}"
        for subject, all_sent in world.publisher.sent.items()
        for each in all_sent
    ]
    (home / "published").write_text("\n".join(sent))


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

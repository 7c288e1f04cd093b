"""Times take-overs by a hot standby, in parts; 1 if one was longer than it may be."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.kits.servers import DevServer

from ..others.natspy import connect

_RECORDS: Final = "$KV.SPARK_STANDBY.*.*"
_PULLS: Final = "$JS.API.CONSUMER.MSG.NEXT.>"
_MANY_S: Final = 300.0
_RATE: Final = 100


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of one take-over, one part after the other."""

    lease: float
    """From the kill to the end of the lease: what the killed query's last renewal left of it."""
    seeing: float
    """Until the record is taken."""
    planning: float
    """Until the batch is in Spark's log of offsets."""
    starting: float
    """Until a task asks the server for rows."""
    reading: float
    """Until the rows of the batch are there, with `--sink` until the first is stored."""
    load: float
    """Of the machine, for one minute."""

    @property
    def after(self) -> float:
        """From the end of the lease to the rows."""
        return self.seeing + self.planning + self.starting + self.reading


class Driver:
    """One query in a process group of its own."""

    def __init__(self, home: Path, options: dict[str, str], sink: dict[str, str] | None) -> None:
        """Args: sink: options of a write of ours; without, `foreachBatch` gets the rows."""
        home.mkdir()
        self.home = home
        self._log = home / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.takeover.query", str(home), json.dumps(options),
                 json.dumps(sink)],
                env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
                cwd=Path(__file__).parents[2], stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and its Python workers, as when a machine goes down."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(30)

    def batches(self) -> Iterator[tuple[int, float, list[int]]]:
        """Number of each batch, when its rows were there, and their sequences."""
        for path in sorted(self.home.glob("rows-??????")):
            yield int(path.name[5:]), path.stat().st_mtime, json.loads(path.read_text())

    @property
    def commits(self) -> bool:
        """Whether it has committed a batch."""
        return any((self.home / "checkpoint" / "commits").glob("[0-9]*"))

    def planned(self, since: float) -> float:
        """When its first batch since then was in Spark's log of offsets."""
        offsets = (self.home / "checkpoint" / "offsets").glob("[0-9]*")
        return min(at for each in offsets if (at := each.stat().st_mtime) >= since)

    async def until(self, what: Callable[[], object]) -> None:
        """
        Raises:
            RuntimeError: The driver has ended, or it takes for ever.
        """
        deadline = time.monotonic() + _MANY_S
        while not what():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a driver failed:\n{self._log.read_text()[-3000:]}")
            await asyncio.sleep(0.05)


def main() -> int:
    """Takes over so often, and prints each; the exit status."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM tidies up as Ctrl-C does
    generator = random.Random(arguments.seed)
    print(f"lease {arguments.lease:g}s, seed {arguments.seed}")
    names = [field.name for field in fields(Parts)]
    print("".join(f"{name:>10}" for name in [*names, "after"]))
    found = []
    for _ in range(arguments.repeat):
        with tempfile.TemporaryDirectory(prefix="pyspark-jetstream-takeover-") as home:
            with DevServer() as server:
                idle_s = arguments.idle + generator.uniform(0, arguments.lease / 3)
                parts = asyncio.run(
                    _take_over(server.url, Path(home), arguments.lease, idle_s, arguments.sink)
                )
        found.append(parts)
        print(_line(parts), flush=True)
    if len(found) > 1:
        middle = Parts(*(median(getattr(each, name) for each in found) for name in names))
        print(f"{_line(middle)}  medians")
    slowest = max(each.after for each in found)
    print(f"after the lease: at most {slowest:.2f}s, {arguments.most:g}s are allowed")
    return 1 if slowest > arguments.most else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.takeover", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, metavar="K", help="(%(default)s)")
    parser.add_argument("--lease", type=float, default=6.0, metavar="S", help="(%(default)s)")
    parser.add_argument(
        "--idle", type=float, default=5.0, metavar="S",
        help="how long the standby has waited before (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--most", type=float, default=3.0, metavar="S",
        help="seconds from the end of the lease to the first rows (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--sink", action="store_true",
        help="the rows go into another stream, exactly once, and not into foreachBatch",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    return parser.parse_args()


def _line(parts: Parts) -> str:
    values = [getattr(parts, field.name) for field in fields(parts)]
    return "".join(f"{value:10.2f}" for value in [*values, parts.after])


async def _take_over(url: str, home: Path, lease_s: float, idle_s: float, has_sink: bool) -> Parts:
    options = {
        "servers": url, "stream": "S", "partitions": "2", "partitionSubject": "s.{partition}.>",
        "consumer": "hot", "standby": "true", "priorityTimeout": f"{lease_s:g}s",
    }  # fmt: skip
    sink = {"servers": url} if has_sink else None
    client = await connect(url)
    renewals: list[tuple[float, Any]] = []
    pulls: list[float] = []
    stored: list[float] = []

    async def renewed(message: Msg) -> None:
        renewals.append((time.time(), json.loads(message.data)))

    async def pulled(_: Msg) -> None:
        pulls.append(time.time())

    async def stored_in_target(message: Msg) -> None:
        stored.append(message.metadata.timestamp.timestamp())

    def since(driver: Driver, at: float) -> float | None:
        """When the first rows were there that this driver has read since then."""
        if has_sink:
            return next((each for each in stored if each >= at), None)
        return next((each for _, each, rows in driver.batches() if rows and each >= at), None)

    await client.jetstream().add_stream(name="S", subjects=["s.>"])
    await client.jetstream().add_stream(name="T", subjects=["t.>"])
    await client.jetstream().subscribe("t.>", ordered_consumer=True, cb=stored_in_target)
    await client.subscribe(_RECORDS, cb=renewed)
    await client.subscribe(_PULLS, cb=pulled)
    publishing = asyncio.create_task(_publish(client))
    drivers = []
    try:
        drivers.append(first := Driver(home / "first", options, sink))
        await first.until(lambda: since(first, 0.0))
        drivers.append(second := Driver(home / "second", options, sink))
        await second.until(lambda: second.commits)
        await asyncio.sleep(idle_s)
        load = os.getloadavg()[0]
        if (term := renewals[-1][1]["term"]) != 1:
            raise RuntimeError("the standby took over from a query that was alive")
        await asyncio.to_thread(first.kill)
        killed = time.time()
        await second.until(lambda: any(record["term"] > term for _, record in renewals))
        taken = min(at for at, record in renewals if record["term"] > term)
        await second.until(lambda: since(second, taken))
    finally:
        publishing.cancel()
        for driver in drivers:
            driver.kill()
        await client.close()
    over = max(at for at, record in renewals if record["term"] == term) + lease_s
    rows = since(second, taken) or taken
    planned = second.planned(taken)
    asked = min((at for at in pulls if at > planned), default=planned)
    return Parts(over - killed, taken - over, planned - taken, asked - planned, rows - asked, load)


async def _publish(client: Client) -> None:
    number = 0
    while True:
        await client.publish(f"s.{number % 2}.x", b"%d" % number)
        number += 1
        await asyncio.sleep(1 / _RATE)


if __name__ == "__main__":
    sys.exit(main())

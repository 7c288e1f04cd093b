"""Prints what each second stored, by limits and numbers of writers; 1 if a limit was missed."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.layout import DirectRead
from pyspark_jetstream.outbox.throttling.throttleprotocol import THROTTLE_SUBJECT
from tests.kits.servers import DevServer

_ROOT: Final = Path(__file__).parents[2]
_WITHIN: Final = 0.1
"""Of the limit: how far the mean may be from it."""

_MOST: Final = 2.0
"""Of the limit: what a second may store."""

_TASK_S: Final = 0.5
"""How long a short task's rows last at its writer's part of the limit."""

_TIMEOUT_S: Final = 60.0


class Found(NamedTuple):
    """What a stream has stored under a limit."""

    limit: float
    """Messages, or bytes, a second."""
    seconds: list[int]
    """The same, in each second from the first message on."""

    @property
    def mean(self) -> float:
        """Of the limit."""
        return sum(self.seconds) / len(self.seconds) / self.limit

    @property
    def most(self) -> float:
        """The fullest second, of the limit."""
        return max(self.seconds) / self.limit

    @property
    def is_held(self) -> bool:
        """Whether the limit was held, and used."""
        return abs(self.mean - 1) <= _WITHIN and self.most <= _MOST


def main() -> int:
    """The exit status."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM tidies up as Ctrl-C does
    missed = 0
    for rate in arguments.rate:
        for writers in arguments.writers:
            for tasks in arguments.tasks:
                found = _measured(rate, writers, tasks == "short", arguments)
                missed += not found.is_held
                print(
                    f"{rate}, {writers} writer{'s' * (writers > 1)}, {tasks} tasks:"
                    f" mean {found.mean:.3f} of the limit, fullest second {found.most:.2f},"
                    f" emptiest {min(found.seconds) / found.limit:.2f}"
                    f"{'' if found.is_held else '  MISSED'}"
                )
                print(f"  {' '.join(map(str, found.seconds))}", flush=True)
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.quota", description=__doc__)
    parser.add_argument("--seconds", type=int, default=120, metavar="S", help="(%(default)s)")
    parser.add_argument(
        "--rate", nargs="+", default=["10/s", "100/s", "1000/s"], help="limits (%(default)s)"
    )
    parser.add_argument("--writers", nargs="+", type=int, default=[1, 4], metavar="N")
    parser.add_argument(
        "--tasks", nargs="+", choices=("long", "short"), default=["long", "short"],
        help="one task without an end a writer, or many of half a second",
    )  # fmt: skip
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload (%(default)s)")
    return parser.parse_args()


def _measured(rate: str, writers: int, short: bool, given: argparse.Namespace) -> Found:
    amount, unit = re.findall(r"^(\d+)(KiB|MiB|)/s$", rate)[0]
    limit = float(amount) * {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]
    messages = limit if not unit else limit / (given.size + 100)
    rows = max(1, round(messages / writers * _TASK_S))
    seconds = given.seconds + 10
    with DevServer() as server:
        client = Client(parse_connection({"servers": server.url}))
        js = JetStream(client)
        js.create_stream({"name": "Q", "subjects": ["q.>"], "allow_direct": True})
        client.connection.subscribe(THROTTLE_SUBJECT)
        program = _python(
            "pyspark_jetstream", "throttle", "quota", "--servers", server.url, "--limit",
            f"q.>={rate}",
        )  # fmt: skip
        if client.connection.next_frame(time.monotonic() + _TIMEOUT_S) is None:
            raise RuntimeError("the program asks nobody who is there")
        each = ["--seconds", str(seconds), "--size", str(given.size)]
        each += ["--rows", str(rows)] if short else []
        running = [
            _python("bench.quota.writer", server.url, f"q.{number}", *each)
            for number in range(writers)
        ]
        try:
            for process in running:
                if process.wait(seconds + _TIMEOUT_S):
                    raise RuntimeError(f"a writer failed: {process.args!r}")
        finally:
            for process in running:
                process.kill()
            program.send_signal(signal.SIGINT)
            program.wait(_TIMEOUT_S)
        counts = _seconds(js, given.seconds, bool(unit))
        client.close()
    return Found(limit, counts)


def _python(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=_ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _seconds(js: JetStream, seconds: int, of_bytes: bool) -> list[int]:
    """What was stored in each, from the first message on."""
    last = js.stream_info("Q").last_seq
    read = DirectRead(None, "Q", None, 0, last, None, False, False)
    table = pa.Table.from_batches(read_direct(js.client, read))
    times = table["timestamp"].cast(pa.int64())
    places = pc.floor(pc.divide(pc.subtract(times, pc.min(times)), 1e6)).cast(pa.int64())
    mean = js.stream_info("Q").bytes / last if of_bytes else 1
    counts = Counter(places.to_pylist())
    return [round(counts[place] * mean) for place in range(seconds)]


if __name__ == "__main__":
    sys.exit(main())

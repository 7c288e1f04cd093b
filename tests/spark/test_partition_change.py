"""The number of partitions grows while a query runs: the guide's procedure, step by step."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream

from ..kits.places import ROOT
from ..kits.servers import DevServer
from ..kits.sources import NewStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = 24


class Writer:
    """Publishes `<name>.<key>.x` with a number per key, all the time, each with its PubAck."""

    def __init__(self, js: JetStream, name: str) -> None:
        self.written: dict[str, int] = defaultdict(int)
        self._client = Client(js.client.options)
        self._name = name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        js = JetStream(self._client)
        for n in itertools.count():
            if self._stop.is_set():
                return
            key = f"k{n % KEYS}"
            js.publish(f"{self._name}.{key}.x", b"%d" % self.written[key], [])
            self.written[key] += 1
            self._stop.wait(0.003)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self._client.close()


def procedure() -> tuple[list[list[str]], str]:
    """The commands of the guide, and what becomes of cut.json."""
    guide = (ROOT / "docs" / "guides" / "handing-over.md").read_text()
    blocks = guide.split("```")[1::2]
    lines = blocks[0].removeprefix("bash\n").replace("\\\n", "").strip().splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    return commands, blocks[1].removeprefix("python\n")


def test_the_number_of_partitions_grows_while_a_query_runs(
    nats_server: DevServer,
    js: JetStream,
    new_stream: NewStream,
    stream_df: Callable[..., DataFrame],
    tmp_path: Path,
) -> None:
    """
    From 4 to 6 partitions by the guide's own commands and options, with a query that runs and a
    writer that never stops: each message is read exactly once, each subject in its order.
    """
    name = new_stream()
    commands, code = procedure()
    first, grow, hand, undo = [
        [word.replace("RAW", name).replace("raw.", f"{name}.") for word in command]
        for command in commands
    ]
    assert hand[-2] == ">"
    batches: dict[tuple[str, int], list[Any]] = {}

    def rows(checkpoint: str = "") -> list[Any]:
        kept = list(batches.items())  # queries go on adding
        return [r for (of, _), some in kept if of.startswith(checkpoint) for r in some]

    def job(command: list[str]) -> str:
        assert command[:2] == ["pyspark-jetstream", "partition"]
        done = subprocess.run(
            [sys.executable, "-m", "pyspark_jetstream", *command[1:], "--servers", nats_server.url],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(reader: Any, checkpoint: str, **trigger: Any) -> Any:
        def keep(batch: DataFrame, batch_id: int) -> None:
            batches[checkpoint, batch_id] = batch.collect()  # a batch that runs again replaces it

        return (
            reader.load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(**trigger)
            .start()
        )

    spark = stream_df(stream=name).sparkSession

    def reader() -> Any:
        return spark.readStream.format("jetstream").option("servers", nats_server.url)

    writer = Writer(js, name)
    try:
        job(first)
        old = reader().option("stream", f"{name}-{{partition}}").option("partitions", 4)
        running = start(old, "old", processingTime="100 milliseconds")
        try:
            _until(lambda: bool(rows()), running)
            job(grow)
            seen = len(rows())
            _until(lambda: len(rows()) > seen + 100, running)
        finally:
            running.stop()
        (tmp_path / "cut.json").write_text(job(hand[:-2]))
        cut = json.loads((tmp_path / "cut.json").read_text())
        known = {"old": old, "new": reader(), "cut": None, "json": json, "open": _in(tmp_path)}
        exec(code, known)
        drained = start(known["old"], "old", availableNow=True)
        assert drained.awaitTermination(100)
        following = start(known["new"], "new", processingTime="100 milliseconds")
        try:
            _until(lambda: len(rows("new")) > 100, following)
            writer.stop()
            whole = sum(writer.written.values())
            _until(lambda: len({_key(row) for row in rows()}) >= whole, following)
        finally:
            following.stop()
    finally:
        writer.stop()

    assert following.id != drained.id == running.id
    got: dict[str, list[int]] = defaultdict(list)
    for row in rows():
        parts = row.subject.split(".")
        assert parts[1] == str(row.partition)
        got[parts[2]].append(int(row.data))
    assert got == {key: list(range(n)) for key, n in writer.written.items()}
    assert cut["new"]["partitions"] == "6"
    assert len(rows("old")) == cut["sequence"]
    assert {row.partition for row in rows("new")} == set(range(6))
    assert f"removed {name}-all" in job(undo)
    assert not [each for each in js.stream_names() if each.startswith(f"{name}-")]
    job([*grow[: grow.index("--replaces")], "--undo", "--force"])


def _key(row: Any) -> tuple[str, bytes]:
    return row.subject.split(".", 2)[2], bytes(row.data)


def _in(directory: Path) -> Callable[[str], Any]:
    return lambda name: (directory / name).open()


def _until(done: Callable[[], bool], query: Any) -> None:
    """Waits for the query, which must not fail meanwhile."""
    deadline = time.monotonic() + 100
    while not done():
        assert query.exception() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)

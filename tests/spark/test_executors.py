"""Several executors on a standalone cluster: eight partitions, and kills of what runs them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.ranges import JetStreamRangeReader

from ..kits import seeds
from ..kits.servers import DevServer
from ..kits.standalone import Standalone

PARTITIONS = 8
ROUND = 4_000
"""Messages between two faults."""

DEADLINE_S = 600


class Copying:
    """The query, in a session of its own."""

    def __init__(self, home: Path, arguments: list[Any]) -> None:
        self._home = home
        self._log = (home / "query.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("cluster_query.py")),
             json.dumps([*arguments, str(home)])],
            env=environment(), stdout=self._log, stderr=subprocess.STDOUT, cwd=home,
            start_new_session=True,
        )  # fmt: skip

    def log(self) -> str:
        """The end of it."""
        return (self._home / "query.log").read_text(errors="replace")[-4000:]

    def tasks(self) -> dict[str, int]:
        """Tasks that each executor has finished."""
        with suppress(FileNotFoundError):
            found: dict[str, int] = json.loads((self._home / "tasks.json").read_text())
            return found
        return {}

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Waits while the query runs."""
        end = time.monotonic() + DEADLINE_S
        while not holds():
            assert self.process.poll() is None, f"the query ended: {self.log()}"
            assert time.monotonic() < end, f"not within {DEADLINE_S} s: {what}: {self.log()}"
            time.sleep(0.2)

    def stop(self) -> int:
        """Its exit status, when told to stop."""
        (self._home / "stop").touch()
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """Ends what is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        self._log.close()


def environment() -> dict[str, str]:
    """Of driver, master and workers."""
    return os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def contents(server: DevServer, stream: str) -> dict[str, list[int]]:
    """The numbers in a stream by subject, in order."""
    reader = JetStreamRangeReader(parse_read({"servers": server.url, "stream": stream}))
    found: dict[str, list[int]] = defaultdict(list)
    for task in reader.partitions():
        for batch in reader.read(task):
            columns = [batch.column(name).to_pylist() for name in ("subject", "data")]
            for subject, data in zip(*columns, strict=True):
                found[subject].append(int(data))
    return dict(found)


@pytest.mark.slow
def test_an_executor_and_a_worker_are_killed(
    new_stream: Callable[..., str], publish: Callable[..., None], nats_server: DevServer,
    js: JetStream, tmp_path: Path,
) -> None:  # fmt: skip
    """
    Eight partitions on four executors of two workers: each executor has its tasks, and after the
    kill of an executor, and of a worker with all of its executors, each message is copied once, in
    the order of its partition. A worker that joins gets executors, and they get tasks.
    """
    import pyspark

    source, target = new_stream(), new_stream()
    chance = random.Random(seeds.fresh("executors")[0])
    total = 0

    def publish_some(count: int) -> None:
        nonlocal total
        numbers = range(total, total + count)
        publish([(f"{source}.{i % PARTITIONS}.x", b"%d" % i) for i in numbers])
        total += count

    def copied() -> int:
        return js.stream_info(target).messages

    def with_messages(holds: Callable[[], bool]) -> Callable[[], bool]:
        """Publishes a few for every partition each time that it does not hold yet."""

        def tried() -> bool:
            if not holds():
                publish_some(10 * PARTITIONS)
                return False
            return True

        return tried

    def worked(executors: set[str]) -> bool:
        return all(query.tasks().get(each) for each in executors)

    read = {
        "servers": nats_server.url,
        "stream": source,
        "partitions": str(PARTITIONS),
        "partitionSubject": f"{source}.{{partition}}.>",
        "maxRecordsPerTrigger": "400",
    }
    write = {"servers": nats_server.url}
    home = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
    with Standalone(home, tmp_path, environment()) as cluster:
        for name in ("one", "two"):
            cluster.add_worker(name, 4, "1300m")
        publish_some(ROUND)
        query = Copying(tmp_path, [cluster.url, read, write, target])
        try:
            query.until("a first batch", lambda: copied() >= 400)
            first = set(query.tasks())
            assert len(first) == 4, query.tasks()
            query.until("tasks on each", with_messages(lambda: worked(first)))

            victim = chance.choice(cluster.executors(chance.choice(["one", "two"])))
            publish_some(ROUND)
            os.kill(victim, signal.SIGKILL)
            query.until("an executor instead", lambda: len(query.tasks()) == 5)
            instead = set(query.tasks()) - first
            query.until("tasks on that one", with_messages(lambda: worked(instead)))
            query.until("all copied after an executor's death", lambda: copied() >= total)

            publish_some(ROUND)
            begun = copied()
            query.until("a batch of the next round", lambda: copied() > begun)
            cluster.kill("two")
            query.until("all copied by one worker", lambda: copied() >= total)

            before = set(query.tasks())
            cluster.add_worker("three", 4, "1300m")
            query.until("two executors more", lambda: len(set(query.tasks()) - before) == 2)
            new = set(query.tasks()) - before
            query.until("tasks on each of them", with_messages(lambda: worked(new)))
            query.until("all copied by both", lambda: copied() >= total)
            assert query.stop() == 0, query.log()
        finally:
            query.close()

    assert contents(nats_server, target) == {
        f"{target}.{p}": list(range(p, total, PARTITIONS)) for p in range(PARTITIONS)
    }

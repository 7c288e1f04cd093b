"""From one stream into another: nothing lost, nothing twice, in order; whoever is killed."""

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
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.publish.publisher import publish
from pyspark_jetstream.read.ranges import JetStreamRangeReader
from pyspark_jetstream.read.snapshot import JetStreamSnapshotReader

from ..chaos import processes
from ..kits.encoder import plain_builder
from ..kits.options import connection_of, sink_of
from ..kits.places import ROOT
from ..kits.servers import DevServer

MESSAGES_A_KILL = 8_000
SUBJECTS = 40
WINDOW_S = 4.0
"""The duplicate window of the target: shorter than a restart of the driver takes."""

OF_THE_WRITE = ("Nats-Msg-Id", "Nats-Batch-")
"""Headers that the write itself adds; a server stores those of an atomic batch, too."""

VICTIMS = ("server", "worker", "driver")
"""Each is killed once before chance says who is."""


def headers(i):
    """Those of message i."""
    return [("n", [str(i), "twice"]), ("Nats-Stream-Source", ["X 1"])] if i % 3 else None


def fill(server, count):
    """Message i of stream IN: data i, on IN.<i % 2>.k<i % SUBJECTS>, with two headers."""
    import pyarrow as pa

    kind = pa.map_(pa.string(), pa.list_(pa.string()))

    def batches():
        for low in range(0, count, 10_000):
            numbers = range(low, min(low + 10_000, count))
            yield pa.record_batch(
                {
                    "subject": pa.array([f"IN.{i % 2}.k{i % SUBJECTS}" for i in numbers]),
                    "data": pa.array([str(i) for i in numbers]),
                    "headers": pa.array([headers(i) for i in numbers], kind),
                }
            )  # fmt: skip

    client = Client(connection_of(server.url))
    builder = plain_builder()
    blocks = (builder.build(each) for each in batches())
    publish(client, WriteContext(sink_of(client.options)), blocks)
    client.close()


def contents(server, stream):
    """Number and headers, but the write's own, of each message by subject, in order."""
    options = {"servers": server.url, "stream": stream, "includeHeaders": "true"}
    reader = JetStreamRangeReader(parse_read(options))
    found: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    for task in reader.partitions():
        for batch in reader.read(task):
            columns = [batch.column(name).to_pylist() for name in ("subject", "data", "headers")]
            for subject, data, pairs in zip(*columns, strict=True):
                own = [pair for pair in pairs or [] if not pair[0].startswith(OF_THE_WRITE)]
                found[subject].append((int(data), own))
    return dict(found)


def expected(count):
    """What the copy holds: the headers but those a server would refuse."""
    return {
        f"OUT.k{key}": [(i, (headers(i) or [])[:1]) for i in range(key, count, SUBJECTS)]
        for key in range(SUBJECTS)
    }


def check_copy(server, total, told):
    """Each message is there once, as it was, in the order of its subject."""
    found, wanted = contents(server, "OUT"), expected(total)
    assert set(found) == set(wanted), told
    for subject, messages in wanted.items():
        numbers = [number for number, _ in found[subject]]
        assert numbers == [number for number, _ in messages], told
        assert found[subject] == messages


def check_bucket(server, total, told):
    """The bucket is the fold of all rows."""
    reader = JetStreamSnapshotReader(parse_read({"servers": server.url, "bucket": "OUT"}))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    found = {row["key"]: row["value"] for batch in batches for row in batch.to_pylist()}
    last = {f"k{key}": max(range(key, total, SUBJECTS)) for key in range(SUBJECTS)}
    assert found == {
        key: str(i).encode() for key, i in last.items() if i % 7 != 3 and i % 11 != 5
    }, told


def check_counters(server, total, told):
    """Each counter is the sum of its rows."""
    options = {"servers": server.url, "stream": "OUT", "multiLast": "OUT.>"}
    reader = JetStreamSnapshotReader(parse_read(options | {"includeCount": "true"}))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    found = {row["subject"]: int(row["count"]) for batch in batches for row in batch.to_pylist()}
    assert found == {
        f"OUT.k{key}": sum(i % 10 - 3 for i in range(key, total, SUBJECTS))
        for key in range(SUBJECTS)
    }, told


KINDS: dict[str, tuple[dict[str, Any], dict[str, str], Callable[[DevServer, int, str], None]]] = {
    "plain": ({"allow_atomic": True}, {}, check_copy),
    "bucket": (
        {"name": "KV_OUT", "subjects": ["$KV.OUT.>"], "max_msgs_per_subject": 1,
         "allow_rollup_hdrs": True, "deny_delete": True, "discard": "new"},
        {"bucket": "OUT"}, check_bucket,
    ),
    "counters": ({"allow_msg_counter": True}, {}, check_counters),
}  # fmt: skip
"""Kinds of writes: what their stream is beside, their options, and what must be there at last."""


class Query(AbstractContextManager["Query"]):
    """One life of the copying query, in a session of its own; the end of its block kills it."""

    def __init__(self, home, arguments):
        self._log = (home / "log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("copying_query.py")),
             json.dumps(arguments)],
            env=os.environ | {
                "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
                "PYTHONPATH": str(ROOT),
            },
            stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True, cwd=home,
        )  # fmt: skip

    def ended(self):
        """Whether it came to its end by itself."""
        return self._process.poll() is not None

    def status(self, timeout_s):
        """Waits for its end; its exit status."""
        return self._process.wait(timeout_s)

    def __exit__(self, *_):
        """SIGKILL to everything of it: driver, executors, Python workers."""
        for pid in self._pids():
            processes.send(pid, signal.SIGKILL)
        self._process.wait(60)
        self._log.close()

    def kill_worker(self, rng):
        """SIGKILL to an executor, or where there is none to a Python worker, if there is one."""
        pids = self._pids()
        found = [pid for pid, role in pids.items() if role == "executor"]
        found = found or [pid for pid, role in pids.items() if role in ("worker", "daemon")]
        return bool(found) and processes.send(rng.choice(found), signal.SIGKILL)

    def _pids(self):
        return processes.of_session(self._process.pid)


def batches_begun(home):
    """Micro-batches in the query's write-ahead log."""
    offsets = home / "checkpoint" / "offsets"
    return len(list(offsets.glob("[0-9]*"))) if offsets.exists() else 0


@pytest.mark.parametrize("seed", [int(os.environ.get("SEED", "1"))])
@pytest.mark.parametrize(
    ("kills", "kind"), [(4, "plain"), (20, "plain"), (5, "bucket"), (5, "counters")]
)
def test_whoever_is_killed_each_message_arrives_once(tmp_path, kills, kind, seed):
    """Payloads, headers and order are the input's, once each, beyond the duplicate window."""
    config, own, check = KINDS[kind]
    rng = random.Random(seed)
    total = kills * MESSAGES_A_KILL
    with DevServer() as server:
        client = Client(connection_of(server.url))
        js = JetStream(client)
        common = {"allow_direct": True, "storage": "file"}
        js.create_stream({"name": "IN", "subjects": ["IN.>"], **common})
        js.create_stream(
            {
                "name": "OUT", "subjects": ["OUT.>"], "duplicate_window": int(WINDOW_S * 1e9),
                "allow_batched": True, **common, **config,
            }
        )  # fmt: skip
        client.close()
        fill(server, total)
        source = {
            "servers": server.url, "stream": "IN", "partitions": "2", "includeHeaders": "true",
            "partitionSubject": "IN.{partition}.>", "maxRecordsPerTrigger": "4000",
            "requestTimeout": "60s",
        }  # fmt: skip
        done: list[str] = []
        while True:
            sink = {
                "servers": server.url, "ackTimeout": "1s", "publishTimeout": "60s",
                "maxInFlight": "100", "requestTimeout": "60s",
                **own,
            }  # fmt: skip
            with Query(tmp_path, [source, sink, kind, str(tmp_path / "checkpoint")]) as query:
                begun = batches_begun(tmp_path)
                while not query.ended() and batches_begun(tmp_path) == begun:
                    time.sleep(0.05)
                while len(done) < kills and not query.ended():
                    time.sleep(rng.uniform(0.1, 1.5))
                    victim = rng.choice(["driver", "worker", "worker", "server"])
                    if len(done) < len(VICTIMS):
                        victim = VICTIMS[len(done)]
                    if victim == "worker" and not query.kill_worker(rng):
                        continue
                    done.append(victim)
                    if victim == "server":
                        server.kill()
                        server.restart()
                    elif victim == "driver":
                        break
                else:
                    if query.status(240) == 0:
                        break
        log = (tmp_path / "log").read_text(errors="replace")
        check(server, total, f"seed {seed}: {done}\n{log[-3000:]}")
        client = Client(connection_of(server.url))
        last = JetStream(client).stream_info(config.get("name", "OUT")).last_seq
        client.close()

    assert len(done) == kills, f"seed {seed}: the copy was over after {done}"
    assert set(VICTIMS) <= set(done)
    assert last == total

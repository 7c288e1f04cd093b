"""The scripts of jobs/ through real spark-submit: killed with SIGKILL, started again."""

import json
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_jetstream.client.info import parse_time
from pyspark_jetstream.outbox.deadletters import DeadLetters
from pyspark_jetstream.publish import publisher
from pyspark_jetstream.publish.context import WriteContext

from ..kits.encoder import plain_builder
from ..kits.options import connection_of, sink_of
from ..kits.places import ROOT

NewStream = Callable[..., str]
Publish = Callable[[list[tuple[Any, ...]]], None]

SECRET = "h1dden"


class Job:
    """Runs of scripts in processes of their own, with a password and with Spark's event log."""

    def __init__(self, home, server):
        import pyspark

        self.home, self.url = home, server.url
        self._spark = Path(pyspark.__file__).parent
        self._logs = 0
        (home / "events").mkdir()
        (home / "password").write_text(f"{SECRET}\n")

    def login(self, flag="--option"):
        """How a script reaches the server; the password stands in a file."""
        words = (f"servers={self.url}", "user=u", f"password=@{self.home}/password")
        return [word for each in words for word in (flag, each)]

    def run(self, script, *arguments, until=None):
        """Exit status and output."""
        self._logs += 1
        log = self.home / f"log-{self._logs}"
        command = [
            str(self._spark / "bin" / "spark-submit"), "--master", "local[2]",
            "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR",
            "--conf", "spark.eventLog.enabled=true", "--conf", "spark.eventLog.compress=false",
            "--conf", f"spark.eventLog.dir={(self.home / 'events').as_uri()}",
            "--driver-java-options", "-XX:TieredStopAtLevel=1",
            str(ROOT / "jobs" / f"{script}.py"), *self.login(), *arguments,
        ]  # fmt: skip
        environment = os.environ | {
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(self._spark),
            "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
        }  # fmt: skip
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env=environment, cwd=self.home, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + 240
            while process.poll() is None and time.monotonic() < deadline:
                if until is not None and next(until, None) is None:
                    process.kill()
                time.sleep(0.005)
            status = process.poll()
            assert status is not None, f"no end within 240 s: {log.read_text()[-3000:]}"
            return status, log.read_text()
        finally:
            with suppress(ProcessLookupError):  # what a killed driver leaves behind
                os.killpg(process.pid, signal.SIGKILL)
            deadline = time.monotonic() + 60
            while workers := self._left():  # Python workers are in a group of their own
                assert time.monotonic() < deadline, f"{workers} do not end"
                for pid in workers:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)

    def survives(self, script, arguments, offsets, kills, seed, between):
        """The output of its last run, after kills soon after it has begun one batch more."""
        chance = random.Random(seed)
        for kill in range(kills):
            until = soon_after(offsets, "?", kill + 2, chance)
            died, said = self.run(script, *arguments, until=until)
            assert died == -signal.SIGKILL, said[-3000:]
            between()
        ended, said = self.run(script, *arguments)
        assert ended == 0, said[-3000:]
        return said

    def _left(self):
        """The processes of runs that are still there."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):  # it is no more, or somebody else's
                if path.readlink().is_relative_to(self.home):
                    found.append(int(path.parent.name))
        return found

    def check_secrets(self):
        """No file that a run has made has the password."""
        files = {path: path.read_bytes() for path in self.home.rglob("*") if path.is_file()}

        assert any(b"SparkListenerApplicationStart" in content for content in files.values())
        leaks = [path.name for path, content in files.items() if SECRET.encode() in content]
        assert leaks == ["password"]


@pytest.fixture
def job(tmp_path, nats_server):
    """Runs scripts on the shared server."""
    return Job(tmp_path, nats_server)


def soon_after(where, pattern, number, chance):
    """Goes on until so many files are there, and then for up to a second."""
    while len(list(where.glob(pattern))) < number:
        yield True
    end = time.monotonic() + chance.random()
    while time.monotonic() < end:
        yield True


def parquet_rows(output):
    """The rows that pyarrow finds in a folder, or any reader but Spark."""
    rows = []
    for path in sorted(output.rglob("*.parquet")):
        if not any(part.startswith(("_", ".")) for part in path.relative_to(output).parts):
            rows += pq.ParquetFile(path).read().to_pylist()
    return rows


KILLS = pytest.mark.parametrize(("kills", "seed"), [(1, 0), (3, 1), (3, 2), (3, 3)])


@KILLS
def test_a_range_in_parquet_survives_kills(job, new_stream, publish, tmp_path, kills, seed):
    """Parquet has each message of the range once, at each moment."""
    name, output = new_stream(), tmp_path / "out"
    sent = [(f"{name}.k{i % 50}", b"m%d" % i, [("X", f"y{i}")]) for i in range(6_000)]
    publish(sent)
    arguments = (
        "--option", f"stream={name}", "--from", "101", "--to", "5900", "--batch", "1000",
        "--option", "includeHeaders=true", "--output", str(output), "--partition-by", "day",
    )  # fmt: skip

    def is_once():
        assert (
            max(Counter(each["sequence"] for each in parquet_rows(output)).values(), default=1) == 1
        )

    offsets = output / "_checkpoint" / "offsets"
    said = job.survives("range_backfill", arguments, offsets, kills, seed, is_once)
    rows = sorted(parquet_rows(output), key=lambda row: row["sequence"])

    assert " rows, 0 left, " in said and "done: " in said
    assert [row["sequence"] for row in rows] == list(range(101, 5_901))
    for row in rows:
        subject, data, headers = sent[row["sequence"] - 1]
        assert (row["subject"], row["data"]) == (subject, data)
        assert row["headers"] == [("X", [headers[0][1]])]
    job.check_secrets()


@KILLS
def test_a_range_in_a_stream_survives_kills(
    job, new_stream, publish, range_df, tmp_path, kills, seed
):
    """Taken up after the duplicate window, the copy is there once, in order, with headers."""
    name, checkpoint = new_stream(), tmp_path / "checkpoint"
    target = new_stream(duplicate_window=2_000_000_000, allow_rollup_hdrs=True)
    sent = [
        (f"{name}.k{i % 70}", b"%d" % i, [("Nats-Msg-Id", f"i-{i}"), ("X", f"y{i}")])
        for i in range(6_000)
    ]
    publish(sent)
    mapping = json.dumps({f"{name}.>": f"{target}.>"})
    arguments = (
        "--option", f"stream={name}", "--batch", "1000", "--checkpoint", str(checkpoint),
        *job.login("--target"), "--target", "ackTimeout=1s",
        "--target", f"subjectMapping={mapping}",
    )  # fmt: skip

    offsets = checkpoint / "offsets"
    job.survives("range_backfill", arguments, offsets, kills, seed, lambda: time.sleep(2.5))
    copied = range_df(stream=target, includeHeaders="true").orderBy("sequence").collect()

    assert [row.data for row in copied] == [data for _, data, _ in sent]
    for n, row in enumerate(copied):
        assert row.subject == f"{target}.k{n % 70}"
        assert row.headers["X"] == [f"y{n}"]
        assert row.headers.get("Nats-Msg-Id") != [f"i-{n}"]
    job.check_secrets()


@KILLS
def test_a_snapshot_survives_kills(job, new_stream, publish, tmp_path, kills, seed):
    """It is as of the point that its first run has noted; nobody sees it before it is whole."""
    name, chance, output = new_stream(), random.Random(seed), tmp_path / "out"
    sent = [(f"{name}.k{i * i % 4_000}", b"m%d" % i) for i in range(10_000)]
    publish(sent)
    arguments = ("--stream", name, "--output", str(output))

    for kill in range(kills):
        files = "_point/_SUCCESS" if kill % 2 == seed % 2 else "_unfinished"
        until = soon_after(output, files, 1, chance)
        died, said = job.run("snapshot_backfill", *arguments, until=until)
        if not (output / "_point").exists():  # it was faster than the kill
            break
        assert died == -signal.SIGKILL, said[-3000:]
        whole = len(parquet_rows(output))
        assert whole in (0, len({subject for subject, _ in sent}))
        publish([(subject, b"newer") for subject, _ in sent[::2]] + [(f"{name}.new", b"newer")])
    else:
        died, said = job.run("snapshot_backfill", *arguments)
        assert f"done: {len({subject for subject, _ in sent}):,} rows" in said, said[-3000:]
    rows = parquet_rows(output / "as_of=10000")
    last = {subject: (n + 1, data) for n, (subject, data) in enumerate(sent)}

    assert len(rows) == len(last)
    assert {row["subject"]: (row["sequence"], row["data"]) for row in rows} == last
    assert sorted(path.name for path in output.iterdir()) == ["as_of=10000"]
    job.check_secrets()


@pytest.mark.parametrize("fault", ["gone", "anew"])
def test_a_snapshot_whose_point_is_gone_fails(job, new_stream, publish, js, tmp_path, fault):
    """A run that cannot have the point of the first one says so, and writes nothing."""
    name, output = new_stream(max_msgs_per_subject=1), tmp_path / "out"
    sent = [(f"{name}.k{i}", b"m%d" % i) for i in range(5_000)]
    publish(sent)
    arguments = ("--stream", name, "--output", str(output))
    last = js.message_get(name, seq=5_000)
    (output / "_point").mkdir(parents=True)  # as a killed run leaves it
    note = pa.table({"sequence": [last.sequence], "timestamp": [parse_time(last.time)]})
    pq.write_table(note, output / "_point" / "part-0.parquet")

    if fault == "anew":
        config = js.stream_info(name).config
        js.client.request(f"{js.prefix}.STREAM.DELETE.{name}", b"")
        js.create_stream(config)
        publish(sent)
    publish([(f"{name}.k7", b"newer")])
    ended, said = job.run("snapshot_backfill", *arguments)

    assert ended == 1, said[-3000:]
    why = "made anew" if fault == "anew" else "SnapshotLossError"
    assert [why in line for line in said.splitlines() if line.startswith("failed: ")] == [True]
    assert parquet_rows(output) == []


@KILLS
def test_a_replay_survives_kills(job, new_stream, js, publish, range_df, tmp_path, kills, seed):
    """Dead letters of one reason become their rows, each once; others are left out."""
    checkpoint = tmp_path / "checkpoint"
    target, dead = new_stream(duplicate_window=2_000_000_000), new_stream()

    def shed(first, last, reason):
        rows = range(first, last)
        batch = {
            "subject": pa.array([f"{target}.k{i % 40}" for i in rows]),
            "data": pa.array([b"%d" % i for i in rows]),
            "headers": pa.array(
                [[("X", f"y{i}")] for i in rows], pa.map_(pa.string(), pa.string())
            ),
            "msg_id": pa.array([f"i-{i}" if i % 2 else None for i in rows], pa.string()),
        }
        messages = plain_builder().build(pa.record_batch(batch))
        letters = DeadLetters(f"{dead}.{{subject}}", "q", 0).of(messages, reason)
        publisher.publish(js.client, WriteContext(sink_of(connection_of(job.url))), [letters])

    shed(0, 6_000, "QueueTimeout: 3 s")
    shed(6_000, 6_100, "Rejected: too large")
    publish([(f"{dead}.stranger", b"no dead letter")])
    arguments = (
        "--option", f"stream={dead}", "--where", "reason = 'QueueTimeout'", "--batch", "1000",
        "--checkpoint", str(checkpoint), *job.login("--target"), "--target", "ackTimeout=1s",
    )  # fmt: skip

    offsets = checkpoint / "offsets"
    job.survives("replay_dead_letters", arguments, offsets, kills, seed, lambda: time.sleep(2.5))
    rows = range_df(stream=target, includeHeaders="true").orderBy("sequence").collect()

    assert [row.data for row in rows] == [b"%d" % i for i in range(6_000)]
    for n, row in enumerate(rows):
        assert row.subject == f"{target}.k{n % 40}"
        assert row.headers["X"] == [f"y{n}"]
        assert not [name for name in row.headers if name.startswith("Jetstream-Sink-")]
    job.check_secrets()


@pytest.mark.parametrize("script", ["range_backfill", "snapshot_backfill", "replay_dead_letters"])
def test_a_mistake_ends_with_status_2(script):
    """A wrong flag is said before Spark starts, with the usage."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / f"{script}.py"), "--option", "stream"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert ran.returncode == 2
    assert ran.stderr.startswith("usage: ")
    assert "expected NAME=VALUE or NAME=@FILE" in ran.stderr


@pytest.mark.parametrize("script", ["range_backfill", "replay_dead_letters"])
def test_progress_of_a_batch_that_was_planned_before(script, capsys):
    """After a kill nobody has counted what is left behind the first batch."""
    follow = runpy.run_path(str(ROOT / "jobs" / f"{script}.py"))["follow"]
    progress = [
        {"batchId": n, "numInputRows": 10, "sources": [{"latestOffset": offset}]}
        for n, offset in enumerate((None, '{"0": {"lag": 60}, "metrics": {}}'))
    ]
    follow(SimpleNamespace(awaitTermination=lambda _: True, recentProgress=progress))
    first, second, _ = capsys.readouterr().out.splitlines()

    assert first.startswith("batch 0: 10 rows, not counted, ")
    assert second.startswith("batch 1: 20 rows, 60 left, ")

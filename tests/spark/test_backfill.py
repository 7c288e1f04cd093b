"""The backfill jobs through real spark-submit, killed in the middle, and what they leave behind."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from pyspark_jetstream import client
from pyspark_jetstream.devserver import DevServer
from pyspark_jetstream.jetstream import JetStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
NewStream = Callable[..., str]
Publish = Callable[[list[tuple[Any, ...]]], None]

NO_PANDAS = """
from importlib.machinery import PathFinder

def find_spec(name, path=None, target=None, *, found=PathFinder.find_spec):
    return None if name in ("pandas", "numpy") else found(name, path, target)

PathFinder.find_spec = find_spec
"""
"""What every process of a job runs first: it finds neither, as in a fresh install."""


# ── running a job ────────────────────────────────────────────────────────────────────────────


class Job:
    """Runs of a job in processes of their own, where pandas and numpy cannot be imported."""

    def __init__(self, home: Path, server: DevServer) -> None:
        import pyspark

        self.home = home
        self._server = server
        self._submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
        self._logs = 0
        (home / "sitecustomize.py").write_text(NO_PANDAS)
        self._environment = os.environ | {
            "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": str(home),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        }  # fmt: skip

    def command(self, master: str | None, job: str, *arguments: str) -> list[str]:
        script = [str(ROOT / "jobs" / f"{job}.py"), "--option", f"servers={self._server.url}"]
        if master is None:
            return [sys.executable, *script, *arguments]
        return [
            self._submit, "--master", master, "--conf", "spark.ui.enabled=false",
            "--conf", "spark.executor.memory=1g", "--conf", "spark.log.level=ERROR",
            # Short jobs end before the JVM's second compiler pays off.
            "--driver-java-options", "-XX:TieredStopAtLevel=1",
            "--conf", "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1",
            *script, *arguments,
        ]  # fmt: skip

    def run(self, *command: Any, killed_when: Callable[[], bool] | None = None) -> tuple[int, str]:
        """
        Exit status and output of a run. With `killed_when` its driver is killed with SIGKILL, and
        by it alone, as soon as that is so.
        """
        self._logs += 1
        path = self.home / f"log-{self._logs}"
        with path.open("wb") as log:
            process = subprocess.Popen(
                self.command(*command), env=self._environment, cwd=self.home,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + 240
            while process.poll() is None and time.monotonic() < deadline:
                if killed_when is not None and killed_when():
                    process.kill()
                time.sleep(0.005 if killed_when is not None else 0.05)
            status = process.poll()
            assert status is not None, f"no end within 240 s: {path.read_text()[-3000:]}"
            return status, path.read_text()
        finally:
            # What a killed driver leaves behind, or a test that failed.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.fixture
def job(tmp_path: Path, nats_server: DevServer) -> Job:
    """Runs jobs on the shared server."""
    return Job(tmp_path, nats_server)


def chunks_done(output: Path) -> int:
    """Chunks that a backfill under way has recorded."""
    return len(list(output.glob("_progress/chunk-*.json")))


def manifest_of(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "_manifest.json").read_text())
    return found


def parquet_rows(output: Path) -> list[dict[str, Any]]:
    """The rows of all Parquet files that Spark would read, by pyarrow; partitions as `at`."""
    rows = []
    for path in sorted(output.rglob("*.parquet")):
        inside = path.relative_to(output)
        if not any(part.startswith("_") for part in inside.parts):
            table = pq.ParquetFile(path).read()
            rows += [row | {"at": str(inside.parent)} for row in table.to_pylist()]
    return rows


def check_manifest(output: Path) -> dict[str, Any]:
    """The manifest's counts are those of the files that are there, and nothing else is there."""
    manifest = manifest_of(output)
    files = {str(path.relative_to(output)): path for path in output.rglob("chunk-*.parquet")}

    assert {file["path"] for file in manifest["files"]} == set(files)
    for file in manifest["files"]:
        table = pq.ParquetFile(files[file["path"]]).read()
        order = table["sequence" if "sequence" in table.column_names else "revision"].to_pylist()
        assert (file["rows"], file["first"], file["last"]) == (len(order), min(order), max(order))
        assert order == sorted(order)
        assert file["bytes"] == files[file["path"]].stat().st_size
    assert manifest["rows"] == sum(file["rows"] for file in manifest["files"])
    assert not (output / "_progress").exists()
    return manifest


# ── through spark-submit ─────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_killed_range_backfill_is_taken_up(
    job: Job, new_stream: NewStream, publish: Publish, tmp_path: Path
) -> None:
    """
    A range backfill whose driver is killed goes on where it stopped: Parquet holds each message of
    the range once, and none of those published since; a file that is changed fails --verify.
    """
    name = new_stream()
    sent = [
        (f"{name}.{i % 3}.k{i % 50}", b"m%d" % i, [("X", f"y{i}")] if i % 5 == 0 else [])
        for i in range(2_600)
    ]
    publish(sent)
    output = tmp_path / "out"
    arguments = (
        "local[2]", "range_backfill", "--stream", name, "--from", "101", "--output", str(output),
        "--chunk-messages", "500", "--partition-by", "token:2", "--option", "includeHeaders=true",
    )  # fmt: skip
    died, said = job.run(*arguments, killed_when=lambda: chunks_done(output) >= 2)
    done = {path: path.stat().st_mtime_ns for path in output.rglob("_progress/chunk-*.json")}
    assert died == -signal.SIGKILL, said[-3000:]
    assert 2 <= len(done) < 5
    assert not (output / "_manifest.json").exists()

    publish([(f"{name}.0.late", b"published after the range was resolved", [])])
    recorded = [json.loads(path.read_text()) for path in done]
    ended, said = job.run(*arguments, "--verify")
    rows = parquet_rows(output)
    manifest = check_manifest(output)
    expected = {n + 1: message for n, message in enumerate(sent) if n >= 100}

    assert ended == 0, said[-3000:]
    assert "verified" in said
    assert sorted(row["sequence"] for row in rows) == sorted(expected)
    for row in rows:
        subject, data, headers = expected[row["sequence"]]
        assert (row["subject"], row["data"]) == (subject, data)
        assert row["headers"] == ([("X", [headers[0][1]])] if headers else None)
        assert (row["stream"], row["at"]) == (name, f"token2={subject.split('.')[1]}")
    assert manifest["streams"][name]["last_sequence"] == 2_600
    kept = {file["path"]: file for file in manifest["files"]}
    assert all(kept[file["path"]] == file for entry in recorded for file in entry["files"])

    first = output / manifest["files"][0]["path"]
    first.write_bytes((output / manifest["files"][1]["path"]).read_bytes())
    first.with_name(f".{first.name}.crc").unlink()
    failed, said = job.run(None, *arguments[1:], "--verify")
    assert failed == 1, said[-3000:]
    assert f"{manifest['files'][0]['path']} has checksum" in said


@pytest.mark.slow
def test_a_snapshot_backfill_killed_on_a_cluster_is_taken_up(
    job: Job, new_stream: NewStream, publish: Publish, tmp_path: Path
) -> None:
    """
    A snapshot backfill on a cluster of two executors whose driver is killed goes on, elsewhere, as
    of the same sequence, whatever was written meanwhile.
    """
    name = new_stream()
    sent = [(f"{name}.{i % 3}.k{i * i % 400}", b"m%d" % i) for i in range(3_000)]
    publish(sent)
    output = tmp_path / "out"
    arguments = (
        "snapshot_backfill", "--stream", name, "--output", str(output),
        "--chunk-messages", "40", "--partition-by", "partition", "day",
        "--option", "partitions=3", "--option", f"partitionSubject={name}.{{partition}}.>",
    )  # fmt: skip
    cluster = "local-cluster[2,1,1024]"
    died, said = job.run(cluster, *arguments, killed_when=lambda: chunks_done(output) >= 2)
    assert died == -signal.SIGKILL, said[-3000:]
    assert chunks_done(output) >= 2
    assert not (output / "_manifest.json").exists()

    publish([(subject, b"newer") for subject, _ in sent[::2]] + [(f"{name}.1.new", b"newer")])
    ended, said = job.run("local[2]", *arguments, "--verify")
    rows = parquet_rows(output)
    manifest = check_manifest(output)
    last = {subject: (n + 1, data) for n, (subject, data) in enumerate(sent)}

    assert ended == 0, said[-3000:]
    assert manifest["streams"][name]["sequence"] == 3_000
    assert manifest["chunks"] >= 3
    assert len(rows) == len(last)
    assert {row["subject"]: (row["sequence"], row["data"]) for row in rows} == last
    for row in rows:
        day = row["timestamp"].date()
        assert row["at"] == f"partition={row['subject'].split('.')[1]}/day={day}"


@pytest.mark.slow
def test_a_killed_copy_into_a_stream_is_taken_up(
    job: Job, new_stream: NewStream, publish: Publish, js: JetStream, range_df: Any, tmp_path: Path
) -> None:
    """
    A copy whose driver is killed within a chunk, taken up after the duplicate window, leaves each
    message once in the target, in the order of the source, with its headers.
    """
    name = new_stream()
    target = new_stream(duplicate_window=4_000_000_000)
    sent = [
        (f"{name}.k{i % 70}", b"m%d" % i, [("Nats-Msg-Id", f"first-{i}"), ("X", f"y{i}")])
        for i in range(3_000)
    ]
    publish(sent)
    chunk = 1_000
    manifest = tmp_path / "copy"
    arguments = (
        "local[2]", "range_backfill", "--stream", name, "--into", target,
        "--manifest", str(manifest), "--chunk-messages", str(chunk),
        "--target-option", f"servers={js.client.options.servers[0]}",
        "--target-option", json.dumps({f"{name}.>": f"{target}.>"}).join(("subjectMapping=", "")),
        "--target-option", "maxInFlight=1",  # slow, so that the kill comes within a chunk
        "--target-option", "ackTimeout=2s",
    )  # fmt: skip
    died, said = job.run(
        *arguments, killed_when=lambda: js.stream_info(target).messages > chunk + 50
    )
    time.sleep(4)  # the window of whatever was published last
    stored = js.stream_info(target).messages
    assert died == -signal.SIGKILL, said[-3000:]
    assert chunk < stored < 3_000
    assert stored % chunk, "the kill came between two chunks"
    assert chunks_done(manifest) == stored // chunk

    publish([(f"{target}.other", b"of somebody else")])
    ended, said = job.run(*arguments, "--verify")
    copied = range_df(stream=target, includeHeaders="true").orderBy("sequence").collect()
    others = [row for row in copied if row.subject == f"{target}.other"]
    copied = [row for row in copied if row.subject != f"{target}.other"]

    assert ended == 0, said[-3000:]
    assert len(others) == 1
    assert [row.data for row in copied] == [data for _, data, _ in sent]
    for n, row in enumerate(copied):
        assert row.subject == f"{target}.k{n % 70}"
        assert row.headers["X"] == [f"y{n}"]
        assert row.headers["Nats-Msg-Id"] == [f"{name}-{n + 1}"]
    assert manifest_of(manifest)["rows"] == 3_000


# ── killed at every point ────────────────────────────────────────────────────────────────────


class DiedError(Exception):
    """Stands for SIGKILL: nothing runs after it."""


@pytest.fixture
def backfill(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules of jobs/backfill; what they leave connected is closed."""
    monkeypatch.syspath_prepend(str(ROOT / "jobs"))
    names = ("copying", "faults", "journal", "parquet", "ranges", "relay", "snapshots", "storage")
    yield SimpleNamespace(**{name: importlib.import_module(f"backfill.{name}") for name in names})
    while client._idle.clients:
        client._idle.clients.popitem()[1].close()


def dying(backfill: SimpleNamespace, spark: SparkSession, root: Path, steps: int | None) -> Any:
    """
    Storage that dies before its change number `steps`.

    A change is a file that gets its name, or goes; writing a draft is none, since nobody looks at
    it.
    """

    class Dying(backfill.storage.Storage):  # type: ignore[misc,name-defined]
        left = steps

        def _step(self) -> None:
            if self.left is not None:
                if self.left == 0:
                    raise DiedError
                self.left -= 1

        def move(self, name: str, to: str) -> None:
            self._step()
            super().move(name, to)

        def delete(self, name: str) -> None:
            self._step()
            super().delete(name)

    return Dying(spark, str(root))


def lives(once: Callable[[int | None], None]) -> Iterator[int]:
    """Dies at step 0, 1, 2, … of a new backfill each, until one lives; the test takes each up."""
    for steps in range(100):
        try:
            once(steps)
        except DiedError:
            yield steps
        else:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.slow
def test_a_range_backfill_may_die_at_every_step(
    backfill: SimpleNamespace, spark: SparkSession, new_stream: NewStream, publish: Publish,
    nats_server: DevServer, tmp_path: Path,
) -> None:  # fmt: skip
    """Whichever change of its directory a run dies before, the next one completes the backfill."""
    name = new_stream()
    publish([(f"{name}.{i % 2}", b"m%d" % i) for i in range(20)])
    options = {"servers": nats_server.url, "stream": name, "minPartitions": "1"}
    schema = spark.read.format("jetstream").options(**options).load().schema
    partitioning = backfill.parquet.Partitioning.parse((), schema)

    def run(root: Path, steps: int | None) -> dict[str, Any]:
        storage = dying(backfill, spark, root, steps)
        journal = backfill.journal.Journal(storage, "test", {})
        target = backfill.parquet.ParquetTarget(spark, journal, partitioning, "sequence")
        source = backfill.ranges.RangeSource(options, 12)
        found: dict[str, Any] = backfill.copying.copy(
            spark, source, target, journal, lambda *_: lambda *_: None
        )
        assert target.faults(found) == []
        return found

    died = 0
    for steps in lives(lambda steps: run(tmp_path / f"{steps}", steps) and None):
        died += 1
        output = tmp_path / f"{steps}"
        run(output, None)
        check_manifest(output)
        assert sorted(row["sequence"] for row in parquet_rows(output)) == list(range(1, 21))

    assert died > 10
    checksums = {manifest_of(tmp_path / f"{steps}")["checksum"] for steps in range(died + 1)}
    assert len(checksums) == 1


@pytest.mark.slow
def test_a_snapshot_of_a_bucket_may_die_at_every_step(
    backfill: SimpleNamespace, spark: SparkSession, new_stream: NewStream, publish: Publish,
    js: JetStream, nats_server: DevServer, tmp_path: Path,
) -> None:  # fmt: skip
    """A run that goes on holds the bucket as of the revision that the first one has pinned."""
    bucket = f"B{os.urandom(3).hex()}"
    new_stream(f"KV_{bucket}", subjects=[f"$KV.{bucket}.>"], max_msgs_per_subject=64)
    told: list[tuple[str, bytes | None]] = []

    def put(key: str, value: bytes | None) -> None:
        told.append((key, value))
        headers = [("KV-Operation", "DEL")] if value is None else []
        publish([(f"$KV.{bucket}.{key}", value or b"", headers)])

    for i in range(24):
        put(f"k{i % 9}", b"v%d" % i)
    options = {"servers": nats_server.url, "bucket": bucket, "minPartitions": "2"}
    schema = spark.read.format("jetstream").options(**options).load().schema
    partitioning = backfill.parquet.Partitioning.parse((), schema)

    def run(root: Path, steps: int | None) -> dict[str, Any]:
        storage = dying(backfill, spark, root, steps)
        journal = backfill.journal.Journal(storage, "test", {})
        target = backfill.parquet.ParquetTarget(spark, journal, partitioning, "revision")
        source = backfill.snapshots.SnapshotSource(options, schema, 4)
        found: dict[str, Any] = backfill.copying.copy(
            spark, source, target, journal, lambda *_: lambda *_: None
        )
        return found

    died = 0
    for steps in lives(lambda steps: run(tmp_path / f"{steps}", steps) and None):
        died += 1
        output = tmp_path / f"{steps}"
        planned = (output / "_progress/plan.json").exists()
        pinned = len(told)
        put(f"k{steps % 9}", None)
        put(f"k{(steps + 1) % 9}", b"newer %d" % steps)
        manifest = run(output, None)
        revision = manifest["streams"][f"KV_{bucket}"]["sequence"]
        values = dict(told[:revision])

        check_manifest(output)
        assert revision == (pinned if planned else len(told))
        assert {row["key"]: row["value"] for row in parquet_rows(output)} == {
            key: value for key, value in values.items() if value is not None
        }

    assert died > 12


@pytest.mark.slow
def test_a_copy_may_die_at_every_step_and_fail_within_a_chunk(
    backfill: SimpleNamespace, spark: SparkSession, new_stream: NewStream, publish: Publish,
    js: JetStream, nats_server: DevServer, range_df: Any, tmp_path: Path,
) -> None:  # fmt: skip
    """
    A copy that dies after every step, and once with a chunk half stored, leaves each message once,
    each subject in its order, in a target that remembers ids for a tenth of a second only.
    """
    name = new_stream()
    target = new_stream(
        duplicate_window=100_000_000, discard="new", max_msgs=22, subjects=["copy.>"]
    )
    publish([(f"{name}.{i % 4}", b"m%d" % i) for i in range(36)])
    options = {"servers": nats_server.url, "stream": name, "includeHeaders": "true"}
    writing = {
        "servers": nats_server.url, "subjectMapping": json.dumps({f"{name}.>": "copy.>"}),
        "ackTimeout": "1s", "publishTimeout": "2s", "exactlyOnce": "false",
    }  # fmt: skip
    connection = {"servers": nats_server.url}

    def run(steps: int | None) -> dict[str, Any]:
        storage = dying(backfill, spark, tmp_path / "copy", steps)
        journal = backfill.journal.Journal(storage, "test", {})
        relay = backfill.relay.RelayTarget(spark, journal, target, writing, connection, writers=2)
        source = backfill.ranges.RangeSource(options, 12)
        found: dict[str, Any] = backfill.copying.copy(
            spark, source, relay, journal, lambda *_: lambda *_: None
        )
        assert relay.faults(found) == []
        return found

    died = failed = 0
    for _ in range(20):
        time.sleep(0.2)  # past the window
        try:
            run(3)  # the owner's file goes and comes, and one change more
        except DiedError:
            died += 1
        except Exception as error:
            text = backfill.faults.one_line(error)
            assert "maximum messages exceeded" in text, text
            assert 12 < js.stream_info(target).messages < 24
            config = js.stream_info(target).config | {"max_msgs": -1}
            js.client.request(f"{js.prefix}.STREAM.UPDATE.{target}", json.dumps(config).encode())
            failed += 1
        else:
            break
    copied = range_df(stream=target, includeHeaders="true").orderBy("sequence").collect()

    # Behind the plan, the note and the entry of each chunk, and the manifest.
    assert (died, failed) == (1 + 2 * 3 - 1 + 1, 1)
    assert len(copied) == 36
    for p in range(4):
        mine = [row.data for row in copied if row.subject == f"copy.{p}"]
        assert mine == [b"m%d" % i for i in range(p, 36, 4)]


def test_targets_that_cannot_be_copied_into(
    backfill: SimpleNamespace, spark: SparkSession, new_stream: NewStream, js: JetStream,
    nats_server: DevServer, tmp_path: Path,
) -> None:  # fmt: skip
    """A target is refused that is the source, drops what it stores, or cannot be read."""
    source = new_stream()
    targets = {
        source: "is the one to read",
        new_stream(allow_direct=False): "has direct get off",
        new_stream(max_msgs_per_subject=1): "does not keep all it stores",
        new_stream(retention="workqueue"): "does not keep all it stores",
    }
    plan = {"streams": {source: {"created": js.stream_info(source).created}}}
    journal = backfill.journal.Journal(
        backfill.storage.Storage(spark, str(tmp_path / "copy")), "test", {}
    )
    for name, says in targets.items():
        connection = {"servers": nats_server.url}
        relay = backfill.relay.RelayTarget(spark, journal, name, connection, connection, 1)
        with pytest.raises(backfill.faults.UsageError, match=says):
            relay.check(plan)


def test_a_directory_of_something_else(
    backfill: SimpleNamespace, spark: SparkSession, tmp_path: Path
) -> None:
    """A directory with files of others is left alone, and so is a path that cannot be written."""
    (tmp_path / "mine.parquet").write_text("something")
    storage = backfill.storage.Storage(spark, str(tmp_path))
    with pytest.raises(backfill.faults.UsageError, match=r"holds 'mine\.parquet' but no backfill"):
        backfill.journal.Journal(storage, "test", {})
    with pytest.raises(backfill.faults.BackfillError, match="nosuch") as raised:
        backfill.storage.Storage(spark, "nosuch://host/path")

    assert "\n" not in str(raised.value)


def test_a_directory_of_another_backfill(
    backfill: SimpleNamespace, spark: SparkSession, tmp_path: Path
) -> None:
    """Settings that rows depend on cannot change from run to run; the error names the one."""
    storage = backfill.storage.Storage(spark, str(tmp_path / "out"))
    journal = backfill.journal.Journal(storage, "test", {"option startingOffsets": "101"})
    journal.begin({"chunks": []})
    for others, says in (
        (
            {"option startingOffsets": "102"},
            "with option startingOffsets '101', now with option startingOffsets '102'",
        ),
        ({}, "'101', now without option startingOffsets"),
    ):
        with pytest.raises(backfill.faults.UsageError, match=says):
            backfill.journal.Journal(storage, "test", others)
    with pytest.raises(backfill.faults.UsageError, match="give a new directory"):
        backfill.journal.Journal(storage, "another", {"option startingOffsets": "101"})


def test_a_run_that_was_taken_over_stops(
    backfill: SimpleNamespace, spark: SparkSession, tmp_path: Path
) -> None:
    """A run records nothing once another one has begun, and no entry is ever replaced."""
    storage = backfill.storage.Storage(spark, str(tmp_path / "out"))
    first = backfill.journal.Journal(storage, "test", {})
    first.claim()
    first.begin({"chunks": [{}, {}]})
    first.record(0, {"rows": 1})
    second = backfill.journal.Journal(storage, "test", {})
    second.claim()
    second.record(1, {"rows": 2})

    assert second.done == {0: {"rows": 1}, 1: {"rows": 2}}
    with pytest.raises(backfill.faults.BackfillError, match="has taken over"):
        first.record(1, {"rows": 3})
    with pytest.raises(backfill.faults.BackfillError, match="is there already"):
        second.record(1, {"rows": 4})
    assert backfill.journal.Journal(storage, "test", {}).done[1] == {"rows": 2}

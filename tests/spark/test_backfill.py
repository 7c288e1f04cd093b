"""The backfill jobs through real spark-submit, killed in the middle, and what they leave behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import pyspark_jetstream
from pyspark_jetstream.client import connection
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.ranges import JetStreamRangeReader

from ..kits.places import ROOT
from ..kits.servers import DevServer
from .backfilled import check_manifest, chunks_done, manifest_of, parquet_rows

NewStream = Callable[..., str]
Publish = Callable[[list[tuple[Any, ...]]], None]

SECRET = "h1dden"

NO_PANDAS = """
from importlib.machinery import PathFinder

def find_spec(name, path=None, target=None, *, found=PathFinder.find_spec):
    return None if name in ("pandas", "numpy") else found(name, path, target)

PathFinder.find_spec = find_spec
"""
"""What every process of a job runs first: it finds neither, as in a fresh install."""


# ── running a job ────────────────────────────────────────────────────────────────────────────


class Job:
    """
    Runs of a job in processes of their own, where pandas and numpy cannot be imported, with a
    password and with Spark's event log.
    """

    def __init__(self, home: Path, server: DevServer) -> None:
        import pyspark

        self.home = home
        self.environment: dict[str, str] = {}
        """Of the next runs, beside what all have."""
        self.flags: list[str] = []
        """Of the next runs with spark-submit."""
        self.url = server.url
        self._spark = Path(pyspark.__file__).parent
        self._logs = 0
        self._commands: set[str] = set()
        self._events = home / "events"
        self._events.mkdir()
        (home / "sitecustomize.py").write_text(NO_PANDAS)

    def ship(self) -> None:
        """Lets executors and driver be without the package but for --py-files."""
        package = Path(pyspark_jetstream.__file__).parent
        archive = self.home / "pyspark_jetstream.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for module in package.rglob("*.py"):
                file.write(module, module.relative_to(package.parent))
        # On PYTHONPATH the .pth files of the editable install are not read.
        dependencies = next(path for path in sys.path if path.endswith("site-packages"))
        base = str(getattr(sys, "_base_executable", sys.executable))
        self.environment = {"PYTHONPATH": f"{self.home}{os.pathsep}{dependencies}",
                            "PYSPARK_PYTHON": base, "PYSPARK_DRIVER_PYTHON": base}  # fmt: skip
        self.flags = ["--py-files", str(archive)]

    def command(self, master: str | None, job: str, *arguments: str) -> list[str]:
        script = [
            str(ROOT / "jobs" / f"{job}.py"), "--option", f"servers={self.url}",
            "--option", "user=u",
        ]  # fmt: skip
        if master is None:
            return [sys.executable, *script, *arguments]
        return [
            str(self._spark / "bin" / "spark-submit"), "--master", master,
            "--conf", "spark.ui.enabled=false", "--conf", "spark.executor.memory=1g",
            "--conf", "spark.log.level=ERROR", "--conf", "spark.sql.shuffle.partitions=2",
            "--conf", "spark.eventLog.enabled=true", "--conf", "spark.eventLog.compress=false",
            "--conf", f"spark.eventLog.dir={self._events.as_uri()}",
            # Short jobs end before the JVM's second compiler pays off.
            "--driver-java-options", "-XX:TieredStopAtLevel=1",
            "--conf", "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1",
            *self.flags, *script, *arguments,
        ]  # fmt: skip

    def run(self, *command: Any, killed_when: Callable[[], bool] | None = None) -> tuple[int, str]:
        """
        Exit status and output of a run. With `killed_when` its driver is killed with SIGKILL, and
        by it alone, as soon as that is so.
        """
        self._logs += 1
        path = self.home / f"log-{self._logs}"
        environment = os.environ | {
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(self._spark),
            "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(self.home), "JETSTREAM_PASSWORD": SECRET,
        } | self.environment  # fmt: skip
        with path.open("wb") as log:
            process = subprocess.Popen(
                self.command(*command), env=environment, cwd=self.home,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            deadline, looked = time.monotonic() + 240, 0.0
            while process.poll() is None and time.monotonic() < deadline:
                if time.monotonic() - looked > 0.25:
                    self._look_at_commands()
                    looked = time.monotonic()
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
            # Python workers are in a group of their own, and may be about to publish.
            deadline = time.monotonic() + 60
            while workers := self._left():
                assert time.monotonic() < deadline, f"{workers} do not end"
                for pid in workers:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)

    def _left(self) -> list[int]:
        """The processes of runs that are still there."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):  # it is no more, or somebody else's
                if path.readlink().is_relative_to(self.home):
                    found.append(int(path.parent.name))
        return found

    def _look_at_commands(self) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self._commands.add(path.read_text(errors="replace"))
            except OSError:  # it is no more
                pass

    def check_secrets(self) -> None:
        """No process was started with the password, and no file that a run has made has it."""
        files = {path: path.read_bytes() for path in self.home.rglob("*") if path.is_file()}

        assert any(b"SparkListenerSQLExecutionStart" in content for content in files.values())
        assert [path for path, content in files.items() if SECRET.encode() in content] == []
        assert not any(SECRET in command for command in self._commands)


@pytest.fixture
def job(tmp_path: Path, nats_server: DevServer) -> Job:
    """Runs jobs on the shared server."""
    return Job(tmp_path, nats_server)


# ── through spark-submit ─────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_killed_range_backfill_is_taken_up(
    job: Job, new_stream: NewStream, publish: Publish, tmp_path: Path
) -> None:
    """
    A range backfill whose driver is killed goes on where it stopped: Parquet holds each message of
    the range once, and none of those published since.
    """
    name = new_stream()
    tokens = ("a:b", "c%41", "=e")  # what directories cannot be called
    sent = [
        (f"{name}.{tokens[i % 3]}.k{i % 50}", b"m%d" % i, [("X", f"y{i}")] if i % 5 == 0 else [])
        for i in range(1_600)
    ]
    publish(sent)
    output = tmp_path / "out"
    arguments = (
        "range_backfill", "--stream", name, "--from", "101", "--output", str(output),
        "--chunk-messages", "500", "--partition-by", "token:2", "--option", "includeHeaders=true",
    )  # fmt: skip
    died, said = job.run("local[2]", *arguments, killed_when=lambda: chunks_done(output) >= 1)
    done = list(output.glob("_progress/chunk-*.json"))
    assert died == -signal.SIGKILL, said[-3000:]
    assert 1 <= len(done) < 3
    assert not (output / "_manifest.json").exists()

    publish([(f"{name}.0.late", b"published after the range was resolved", [])])
    recorded = [json.loads(path.read_text()) for path in done]
    ended, said = job.run(None, *arguments, "--verify")
    rows = parquet_rows(output)
    manifest = check_manifest(output)
    expected = {n + 1: message for n, message in enumerate(sent) if n >= 100}

    assert ended == 0, said[-3000:]
    assert "1,500 messages in" in said
    assert "replaced a" not in said  # as Spark says of a format that is registered once more
    assert "verified" in said
    assert re.search(r"100\.0%  [\d,]+ rows in this run  [\d,]+ rows/s  0:00 left", said)
    assert sorted(row["sequence"] for row in rows) == sorted(expected)
    for row in rows:
        subject, data, headers = expected[row["sequence"]]
        assert (row["subject"], row["data"]) == (subject, data)
        assert row["headers"] == ([("X", [headers[0][1]])] if headers else None)
        assert (row["stream"], unquote(row["at"])) == (name, f"token2={subject.split('.')[1]}")
    assert manifest["streams"][name]["last_sequence"] == 1_600
    kept = {file["path"]: file for file in manifest["files"]}
    assert all(kept[file["path"]] == file for entry in recorded for file in entry["files"])
    job.check_secrets()


@pytest.mark.slow
def test_a_snapshot_backfill_killed_on_a_cluster_is_taken_up(tmp_path: Path) -> None:
    """
    A snapshot backfill on a cluster of two executors, shipped with --py-files, whose driver is
    killed goes on, elsewhere, as of the same sequence, whatever was written meanwhile. The password
    stands in no log, plan, event, journal, manifest or command line; nor in the other tests.
    """
    account = 'authorization { users: [{user: "u", password: "' + SECRET + '"}] }'
    with DevServer(account) as server:
        options = parse_connection({"servers": server.url, "user": "u", "password": SECRET})
        with closing(connection.Client(options)) as connected:
            job = Job(tmp_path, server)
            check_snapshot(job, JetStream(connected), tmp_path / "out")


def check_snapshot(job: Job, js: JetStream, output: Path) -> None:
    name = "SNAP"
    js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})

    def publish(messages: list[tuple[str, bytes]]) -> None:
        for subject, data in messages:
            js.client.request(subject, data)

    sent = [(f"{name}.{i % 3}.k{i * i % 400}", b"m%d" % i) for i in range(1_000)]
    publish(sent)
    arguments = (
        "snapshot_backfill", "--stream", name, "--output", str(output),
        "--chunk-messages", "100", "--partition-by", "partition", "day",
        "--option", "partitions=3", "--option", f"partitionSubject={name}.{{partition}}.>",
    )  # fmt: skip
    job.ship()
    died, said = job.run(
        "local-cluster[2,1,1024]", *arguments, killed_when=lambda: chunks_done(output) >= 1
    )
    assert died == -signal.SIGKILL, said[-3000:]
    assert not (output / "_manifest.json").exists()

    publish([(subject, b"newer") for subject, _ in sent[::2]] + [(f"{name}.1.new", b"newer")])
    job.flags, job.environment = [], {}
    ended, said = job.run("local[2]", *arguments, "--verify")
    rows = parquet_rows(output)
    manifest = check_manifest(output)
    last = {subject: (n + 1, data) for n, (subject, data) in enumerate(sent)}

    assert ended == 0, said[-3000:]
    assert manifest["streams"][name]["sequence"] == 1_000
    assert manifest["chunks"] >= 2
    assert len(rows) == len(last)
    assert {row["subject"]: (row["sequence"], row["data"]) for row in rows} == last
    for row in rows:
        day = row["timestamp"].date()
        assert row["at"] == f"partition={row['subject'].split('.')[1]}/day={day}"
    job.check_secrets()


@pytest.mark.slow
def test_a_killed_copy_into_a_stream_is_taken_up(
    job: Job, new_stream: NewStream, publish: Publish, js: JetStream, range_df: Any, tmp_path: Path
) -> None:
    """
    A copy whose driver is killed within a chunk, taken up after the duplicate window on a cluster,
    leaves each message once in the target, in the order of the source, with its headers.
    """
    name = new_stream(allow_rollup_hdrs=True)
    target = new_stream(  # it takes no more than part of the second chunk before the driver dies
        duplicate_window=2_000_000_000, allow_rollup_hdrs=True, discard="new", max_msgs=1_700
    )
    commands = [("Nats-Expected-Stream", name), ("Nats-Rollup", "sub")]
    sent = [
        (
            f"{name}.k{i % 70}",
            b"%d" % i,
            [("Nats-Msg-Id", f"i-{i}"), ("X", f"y{i}")] + (commands if i < 70 else []),
        )
        for i in range(3_000)
    ]
    publish(sent)
    manifest = tmp_path / "copy"
    arguments = (
        "range_backfill", "--stream", name, "--into", target,
        "--manifest", str(manifest), "--chunk-messages", "1500",
        "--target-option", json.dumps({f"{name}.>": f"{target}.>"}).join(("subjectMapping=", "")),
        "--target-option", "maxInFlight=1", "--target-option", "ackTimeout=1s",
    )  # fmt: skip
    job.flags = ["--conf", "spark.sql.execution.arrow.maxRecordsPerBatch=50"]
    died, said = job.run(
        "local[2]", *arguments, killed_when=lambda: js.stream_info(target).messages == 1_700
    )
    stored = 1_700
    assert died == -signal.SIGKILL, said[-3000:]
    assert js.stream_info(target).messages == stored
    assert chunks_done(manifest) == 1

    config = js.stream_info(target).config | {"max_msgs": -1}
    js.client.request(f"{js.prefix}.STREAM.UPDATE.{target}", json.dumps(config).encode())
    publish([(f"{target}.other", b"of somebody else")])
    ended, said = job.run("local-cluster[2,1,1024]", *arguments, "--verify")
    copied = range_df(stream=target, includeHeaders="true").orderBy("sequence").collect()
    others = [row for row in copied if row.subject == f"{target}.other"]
    copied = [row for row in copied if row.subject != f"{target}.other"]
    id = manifest_of(manifest)["id"]

    assert ended == 0, said[-3000:]
    assert len(others) == 1
    assert (copied[stored].timestamp - copied[stored - 1].timestamp).total_seconds() > 2
    assert [row.data for row in copied] == [data for _, data, _ in sent]
    for n, row in enumerate(copied):
        assert row.subject == f"{target}.k{n % 70}"
        assert row.headers["X"] == [f"y{n}"]
        assert row.headers["Nats-Msg-Id"] == [f"{id}-{name}-{n + 1}"]
        assert "Nats-Rollup" not in row.headers
    assert manifest_of(manifest)["rows"] == 3_000
    job.check_secrets()


@pytest.mark.slow
@pytest.mark.parametrize("into", ["parquet", "stream"])
def test_a_killed_backfill_of_several_streams_is_taken_up(
    job: Job, new_stream: NewStream, publish: Publish, tmp_path: Path, into: str
) -> None:
    """
    A backfill of several streams, by pattern or by list, goes on after a kill with the streams that
    there were: each of their messages is copied once, in the order of its stream, also where the
    stream numbers its subjects.
    """
    prefix = f"backfill-{into}"
    names = [new_stream(f"{prefix}-{number}") for number in range(2)]
    number = {
        "src": f"{prefix}-2.*",
        "dest": f"{prefix}-2.{{{{partition(3,1)}}}}.{{{{wildcard(1)}}}}",
    }
    names.append(new_stream(f"{prefix}-2", subject_transform=number))
    sent = [(names[i % 3], b"m%d" % i) for i in range(900)]
    publish([(f"{name}.k{data[-1]}", data) for name, data in sent])
    output, target = tmp_path / "out", ""
    arguments = ["range_backfill", "--chunk-messages", "150"]
    if into == "parquet":
        arguments += ["--stream-pattern", f"{prefix}-*", "--output", str(output)]
    else:
        target = new_stream()
        mapping = json.dumps({f"{name}.>": f"{target}.{name}.>" for name in names})
        arguments += ["--stream", ",".join(names), "--into", target, "--manifest", str(output)]
        arguments += ["--target-option", f"subjectMapping={mapping}"]
    died, said = job.run("local[2]", *arguments, killed_when=lambda: chunks_done(output) >= 2)
    done = chunks_done(output)
    assert died == -signal.SIGKILL, said[-3000:]
    assert 2 <= done < 6

    late = new_stream(f"{prefix}-late")
    publish([(f"{name}.k", b"published after the first run") for name in (late, *names)])
    ended, said = job.run("local[2]", *arguments, "--verify")
    assert ended == 0, said[-3000:]
    if into == "parquet":
        rows = [(row["stream"], row["data"]) for row in parquet_rows(output)]
        check_manifest(output)
    else:
        reader = JetStreamRangeReader(parse_read({"servers": job.url, "stream": target}))
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        copied = [row for batch in batches for row in batch.to_pylist()]
        copied.sort(key=lambda row: row["sequence"])
        rows = [(row["subject"].split(".")[1], row["data"]) for row in copied]

    for name in names:
        expected = [data for stream, data in sent if stream == name]
        assert [data for stream, data in rows if stream == name] == expected
    assert len(rows) == len(sent)
    assert manifest_of(output)["rows"] == len(sent)


def test_a_mistake_ends_spark_submit_with_status_2(job: Job, tmp_path: Path) -> None:
    """spark-submit passes the exit status on."""
    ended, said = job.run(
        "local[1]", "range_backfill", "--stream", "S", "--output", "o", "--to", "1x"
    )

    assert ended == 2, said
    assert said.count("range_backfill: --to: ") == 1

"""Backfills that stop at any point, meet another run, or find their streams changed."""

from __future__ import annotations

import importlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pyspark_jetstream.client.jetstream import JetStream

from ..kits.places import ROOT
from ..kits.reading import hang_up
from ..kits.servers import DevServer
from ..live.test_strangers import hpub
from ..live.test_writes import outlive
from .backfilled import check_manifest, parquet_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE = "pyspark_jetstream.operations.backfill"
NewStream = Callable[..., str]
Publish = Callable[[list[tuple[Any, ...]]], None]


def one_line(faults, error: Exception) -> str:
    """What a program says of it; it is no mistake in the arguments."""
    with pytest.raises(faults.BackfillError) as said, faults.from_spark():
        raise error
    assert not isinstance(said.value, faults.UsageError)
    return str(said.value)


class DiedError(BaseException):
    """Stands for SIGKILL: nothing runs after it."""


@pytest.fixture
def backfill() -> Iterator[SimpleNamespace]:
    """The modules of backfills; what they leave connected is closed."""
    names = ("copying", "faults", "journal", "parquet", "ranges", "relay", "snapshots", "storage")
    yield SimpleNamespace(**{name: importlib.import_module(f"{PLACE}.{name}") for name in names})
    hang_up()


class Backfill:
    """Runs of one kind of backfill in this process, each in a directory of its choice."""

    def __init__(self, modules: SimpleNamespace, spark: SparkSession, server: DevServer) -> None:
        self.modules = modules
        self.spark = spark
        self.server = server
        self.order = "sequence"
        self.words: tuple[str, ...] = ()

    def of_range(self, chunk: int, **options: str) -> None:
        """Makes it one of a range."""
        self.options = {"servers": self.server.url, **options}
        self.schema = self.spark.read.format("jetstream").options(**self.options).load().schema
        self.source = self.modules.ranges.RangeSource(self.options, chunk)

    def of_bucket(self, chunk: int, **options: str) -> None:
        """Makes it one of a bucket."""
        self.order = "revision"
        self.of_snapshot(chunk, **options)

    def of_snapshot(self, chunk: int, **options: str) -> None:
        """Makes it one of a snapshot."""
        self.options = {"servers": self.server.url, **options}
        self.schema = self.spark.read.format("jetstream").options(**self.options).load().schema
        self.source = self.modules.snapshots.SnapshotSource(self.options, self.schema, chunk)

    def read_once(self) -> None:
        """Reads all messages now; chunks are taken out of them, which is faster."""
        rows = self.spark.read.format("jetstream").options(**self.options).load().persist()

        def of_chunk(spark: SparkSession, journal: Any, number: int) -> DataFrame:
            chunk = journal.plan["chunks"][number]
            return rows.where(f"sequence > {chunk['start']} and sequence <= {chunk['end']}")

        self.source.rows = of_chunk

    def journal(self, root: Path, hook: Callable[[], None] = lambda: None) -> Any:
        """A run's journal; `hook` is called before every change of its directory."""

        class Hooked(self.modules.storage.Storage):  # type: ignore[misc,name-defined]
            """A change is a file that gets its name, or goes: nobody looks at a draft."""

            def move(self, name: str, to: str) -> None:
                hook()
                super().move(name, to)

            def delete(self, name: str) -> None:
                hook()
                super().delete(name)

        hadoop = self.modules.storage.Hadoop.of(self.spark)
        return self.modules.journal.Journal(Hooked(hadoop, str(root)), "test", {})

    def target(self, journal: Any) -> Any:
        partitioning = self.modules.parquet.Partitioning.parse(self.words, self.schema)
        return self.modules.parquet.ParquetTarget(self.spark, journal, partitioning, self.order)

    def run(self, root: Path, hook: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """One run; its manifest."""
        journal = self.journal(root, hook)
        found: dict[str, Any] = self.modules.copying.copy(
            self.spark, self.source, self.target(journal), journal, lambda *_: lambda *_: None
        )
        return found

    def plan(self, root: Path) -> None:
        """A run that ends when it has its plan."""
        journal = self.journal(root)
        journal.claim()
        journal.keep_plan(self.source.plan(self.spark, journal))


@pytest.fixture
def runs(backfill: SimpleNamespace, spark: SparkSession, nats_server: DevServer) -> Backfill:
    """Runs of backfills on the shared server."""
    return Backfill(backfill, spark, nats_server)


def before_step(steps: int, what: Callable[[], None]) -> tuple[Callable[[], None], list[int]]:
    """A hook that calls `what` once, before change number `steps`; and what is left of them."""
    left = [steps]

    def hook() -> None:
        left[0] -= 1
        if left[0] == -1:
            what()

    return hook, left


def die() -> None:
    raise DiedError


# ── at every point ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 5], ids=["each", "each fifth"])
def test_a_backfill_may_die_at_every_step(
    runs: Backfill, new_stream: NewStream, publish: Publish, tmp_path: Path, stride: int
) -> None:
    """Whichever change of its directory a run dies before, the next one completes the backfill."""
    name = new_stream()
    publish([(f"{name}.{i % 2}", b"m%d" % i) for i in range(20)])
    runs.of_range(12, stream=name, minPartitions="1")
    runs.read_once()
    checksums = set()
    for steps in count(0, stride):
        root = tmp_path / f"{steps}"
        hook, left = before_step(steps, die)
        try:
            runs.run(root, hook)
        except DiedError:
            runs.run(root)
        manifest = check_manifest(root)
        checksums.add(manifest["checksum"])

        assert sorted(row["sequence"] for row in parquet_rows(root)) == list(range(1, 21))
        if left[0] >= 0:
            break

    # owner, plan, two chunks with a file each, manifest, tidying
    assert steps - left[0] == 2 + 1 + 2 * 3 + 1 + 1
    assert len(checksums) == 1

    # Changed, missing, too many: what --verify looks for.
    target = runs.target(runs.journal(root))
    assert target.faults(manifest) == []
    changed, gone = (root / file["path"] for file in manifest["files"])
    changed.write_bytes(gone.read_bytes())
    changed.with_name(f".{changed.name}.crc").unlink()
    gone.rename(gone.with_name("chunk-00009-000-00000000.parquet"))
    told = "\n".join(target.faults(manifest))
    assert f"{changed.relative_to(root)} has checksum" in told
    assert f"{gone.relative_to(root)} is missing" in told
    assert "chunk-00009-000-00000000.parquet is none of this backfill's" in told


@pytest.mark.parametrize("does", ["replace", "drop"])
@pytest.mark.parametrize("kind", ["range", "bucket"])
def test_a_backfill_of_subjects_that_are_no_utf8(
    runs: Backfill, js: JetStream, new_stream: NewStream, tmp_path: Path, kind: str, does: str
) -> None:
    """
    They are copied, or left out, as `onInvalidSubject` says, and neither is a message that lacks.
    """
    bucket = f"B{new_stream()}"
    stream = new_stream(name=f"KV_{bucket}", subjects=[f"$KV.{bucket}.>"], max_msgs_per_subject=5)
    keys = [b"a", b"\xff", b"b", b"\xfe"]
    hpub(js, [(f"$KV.{bucket}.".encode() + key, b"", b"x") for key in keys])
    if kind == "range":
        runs.of_range(9, stream=stream, onInvalidSubject=does)
    else:
        runs.of_bucket(9, bucket=bucket, onInvalidSubject=does)
    manifest = runs.run(tmp_path)

    column = "sequence" if kind == "range" else "revision"
    expected = [1, 2, 3, 4] if does == "replace" else [1, 3]
    assert sorted(row[column] for row in parquet_rows(tmp_path)) == expected
    assert check_manifest(tmp_path)["missing"] == 0
    assert runs.target(runs.journal(tmp_path)).faults(manifest) == []


@pytest.mark.slow
def test_a_backfill_may_be_overtaken_at_every_step(
    runs: Backfill, new_stream: NewStream, publish: Publish, tmp_path: Path
) -> None:
    """
    Whichever change of its directory a run stops before while another one begins and ends: the rows
    are there once when both have ended, and the first one either ends well or says why not.
    """
    name = new_stream()
    publish([(f"{name}.{i % 2}", b"m%d" % i) for i in range(20)])
    runs.of_range(50, stream=name, minPartitions="1")
    runs.words = ("token:2",)
    runs.read_once()
    failed = 0
    for steps in count():
        root = tmp_path / f"{steps}"
        hook, left = before_step(steps, lambda root=root: runs.run(root) and None)  # type: ignore[misc]
        try:
            runs.run(root, hook)
        except runs.modules.faults.BackfillError as error:
            assert "another run" in str(error)
            failed += 1

        assert sorted(row["sequence"] for row in parquet_rows(root)) == list(range(1, 21))
        runs.run(root)
        check_manifest(root)
        if left[0] >= 0:
            break

    # all but the one that had only to tidy up
    assert (steps, failed) == (2 + 1 + 4 + 1 + 1, 8)


@pytest.mark.slow
def test_a_copy_may_die_at_every_step_and_fail_within_a_chunk(
    runs: Backfill, spark: SparkSession, new_stream: NewStream, publish: Publish, js: JetStream,
    nats_server: DevServer, range_df: Any, tmp_path: Path,
) -> None:  # fmt: skip
    """
    A copy that dies after every step, and once with a chunk half stored, leaves each message once,
    each subject in its order, in a target that remembers ids for a tenth of a second only.
    """
    name = new_stream()
    target = new_stream(
        duplicate_window=100_000_000, discard="new", max_msgs=18, subjects=["copy.>"]
    )
    publish([(f"{name}.{i % 4}", b"m%d" % i) for i in range(24)])
    runs.of_range(12, stream=name, includeHeaders="true")
    runs.read_once()
    writing = {
        "servers": nats_server.url, "subjectMapping": json.dumps({f"{name}.>": "copy.>"}),
        "ackTimeout": "1s", "publishTimeout": "2s", "exactlyOnce": "false",
    }  # fmt: skip
    reached = {"servers": nats_server.url}
    runs.target = lambda journal: runs.modules.relay.RelayTarget(  # type: ignore[method-assign]
        spark, journal, target, writing, reached, writers=2
    )
    died = failed = 0
    for _ in range(20):
        if js.stream_info(target).last_seq:
            outlive(js, target)
        try:
            # The owner's file goes and comes, and one change more.
            manifest = runs.run(tmp_path, before_step(3, die)[0])
        except DiedError:
            died += 1
        except Exception as error:
            text = one_line(runs.modules.faults, error)
            assert "maximum messages exceeded" in text, text
            assert 12 < js.stream_info(target).messages < 24
            config = js.stream_info(target).config | {"max_msgs": -1}
            js.client.request(f"{js.prefix}.STREAM.UPDATE.{target}", json.dumps(config).encode())
            failed += 1
        else:
            break
    copied = range_df(stream=target, includeHeaders="true").orderBy("sequence").collect()

    # Behind the plan, the note and the entry of each chunk, and the manifest.
    assert (died, failed) == (1 + 2 * 2 - 1 + 1, 1)
    assert runs.target(runs.journal(tmp_path)).faults(manifest) == []
    assert len(copied) == 24
    for p in range(4):
        mine = [row.data for row in copied if row.subject == f"copy.{p}"]
        assert mine == [b"m%d" % i for i in range(p, 24, 4)]


# ── what changes between plan and read ───────────────────────────────────────────────────────


@pytest.mark.slow
def test_messages_that_leave_before_they_are_read(
    runs: Backfill, new_stream: NewStream, publish: Publish, js: JetStream, tmp_path: Path
) -> None:
    """
    Messages that were there when the range was planned, and are deleted or purged before they are
    read, fail the backfill; with failOnDataLoss=false they are counted in the manifest.
    """
    name = new_stream()
    publish([(f"{name}.x", b"m%d" % i) for i in range(30)])
    runs.of_range(10, stream=name)
    runs.plan(tmp_path)
    js.client.request(f"{js.prefix}.STREAM.MSG.DELETE.{name}", b'{"seq": 5}')
    with pytest.raises(runs.modules.faults.BackfillError, match="1 of 10 messages of a chunk left"):
        runs.run(tmp_path)
    assert parquet_rows(tmp_path) == []

    js.purge(name, None, 25)
    runs.of_range(10, stream=name, failOnDataLoss="false")
    manifest = runs.run(tmp_path)
    check_manifest(tmp_path)

    assert (manifest["rows"], manifest["missing"]) == (6, 24)
    assert sorted(row["sequence"] for row in parquet_rows(tmp_path)) == list(range(25, 31))


@pytest.mark.parametrize("kind", ["range", "snapshot"])
def test_options_of_rows_hold(
    runs: Backfill, js: JetStream, new_stream: NewStream, tmp_path: Path, kind: str
) -> None:
    """
    Rows are those that a read with these options has, and what it leaves out is not what is missed.
    """
    name = new_stream()
    kinds = [b"NATS/1.0\r\nkind: %b\r\n\r\n" % each for each in (b"a", b"b", b"a")]
    hpub(js, [(f"{name}.{at}".encode(), block, b"x") for at, block in enumerate(kinds)])
    options = {"stream": name, "includeData": "false"}
    if kind == "range":
        runs.of_range(9, **options)
    else:
        runs.of_snapshot(9, multiLast=">", **options)
    manifest = runs.run(tmp_path)

    rows = parquet_rows(tmp_path)
    assert sorted((row["sequence"], "data" in row) for row in rows) == [
        (i, False) for i in (1, 2, 3)
    ]
    assert (manifest["rows"], manifest["missing"]) == (3, 0)


def test_messages_of_no_partition_are_not_missing(
    runs: Backfill, new_stream: NewStream, publish: Publish, js: JetStream, tmp_path: Path
) -> None:
    """Subjects beside the partitions are counted with them, but are not what is missed."""
    name = new_stream()
    publish([(f"{name}.{each}.x", b"x") for each in (0, "meta", 1, 0, 1)])
    runs.of_range(
        10, stream=name, partitions="2", partitionSubject=f"{name}.{{partition}}.>",
        failOnDataLoss="false",
    )  # fmt: skip
    runs.words = ("partition",)
    runs.plan(tmp_path / "all")
    runs.plan(tmp_path / "less")
    found = [runs.run(tmp_path / "all")]
    js.client.request(f"{js.prefix}.STREAM.MSG.DELETE.{name}", b'{"seq": 4}')
    found.append(runs.run(tmp_path / "less"))

    assert [(each["rows"], each["missing"]) for each in found] == [(4, 0), (3, 1)]


@pytest.mark.slow
def test_a_snapshot_is_as_of_its_plan(
    runs: Backfill, new_stream: NewStream, publish: Publish, tmp_path: Path
) -> None:
    """
    A bucket is read as of the revision of the plan, though its keys are written and deleted since,
    and though another run had planned, too; values that are gone meanwhile are an error, or are
    left out.
    """
    bucket = f"B{os.urandom(3).hex()}"
    new_stream(f"KV_{bucket}", subjects=[f"$KV.{bucket}.>"], max_msgs_per_subject=4)

    def put(key: str, value: bytes | None) -> None:
        headers = [("KV-Operation", "DEL")] if value is None else []
        publish([(f"$KV.{bucket}.{key}", value or b"", headers)])

    for i in range(12):
        put(f"k{i % 6}", b"v%d" % i if i != 8 else None)
    runs.of_bucket(4, bucket=bucket, minPartitions="2")
    late = runs.journal(tmp_path)
    late.claim()
    planned = runs.source.plan(runs.spark, late)
    put("k0", b"newer")
    runs.plan(tmp_path)
    with pytest.raises(runs.modules.faults.BackfillError, match="another run"):
        late.keep_plan(planned)
    put("k1", b"newest")
    put("k3", None)
    manifest = runs.run(tmp_path)
    check_manifest(tmp_path)
    keys = {row["key"]: row["value"] for row in parquet_rows(tmp_path)}

    assert manifest["streams"][f"KV_{bucket}"]["sequence"] == 13
    assert keys == {"k0": b"newer", "k1": b"v7", "k3": b"v9", "k4": b"v10", "k5": b"v11"}

    gone = tmp_path / "gone"
    runs.of_bucket(50, bucket=bucket, minPartitions="1")
    runs.plan(gone)
    for i in range(4):
        put("k5", b"again %d" % i)
    with pytest.raises(Exception, match="1 of 6 messages of the snapshot") as raised:
        runs.run(gone)
    assert "\n" not in one_line(runs.modules.faults, raised.value)

    runs.of_bucket(50, bucket=bucket, failOnDataLoss="false", dropMarkers="false")
    assert runs.run(gone)["missing"] == 1


def test_a_stream_that_was_made_anew(
    runs: Backfill, new_stream: NewStream, publish: Publish, js: JetStream, tmp_path: Path
) -> None:
    """A plan's sequences are never read from another stream of the same name, nor written to."""
    name, target = new_stream(), new_stream()
    publish([(f"{name}.x", b"x")])
    runs.of_range(10, stream=name)
    relay = runs.modules.relay.RelayTarget(
        runs.spark, runs.journal(tmp_path / "b"), target, {}, {"servers": runs.server.url}, 1
    )
    plan = runs.source.plan(runs.spark, runs.journal(tmp_path / "a"))
    plan |= relay.check(plan)
    for each in (name, target):
        js.client.request(f"{js.prefix}.STREAM.DELETE.{each}")
        new_stream(each)
    publish([(f"{name}.x", b"y")])

    anew = f"stream '{name}': the stream was made anew"
    with pytest.raises(runs.modules.faults.BackfillError, match=anew):
        runs.source.check(plan)
    with pytest.raises(runs.modules.faults.BackfillError, match=f"'{target}' was made anew"):
        relay.check(plan)


def test_nothing_to_read(
    runs: Backfill, new_stream: NewStream, publish: Publish, js: JetStream, tmp_path: Path
) -> None:
    """An empty range, a snapshot of nothing and an empty bucket are backfills of no rows."""
    name, target = new_stream(), new_stream()
    bucket = f"B{os.urandom(3).hex()}"
    new_stream(f"KV_{bucket}", subjects=[f"$KV.{bucket}.>"])
    parquet = runs.target
    found = []
    runs.of_range(10, stream=name)
    found.append(runs.run(tmp_path / "range"))
    publish([(f"{name}.x", b"x") for _ in range(3)])
    time.sleep(0.2)
    runs.of_range(10, stream=name, startingTimestamp="-100ms")
    found.append(runs.run(tmp_path / "late"))
    runs.target = lambda journal: runs.modules.relay.RelayTarget(  # type: ignore[method-assign]
        runs.spark, journal, target, {}, {"servers": runs.server.url}, 1
    )
    found.append(runs.run(tmp_path / "copy"))
    assert runs.target(runs.journal(tmp_path / "copy")).faults(found[-1]) == []
    runs.target = parquet  # type: ignore[method-assign]
    runs.of_bucket(10, bucket=bucket)
    found.append(runs.run(tmp_path / "bucket"))

    assert [(each["rows"], each["missing"], each["chunks"]) for each in found] == [(0, 0, 0)] * 4
    guide = (ROOT / "docs" / "guides" / "backfills.md").read_text()
    told = guide.partition("the program writes `_manifest.json`")[2].partition("## Restrictions")[0]
    fields = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", told, re.M)))
    assert set().union(*found) <= set(fields)
    assert runs.target(runs.journal(tmp_path / "bucket")).faults(found[-1]) == []


# ── what is refused ──────────────────────────────────────────────────────────────────────────


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
        backfill.storage.Storage(backfill.storage.Hadoop.of(spark), str(tmp_path / "copy")),
        "test",
        {},
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
    storage = backfill.storage.Storage(backfill.storage.Hadoop.of(spark), str(tmp_path))
    with pytest.raises(backfill.faults.UsageError, match=r"holds 'mine\.parquet' but no backfill"):
        backfill.journal.Journal(storage, "test", {})
    with pytest.raises(backfill.faults.BackfillError, match="nosuch") as raised:
        backfill.storage.Storage(backfill.storage.Hadoop.of(spark), "nosuch://host/path")

    assert "\n" not in str(raised.value)


def test_a_directory_of_another_backfill(
    backfill: SimpleNamespace, spark: SparkSession, tmp_path: Path
) -> None:
    """Settings that rows depend on cannot change from run to run; the error names the one."""
    storage = backfill.storage.Storage(backfill.storage.Hadoop.of(spark), str(tmp_path / "out"))
    journal = backfill.journal.Journal(storage, "test", {"option startingOffsets": "101"})
    journal.claim()
    journal.keep_plan({"chunks": []})
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
    storage = backfill.storage.Storage(backfill.storage.Hadoop.of(spark), str(tmp_path / "out"))
    first = backfill.journal.Journal(storage, "test", {})
    first.claim()
    first.keep_plan({"chunks": [{}, {}]})
    first.record(0, {"rows": 1})
    second = backfill.journal.Journal(storage, "test", {})
    second.claim()
    second.record(1, {"rows": 2})

    assert second.done == {0: {"rows": 1}, 1: {"rows": 2}}
    with pytest.raises(backfill.faults.BackfillError, match="has taken over"):
        first.record(1, {"rows": 3})
    with pytest.raises(backfill.faults.BackfillError, match="has taken over"):
        second.record(1, {"rows": 4})
    assert backfill.journal.Journal(storage, "test", {}).done[1] == {"rows": 2}

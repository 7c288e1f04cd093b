"""Dead letters go back to where they should have gone: each row once, as it was, in order."""

from __future__ import annotations

import importlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.outbox.deadletters import DeadLetters
from pyspark_jetstream.publish import publisher
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.write.rows import MessageBuilder

from ..kits.options import connection_of, sink_of
from ..kits.reading import hang_up
from ..kits.servers import DevServer
from ..kits.shared import eventually
from .backfilled import chunks_done, manifest_of
from .test_backfill import Job, job  # noqa: F401

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE = "pyspark_jetstream.operations.backfill"
NewStream = Callable[..., str]
Publish = Callable[[list[tuple[Any, ...]]], None]
Row = tuple[str, bytes, dict[str, str], str | None]
Shed = Callable[..., None]


@pytest.fixture
def shed(js: JetStream, nats_server: DevServer) -> Shed:
    """Publishes rows (subject, data, headers, id) as dead letters."""

    def send(rows: list[Row], subject: str, reason: str = "QueueTimeout") -> None:
        subjects, data, headers, ids = zip(*rows, strict=True)
        batch = {
            "subject": pa.array(subjects, pa.string()),
            "data": pa.array(data, pa.binary()),
            "headers": pa.array(
                [list(each.items()) for each in headers], pa.map_(pa.string(), pa.string())
            ),
            "msg_id": pa.array(ids, pa.string()),
        }
        messages = MessageBuilder().build(pa.record_batch(batch))
        letters = DeadLetters(subject, "q", 0).of(messages, reason)
        options = sink_of(connection_of(nats_server.url))
        publisher.publish(js.client, WriteContext(options), [letters])

    return send


@pytest.fixture
def modules() -> Iterator[SimpleNamespace]:
    """The modules of a replay; what they leave connected is closed."""
    names = ("copying", "faults", "journal", "letters", "ranges", "storage")
    yield SimpleNamespace(
        job=importlib.import_module("pyspark_jetstream.operations.console.backfills.replay"),
        **{name: importlib.import_module(f"{PLACE}.{name}") for name in names},
    )
    hang_up()


class Replay:
    """One replay in this process, in a directory of its own."""

    def __init__(self, modules: SimpleNamespace, spark: SparkSession, url: str, root: Path) -> None:
        self.modules = modules
        self.spark = spark
        self.connection = {"servers": url}
        self.root = root

    def run(
        self, stream: str, into: str, reasons: tuple[str, ...] = (),
        priorities: tuple[str, ...] = (), chunk: int = 100, **options: str,
    ) -> dict[str, Any]:  # fmt: skip
        """Its manifest."""
        read = {**self.connection, "stream": stream, "includeHeaders": "true", **options}
        source = self.modules.ranges.RangeSource(read, chunk)
        self.lenient = self.modules.ranges.RangeSource(read | {"failOnDataLoss": "false"}, chunk)
        self.selection = self.modules.letters.Selection(reasons, priorities)
        storage = self.modules.storage.Storage(
            self.modules.storage.Hadoop.of(self.spark), str(self.root)
        )
        journal = self.modules.journal.Journal(storage, "test", {})
        target = self.modules.letters.ReplayTarget(
            self.selection, self.spark, journal, into, self.connection, self.connection, 1
        )
        self.manifest: dict[str, Any] = self.modules.copying.copy(
            self.spark, source, target, journal, lambda *_: lambda *_: None
        )
        return self.manifest

    def remove(self) -> int:
        """Removes what was replayed; how many there were."""
        removed: int = self.modules.letters.remove(
            self.spark, self.lenient, self.selection, self.manifest, self.connection
        )
        return removed


@pytest.fixture
def replay(
    modules: SimpleNamespace, spark: SparkSession, nats_server: DevServer, tmp_path: Path
) -> Replay:
    """A replay on the shared server."""
    return Replay(modules, spark, nats_server.url, tmp_path / "replay")


@pytest.mark.slow
def test_rows_come_back_as_they_were(
    replay: Replay, new_stream: NewStream, publish: Publish, shed: Shed, js: JetStream,
    range_df: Callable[..., DataFrame], capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """
    A25: a replay publishes the rows of its target, as they were and in order, and leaves the rest;
    what the target or an earlier dead letter has already is a duplicate. Only what was replayed is
    removed.
    """
    knows = {"duplicate_window": 3600 * 10**9}  # ids, however slow the machine is
    target, other, dead = new_stream(allow_msg_ttl=True, **knows), new_stream(), new_stream(**knows)
    headers = {"X": "y", "Nats-Expected-Stream": target, "Nats-TTL": "1h"}
    rows: list[Row] = [
        (f"{target}.{i % 3}", b"%d" % i, headers if i % 4 == 0 else {}, f"i{i}" if i % 2 else None)
        for i in range(30)
    ]
    publish([(f"{target}.0", b"9", [("Nats-Msg-Id", "i9")])])  # by another attempt of its task
    shed(rows, f"{dead}.{{subject}}")
    publish([(f"{dead}.x", b"no dead letter")])
    shed([(f"{other}.1", b"other", {}, None)], f"{dead}.{{subject}}")
    manifest = replay.run(dead, target, chunk=20)
    replay.modules.job.conclude(manifest, "here")
    said = capsys.readouterr()
    found = range_df(stream=target, includeHeaders="true").orderBy("sequence").collect()[1:]
    expected = [row for row in rows if row[3] != "i9"]

    assert [(row.subject, row.data) for row in found] == [row[:2] for row in expected]
    # What a publish expects of its stream is left out of reads.
    kept = js.messages(target, [{"seq": row.sequence} for row in found])
    for message, (_, _, given, id) in zip(kept, expected, strict=True):
        own = {"Nats-Expected-Stream": target, **given}
        headers = dict(message.headers)
        made = headers.pop("Nats-Msg-Id")
        assert headers == own
        assert made == id if id is not None else made.startswith(f"{manifest['id']}-{dead}-")
    counts = {name: manifest[name] for name in ("rows", "replayed", "duplicates", "missing")}
    assert counts == {"rows": 32, "replayed": 30, "duplicates": 1, "missing": 0}
    assert (manifest["elsewhere"], manifest["no_letters"]) == (1, 1)
    assert manifest["subjects_replayed"][f"{target}.0"] == [10, 1]
    assert "30 dead letters replayed: here" in said.out
    assert f"the next replay of {dead}: --since 33" in said.out
    assert "1 dead letters are for other streams" in said.err

    publish([(f"{dead}.x", b"published since")])
    replay.manifest["replayed"] = 29
    with pytest.raises(replay.modules.faults.BackfillError, match="30 .* and 29 were replayed"):
        replay.remove()
    replay.manifest["replayed"] = 30
    assert replay.remove() == 30
    assert replay.remove() == 0
    left = range_df(stream=dead, failOnDataLoss="false").orderBy("sequence").collect()
    assert [row.data for row in left] == [b"no dead letter", b"other", b"published since"]


def test_some_of_them(
    replay: Replay, new_stream: NewStream, shed: Shed, range_df: Callable[..., DataFrame]
) -> None:
    """
    Reasons, priorities and sequences say which are replayed, and the others are not removed.
    """
    target, dead = new_stream(), new_stream(duplicate_window=100_000_000)
    for n, reason in enumerate(("QueueTimeout", "MaxMemoryUsage", "QueueTimeout")):
        shed([(f"{target}.a", b"%d" % n, {}, f"i{n}")], f"{dead}.x", reason)
    manifest = replay.run(
        dead, target, reasons=("QueueTimeout",), priorities=("normal", "critical"),
        startingOffsets='{"0": 2}',
    )  # fmt: skip

    assert (manifest["rows"], manifest["replayed"]) == (2, 1)
    assert [row.data for row in range_df(stream=target).collect()] == [b"2"]
    assert replay.remove() == 1
    left = range_df(stream=dead, failOnDataLoss="false").orderBy("sequence").collect()
    assert [row.sequence for row in left] == [1, 2]


def test_a_row_that_was_shed_twice(
    replay: Replay, new_stream: NewStream, shed: Shed, js: JetStream,
    range_df: Callable[..., DataFrame],
) -> None:  # fmt: skip
    """
    Two dead letters of one row, as of two attempts of its task, are one row and one duplicate.
    """
    keeps = {"max_msgs_per_subject": 9, "discard": "new", "discard_new_per_subject": True}
    target, dead = new_stream(**keeps), new_stream(duplicate_window=100_000_000)
    for row in ((f"{target}.a", b"x", {}, "i"), (f"{target}.a", b"y", {}, "j")):
        shed([row], f"{dead}.x")

    def is_stored() -> bool:
        """Sheds it again, which is a duplicate until the server has forgotten its id."""
        shed([(f"{target}.a", b"x", {}, "i")], f"{dead}.x")
        return js.stream_info(dead).messages == 3

    eventually(is_stored)
    manifest = replay.run(dead, target)

    assert (manifest["rows"], manifest["replayed"], manifest["duplicates"]) == (3, 3, 1)
    assert [row.data for row in range_df(stream=target).orderBy("sequence").collect()] == [
        b"x",
        b"y",
    ]
    assert replay.remove() == 3


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"max_msgs_per_subject": 1}, "does not keep all it stores"),
        ({"retention": "workqueue"}, "does not keep all it stores"),
        ({"allow_direct": False}, "allow_direct"),
    ],
)
def test_targets_that_cannot_be_taken_up(
    replay: Replay, new_stream: NewStream, shed: Shed, config: dict[str, Any], says: str
) -> None:
    """A target that forgets what it stores is refused before a row moves."""
    target, dead = new_stream(**config), new_stream()
    shed([(f"{target}.a", b"x", {}, "i")], f"{dead}.x")
    with pytest.raises(replay.modules.faults.UsageError, match=says):
        replay.run(dead, target)


def test_dead_letters_that_cannot_be_removed(replay: Replay, new_stream: NewStream) -> None:
    """A stream that denies deletes is refused before a row moves."""
    dead = new_stream(deny_delete=True)
    with pytest.raises(replay.modules.faults.UsageError, match="deny_delete"):
        replay.modules.letters.check_removable(replay.connection, dead)


NARROW = {"duplicate_window": 2_000_000_000, "discard": "new"}
"""With a limit of messages a replay comes to a stop there, and waits."""


@pytest.mark.slow
def test_a_killed_replay_is_taken_up(
    job: Job, new_stream: NewStream, shed: Shed, js: JetStream,  # noqa: F811
    range_df: Callable[..., DataFrame], tmp_path: Path,
) -> None:  # fmt: skip
    """
    A replay whose driver is killed within a chunk, taken up after the duplicate window, leaves each
    row once in the target, each subject in order, and no dead letter.
    """
    target, dead = new_stream(**NARROW, max_msgs=1_700), new_stream()
    rows: list[Row] = [
        (f"{target}.k{i % 70}", b"%d" % i, {"X": f"y{i}"}, f"i-{i}") for i in range(3_000)
    ]
    shed(rows, f"{dead}.{{subject}}")
    manifest = tmp_path / "replay"
    arguments = (
        "replay_dead_letters", "--stream", dead, "--into", target, "--manifest", str(manifest),
        "--chunk-messages", "1500", "--delete",
        "--target-option", "maxInFlight=1", "--target-option", "ackTimeout=1s",
    )  # fmt: skip
    job.ship()
    job.flags += ["--conf", "spark.sql.execution.arrow.maxRecordsPerBatch=50"]
    died, said = job.run(
        "local[2]", *arguments, killed_when=lambda: js.stream_info(target).messages == 1_700
    )
    time.sleep(2)  # past the window
    stored = 1_700
    assert died == -signal.SIGKILL, said[-3000:]
    assert js.stream_info(target).messages == stored
    assert chunks_done(manifest) == 1
    assert js.stream_info(dead).messages == 3_000

    config = js.stream_info(target).config | {"max_msgs": -1}
    js.client.request(f"{js.prefix}.STREAM.UPDATE.{target}", json.dumps(config).encode())
    ended, said = job.run("local[2]", *arguments)
    found = range_df(stream=target, includeHeaders="true").orderBy("sequence").collect()

    assert ended == 0, said[-3000:]
    assert (found[stored].timestamp - found[stored - 1].timestamp).total_seconds() > 2
    assert [row.data for row in found] == [data for _, data, _, _ in rows]
    for n, row in enumerate(found):
        assert row.subject == f"{target}.k{n % 70}"
        assert (row.headers["X"], row.headers["Nats-Msg-Id"]) == ([f"y{n}"], [f"i-{n}"])
    assert (manifest_of(manifest)["replayed"], manifest_of(manifest)["duplicates"]) == (3_000, 0)
    assert "3,000 dead letters replayed" in said
    assert "3,000 dead letters removed" in said
    assert js.stream_info(dead).messages == 0
    job.check_secrets()
    again, said = job.run("local[1]", *arguments)
    assert again == 0, said[-3000:]
    assert "0 dead letters removed" in said
    assert js.stream_info(target).messages == 3_000

"""Target streams that somebody changes under a running write: what the commit notices."""

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_jetstream.errors import (
    TargetChangedError,
)
from pyspark_jetstream.write import streams
from pyspark_jetstream.write.exactlyonce.ids import Ids, TaskName
from pyspark_jetstream.write.exactlyonce.ledger import STREAM, Ledger
from pyspark_jetstream.write.sink import JetStreamBatchWriter, Published
from pyspark_jetstream.write.task import TaskReport

from ..kits.options import connection_of, sink_of
from ..kits.shared import eventually
from ..kits.writing import attempt

ROWS = StructType().add("subject", "string").add("data", "string")
COUNT = 1200


@pytest.fixture(autouse=True)
def a_loss_is_believed_soon(monkeypatch):
    monkeypatch.setattr(streams, "SETTLES_S", 0.1)


def rows(name, meanwhile):
    """Blocks of rows; before the second, when all of the first are stored, something happens."""
    yield from rows_on(meanwhile, lambda i: f"{name}.{i % 7}")


def rows_on(meanwhile, subject):
    for block in range(6):
        if block == 1:
            meanwhile()
        first = block * 200
        yield pa.record_batch({
            "subject": pa.array([subject(i) for i in range(first, first + 200)]),
            "data": pa.array([str(i) for i in range(first, first + 200)]),
        })  # fmt: skip


def anew(js, name, config):
    js.call(f"STREAM.DELETE.{name}")
    js.create_stream(config)


def anew_with_more(js, name, config):
    """So that a later row, of a subject that nobody has looked up, finds it again."""
    anew(js, name, config | {"subjects": [*config["subjects"], f"{name}-more"]})


def purged_and_filled(js, name, config):
    """Others publish more than the write has."""
    js.purge(name, None, None)
    for _ in range(2 * COUNT):
        js.publish(f"{name}.others", b"", [])


def limited(js, name, config):
    js.call(f"STREAM.UPDATE.{name}", config | {"max_msgs": 100})


def purged(js, name, config):
    js.purge(name, None, None)


def run(js, nats_server, name, change, ledger=True, before=10, subject=None, stored=200, **fields):
    """A write, and its commit."""
    config = js.stream_info(name).config
    for i in range(before):
        js.publish(f"{name}.before.{i}", b"x", [])
    Ledger(js).ensure()
    options = sink_of(connection_of(nats_server.url), ledger=ledger, **fields)
    subject = subject or (lambda i: f"{name}.{i % 7}")

    def meanwhile():
        eventually(lambda: js.stream_info(name).last_seq == before + stored)
        change(js, name, config)

    task, report = TaskName(f"w-{name}", 0, 0), TaskReport()
    written = attempt(options, rows_on(meanwhile, subject), task, Ids(name), report)
    assert written.acked + written.dead_letters == COUNT
    writer = JetStreamBatchWriter(options, ROWS)
    writer.write_id = f"w-{name}"
    writer.commit([Published("w", written, streams=tuple(report.seen))])


@pytest.mark.parametrize("ledger", [True, False], ids=["ledger", "once"])
def test_rows_that_are_gone_fail_the_commit(js, nats_server, new_stream, ledger):
    """Every row has its PubAck, and the first two hundred are gone: the commit says so, and how."""
    name = new_stream()

    message = "it was made anew at .*; rows that were stored"
    with pytest.raises(TargetChangedError, match=f"stream '{name}': {message}"):
        run(js, nats_server, name, anew, ledger)


@pytest.mark.parametrize("ledger", [True, False], ids=["ledger", "once"])
def test_rows_that_are_gone_from_one_of_two_targets(js, nats_server, new_stream, ledger):
    """What one stream has lost is not made up for by what another one has."""
    name, other = new_stream(), new_stream()

    with pytest.raises(TargetChangedError, match=f"stream '{name}': it was made anew"):
        run(
            js, nats_server, name, anew_with_more, ledger, stored=100,
            subject=lambda i: f"{(name, other)[i % 2]}.x" if i < 900 else f"{name}-more",
        )  # fmt: skip


def move(js, name, config):
    """Later rows' subjects go to another stream."""
    kept = [f"{name}.before.>", f"{name}.0"]
    js.call(f"STREAM.UPDATE.{name}", config | {"subjects": kept})
    js.create_stream({"name": f"{name}-2", "subjects": [f"{name}.{i}" for i in range(1, 9)]})


def test_rows_that_go_to_a_stream_nobody_looked_up(js, nats_server, new_stream):
    """A later attempt would not look there; without a ledger there is none."""
    name, once = new_stream(), new_stream()
    try:
        with pytest.raises(
            TargetChangedError, match=f"'{name}-2': it has rows that were for {name}"
        ):
            run(js, nats_server, name, move)
        run(js, nats_server, once, move, ledger=False)
    finally:
        for stream in (name, once):
            js.call(f"STREAM.DELETE.{stream}-2")


def test_a_stream_that_is_deleted_at_the_end_fails_the_commit(js, nats_server, new_stream):
    """All rows are stored, and gone with their stream."""
    name = new_stream()
    report = TaskReport()
    options = sink_of(connection_of(nats_server.url))
    written = attempt(options, rows(name, lambda: None), TaskName("w", 0, 0), None, report)
    js.call(f"STREAM.DELETE.{name}")

    with pytest.raises(TargetChangedError, match="it was deleted"):
        JetStreamBatchWriter(options, ROWS).commit(
            [Published("w", written, streams=tuple(report.seen))]
        )


def edited(js, name, config):
    """All that an operator may change, and that takes no row."""
    config |= {
        "description": "edited", "metadata": {"by": "an operator"}, "compression": "s2",
        "max_msgs": 10 * COUNT, "max_bytes": 10**8, "max_age": 3600 * 10**9, "max_consumers": 1,
        "max_msgs_per_subject": COUNT, "duplicate_window": 600 * 10**9, "discard": "new",
        "republish": {"src": f"{name}.>", "dest": f"copies.{name}.>"}, "allow_direct": False,
        "deny_delete": True, "deny_purge": True, "subjects": [*config["subjects"], f"{name}-more"],
        "subject_transform": {"src": f"{name}.>", "dest": f"{name}.t.>"},
    }  # fmt: skip
    js.call(f"STREAM.UPDATE.{name}", config)


def test_an_edit_that_takes_no_row_is_no_alarm(js, nats_server, new_stream):
    """Whoever edits a stream under a write ends it no sooner than an edit takes rows."""
    name = new_stream()
    run(js, nats_server, name, edited)

    assert js.stream_info(name).messages == COUNT + 10


@pytest.mark.parametrize("change", [purged, limited, purged_and_filled])
def test_what_is_removed_is_not_looked_for(js, nats_server, new_stream, change):
    """A purge or a limit amid a write is its operator's business: the batch is committed."""
    run(js, nats_server, new_stream(), change)


@pytest.mark.parametrize("before", [10, 900])
def test_a_batch_that_runs_again_says_that_its_target_was_made_anew(
    js, nats_server, new_stream, before
):
    """The error says what to do; then the batch is written whole."""
    name = new_stream()
    with pytest.raises(TargetChangedError):
        run(js, nats_server, name, anew, before=before)
    options = sink_of(connection_of(nats_server.url), ledger=True)

    def again():
        task = TaskName(f"w-{name}", 0, 0)
        return attempt(options, rows(name, lambda: None), task, Ids(f"{name}2"))

    with pytest.raises(TargetChangedError, match="it was made anew at .* let the ledger forget"):
        again()
    js.purge(STREAM, f"$KV.SPARK_LEDGER.w-{name}.>", None)
    assert again().acked == COUNT

"""A query that reads the rows that it writes: its checkpoint and its commit say so, once."""

from __future__ import annotations

import logging

import pytest

from pyspark_jetstream.write import circles, sink
from pyspark_jetstream.write.exactlyonce.ledger import Ledger

from ..kits.checkpoints import write_checkpoint
from ..kits.pins import Query as Reading
from .test_taken_back import SCHEMA, Query

SAYS = "the query reads rows that it writes: stream '{0}' has its row on '{0}.0'"


@pytest.fixture
def writing(nats_server, js, new_stream):
    """A query's write into a new stream, from which it also may read."""
    Ledger(js).ensure()
    stream = new_stream()
    return Query(nats_server.url, stream, f"q-{stream}")


def committed(query, checkpoint, *batches):
    """Batches of the write, each with its commit, which has the checkpoint."""
    for batch in batches:
        published = query.task(batch)
        sink.JetStreamStreamWriter(query.options, SCHEMA, checkpoint).commit([published], batch)


def told(caplog):
    return [each.getMessage().partition(", which")[0] for each in caplog.records
            if each.levelname == "WARNING"]  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("filter_", "is_one"),
    [("", True), ("{}.>", True), ("{}.1, {}.0", True), ("{}.in.>", False)],
)
def test_a_query_that_reads_its_rows(
    nats_server, writing, tmp_path, caplog, filter_, is_one, version
):
    """
    There is one warning in a run, where a subject of the rows is among those that the query reads.
    """
    subject = {"subject": filter_.replace("{}", writing.target)} if filter_ else {}
    reading = Reading(nats_server, stream=writing.target, readMode="direct", **subject)
    end, _ = reading.plan()
    reading.stop()
    ends = [[{"another": "source"}, end]] * 3
    home = write_checkpoint(tmp_path / "a checkpoint", ends, version=version)
    committed(writing, home.as_uri() if is_one else str(home), 0, 1, 2)

    assert told(caplog) == [SAYS.format(writing.target)] * is_one


def test_a_query_that_reads_another_stream(nats_server, writing, new_stream, tmp_path, caplog):
    """
    Nothing is said of another stream, nor of one that was made anew under the name since.
    """
    reading = Reading(nats_server, stream=new_stream(), readMode="direct")
    end, _ = reading.plan()
    reading.stop()
    anew = end | {
        "streams": {writing.target: "2026-01-01T00:00:00Z"},
        "layout": {"places": [[writing.target]]},
    }
    home = write_checkpoint(tmp_path, [[end], [anew]])
    committed(writing, str(home), 0, 1)

    assert told(caplog) == []


def test_a_checkpoint_that_is_elsewhere(writing, tmp_path, caplog):
    """
    Nothing is known of one on another file system, of a folder without files, or of bad ones.
    """
    caplog.set_level(logging.INFO)
    home = write_checkpoint(tmp_path, [["x"], [None], [{"layout": {"places": [[1]]}}]])
    (tmp_path / "offsets" / "3").write_bytes(b"v1\n{}\n\xff{")
    committed(writing, "s3a://bucket/checkpoint", 0)

    assert told(caplog) == []
    assert [circles.read_by(str(home), batch) for batch in range(5)] == [[]] * 5

"""Target streams that somebody changes under a running write: what the commit notices."""

from __future__ import annotations

import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import LedgerError, TargetChangedError
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.write import changes
from pyspark_jetstream.write.ids import Ids
from pyspark_jetstream.write.ledger import Ledger, TaskName
from pyspark_jetstream.write.sink import JetStreamBatchWriter, Published
from pyspark_jetstream.write.task import Report, Streams, _Attempt, _Task, write_task

from ..kits.options import connection_of, sink_of

ROWS = StructType().add("subject", "string").add("data", "string")
COUNT = 1200


@pytest.fixture(autouse=True)
def a_loss_is_believed_soon(monkeypatch):
    monkeypatch.setattr(changes, "SETTLES_S", 0.1)


def rows(name, meanwhile):
    """Blocks of rows; before the second, when all of the first are stored, something happens."""
    for block in range(6):
        if block == 1:
            meanwhile()
        first = block * 200
        yield pa.record_batch({
            "subject": pa.array([f"{name}.{i % 7}" for i in range(first, first + 200)]),
            "data": pa.array([str(i) for i in range(first, first + 200)]),
        })  # fmt: skip


def anew(js, name, config):
    js._call(f"STREAM.DELETE.{name}")
    js.create_stream(config)


def purged(js, name, config):
    js.purge(name, None, None)


def purged_in_part(js, name, config):
    js.purge(name, None, js.stream_info(name).last_seq - 5)


def to_interest(js, name, config):
    js._call(f"STREAM.UPDATE.{name}", config | {"retention": "interest"})


def nothing(js, name, config):
    pass


def run(js, nats_server, name, change, ledger=True, before=10):
    """A write, and its commit."""
    config = js.stream_info(name).config
    for i in range(before):
        js.publish(f"{name}.before.{i}", b"x", [])
    Ledger(js).ensure()
    options = sink_of(connection_of(nats_server.url), ledger=ledger, publish_mode="auto")

    def meanwhile():
        while js.stream_info(name).last_seq < before + 200:
            pass
        change(js, name, config)

    client, report = Client(options.connection), Report()
    task = TaskName(f"w-{name}", 0, 0)
    written = write_task(client, options, rows(name, meanwhile), task, Ids(name), report=report)
    client.close()
    assert written.acked == COUNT
    writer = JetStreamBatchWriter(options, ROWS)
    writer.write_id = f"w-{name}"
    writer.commit([Published(0, "w", written, streams=tuple(report.seen))])


@pytest.mark.parametrize("ledger", [True, False], ids=["ledger", "once"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (anew, "it was made anew at .* while rows were written"),
        (purged, "sequences 11 to 210 were removed"),
        (purged_in_part, "sequences 11 to 204 were removed"),
        (to_interest, "it was turned from limits to interest retention"),
    ],
)
def test_rows_that_are_gone_fail_the_commit(js, nats_server, new_stream, change, message, ledger):
    """
    Every row has its PubAck, and the first two hundred are gone: the commit says so, and how.
    """
    name = new_stream()

    with pytest.raises(TargetChangedError, match=f"stream '{name}': {message}"):
        run(js, nats_server, name, change, ledger)


def test_a_stream_that_is_deleted_at_the_end_fails_the_commit(js, nats_server, new_stream):
    """
    All rows are stored, and gone with their stream.
    """
    name = new_stream()
    report = Report()
    options = sink_of(connection_of(nats_server.url), publish_mode="auto")
    client = Client(options.connection)
    written = write_task(
        client, options, rows(name, lambda: None), TaskName("w", 0, 0), None, report=report
    )
    client.close()
    js._call(f"STREAM.DELETE.{name}")

    with pytest.raises(TargetChangedError, match="it was deleted"):
        JetStreamBatchWriter(options, ROWS).commit(
            [Published(0, "w", written, streams=tuple(report.seen))]
        )


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_msgs": 50},
        {"max_bytes": 20_000},
        {"max_age": 10**8, "duplicate_window": 10**8},
        {"max_msgs_per_subject": 3},
    ],
    ids=str,
)
def test_messages_that_leave_as_they_should_are_no_alarm(js, nats_server, new_stream, config):
    """
    A stream that keeps as much as it is told to has lost nothing, whatever has left it.
    """
    name = new_stream(**config)
    run(js, nats_server, name, nothing, ledger=False)

    assert js.stream_info(name).last_seq == COUNT + 10


def test_a_purge_of_what_was_there_before_is_no_alarm(js, nats_server, new_stream):
    """
    What a purge removed that no row was among.
    """
    name = new_stream()
    run(js, nats_server, name, lambda js, name, _: js.purge(name, None, 11))

    assert js.stream_info(name).messages == COUNT


def test_readers_of_a_work_queue_are_no_alarm(js, nats_server, new_stream):
    """
    In a work queue what was read is gone, as it should be.
    """
    name = new_stream(retention="workqueue")
    run(js, nats_server, name, purged, ledger=False)

    assert js.stream_info(name).messages == COUNT - 200


def test_the_batch_is_not_committed(js, nats_server, new_stream):
    """
    A batch whose rows are gone is not in the ledger; run again it fails, as it cannot be told what
    is stored.
    """
    name = new_stream()
    with pytest.raises(TargetChangedError):
        run(js, nats_server, name, purged)
    options = sink_of(connection_of(nats_server.url), ledger=True)
    client = Client(options.connection)
    try:
        with pytest.raises(LedgerError, match="begins at sequence 211"):
            write_task(
                client, options, rows(name, lambda: None), TaskName(f"w-{name}", 0, 0), Ids(name)
            )
    finally:
        client.close()


@pytest.mark.parametrize("before", [10, 900])
def test_a_batch_that_runs_again_finds_its_rows_in_the_stream_made_anew(
    js, nats_server, new_stream, before
):
    """
    What was stored before the stream was made anew is gone and is written again; what was stored
    since is found from the first message on, be the new stream longer than the old one or not.
    """
    name = new_stream()
    with pytest.raises(TargetChangedError):
        run(js, nats_server, name, anew, before=before)
    lost = COUNT - js.stream_info(name).messages
    options = sink_of(connection_of(nats_server.url), ledger=True)
    client = Client(options.connection)
    again = write_task(
        client, options, rows(name, lambda: None), TaskName(f"w-{name}", 0, 0), Ids(name)
    )
    client.close()

    assert 200 <= lost <= 400
    assert (again.stored, again.acked, again.duplicates) == (COUNT - lost, lost, 0)
    assert js.stream_info(name).messages == COUNT


class Looking:
    """Of an attempt what looks at streams again; its requests are counted."""

    look = _Attempt._as_they_are

    def __init__(self, connection, *names):
        self._client = Client(connection)
        options = sink_of(connection, ledger=True)
        self._streams = Streams(self._client, options)
        self._task = _Task(self._client, options, TaskName("q", 0, 0), 0, None, None)
        self._asking = threading.Lock()
        self.known = [Target.parse({"name": name, "duplicate_window": 10**9}) for name in names]
        self.turns = []
        requests = self._streams.hasty.requests
        self._streams.hasty.requests = lambda all: self.turns.append(len(all)) or requests(all)

    def close(self):
        self._streams.close()
        self._client.close()


def test_streams_are_looked_at_all_at_once(nats_server, new_stream):
    """
    A look that publishes wait for asks for all streams in one round trip; one that is gone is as it
    was, for publishes will hear so.
    """
    names = [new_stream(duplicate_window=(5 + i) * 10**9) for i in range(4)]
    looking = Looking(connection_of(nats_server.url), *names, "none")
    found = looking.look(looking.known)
    looking.close()

    assert [target.duplicate_window_s for target in found] == [5.0, 6.0, 7.0, 8.0, 1.0]
    assert looking.turns == [5]


@pytest.mark.parametrize(("timeout_s", "brief_s"), [(600.0, 1.0), (0.8, 0.8)])
@pytest.mark.parametrize("silent", ["all", "one"])
def test_a_look_that_publishes_wait_for_is_brief(nats_server, caplog, timeout_s, brief_s, silent):
    """
    Whether streams have changed is asked while PubAcks wait, in the loop that takes them: nobody
    waits `requestTimeout` for an answer that does not come, nor once for each stream.
    """
    prefix = f"{silent}{int(timeout_s)}"
    listener = Client(connection_of(nats_server.url))
    listener.connection.subscribe(f"{prefix}.STREAM.INFO.{'*' if silent == 'all' else 'T'}")
    listener.connection.ping(5)
    connection = replace(
        connection_of(nats_server.url), api_prefix=prefix, request_timeout_s=timeout_s
    )
    caplog.set_level("INFO")
    looking = Looking(connection, "S", "T")
    try:
        found = looking.look(looking.known)
    finally:
        looking.close()
        listener.close()

    which = ["S", "T"].index("S" if silent == "all" else "T")
    assert [target is None for target in found] == [which == 0, which == 1]
    assert f"wait until stream={'ST'[which]} can be looked at" in caplog.text
    assert f"within {brief_s:.1f}s (requestTimeout)" in caplog.text

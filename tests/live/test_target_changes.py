"""Target streams that somebody changes under a running write: what the commit notices."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import (
    DuplicateIdError,
    LedgerError,
    TargetChangedError,
)
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.write.attempt import TaskReport
from pyspark_jetstream.write.exactlyonce import changes, ledger
from pyspark_jetstream.write.exactlyonce.changes import check_targets
from pyspark_jetstream.write.exactlyonce.ids import Ids
from pyspark_jetstream.write.exactlyonce.ledger import Ledger
from pyspark_jetstream.write.exactlyonce.records import TaskName
from pyspark_jetstream.write.results import Published
from pyspark_jetstream.write.sink import JetStreamBatchWriter
from pyspark_jetstream.write.streams import Streams
from pyspark_jetstream.write.task import write_task

from ..kits.options import connection_of, sink_of
from ..kits.shared import eventually
from .test_writes import outlive

ROWS = StructType().add("subject", "string").add("data", "string")
COUNT = 1200


@pytest.fixture(autouse=True)
def a_loss_is_believed_soon(monkeypatch):
    monkeypatch.setattr(changes, "SETTLES_S", 0.1)


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


def purged_in_part(js, name, config):
    js.purge(name, None, js.stream_info(name).last_seq - 5)


def to_interest(js, name, config):
    js.call(f"STREAM.UPDATE.{name}", config | {"retention": "interest"})


def nothing(js, name, config):
    pass


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

    client, report = Client(options.connection), TaskReport()
    task = TaskName(f"w-{name}", 0, 0)
    blocks = rows_on(meanwhile, subject)
    try:
        written = write_task(client, options, blocks, task, Ids(name), report=report)
    finally:
        client.close()
    assert written.acked + written.dead_letters == COUNT
    writer = JetStreamBatchWriter(options, ROWS)
    writer.write_id = f"w-{name}"
    writer.commit(
        [Published(0, "w", written, streams=tuple(report.seen), sequenced=report.sequenced)]
    )


@pytest.mark.parametrize("ledger", [True, False], ids=["ledger", "once"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (anew, "it was made anew at .* while rows were written"),
        (anew_with_more, "it was made anew at .* while rows were written"),
        (purged, "sequences 11 to 210 were removed"),
        (purged_in_part, "sequences 11 to 204 were removed"),
        (purged_and_filled, "sequences 11 to 210 were removed"),
        (limited, r"sequences 11 to \d+ were removed \(purged, or by limits that were set\?\)"),
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


@pytest.mark.parametrize("ledger", [True, False], ids=["ledger", "once"])
@pytest.mark.parametrize("change", [purged, anew_with_more, limited])
def test_rows_that_are_gone_from_one_of_two_targets(js, nats_server, new_stream, change, ledger):
    """
    What one stream has lost is not made up for by what another one has, nor by a second look at it.
    """
    allowed = {"allow_batched": True, "allow_atomic": True}
    name, other = new_stream(**allowed), new_stream(**allowed)
    more = f"{name}-more" if change is anew_with_more else f"{name}.more"

    with pytest.raises(TargetChangedError, match=f"stream '{name}': (sequences|it was made anew)"):
        run(
            js, nats_server, name, change, ledger, stored=100,
            subject=lambda i: f"{(name, other)[i % 2]}.x" if i < 900 else more,
        )  # fmt: skip


def move(js, name, config):
    """Later rows' subjects go to another stream."""
    kept = [f"{name}.before.>", f"{name}.0"]
    js.call(f"STREAM.UPDATE.{name}", config | {"subjects": kept})
    js.create_stream({"name": f"{name}-2", "subjects": [f"{name}.{i}" for i in range(1, 9)]})


def test_rows_that_go_to_a_stream_nobody_looked_up(js, nats_server, new_stream):
    """
    A later attempt would not look there; without a ledger there is none.
    """
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


@pytest.mark.parametrize("where", ["{}.dlq", "{}.{{subject}}"])
@pytest.mark.parametrize("ledger", [True, False], ids=["ledger", "once"])
@pytest.mark.parametrize(
    ("change", "message"),
    [(None, ""), (purged, "sequences 1 to 100 were removed"), (anew, "it was made anew")],
)
def test_dead_letters_that_are_gone(js, nats_server, new_stream, change, message, ledger, where):
    """
    The stream of dead letters, which nobody looks up, has what it acknowledged, or the commit
    fails.
    """
    name, dead = new_stream(), new_stream()
    config = js.stream_info(dead).config

    def act(js, _name, _config):
        eventually(lambda: js.stream_info(dead).last_seq == 100)
        if change is not None:
            change(js, dead, config)

    def write():
        faulty = lambda i: i % 2 and (i < 200 or i >= 1100)  # noqa: E731
        run(
            js, nats_server, name, act, ledger, stored=100, rejects=True,
            subject=lambda i: f"{name}. x" if faulty(i) else f"{name}.x",
            dead_letter_subject=where.format(dead),
        )  # fmt: skip

    if change is None:
        write()
        return
    with pytest.raises(TargetChangedError, match=f"stream '{dead}': {message}"):
        write()


def test_a_stream_that_is_deleted_at_the_end_fails_the_commit(js, nats_server, new_stream):
    """
    All rows are stored, and gone with their stream.
    """
    name = new_stream()
    report = TaskReport()
    options = sink_of(connection_of(nats_server.url))
    client = Client(options.connection)
    written = write_task(
        client, options, rows(name, lambda: None), TaskName("w", 0, 0), None, report=report
    )
    client.close()
    js.call(f"STREAM.DELETE.{name}")

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
    """
    Whoever edits a stream under a write ends it no sooner than an edit takes rows.
    """
    name = new_stream(allow_batched=True, allow_atomic=True)
    run(js, nats_server, name, edited)

    assert js.stream_info(name).messages == COUNT + 10


def test_a_stream_that_keeps_all_from_now_on_is_no_alarm(js, nats_server, new_stream):
    """
    A stream is turned from `interest` to `limits`: what it was given since is there. What nobody
    waited for before is not, as it should be.
    """
    name = new_stream(retention="interest")

    def keep(js, name, config):
        js.call(f"STREAM.UPDATE.{name}", config | {"retention": "limits"})

    run(js, nats_server, name, keep, ledger=False)

    assert js.stream_info(name).messages == COUNT - 200


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
    assert (again.already_stored, again.acked, again.duplicates) == (COUNT - lost, lost, 0)
    assert js.stream_info(name).messages == COUNT


class Looking:
    """A look at streams again; its requests are counted."""

    def __init__(self, connection, *names):
        self._client = Client(connection)
        self._streams = Streams(self._client, sink_of(connection, ledger=True))
        self.look = self._streams.as_they_are
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


def test_a_publisher_without_an_attempt_sees_that_a_window_is_shorter(js, nats_server, new_stream):
    """
    A drain publishes rows of earlier tasks: it looks at their streams as an attempt does.
    """
    name = new_stream(duplicate_window=60 * 10**9)
    client = Client(connection_of(nats_server.url))
    with closing(Streams(client, sink_of(client.options, ledger=True))) as streams:
        targets = streams.targets
        targets.of(pa.array([f"{name}.a"]))
        unchanged = targets.renew_windows()
        js.update_stream(js.stream_info(name).config | {"duplicate_window": 5 * 10**9})
        shorter = targets.renew_windows()
    client.close()

    assert (unchanged, targets.silent) == ({}, "")
    assert {place: target.duplicate_window_s for place, target in shorter.items()} == {0: 5.0}


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
    listener.connection.ping(60.0)
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
    assert f"wait until stream={'ST'[which]} answers" in caplog.text
    assert f"within {brief_s:.1f}s (requestTimeout)" in caplog.text


class Killed(Exception):
    """An attempt ends amid its rows."""


def attempt(js, nats_server, name, dies_after=None):
    """An attempt of a task whose earlier ones the streams have forgotten."""

    def blocks():
        for block, batch in enumerate(rows(name, lambda: None)):
            if block == dies_after:
                eventually(lambda: js.stream_info(name).last_seq > 200 * dies_after)
                raise Killed
            yield batch

    options = sink_of(connection_of(nats_server.url), ledger=True, ack_timeout_s=1.0)
    client = Client(options.connection)
    try:
        return write_task(client, options, blocks(), TaskName(f"w-{name}", 0, 0), Ids(name))
    finally:
        client.close()


@pytest.mark.parametrize("then", [5, -1, 1])
@pytest.mark.parametrize("first", [1, 3, -1])
def test_a_limit_of_subjects_that_changes_between_attempts(
    js, nats_server, new_stream, first, then
):
    """
    What an attempt stored, and what a stream that kept fewer messages of a subject then, or keeps
    fewer now, has replaced, is not written again.
    """
    name = new_stream(max_msgs_per_subject=first)
    js.publish(f"{name}.old", b"", [])  # stays in front
    Ledger(js).ensure()
    with pytest.raises(Killed):
        attempt(js, nats_server, name, dies_after=3)
    config = js.stream_info(name).config
    js.call(f"STREAM.UPDATE.{name}", config | {"max_msgs_per_subject": then})
    outlive(js, name)
    written = attempt(js, nats_server, name)

    assert js.stream_info(name).last_seq == COUNT + 1
    assert (written.already_stored, written.acked) == (600, COUNT - 600)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("clocks_s", [120, 0])
@pytest.mark.parametrize("before", [0, 50])
def test_rows_in_a_stream_that_took_a_subject_over(
    js, nats_server, new_stream, monkeypatch, before, clocks_s, late
):
    """
    An attempt that died had not noted where they were; the next one looks there, too, from the time
    on at which the first one began, or from before that where clocks may differ. Also where only
    later blocks have rows for it.
    """
    monkeypatch.setattr(ledger, "_CLOCKS", timedelta(seconds=clocks_s))
    name = new_stream()
    Ledger(js).ensure()
    config = js.stream_info(name).config
    other = {"name": f"{name}-2", "subjects": [f"{name}-2"]}
    js.create_stream(config | other)
    for _ in range(before):
        js.publish(f"{name}-2", b"", [])
    kept, gone = [f"{name}.{i}" for i in range(4)], [f"{name}.{i}" for i in range(4, 7)]

    def blocks():
        return rows_on(lambda: None, lambda i: f"{name}.{i % 4 if late and i < 200 else i % 7}")

    def taken_over(batches):
        for block, batch in enumerate(batches):
            if block == 1:
                eventually(lambda: js.stream_info(name).last_seq == 200)
                js.call(f"STREAM.UPDATE.{name}", config | {"subjects": kept})
                more = config | other | {"subjects": [f"{name}-2", *gone]}
                js.call(f"STREAM.UPDATE.{name}-2", more)
            if block == 4:
                eventually(
                    lambda: (
                        js.stream_info(name).last_seq + js.stream_info(f"{name}-2").last_seq
                        >= before + 600
                    )
                )
                raise Killed
            yield batch

    options = sink_of(connection_of(nats_server.url), ledger=True, ack_timeout_s=1.0)
    client = Client(options.connection)
    task, looked = TaskName(f"w-{name}", 0, 0), []
    try:
        with pytest.raises(Killed):
            write_task(client, options, taken_over(blocks()), task, Ids(name))
        outlive(js, name, f"{name}-2")
        at = Ledger._as_of
        monkeypatch.setattr(
            Ledger, "_as_of", lambda *those: looked.append(at(*those).end) or at(*those)
        )
        written = write_task(client, options, blocks(), task, Ids(name))
    finally:
        client.close()
        ends = [js.stream_info(stream).last_seq for stream in (name, f"{name}-2")]
        js.call(f"STREAM.DELETE.{name}-2")

    assert sum(ends) == COUNT + before
    assert looked == ([0] if clocks_s else [before])
    assert written.already_stored == COUNT - written.acked >= 600


def test_rows_with_ids_of_their_own_that_an_earlier_attempt_stored(js, nats_server, new_stream):
    """
    A purge that takes what the attempt before had stored is seen by where that was found.
    """
    name = new_stream()
    Ledger(js).ensure()
    options = sink_of(connection_of(nats_server.url), ledger=True)
    client, report = Client(options.connection), TaskReport()

    def blocks(after_first):
        for block, batch in enumerate(rows(name, lambda: None)):
            if block == 1:
                after_first()
            ids = pa.array([f"own-{block}-{i}" for i in range(len(batch))])
            yield batch.append_column("msg_id", ids)

    def die():
        eventually(lambda: js.stream_info(name).last_seq == 200)
        raise Killed

    def purge():
        eventually(lambda: js.stream_info(name).last_seq > 200)
        js.purge(name, None, 101)

    task = TaskName(f"w-{name}", 0, 0)
    with pytest.raises(Killed):
        write_task(client, options, blocks(die), task, None)
    # Once all rows are asked for, somebody purges half of what the first attempt stored.
    late = (batch for part in (blocks(lambda: None), after(purge)) for batch in part)
    written = write_task(client, options, late, task, None, report=report)
    client.close()

    assert (written.already_stored, written.acked) == (200, COUNT - 200)
    with pytest.raises(TargetChangedError, match="sequences 1 to 100 were removed"):
        check_targets(js, report.seen)


def after(act):
    """No rows; something happens when they are asked for."""
    act()
    yield from ()


def purge_subject(js, name, config):
    js.purge(name, f"{name}.3", None)


def delete_one(js, name, config):
    js.call(f"STREAM.MSG.DELETE.{name}", {"seq": 40})


def limit_for_a_moment(js, name, config):
    for limit in (1, -1):
        js.call(f"STREAM.UPDATE.{name}", config | {"max_msgs_per_subject": limit})
        eventually(lambda limit=limit: js.stream_info(name).messages < 150)


HOLES = [(purge_subject, 29), (delete_one, 1), (limit_for_a_moment, 193)]


@pytest.mark.parametrize("ledger", [True, False], ids=["ledger", "once"])
@pytest.mark.parametrize(("change", "gone"), HOLES)
def test_rows_that_are_gone_from_between_others(
    js, nats_server, new_stream, caplog, change, gone, ledger
):
    """
    What is removed from amid the rows, and not from in front, is missed by their number; so it is
    by the next attempt, as long as the stream knows the ids of what it has no more.
    """
    name = new_stream(allow_batched=True, allow_atomic=True)
    with pytest.raises(TargetChangedError, match=f"{gone} messages that were stored while rows"):
        run(js, nats_server, name, change, ledger)
    if ledger:
        with pytest.raises((TargetChangedError, DuplicateIdError)):
            again(js, nats_server, name)


def again(js, nats_server, name):
    """The same rows once more, and their commit."""
    options = sink_of(connection_of(nats_server.url), ledger=True)
    client, report = Client(options.connection), TaskReport()
    task, blocks = TaskName(f"w-{name}", 0, 0), rows(name, lambda: None)
    try:
        written = write_task(client, options, blocks, task, Ids(name), report=report)
    finally:
        client.close()
    writer = JetStreamBatchWriter(options, ROWS)
    writer.write_id = f"w-{name}"
    writer.commit(
        [Published(0, "w", written, streams=tuple(report.seen), sequenced=report.sequenced)]
    )


def test_rows_that_are_gone_from_one_of_two_streams(js, nats_server, new_stream):
    """
    The sum over all targets lacks them.
    """
    name, other = new_stream(), new_stream()
    with pytest.raises(TargetChangedError, match=f"'{name}': 100 messages that were stored while"):
        run(
            js, nats_server, name, lambda js, name, _: js.purge(name, f"{name}.x", None),
            stored=100, subject=lambda i: f"{(name, other)[i % 2]}.x",
        )  # fmt: skip


def test_what_may_be_somebody_else_s_is_a_warning(js, nats_server, new_stream, caplog):
    """
    Where others store in the stream, and more than was removed, nobody knows whose that was.
    """
    name = new_stream(allow_batched=True, allow_atomic=True)

    def removed(js, name, config):
        for _ in range(30):
            js.publish(f"{name}.others", b"", [])
        purge_subject(js, name, config)

    run(js, nats_server, name, removed)

    said = f"stream={name}: 29 messages that were stored during this batch were removed"
    assert said in caplog.text


def test_older_messages_that_are_removed_are_no_alarm(js, nats_server, new_stream, caplog):
    """
    What stood in the stream before is not the write's, whether it was removed before or meanwhile.
    """
    name = new_stream()
    for i in range(5):
        js.publish(f"{name}.older.{i}", b"", [])
    js.call(f"STREAM.MSG.DELETE.{name}", {"seq": 2})

    def remove(js, name, config):
        js.call(f"STREAM.MSG.DELETE.{name}", {"seq": 4})

    run(js, nats_server, name, remove, stored=205)

    assert "were removed" not in caplog.text


@pytest.mark.parametrize("is_there", [True, False])
def test_a_subject_that_moves_to_another_stream_and_back(js, nats_server, new_stream, is_there):
    """
    What went to the other stream is noted, before the attempt fails: the next one finds it there,
    though no subject leads there any more; and writes it anew if that stream is gone.
    """
    name = new_stream()
    config = js.stream_info(name).config
    other = f"{name}-2"
    try:
        with pytest.raises(TargetChangedError, match=f"'{other}': it has rows that were for"):
            run(js, nats_server, name, move)
        there = js.stream_info(other)
        assert 0 < there.messages < COUNT
        if is_there:
            js.call(f"STREAM.UPDATE.{other}", there.config | {"subjects": [f"{other}.x"]})
        else:
            js.call(f"STREAM.DELETE.{other}")
        js.call(f"STREAM.UPDATE.{name}", config)
        again(js, nats_server, name)
        assert js.stream_info(name).messages == 10 + COUNT - there.messages * is_there
    finally:
        js.client.request(f"{js.prefix}.STREAM.DELETE.{other}")


def test_rows_that_an_attempt_before_has_stored_are_no_alarm(js, nats_server, new_stream):
    """
    Without a ledger the next attempt sends them again, and the stream knows their ids: they take no
    sequence.
    """
    name = new_stream(allow_batched=True, allow_atomic=True)
    for _ in range(2):
        run_again(nats_server, name, ledger=False, ids=Ids(name))

    assert js.stream_info(name).messages == COUNT


@pytest.mark.parametrize("ledger", [True, False], ids=["ledger", "once"])
def test_rows_with_ids_that_a_stream_knows_are_no_alarm(js, nats_server, new_stream, ledger):
    """
    Likewise of rows that bring ids along, in another write.
    """
    name = new_stream(allow_batched=True, allow_atomic=True)
    Ledger(js).ensure()
    for write in range(2):
        run_again(nats_server, name, ledger, Ids(f"{name}-{write}"), write, own_ids=True)

    assert js.stream_info(name).messages == COUNT


def run_again(nats_server, name, ledger, ids, write=0, own_ids=False):
    """A whole write, and its commit."""
    options = sink_of(connection_of(nats_server.url), ledger=ledger)
    client, report = Client(options.connection), TaskReport()
    blocks = list(rows(name, lambda: None))
    if own_ids:
        blocks = [block.append_column("msg_id", block.column("data")) for block in blocks]
    task = TaskName(f"w-{name}-{write}", 0, 0)
    try:
        written = write_task(client, options, blocks, task, ids, report=report)
    finally:
        client.close()
    published = Published(0, "w", written, streams=tuple(report.seen), sequenced=report.sequenced)
    JetStreamBatchWriter(options, ROWS).commit([published])

"""
What others do to the consumers that a query reads by: edited, deleted, paused, handed to another.

Each ends in one of three: the query is exact, or it stops with an error that names the cause, or it
waits and says until when.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import (
    ConsumerEditedError,
    ConsumerFencedError,
    DataLossError,
    ForeignClientError,
    OptionError,
)
from pyspark_jetstream.fetch.decoding import deliveries as deliveries_module
from pyspark_jetstream.fetch.options import plain_read
from pyspark_jetstream.fetch.pulling import pinned as pinned_module
from pyspark_jetstream.fetch.pulling import pulls as pulls_module
from pyspark_jetstream.operations.inspection.inspector import Inspector
from pyspark_jetstream.readstream.pinned import durables

from ..kits.layouts import Place
from ..kits.partitions import update
from ..kits.reading import hang_up, query
from ..kits.shared import eventually

__all__ = ["query"]

RETENTIONS = ["limits", "interest", "workqueue"]


def name_of(reader, partition=0):
    """The name of a query's consumer."""
    return f"{reader.planned[-1]['consumer']}-{partition}"


def edit(js, stream, consumer, **fields):
    """As `nats consumer edit` does."""
    config = js.consumer_info(stream, consumer).config | fields
    there = {key: value for key, value in config.items() if value is not None}
    js.create_consumer(stream, there, action="update")


@pytest.fixture
def place(js):
    """Makes the streams of a layout, which go with the test."""
    made = []

    def make(layout="one", **config):
        made.append(Place(js, layout, f"N{time.monotonic_ns()}", **config))
        return made[-1]

    yield make
    for each in made:
        each.remove()


@pytest.fixture
def reading(query):
    """A query that has read twenty messages, by its own consumers, and makes them so."""

    def make(of, **options):
        reader = query(**{"readMode": "consumer"} | of.options | options)
        reader.plan()
        reader.commit()
        of.publish(20)
        reader.drain()
        assert len(reader.rows) == 20
        return reader

    return make


# ── edited ───────────────────────────────────────────────────────────────────────────────────

NO_POLICY = {"priority_policy": None, "priority_groups": None, "priority_timeout": None}
EDITS = {
    "headers_only": ({"headers_only": True}, "headers_only True where it was made with"),
    "filter": ({"filter_subject": "X.>"}, "filter_subject 'X.>' where it was made with no filter"),
    "max_deliver": ({"max_deliver": 3}, "max_deliver 3 where it was made with"),
    "no policy": (NO_POLICY, "no priority_policy where"),
    "another policy": ({"priority_policy": "overflow"}, "priority_policy 'overflow' where"),
}

SETTLING = {
    "max_ack_pending": ({"max_ack_pending": 5}, "max_ack_pending 5 where it was made with"),
    "ack_wait": ({"ack_wait": 10**9}, "ack_wait 1000000000 where it was made with"),
    "backoff": ({"backoff": [10**9], "ack_wait": 10**9}, "ack_wait 1000000000 where"),
}


def filtered(edits, name):
    """An edit whose filter is one of this stream."""
    if edits.get("filter_subject"):
        return edits | {"filter_subject": f"{name}.0.*"}
    return edits


@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize(("edits", "message"), EDITS.values(), ids=EDITS)
def test_a_consumer_that_was_edited_between_batches(js, place, reading, retention, edits, message):
    """
    No row is read by a consumer that delivers otherwise than it was made to: the error names the
    field, what it has and what it had. Set back, the query goes on, and has every message once (but
    for what an `interest` stream did not store, as its only consumer did not want it).
    """
    of = place(retention=retention)
    reader = reading(of)
    stream, name = of.streams[0], name_of(reader)
    was = js.consumer_info(stream, name).config
    edit(js, stream, name, **filtered(edits, stream))
    of.publish(40)

    with pytest.raises(ConsumerEditedError, match=message.replace("X.>", f"{stream}.0.*")):
        eventually(reader.step)
    if reader.committed < len(reader.planned):  # a task found it
        with pytest.raises(OptionError, match="option 'consumer'"):
            reader.restart()
    look = Inspector(js.client, plain_read(js.client.options, stream)).look()
    (problem,) = [each for each in look.problems() if "was edited" in each]
    assert "; set it back (`nats consumer edit`), " in problem
    js.create_consumer(stream, was, action="update")
    reader.restart()
    reader.drain()
    missing = range(21, 60, 2) if (retention, *edits) == ("interest", "filter_subject") else ()
    assert reader.data == [b"m%d" % i for i in range(60) if i not in missing]


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
@pytest.mark.parametrize(("edits", "message"), SETTLING.values(), ids=SETTLING)
def test_a_consumer_whose_acks_were_edited(js, place, reading, retention, edits, message):
    """
    Likewise of what settles messages: a limit of unacknowledged ones would stop the read, an ack
    wait deliver them behind its back.
    """
    of = place(retention=retention)
    reader = reading(of)
    edit(js, of.streams[0], name_of(reader), **edits)
    of.publish(40)

    with pytest.raises(ConsumerEditedError, match=message):
        eventually(lambda: reader.step() and None)  # nothing is heard of new messages: it looks


AMID = {
    "headers_only": {"headers_only": True},
    "filter": {"filter_subject": "X.>"},
    "max_ack_pending": {"max_ack_pending": 10},
    "no policy": NO_POLICY,
}


def known_pin(js, reader, stream):
    """The pin that the driver has heard of, of partition 0."""
    pin = js.consumer_info(stream, name_of(reader)).pinned_id
    eventually(lambda: reader.reader.driver._durables.report(0).get("pinned") == pin)
    return pin


HOLDS = [*[("fresh", retention) for retention in RETENTIONS], ("kept", "limits")]
HOLDS += [("kept", "interest")]  # of a work queue every batch takes a pin of its own


@pytest.fixture(params=HOLDS, ids="-".join)
def held(request, monkeypatch):
    """
    How attempts are pinned, and a retention: anew, or they go on under the pin of the batch before.
    Either way rows come while there is much that is not asked for.
    """
    hold, retention = request.param
    monkeypatch.setattr(pulls_module, "_PULL_MESSAGES", 1_000)
    monkeypatch.setattr(deliveries_module, "MAX_BATCH_ROWS", 500)
    monkeypatch.setattr(pinned_module, "is_another_attempt", lambda: hold == "fresh")
    return hold, retention


@pytest.mark.parametrize("edits", AMID.values(), ids=AMID)
def test_a_consumer_that_is_edited_amid_a_read(js, place, reading, held, edits):
    """
    An edit between two pulls of one read, which obey without a word, ends it with the same error:
    no empty, missing or other rows are in a batch that ends well.
    """
    hold, retention = held
    of = place(retention=retention)
    reader = reading(of, requestTimeout="5s")
    stream, name = of.streams[0], name_of(reader)
    pin = known_pin(js, reader, stream)
    of.publish(12_000)
    reader.plan()
    (task,) = reader.tasks()

    rows = []
    with pytest.raises(ConsumerEditedError):
        for number, batch in enumerate(reader.reader.read(task)):
            rows += batch.to_pylist()
            if number == 0:
                assert (js.consumer_info(stream, name).pinned_id == pin) is (hold == "kept")
                edit(js, stream, name, **filtered(edits, stream))
        if edits.get("max_ack_pending") and retention == "limits":
            raise ConsumerEditedError(stream, 0, "nothing is acknowledged, so nothing is limited")
    assert len(rows) <= 12_000


# Not on interest: there the stream drops what the wrong filter leaves out, a loss. Not on a
# filtered work queue: there the server refuses the other partition's filter.
FILTERS_SET_BACK = {("limits", "one"), ("limits", "filtered"), ("workqueue", "one")}
EDITED_AND_SET_BACK = [
    (held, what, layout)
    for held in HOLDS
    for layout in ("one", "filtered")
    for what in ("headers_only", "filter")
    if what == "headers_only" or (held[1], layout) in FILTERS_SET_BACK
]


@pytest.mark.parametrize(
    ("held", "what", "layout"),
    EDITED_AND_SET_BACK,
    ids=["-".join([*held, what, layout]) for held, what, layout in EDITED_AND_SET_BACK],
    indirect=["held"],
)
def test_a_consumer_that_is_edited_amid_a_read_and_set_back(js, place, reading, held, layout, what):
    """
    Nor does it help that the edit was undone before the read ends; the next attempt is exact.
    """
    hold, retention = held
    of = place(layout, retention=retention)
    reader = reading(of, requestTimeout="5s")
    stream, name = of.streams[0], name_of(reader)
    pin = known_pin(js, reader, stream)
    published = of.publish(24_000, size=1)
    reader.plan()
    task = reader.tasks()[0]
    made = js.consumer_info(stream, name).config.get("filter_subject")
    wrong, right = {"headers_only": True}, {"headers_only": None}
    if what == "filter":
        wrong, right = {"filter_subject": f"{stream}.1.*"}, {"filter_subject": made}

    edited = set_back = False
    with pytest.raises((ConsumerEditedError, DataLossError)):
        for batch in reader.reader.read(task):
            last = batch.to_pylist()[-2:]
            if not edited:
                assert (js.consumer_info(stream, name).pinned_id == pin) is (hold == "kept")
                edit(js, stream, name, **wrong)
                edited = True
            elif not set_back and (
                not last[-1]["data"] or all(".1." in row["subject"] for row in last)
            ):
                edit(js, stream, name, **right)
                set_back = True
    assert set_back
    reader.commit()
    assert sorted(reader.data[20:]) == sorted(published)


@pytest.mark.parametrize("held", HOLDS[-2:], ids="-".join, indirect=True)
def test_two_attempts_go_on_under_one_pin(js, place, reading, held, monkeypatch):
    """
    Where two attempts of a batch have the kept pin at one time, as when Spark runs a stage again
    while a task of it still runs, each ends with an error or has every message; and the next one
    has them.
    """
    of = place(retention=held[1])
    reader = reading(of, requestTimeout="5s")
    stream = of.streams[0]
    known_pin(js, reader, stream)
    published = of.publish(12_000)
    reader.plan()
    (task,) = reader.tasks()
    keep, both, kept = pinned_module.Pinned._kept, threading.Barrier(2, timeout=60), []

    def together(self, last):
        info = keep(self, last)
        if len(kept) < 2:
            kept.append(info is not None)
            both.wait()
        return info

    monkeypatch.setattr(pinned_module.Pinned, "_kept", together)
    ends = []

    def attempt():
        try:
            ends.append([row["data"] for b in reader.reader.read(task) for row in b.to_pylist()])
        except (ConsumerFencedError, ForeignClientError) as error:
            ends.append(error)
        hang_up()

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert kept == [True, True]
    assert len(ends) == 2
    assert all(isinstance(end, Exception) or end == published for end in ends)
    monkeypatch.setattr(pinned_module, "is_another_attempt", lambda: True)
    reader.commit()
    assert reader.data[20:] == published


def test_empty_payloads_are_rows_like_any_other(js, place, reading, caplog):
    """
    Messages without a payload make an attempt look at its consumer once more, and no more.
    """
    of = place()
    reader = reading(of)
    for _ in range(3):
        js.publish(f"{of.streams[0]}.0.x", b"", [])
    reader.drain()

    assert reader.data[-3:] == [b"", b"", b""]


# ── deleted ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layout", ["one", "filtered", "streams"])
@pytest.mark.parametrize("how", ["gone", "made anew"])
def test_a_consumer_that_an_interest_stream_keeps_messages_for_is_deleted(
    js, place, reading, layout, how
):
    """
    The stream drops what comes while the consumer is gone, so an idle query, too, says that: by its
    next look, and after a restart. With failOnDataLoss=false it makes one and goes on.
    """
    of = place(layout, retention="interest")
    reader = reading(of)
    stream, name = of.streams[0], name_of(reader)
    config = js.consumer_info(stream, name).config
    js.delete_consumers([(stream, name)])
    of.publish(10)
    if how == "made anew":
        js.create_consumer(stream, config)

    said = f"the consumer '{name}' {'is gone' if how == 'gone' else 'was made anew'}"
    for _ in range(2):
        with pytest.raises(DataLossError, match=said):
            reader.restart()
            eventually(lambda: reader.step() and None)
    reader.restart(failOnDataLoss="false")
    reader.drain()
    before = len(reader.rows)
    since = of.publish(10)
    eventually(lambda: reader.drain() or len(reader.rows) >= before + len(since))
    assert sorted(reader.data[before:]) == sorted(since)


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_consumer_that_nothing_depends_on_is_deleted(js, place, reading, retention):
    """
    A consumer of the other retentions is made again: nothing is lost with it.
    """
    of = place(retention=retention)
    reader = reading(of)
    js.delete_consumers([(of.streams[0], name_of(reader))])
    of.publish(10)
    reader.drain()
    reader.restart()
    of.publish(10)
    reader.drain()

    assert reader.data == [b"m%d" % i for i in range(40)]


# ── paused ───────────────────────────────────────────────────────────────────────────────────


def pause(js, stream, consumer, seconds):
    """As `nats consumer pause` does; 0 resumes it."""
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat() if seconds else None
    body = json.dumps({"pause_until": until} if until else {}).encode()
    reply = js.client.request(f"{js.prefix}.CONSUMER.PAUSE.{stream}.{consumer}", body)
    assert b'"error"' not in reply.data


@pytest.mark.parametrize("mode", ["auto", "consumer"])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_paused_consumer_is_waited_for(js, place, reading, caplog, monkeypatch, mode, retention):
    """
    A query whose consumer is paused reads nothing around it, in no mode, says until when it waits,
    once, and in its progress; resumed it goes on. The other partition is read meanwhile.
    """
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(durables, "_LOOK_EVERY_S", 0.0)  # it has looked at its consumers each time
    of = place("filtered", retention=retention)
    reader = reading(of, readMode=mode)
    stream, name = of.streams[0], name_of(reader)
    pause(js, stream, name, 600)
    of.publish(1)
    own = Client(js.client.options)  # no two threads read from one connection
    finish = threading.Timer(3.0, lambda: pause(JetStream(own), stream, name, 0))
    finish.start()
    reader.step()  # a task that was planned before the pause is known waits in it
    finish.join()
    of.publish(40)
    pause(js, stream, name, 600)
    of.publish(2)
    reader.drain()
    seen = {row["subject"] for row in reader.rows[21:]}
    report = reader.reader.reportLatestOffset()
    pause(js, stream, name, 0)
    eventually(lambda: reader.drain() or len(reader.rows) == 63)
    own.close()

    assert sorted(reader.data) == sorted(b"m%d" % i for i in range(63))
    assert "pausedUntil" in report["0"] and "pausedUntil" not in report["1"]
    assert seen <= {f"{stream}.0.x", f"{stream}.1.x"}
    assert f"waits: the consumer '{name}' is paused until" in caplog.text
    assert f"stream={stream} consumer={name} goes on" in caplog.text
    assert "pausedUntil" not in reader.reader.reportLatestOffset()["0"]


def test_a_run_that_ends_waits_for_a_pause(js, place, reading):
    """
    `availableNow` ends when all is read that was there, paused or not.
    """
    of = place(retention="workqueue")
    reader = reading(of)
    of.publish(10)
    pause(js, of.streams[0], name_of(reader), 3)
    reader.restart()
    reader.reader.prepareForTriggerAvailableNow()
    reader.drain()

    assert len(reader.rows) == 30


# ── whose checkpoint ─────────────────────────────────────────────────────────────────────────


def test_an_option_that_the_checkpoint_overrides(place, reading, query):
    """
    A query that has run without the option `consumer` goes on with the name in its checkpoint; that
    another one is given is an error with the name to give. (A standby that was added with another
    name would share neither consumers nor lease with it.)
    """
    of = place()
    reader = reading(of)
    own = reader.planned[-1]["consumer"]

    for options in ({"consumer": "mine"}, {"consumer": "mine", "standby": "true"}):
        with pytest.raises(OptionError, match=f"option 'consumer': .*'{own}'.*'mine'"):
            reader.restart(**options)
            reader.step()
    reader.restart(consumer=own, standby="true", priorityTimeout="6s")
    of.publish(5)
    eventually(lambda: reader.drain() or len(reader.rows) == 25)
    other = query(**of.options, consumer=own, standby="true", priorityTimeout="6s")
    assert other.plan() is None or other.read() == []


# ── another N ────────────────────────────────────────────────────────────────────────────────


def test_another_number_of_partitions_than_the_streams_say(js, place, query):
    """
    Streams that say of how many they are one are read as so many: by default, and any other number
    is refused. Where they say nothing, a stream with the next number is in the way of a smaller
    one.
    """
    of = place("streams")
    options = {"stream": of.options["stream"]}
    of.publish(10)
    for given in ({}, {"partitions": 1}):
        with pytest.raises(OptionError, match=f"option 'partitions': .*stream '{of.streams[1]}'"):
            query(**options, **given).drain()
    for stream in of.streams:
        config = js.stream_info(stream).config
        metadata = (config.get("metadata") or {}) | {"pyspark-jetstream.partitions": "2"}
        update(js, stream, metadata=metadata)
    reader = query(**options)
    reader.drain()
    assert len(reader.rows) == 10
    for partitions in (1, 3, 4):
        with pytest.raises(OptionError, match="makes 2 partitions, not"):
            query(**options, partitions=partitions).drain()

"""What others do to the consumers that a query reads by: exact, an error, or a wait."""

import json
import logging
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import ConsumerEditedError, DataLossError, OptionError
from pyspark_jetstream.readstream import watched

from ..kits.layouts import Place
from ..kits.options import BELOW
from ..kits.reading import query
from ..kits.shared import eventually
from ..kits.streams import delete_consumers

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
        reader = query(**{"directBelow": "0"} | of.options | options)
        reader.plan()
        reader.commit()
        of.publish(20)
        reader.drain()
        assert len(reader.rows) == 20
        return reader

    return make


# ── deleted ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layout", ["one", "filtered", "streams"])
@pytest.mark.parametrize("how", ["gone", "made anew"])
def test_a_consumer_that_an_interest_stream_keeps_messages_for_is_deleted(
    js, place, reading, layout, how
):
    """On `interest` a deleted consumer is loss, also after a restart, unless it may be."""
    of = place(layout, retention="interest")
    reader = reading(of)
    stream, name = of.streams[0], name_of(reader)
    config = js.consumer_info(stream, name).config
    delete_consumers(js, [(stream, name)])
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


# ── edited ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_a_consumer_is_edited(js, place, reading, retention):
    """The query stops, with both values, until somebody has set the field back."""
    of = place(retention=retention)
    reader = reading(of)
    edit(js, of.streams[0], name_of(reader), ack_wait=10**10)
    of.publish(10)
    with pytest.raises(ConsumerEditedError, match="ack_wait 10000000000 where its query needs"):
        eventually(lambda: reader.step() and None)
    edit(js, of.streams[0], name_of(reader), ack_wait=365 * 86_400 * 10**9)
    reader.restart()
    reader.drain()

    assert sorted(reader.data) == sorted(b"m%d" % i for i in range(30))


# ── paused ───────────────────────────────────────────────────────────────────────────────────


def pause(js, stream, consumer, seconds):
    """As `nats consumer pause` does; 0 resumes it."""
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat() if seconds else None
    body = json.dumps({"pause_until": until} if until else {}).encode()
    reply = js.client.request(f"{js.prefix}.CONSUMER.PAUSE.{stream}.{consumer}", body)
    assert b'"error"' not in reply.data


@pytest.mark.parametrize("mode", ["auto", "own"])
@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_paused_consumer_is_waited_for(js, place, reading, caplog, monkeypatch, mode, retention):
    """While its consumer is paused a query reads nothing around it, and says until when."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(watched, "_SEATS_EVERY_S", 0.0)  # it looks at its consumers each time
    of = place("filtered", retention=retention)
    reader = reading(of, directBelow=BELOW[mode])
    stream, name = of.streams[0], name_of(reader)
    pause(js, stream, name, 600)
    of.publish(1)
    own = Client(js.client.options)  # no two threads read from one connection
    finish = threading.Timer(3.0, lambda: pause(JetStream(own), stream, name, 0))
    finish.start()
    reader.step()
    finish.join()
    of.publish(40)
    pause(js, stream, name, 600)
    of.publish(2)
    reader.drain()
    seen = len(reader.rows)
    report = reader.reader.reportLatestOffset()
    pause(js, stream, name, 0)
    eventually(lambda: reader.drain() or len(reader.rows) == 63)
    own.close()

    assert sorted(reader.data) == sorted(b"m%d" % i for i in range(63))
    assert "pausedUntil" in report["0"] and "pausedUntil" not in report["1"]
    assert seen < 63
    assert f"waits: the consumer '{name}' is paused until" in caplog.text
    assert f"stream={stream} consumer={name} goes on" in caplog.text
    assert "pausedUntil" not in reader.reader.reportLatestOffset()["0"]


def test_a_run_that_ends_waits_for_a_pause(js, place, reading):
    """`availableNow` ends when all is read that was there, paused or not."""
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
    """The name of the consumer in the checkpoint counts; another one given is an error."""
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

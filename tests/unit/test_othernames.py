"""Names of options elsewhere, and what is said of them."""

from __future__ import annotations

import re
from functools import cache

import pytest

from pyspark_jetstream import othernames
from pyspark_jetstream.option import SPARKS_OWN
from pyspark_jetstream.options import all_options
from pyspark_jetstream.othernames import said_of

from ..kits.options import PARSERS, SECRET, refused

KINDS = list(PARSERS)
ROWS = [
    (kind, name, said)
    for kinds, names, said in othernames._HERE
    for kind in kinds.split()
    for name in names.split()
]


@cache
def named(kind):
    """The options of this kind, in lower case."""
    return {option.name.lower() for option in all_options() if kind in option.kinds}


def test_no_row_speaks_of_an_option_of_ours():
    """
    A name that is an option there is no other name of one; none stands twice.
    """
    once = [(kind, othernames._plain(name), said) for kind, name, said in ROWS]
    said = {(kind, name): said for kind, name, said in once}

    assert [row for row in ROWS if row[1].lower() in named(row[0]) | SPARKS_OWN] == []
    assert [row for row in once if said[row[:2]] != row[2]] == []


def test_what_is_said_names_options_that_are_there():
    """
    Every option that a row names exists where the row is of, and the error is one line with it.
    """
    for kind, name, said in ROWS:
        quoted = re.findall(r"'(\w+)'", said)
        error = refused(kind, {name: SECRET})

        assert {each.lower() for each in quoted} <= named(kind)
        assert quoted or "leave" in said or "column" in said or "PubAck" in said
        assert str(error).endswith(f"; {said}"), name
        assert error.option.lower() == name.lower()
        assert SECRET not in str(error)


@pytest.mark.parametrize("name", othernames.GONE)
def test_a_name_that_went_says_what_takes_its_place(name):
    """
    It is no option any more, wherever it is given.
    """
    for kind in KINDS:
        assert name.lower() not in named(kind)
        assert str(refused(kind, {name: SECRET})).endswith(f"; {othernames.GONE[name]}")


@pytest.mark.parametrize(
    ("kind", "name", "here"),
    [
        ("stream", "kafka.bootstrap.servers", "'servers'"),
        ("stream", "subscribe", "'stream' here, a stream's name or a comma list"),
        ("stream", "subscribePattern", "'streamPattern'"),
        ("stream", "topic", "'stream'"),
        ("sink", "topic", "'subject'"),
        ("stream", "assign", "'partitionSubject'"),
        ("stream", "maxOffsetsPerTrigger", "'maxRecordsPerTrigger'"),
        ("stream", "minOffsetsPerTrigger", "'minRecordsPerTrigger'"),
        ("range", "maxOffsetsPerTrigger", "no trigger"),
        ("stream", "groupIdPrefix", "'consumer'"),
        ("stream", "kafka.group.id", "'consumer'"),
        ("stream", "kafkaConsumer.pollTimeoutMs", "'requestTimeout'"),
        ("stream", "fetchOffset.numRetries", "'requestTimeout'"),
        ("stream", "kafka.ssl.truststore.location", "'tlsCaFile'"),
        ("stream", "kafka.isolation.level", "a setting of Kafka's clients"),
        ("sink", "includeHeaders", "a column headers goes out by itself"),
        ("sink", "kafka.max.block.ms", "a setting of Kafka's clients"),
        ("stream", "url", "'servers'"),
        ("stream", "URLS", "'servers'"),
        ("stream", "port", "'servers'"),
        ("stream", "durable_name", "'consumer'"),
        ("stream", "durable-name", "'consumer'"),
        ("range", "durable", "no consumer"),
        ("stream", "deliver_policy", "'startingOffsets'"),
        ("stream", "startingSequence", "'startingOffsets'"),
        ("range", "opt_start_seq", "'startingOffsets'"),
        ("stream", "ackPolicy", "retention"),
        ("stream", "nkeySeed", "'nkeySeedFile'"),
        ("stream", "nats.host", "'servers'"),
        ("stream", "nats.stream.name", "'stream'"),
        ("stream", "nats.stream.subjects", "'subject'"),
        ("stream", "nats.durable.name", "'consumer'"),
        ("stream", "nats.pull.subscription.stream.name", "'stream'"),
        ("stream", "nats.pull.subscription.durable.name", "'consumer'"),
        ("stream", "nats.pull.consumer.max.batch", "'maxRecordsPerTrigger'"),
        ("stream", "nats.credential.file", "'credentialsFile'"),
        ("stream", "nats.trust-store.path", "'tlsCaFile'"),
        ("stream", "nats.msg.ack.wait.secs", "'ackWait'"),
        ("stream", "nats.js.api-prefix", "'jsApiPrefix'"),
        ("sink", "nats.storage.replicas", "'streamConfig'"),
        ("stream", "nats.datetime.format", "whose options have no prefix"),
        ("stream", "nats.stream", "whose options have no prefix"),
    ],
)
def test_what_people_write_first(kind, name, here):
    """
    Names of Kafka's source, of NATS clients and of the Scala connector get the name they have here,
    with any prefix, case and characters between words.
    """
    assert here in str(refused(kind, {name: "x"}))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("stream", "maxTriggerDelay"),
        ("stream", "startingOffsets"),
        ("stream", "startingTimestamp"),
        ("range", "endingOffsets"),
        ("range", "endingTimestamp"),
        ("stream", "failOnDataLoss"),
        ("stream", "includeHeaders"),
        ("stream", "minPartitions"),
        ("stream", "consumer"),
        ("stream", "maxBytesPerTrigger"),
        ("stream", "credentials"),
        ("sink", "token"),
    ],
)
def test_names_that_are_the_same_here_stay_ours(kind, name):
    """
    What has the same name there and here is an option of ours, and nothing is said of it.
    """
    assert name.lower() in named(kind)
    assert said_of(name, kind) is None


def test_a_name_from_nowhere():
    """
    What no row names has no answer.
    """
    assert [said_of("zzqqxx", kind) for kind in KINDS] == [None] * 3

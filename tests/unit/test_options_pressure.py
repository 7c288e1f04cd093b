"""Options of writes under pressure: pauses, queue, priorities, shedding."""

from __future__ import annotations

import pytest

from pyspark_jetstream import values as value_of
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.outbox.priority import Priority

from ..kits.options import priorities_of, rules_of


def test_a_write_under_pressure():
    """
    What the options of pauses, queue, priorities and shedding become.
    """
    options = parse_sink(
        {
            "throttleSubject": "ops.throttle",
            "throttleMaxWait": "1m",
            "bufferMemory": "8MiB",
            "queueSize": "sqrt",
            "queueTimeout": "30s",
            "publishTimeout": "20s",
            "overloadPolicy": "dead-letter",
            "deadLetterSubject": "dead.{subject}",
            "shedPriorities": "normal, non-critical",
            "prioritySubjects": "orders.>=critical, metrics.*=non-critical",
            "priorityHeader": "X-Priority",
            "priorityClaim": "tenant",
            "priorityClaimValues": "acme=critical",
            "priorityStrategies": "claim, header",
            "priorityResolver": "mine.rules:urgency",
        }
    )

    assert options.window.max_in_flight_bytes == 2 << 20
    assert options.throttle
    assert options.throttle_subject == "ops.throttle"
    assert options.dead_letter_subject == "dead.{subject}"
    assert options.rules == rules_of(
        queue_size="sqrt",
        queue_bytes=2 << 20,
        held_bytes=4 << 20,
        sheddable=frozenset({Priority.NORMAL, Priority.NON_CRITICAL}),
        queue_timeout_s=30.0,
        publish_timeout_s=20.0,
        throttle_max_wait_s=60.0,
    )
    assert options.priorities == priorities_of(
        subjects=(("orders.>", Priority.CRITICAL), ("metrics.*", Priority.NON_CRITICAL)),
        header="X-Priority",
        claim="tenant",
        claim_values=(("acme", Priority.CRITICAL),),
        strategies=("claim", "header"),
    )
    assert options.priority_resolver == "mine.rules:urgency"


@pytest.mark.parametrize("name", ["none", "NONE", " ", ""])
def test_b20_a_throttle_subject_may_be_none(name):
    """
    B20: then operators can pause nothing; else they can.
    """
    options = parse_sink({"throttleSubject": name})

    assert (options.throttle, options.throttle_subject) == (False, None)
    assert parse_sink({}).throttle_subject == "spark.jetstream.throttle"


@pytest.mark.parametrize(("text", "wait_s"), [("0", 0.0), ("0s", 0.0), ("5m", 300.0)])
def test_b14_to_wait_no_time_is_to_fail_fast(text, wait_s):
    """
    B14: with `throttleMaxWait=0` a paused row has only `publishTimeout`.
    """
    rules = parse_sink({"throttleMaxWait": text}).rules

    assert (rules.throttle_max_wait_s, rules.fail_fast) == (wait_s, wait_s == 0)


@pytest.mark.parametrize("size", ["1", "3B", "1MiB", "128MiB"])
def test_buffer_memory_bounds_all_rows_of_a_task(size):
    """
    A9, B18: what is on the wire, in the queue and paused has parts of it, and together no more.
    """
    options = parse_sink({"bufferMemory": size})
    parts = options.window.max_in_flight_bytes, options.rules.queue_bytes

    assert min(*parts, options.rules.held_bytes) > 0
    assert sum(parts) + options.rules.held_bytes <= max(3, value_of.size(size))
    assert parse_sink({"bufferMemory": "128MiB"}) == parse_sink({})


def test_the_shortest_metrics_interval():
    """
    100 ms; a shorter one is refused (below).
    """
    found = parse_sink({"metricsSubject": "m", "metricsInterval": "100ms"})

    assert found.metrics.metrics_interval_s == 0.1


def test_a18_nothing_is_shed_by_default():
    """
    A18, I3: the default is to block; with another policy only non-critical rows are shed.
    """
    assert parse_sink({}).rules.sheddable == frozenset()
    assert parse_sink({"overloadPolicy": "drop"}).rules.sheddable == {Priority.NON_CRITICAL}
    assert parse_sink({"overloadPolicy": "drop"}).drops


def test_rejected_rows_may_be_dead_letters():
    """
    overload.md §10: onReject sheds nothing.
    """
    options = parse_sink({"onReject": "dead-letter", "deadLetterSubject": "dead"})

    assert (options.rows.rejects, options.drops, options.dead_letter_subject) == (
        True,
        False,
        "dead",
    )
    assert options.rules.sheddable == frozenset()
    assert not parse_sink({}).rows.rejects


@pytest.mark.parametrize(
    ("given", "blamed", "text"),
    [
        ({"overloadPolicy": "dead-letter"}, "deadLetterSubject", "give both"),
        ({"deadLetterSubject": "dead"}, "deadLetterSubject", "give both"),
        ({"deadLetterSubject": "dead", "onReject": "fail"}, "deadLetterSubject", "give both"),
        ({"onReject": "dead-letter"}, "deadLetterSubject", "give both"),
        ({"throttleReroute": "true"}, "throttleReroute", "needs a subjectMapping"),
        ({"throttleParkBytes": "1GiB"}, "throttleParkBytes", "is not given"),
        ({"throttleParkStream": "P"}, "throttleParkStream", "writeStream with exactlyOnce"),
        (
            {
                "throttleReroute": "true",
                "subjectMapping": '{"a": "b.{{random(2)}}"}',
                "mappingKey": "subject",
            },
            "throttleReroute",
            "keys",
        ),
        ({"maxCpuPercent": "0"}, "maxCpuPercent", "positive"),
        ({"overloadPolicy": "drop", "onReject": "dead-letter"}, "deadLetterSubject", "give both"),
        ({"deadLetterSubject": "dead.*"}, "deadLetterSubject", "wildcard"),
        (
            {"overloadPolicy": "dead-letter", "deadLetterSubject": "dead", "subject": "dead"},
            "deadLetterSubject",
            "dead",
        ),
        ({"overloadPolicy": "drop", "shedPriorities": "critical"}, "shedPriorities", "never shed"),
        ({"overloadPolicy": "drop", "shedPriorities": "low"}, "shedPriorities", "expected"),
        ({"shedPriorities": "normal"}, "shedPriorities", "block"),
        ({"priorityClaim": "tenant"}, "priorityClaim", "give both"),
        ({"priorityClaimValues": "a=critical"}, "priorityClaim", "give both"),
        ({"prioritySubjects": "orders.>=high"}, "prioritySubjects", "critical, normal"),
        ({"priorityStrategies": "header, header"}, "priorityStrategies", "each once"),
        ({"priorityResolver": "function"}, "priorityResolver", "package.module:function"),
        ({"throttleMaxWait": "0.0s"}, "throttleMaxWait", "more than zero"),
        ({"throttleMaxWait": "10"}, "throttleMaxWait", "a duration with its unit"),
        ({"metricsInterval": "1s"}, "metricsInterval", "needs option 'metricsSubject'"),
        ({"bufferMemory": "0"}, "bufferMemory", "a size such as"),
        ({"throttleSubject": "a.*"}, "throttleSubject", "wildcard"),
        ({"queueSize": "none"}, "queueSize", "auto, sqrt"),
        ({"metricsSubject": "m", "metricsInterval": "99ms"}, "metricsInterval", "at least 100ms"),
    ],
)
def test_a19_a20_pressure_that_cannot_be_meant_is_refused(given, blamed, text):
    """
    A19, A20: critical rows are never shed, and dead letters have somewhere to go: on the driver.
    """
    with pytest.raises(OptionError) as raised:
        parse_sink(given)
    assert raised.value.option == blamed
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [({"throttleSubject": "none"}, "nobody pauses"), ({"exactlyOnce": "false"}, "exactlyOnce")],
)
def test_b27_rows_are_parked_where_they_can_be_sent_on(given, why):
    """
    B27: a streaming write with a ledger that operators can pause has a parking stream.
    """
    options = {"throttleParkStream": "P", "throttleParkBytes": "1MiB"}
    rules = parse_sink(options, streaming=True).rules
    assert (rules.park_stream, rules.park_bytes) == ("P", 1 << 20)
    assert parse_sink({}, streaming=True).rules.park_stream is None

    with pytest.raises(OptionError, match=why) as raised:
        parse_sink(options | given, streaming=True)
    assert raised.value.option == "throttleParkStream"

"""Consumers that are there before a query: which it reads as they are, and which it refuses."""

from __future__ import annotations

import json

import pytest

from pyspark_jetstream.errors import OptionError

from ..kits.pins import Query
from ..kits.shared import eventually


@pytest.fixture
def query(nats_server):
    """Makes queries on the shared server."""
    made = []

    def make(**options):
        made.append(Query(nats_server, **options))
        return made[-1]

    yield make
    for query in made:
        query.stop()


OTHERS = {
    "push": (
        {"deliver_subject": "to.me", "priority_policy": None, "priority_groups": None},
        "deliver_subject 'to.me', a push consumer where this query needs a pull consumer",
    ),
    "no group": (
        {"priority_policy": None, "priority_groups": None},
        "no priority_policy where this query needs priority_policy 'pinned_client'",
    ),
    "another group": ({"priority_groups": ["jobs"]}, "priority_groups ['jobs'] where"),
    "two groups": ({"priority_groups": ["spark", "jobs"]}, "priority_groups ['spark', 'jobs']"),
    "another policy": ({"priority_policy": "overflow"}, "priority_policy 'overflow' where"),
    "another ack policy": ({"ack_policy": "explicit"}, "ack_policy 'explicit' where"),
    "another filter": ({"filter_subject": "{stream}.a"}, "filter_subject '{stream}.a' where"),
    "filters": ({"filter_subjects": ["{stream}.a", "{stream}.b"]}, "filter_subjects ["),
    "another start": ({"deliver_policy": "new"}, "deliver_policy 'new' where"),
    "with payloads": ({"headers_only": False}, "headers_only False where"),
}


@pytest.mark.parametrize("changes,error", OTHERS.values(), ids=OTHERS)
def test_a_consumer_of_another_kind_is_refused(js, new_stream, publish, query, changes, error):
    """
    A consumer that is there already and cannot be read as this query reads is one clear error on
    the driver, before a row moves; it is left as it was.
    """
    stream = new_stream()
    publish([(f"{stream}.a", b"x")])
    config = {
        "durable_name": "there-0", "ack_policy": "none", "deliver_policy": "all",
        "headers_only": True,
        "priority_policy": "pinned_client", "priority_groups": ["spark"],
    }  # fmt: skip
    filled = json.loads(json.dumps(changes).replace("{stream}", stream))
    config = {key: value for key, value in (config | filled).items() if value is not None}
    js.create_consumer(stream, config)
    before = js.consumer_info(stream, "there-0").config
    with pytest.raises(OptionError) as caught:
        query(stream=stream, consumer="there", directBelow="0").batch()

    text = str(caught.value)
    assert error.replace("{stream}", stream) in text
    assert "option 'consumer'" in text and "choose another prefix" in text
    assert js.consumer_info(stream, "there-0").config == before


def test_what_a_consumer_may_have_of_its_own(js, new_stream, publish, query):
    """What does not matter to the rows, such as a description, stays as somebody made it."""
    stream = new_stream()
    publish([(f"{stream}.a", b"x")])
    config = {
        "durable_name": "there-0", "ack_policy": "none", "deliver_policy": "all",
        "headers_only": True,
        "description": "of ours", "priority_policy": "pinned_client", "priority_groups": ["spark"],
        "metadata": {"team": "air"}, "priority_timeout": 50 * 10**9, "max_batch": 1,
    }  # fmt: skip
    js.create_consumer(stream, config)
    one = query(stream=stream, consumer="there", directBelow="0")
    one.batch()
    after = js.consumer_info(stream, "there-0").config

    assert one.sequences == [1]
    assert after["description"] == "of ours"
    assert after["priority_timeout"] == 50 * 10**9
    assert after["metadata"]["team"] == "air"
    assert after["metadata"]["pyspark-jetstream.query"] == one.at["query"]


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_a_consumer_of_another_query(js, new_stream, publish, query, caplog, retention):
    """
    While the first query reads, the second is refused by its name, which goes on. When it is gone,
    the consumer of a `limits` stream, which only showed its position, is the second one's; where a
    stream keeps messages for it, that is for somebody to say.
    """
    stream = new_stream(retention=retention)
    of = {"stream": stream, "consumer": "c", "priorityTimeout": "6s"}
    one = query(**of, queryName="first")
    one.batch()
    publish([(f"{stream}.a", b"x")] * 3)
    named = rf"'c-0' is that of query {one.at['query']} 'first'"
    with pytest.raises(OptionError, match=f"{named} .*, which reads"):
        query(**of).batch()
    read = eventually(one.batch)
    one.stop()
    two = query(**of)
    if retention == "limits":
        two.batch()
        assert two.sequences == [1, 2, 3]
        assert "was that of query" in caplog.text and "'first'" in caplog.text
    else:
        with pytest.raises(OptionError, match=f"{named} .*, which has another checkpoint"):
            two.batch()

    assert read == [1, 2, 3]

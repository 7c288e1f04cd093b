"""A shared consumer that somebody edits under its queries."""

import json

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.errors import ConsumerEditedError

from ..kits.reading import jobs as query
from ..kits.shared import eventually, numbered
from ..kits.streams import answer

__all__ = ["query"]


def edit(js, name, **changes):
    config = js.consumer_info(name, "jobs-0").config | changes
    config = {key: value for key, value in config.items() if value is not None}
    js.create_consumer(name, config, "update")


def test_what_a_filter_passes_over_is_read_after_a_reset(js, new_stream, publish, query):
    """After an edited filter, a reset delivers what was passed over, as the guide says."""
    name = new_stream(retention="workqueue")
    one = query(stream=name, maxRecordsPerTrigger=14, ackWait="2s")
    assert one.claim() is None
    publish(numbered(name, 70))
    assert one.step() == 14
    edit(js, name, filter_subject=f"{name}.0")
    hands_back(js, name, 3)
    with pytest.raises(ConsumerEditedError, match="does not deliver by itself any more"):
        one.drain()
    edit(js, name, filter_subject=None)
    one.restart()
    eventually(lambda: is_at_its_end(js, name, one))
    assert 14 < len(one.rows) < 70, "nothing was passed over"
    one.die()
    js.call(f"CONSUMER.RESET.{name}.jobs-0", {"seq": 1})
    one.restart()
    eventually(lambda: is_at_its_end(js, name, one))

    assert sorted(one.sequences) == list(range(1, 71))


def is_at_its_end(js, name, one):
    """Whether there is nothing for the query, nor will be."""
    one.drain()
    info = js.consumer_info(name, "jobs-0")
    return info.num_pending + info.num_ack_pending == 0


def hands_back(js, name, count):
    """Another reader pulls so many messages, and wants none of them."""
    group = js.consumer_info(name, "jobs-0").config["priority_groups"][0]
    connection = js.client.connection
    inbox = connection.new_inbox()
    sid = connection.subscribe(inbox)
    pull = json.dumps({"batch": count, "group": group, "no_wait": True}).encode()
    connection.send(wire.pub(f"{js.prefix}.CONSUMER.MSG.NEXT.{name}.jobs-0", pull, inbox))
    for _ in range(count):
        connection.send(wire.pub(answer(connection, sid).reply.decode(), b"-NAK"))
    connection.unsubscribe(sid)
    connection.ping(60.0)

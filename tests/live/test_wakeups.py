"""A driver's consumers stand where its query is, and wake it when a message comes."""

from __future__ import annotations

import pytest

from pyspark_jetstream.readstream import rangedriver

from ..kits.pins import Query
from ..kits.shared import eventually


@pytest.mark.parametrize("layout", ["one", "filtered"])
@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_consumers_stand_where_the_query_is(
    nats_server, js, new_stream, publish, retention, layout
):
    """
    When Spark asks for what follows a batch, the batch is settled, also if nothing follows: the
    server shows no lag, and streams that keep messages for the query keep none of it.
    """
    name = new_stream(retention=retention)
    options = {"stream": name, "consumer": "c"}
    if layout == "filtered":
        options |= {"partitions": 2, "partitionSubject": f"{name}.{{partition}}.>"}
    query = Query(nats_server, **options)
    query.batch()
    names = [(name, f"c-{i}") for i in range(2 if layout == "filtered" else 1)]
    for count in (3, 20):
        publish([(f"{name}.{i % 2}.x", b"x") for i in range(count)])
        eventually(query.batch)
        query.batch()
        eventually(lambda: all(i and i.num_pending == 0 for i in js.consumer_infos(names)))
    left = js.stream_info(name).messages
    query.stop()

    assert query.sequences == list(range(1, 24))
    assert left == (23 if retention == "limits" else 0)


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_a_message_wakes_an_idle_driver(nats_server, new_stream, publish, monkeypatch, retention):
    """Nothing else does here: it looks at its streams once a minute."""
    name = new_stream(retention=retention)
    query = Query(nats_server, stream=name)
    query.batch()
    pins = query.reader.driver._seats.pins
    for _ in range(3):
        eventually(lambda: not query.batch() and pins.hears)
        with monkeypatch.context() as patched:
            patched.setattr(rangedriver, "_LOOK_EVERY_S", 60.0)
            patched.setattr(rangedriver, "_LOOK_SELDOM_S", 60.0)
            publish([(f"{name}.x", b"x")])
            assert eventually(query.batch, 30.0)
    query.stop()

    assert query.sequences == [1, 2, 3]

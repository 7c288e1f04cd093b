"""Every way in which a server refuses a publish, provoked; and what it becomes."""

import json
import threading

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.wire import header_block
from pyspark_jetstream.errors import (
    ProducerThrottledError,
    PublishRejectedError,
    PublishTimeoutError,
)
from pyspark_jetstream.outbox.throttling import throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason
from pyspark_jetstream.publish.settings import SinkOptions
from pyspark_jetstream.values import Secret
from pyspark_jetstream.write.headerlines import DROPPED

from ..kits.clients import serving
from ..kits.options import changed, connection_of, sink_of
from .test_publisher import publish

LISTS = pa.map_(pa.string(), pa.list_(pa.string()))


def rows(subject, count, size=10, **headers):
    """One batch of rows of this size; row i has the id m<i>, so that a retry stores it once."""
    named = [(name.replace("_", "-"), [value]) for name, value in headers.items()]
    return pa.record_batch(
        {
            "subject": pa.array([subject] * count),
            "data": pa.array(["x" * size] * count),
            "headers": pa.array([named or None] * count, LISTS),
            "msg_id": pa.array([f"m{i}" for i in range(count)]),
        }
    )


def brief(server, **changes) -> SinkOptions:
    """Options of a write that gives up soon."""
    options = sink_of(connection_of(server.url), publish_timeout_s=6.0, allow_rollup=True)
    return changed(options, ack_timeout_s=5.0, **changes)


@pytest.mark.parametrize(
    ("config", "batch", "err_code", "text"),
    [
        ({"max_msg_size": 50}, {"size": 100}, 10054, "message size exceeds maximum"),
        ({"sealed": True}, {}, 10109, "sealed"),
        ({}, {"Nats_Expected_Last_Sequence": "99"}, 10071, "wrong last sequence"),
        ({}, {"Nats_Expected_Last_Msg_Id": "none"}, 10070, "wrong last msg ID"),
        ({}, {"Nats_Expected_Stream": "OTHER"}, 10060, "expected stream does not match"),
        ({"allow_rollup_hdrs": False}, {"Nats_Rollup": "sub"}, 10111, "rollup not permitted"),
        ({"allow_msg_ttl": True}, {"Nats_TTL": "10ms"}, 10165, "invalid per-message TTL"),
        ({}, {"Nats_TTL": "5s"}, 10166, "per-message TTL is disabled"),
        ({}, {"Large": "x" * 66_000}, 10097, "header size exceeds maximum"),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
def test_what_a_stream_never_takes_is_rejected(
    nats_server, js, new_stream, config, batch, err_code, text
):
    """A refusal that will not change ends the task at once, with the server's code and the row."""
    sealed = config.pop("sealed", False)
    name = new_stream(**config)
    if sealed:
        js.client.request(
            f"{js.prefix}.STREAM.UPDATE.{name}",
            json.dumps(js.stream_info(name).config | {"sealed": True}).encode(),
        )

    with pytest.raises(PublishRejectedError, match=f"row 0: .*{text}") as raised:
        publish(js.client, brief(nats_server), [rows(f"{name}.a", 3, **batch)])
    assert raised.value.err_code == err_code
    assert js.stream_info(name).messages == 0


@pytest.fixture
def pauses_tell(monkeypatch):
    """Pauses are why a publish ran out of its time also on a busy machine."""
    monkeypatch.setattr(throttle, "_SHARE", 0.2)


@pytest.mark.usefixtures("pauses_tell")
@pytest.mark.parametrize(
    ("config", "room"),
    [
        ({"max_msgs": 5, "discard": "new"}, {"below": None}),
        ({"max_bytes": 500, "discard": "new"}, {"below": None}),
        (
            {"max_msgs_per_subject": 5, "discard": "new", "discard_new_per_subject": True},
            {"below": None},
        ),
    ],
    ids=["max_msgs", "max_bytes", "max_msgs_per_subject"],
)
def test_a_limit_is_waited_for(nats_server, js, new_stream, config, room):
    """A full stream (10077) fails at publishTimeout; one that gets room takes all."""
    name = new_stream(**config)
    batch = [rows(f"{name}.a", 20)]

    with pytest.raises(
        ProducerThrottledError,
        match="maximum .* exceeded.*lift|refused .*TopicProduceQuotaExceeded",
    ) as raised:
        publish(js.client, brief(nats_server), batch)
    assert raised.value.err_code == 10077
    assert 0 < js.stream_info(name).messages < 20

    other = JetStream(Client(connection_of(nats_server.url)))
    stop = threading.Event()

    def make_room():
        while not stop.wait(0.1):
            other.purge(name, None, room["below"])

    purger = threading.Thread(target=make_room)
    purger.start()
    try:
        patient = brief(nats_server, publish_timeout_s=30.0)
        counts = publish(js.client, changed(patient, publish_timeout_s=30.0), batch)
    finally:
        stop.set()
        purger.join()
        other.client.close()

    assert counts.acked == 20
    assert js.stream_info(name).last_seq == 20


def test_a_stream_that_does_not_ack_is_a_timeout(nats_server, js, new_stream):
    """With `no_ack` nobody answers; the error says what to look for."""
    name = new_stream(no_ack=True)

    with pytest.raises(PublishTimeoutError, match="no PubAck within ackTimeout.*no_ack"):
        publish(js.client, brief(nats_server), [rows(f"{name}.a", 2)])


ACCOUNT = """
accounts { A {
    jetstream: { max_file: 300K, max_mem: 0 }
    users: [ { user: u, password: p } ]
} }
"""
SERVER = "jetstream { max_file_store: 300K, max_memory_store: 0 }"


@pytest.mark.usefixtures("pauses_tell")
@pytest.mark.parametrize(
    ("config", "err_codes", "reason"),
    [
        (ACCOUNT, {10002}, Reason.ResourceGroupProduceQuotaExceeded),
        (SERVER, {10023, 10047}, Reason.BrokerProduceQuotaExceeded),
    ],
    ids=["account", "server"],
)
def test_storage_that_is_used_up_is_waited_for(config, err_codes, reason):
    """§12.3: account (10002, reason 1) or server (10023, reason 4), and it says which."""
    login = {"user": "u", "password": Secret("p")} if "users" in config else {}
    with serving(config, {"S": {"storage": "file"}}, **login) as (_, js):
        options = sink_of(js.client.options, publish_timeout_s=6.0, ack_timeout_s=5.0)

        with pytest.raises(ProducerThrottledError) as raised:
            publish(js.client, options, [rows("S.a", 1000, size=1000)])
        assert raised.value.reason == reason.name
        assert raised.value.err_code in err_codes, raised.value
        assert "has used up its storage: raise its limits" in str(raised.value)
        assert 0 < js.stream_info("S").messages < 1000


REFUSED = {
    "Nats-Stream-Source": "S 1",
    "Nats-Batch-Id": "b",
    "Nats-Incr": "+1",
    "Nats-Schedule": "@every 1m",
}


@pytest.mark.parametrize("header", REFUSED)
def test_headers_of_servers_are_refused_by_them_and_never_sent(nats_server, js, new_stream, header):
    """The server refuses a publish with such a header; a row that has it is stored without it."""
    name = new_stream()
    refused = js.client.request(f"{name}.a", b"x", header_block([(header, REFUSED[header])]))
    counts = publish(
        js.client, brief(nats_server), [rows(f"{name}.a", 1, **{header.replace("-", "_"): "x"})]
    )

    assert header in DROPPED
    assert b'"error"' in refused.data, refused
    assert (counts.acked, js.stream_info(name).messages) == (1, 1)

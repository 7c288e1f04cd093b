"""Headers that a server acts on, stored by a stranger: not read, no effect when copied."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream import serverheaders
from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import JetStreamError
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.layout import Slice
from pyspark_jetstream.serverheaders import (
    EXPECTS,
    KEPT,
    MADE,
    NOT_READ,
    NOT_WRITTEN,
    ORDERS,
    PLACES,
)
from pyspark_jetstream.testing import find_server
from pyspark_jetstream.values import Secret
from pyspark_jetstream.write import headerlines

from ..kits.options import changed, connection_of
from ..kits.ranges import reading
from ..kits.ranges import rows as consumed
from ..kits.servers import DevServer
from .test_publisher import publish
from .test_refusals import LISTS, brief

VALUES = {
    "Nats-Stream-Source": "S 77 > > S.a",
    "Nats-Msg-Size": "1000",
    "Nats-Request-Info": '{"acc": "SYS"}',
    "Nats-Trace-Only": "true",
    "Nats-Trace-Origin-Account": "A",
    "Nats-Required-Api-Level": "9999",
    "Nats-Batch-Id": "b",
    "Nats-Incr": "+1",
    "Nats-Counter-Sources": '{"a": {"b": "1"}}',
    "Nats-Schedule": "@every 1m",
    "Nats-Schedule-Time-Zone": "No/Where",
    "Nats-Schedule-Target": "elsewhere",
    "Nats-Schedule-Next": "purge",
    "Nats-Scheduler": "elsewhere",
}
"""Values that the server acts on; of all others it is "1"."""

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
"""Of a `traceparent`: the application's trace is recorded."""


def with_header(name, traces):
    """The header as it has an effect, with what it takes for that."""
    pairs = [("K", "v"), (name, traces if name == "Nats-Trace-Dest" else VALUES.get(name, "1"))]
    if name.startswith("Nats-Trace-") and name != "Nats-Trace-Dest":
        pairs.append(("Nats-Trace-Dest", traces))
    return pairs


def stored_raw(js, subject, pairs, data=b"x"):
    """Stores these very headers: the server overlooks a name that stands there twice."""
    block = wire.header_block([])[:-2]
    for name, value in pairs:
        block += f"junk {name}{name}\r\n{name}: {value}\r\n".encode()
    block += wire.CRLF
    sequence = json.loads(js.client.request(subject, data, block).data)["seq"]
    stream = js.stream_of(subject)
    (found,) = js.messages(stream, [{"seq": sequence}])
    assert found.headers == pairs


def read_directly(js, stream):
    """All rows of the stream, by direct get."""
    end = js.stream_info(stream).last_seq
    read = Slice(None, stream, None, 0, end, None, True, True)
    return [row for batch in read_direct(js.client, read) for row in batch.to_pylist()]


def copy(rows, to):
    """Rows of a read as rows of a write: data and headers."""
    return pa.record_batch(
        {
            "subject": pa.array([to] * len(rows)),
            "data": pa.array([row["data"] for row in rows]),
            "headers": pa.array([row["headers"] for row in rows], LISTS),
        }
    )


@pytest.mark.parametrize("name", sorted(NOT_READ))
def test_a_header_that_is_not_the_messages_own_is_not_read(js, new_stream, name):
    """Stored as it is, whichever way the message is read."""
    stream, traces = new_stream(), new_stream()
    for subject in "ab":
        stored_raw(js, f"{stream}.{subject}", with_header(name, f"{traces}.x"))
    ways = [
        read_directly(js, stream),
        consumed(js.client, reading(stream, 2, include_headers=True)),
    ]

    assert [[row["headers"] for row in rows] for rows in ways] == [[[("K", ["v"])]] * 2] * 2


@pytest.mark.parametrize("name", sorted(PLACES))
def test_what_ties_a_message_to_its_stream_is_read(js, new_stream, name):
    """A reader may want to know what a message is to the stream it is in."""
    stream = new_stream()
    stored_raw(js, f"{stream}.a", with_header(name, ""))

    assert [name for name, _ in read_directly(js, stream)[0]["headers"]] == ["K", name]


@pytest.mark.parametrize("name", sorted(NOT_WRITTEN))
def test_a_copied_header_has_no_effect(nats_server, js, new_stream, name):
    """What was read goes out with its headers, and is stored once, untraced."""
    origin, target, traces = new_stream(), new_stream(), new_stream()
    for _ in range(3):
        stored_raw(js, f"{origin}.a", with_header(name, f"{traces}.x"))
    options = brief(nats_server)
    counts = publish(js.client, options, [copy(read_directly(js, origin), f"{target}.a")])
    found = js.messages(target, [{"seq": each} for each in (1, 2, 3)])

    assert (counts.acked, js.stream_info(target).messages) == (3, 3)
    assert [list(each.headers) for each in found] == [[("K", "v")]] * 3
    assert js.stream_info(traces).messages == 0


@pytest.mark.parametrize("name", ["Nats-Trace-Dest", "Nats-Trace-Only", "Nats-Trace-Origin-Account",
                                  "Nats-Stream-Source", "Nats-Incr", "Nats-Schedule",
                                  "Nats-Schedule-Time-Zone", "Nats-Schedule-Next",
                                  "Nats-Scheduler", "Nats-Batch-Id"])  # fmt: skip
def test_published_as_it_is_it_has_one(nats_server, js, new_stream, monkeypatch, name):
    """The same rows, copied as they were stored, are refused, not stored, or traced."""
    monkeypatch.setattr(headerlines, "DROPPED", ())
    target, traces = new_stream(), new_stream()
    pairs = [(each, [value]) for each, value in with_header(name, f"{traces}.x")]
    batch = copy([{"data": b"x", "headers": pairs}], f"{target}.a")
    options = changed(brief(nats_server), publish_timeout_s=2.0)
    try:
        publish(js.client, options, [batch])
    except JetStreamError:
        pass
    (found,) = js.messages(target, [{"seq": 1}])
    traced = js.stream_info(traces).messages

    assert found is None or traced or dict(found.headers) != {k: v[0] for k, v in pairs}


def test_names_are_those_of_the_server():
    """Each stands in the server's program, in these letters."""
    program = find_server().read_bytes()
    lists = MADE, ORDERS, PLACES, EXPECTS, KEPT
    listed = [name for each in lists for name in each]

    assert len(listed) == len(set(listed))
    assert [name for name in listed if name.encode() not in program] == []
    assert serverheaders.UNTRACED[1].encode() in program


# ── traces that the application asks for ─────────────────────────────────────────────────────

TRACING = """
accounts { A {
    jetstream: enabled
    msg_trace: { dest: "operator.traces", sampling: 100 }
    users: [
        { user: spark, password: p, permissions: { publish: { deny: "operator.>" } } }
        { user: any, password: p }
    ]
} }
"""


@contextmanager
def api(server, user):
    """The API, as this user."""
    client = Client(connection_of(server.url, user=user, password=Secret("p")))
    yield JetStream(client)
    client.close()


@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
def test_a_copied_traceparent_is_not_the_servers_business(name):
    """The application's traceparent is copied, also where the account traces."""
    with DevServer(TRACING) as server, api(server, "any") as any, api(server, "spark") as js:
        for stream in ("S", "T"):
            any.create_stream({"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True})
        any.create_stream({"name": "TRACES", "subjects": ["operator.>"]})
        stored_raw(any, "S.a", [("K", "v"), (name, SAMPLED), serverheaders.UNTRACED])
        rows = read_directly(js, "S")
        options = replace(brief(server), connection=js.client.options)
        counts = publish(js.client, options, [copy(rows, "T.a")])
        (found,) = js.messages("T", [{"seq": 1}])

        assert rows[0]["headers"] == [("K", ["v"]), (name, [SAMPLED])]
        assert (counts.acked, any.stream_info("TRACES").messages) == (1, 0)
        assert found.headers == [("K", "v"), (name, SAMPLED), serverheaders.UNTRACED]
        with pytest.raises(JetStreamError, match="Permissions Violation"):
            js.publish("T.a", b"x", [(name, SAMPLED)])


# ── headers that hide others from the server ─────────────────────────────────────────────────


@pytest.mark.parametrize("column", [True, False], ids=["msg_id", "headers"])
def test_a_copied_header_does_not_hide_the_rows_id(nats_server, js, new_stream, column):
    """A row that is sent twice under one id is stored once, whatever its other headers say."""
    target = new_stream()
    headers = [("a", ["Nats-Msg-IdNats-Msg-Id"])]
    row = {"data": b"x", "headers": headers if column else [*headers, ("Nats-Msg-Id", ["7"])]}
    batch = copy([row], f"{target}.a")
    if column:
        batch = batch.append_column("msg_id", pa.array(["7"]))
    twice = [publish(js.client, brief(nats_server), [batch]) for _ in range(2)]

    assert [counts.duplicates for counts in twice] == [0, 1]
    assert js.stream_info(target).messages == 1


def test_a_copied_header_does_not_hide_what_the_row_expects(nats_server, js, new_stream):
    """A row that expects another stream is refused, whatever its other headers say."""
    target = new_stream()
    headers = [("a", ["Nats-Expected-StreamNats-Expected-Stream"]),
               ("Nats-Expected-Stream", ["OTHER"])]  # fmt: skip
    batch = copy([{"data": b"x", "headers": headers}], f"{target}.a")

    with pytest.raises(JetStreamError, match="expected stream does not match"):
        publish(js.client, brief(nats_server), [batch])


# ── MQTT ─────────────────────────────────────────────────────────────────────────────────────

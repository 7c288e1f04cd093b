"""Rows as messages: header lines, those that are left out, and TTLs."""

import pyarrow as pa
import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.outbox.targets import Target
from pyspark_jetstream.serverheaders import NOT_WRITTEN

from ...kits.encoder import LISTS, TEXTS, Encoder, batch, frames
from ...kits.options import targets_of


@pytest.mark.parametrize(
    ("type", "headers"),
    [(TEXTS, [("a", "1"), ("b", "2"), ("a", "3")]), (LISTS, [("a", ["1"]), ("b", ["2", "3"])])],
    ids=["text", "list"],
)
def test_headers_are_written_in_order(type, headers):
    """Each header value is a line, in the order of the map, behind the id."""
    rows = batch(3, headers=pa.array([headers, None, []], type))
    lines = [
        (name, value)
        for name, values in headers
        for value in (values if isinstance(values, list) else [values])
    ]
    with_ids = frames(Encoder("IN", subject="s", id_prefix="P"), rows)
    without = frames(Encoder("IN", subject="s"), rows)

    assert with_ids == [
        wire.pub("s", b"x", f"IN.{i}", wire.header_block([("Nats-Msg-Id", f"P-{i}"), *own]))
        for i, own in enumerate([lines, [], []])
    ]
    assert without == [
        wire.pub("s", b"x", "IN.0", wire.header_block(lines)),
        wire.pub("s", b"x", "IN.1"),
        wire.pub("s", b"x", "IN.2"),
    ]


def test_null_lists_of_headers_have_no_lines():
    """A header whose list is empty or null is no line."""
    rows = batch(1, headers=pa.array([[("a", None), ("b", []), ("c", ["1"])]], LISTS))

    assert frames(Encoder("IN", subject="s"), rows) == [
        wire.pub("s", b"x", "IN.0", wire.header_block([("c", "1")]))
    ]


def test_what_the_server_acts_on_comes_first():
    """Before headers that others wrote: id, TTL, then what is among the row's headers."""
    hiding = [("a", "Nats-TTLNats-TTL"), ("b", "Nats-Expected-StreamNats-Expected-Stream")]
    rows = batch(
        2,
        headers=pa.array([[*hiding, ("Nats-Expected-Stream", "S")]] * 2, TEXTS),
        ttl=pa.array(["5s", None]),
    )
    expects = [("Nats-Expected-Stream", "S"), *hiding]

    assert frames(Encoder("IN", subject="s", id_prefix="P"), rows) == [
        wire.pub("s", b"x", "IN.0", wire.header_block(
            [("Nats-Msg-Id", "P-0"), ("Nats-TTL", "5s"), *expects])),
        wire.pub("s", b"x", "IN.1", wire.header_block([("Nats-Msg-Id", "P-1"), *expects])),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT"])
def test_a_trace_of_the_application_goes_on_but_not_into_the_server(name):
    """Its header is copied, and with it what tells the server not to trace the row."""
    rows = batch(2, headers=pa.array([[("a", "1"), (name, "00-1-2-01"), ("b", "2")], []], TEXTS))
    lines = [("a", "1"), (name, "00-1-2-01"), ("Nats-Trace-Dest", "trace disabled"), ("b", "2")]

    assert frames(Encoder("IN", subject="s"), rows) == [
        wire.pub("s", b"x", "IN.0", wire.header_block(lines)),
        wire.pub("s", b"x", "IN.1"),
    ]


@pytest.mark.parametrize("name", sorted(NOT_WRITTEN))
def test_no_header_of_the_list_is_written(name):
    """Byte by byte, as the server compares; in other letters it is a header like any other."""
    other = [(name.lower(), "3"), (f"{name}-", "4"), (f"X-{name}", "5")]
    rows = batch(1, headers=pa.array([[(name, "1"), *other, (name, "2")]], TEXTS))

    assert frames(Encoder("IN", subject="s"), rows) == [
        wire.pub("s", b"x", "IN.0", wire.header_block(other))
    ]


def test_headers_that_are_the_servers_are_left_out():
    """What a server would refuse, or overwrite, of a copied row does not go out."""
    refused = [("Nats-Stream-Source", "S 1"), ("Nats-Batch-Id", "b"), ("Nats-Sequence", "7")]
    rows = batch(2, headers=pa.array([[("a", "1"), *refused, ("b", "2")], refused], TEXTS))

    assert frames(Encoder("IN", subject="s"), rows) == [
        wire.pub("s", b"x", "IN.0", wire.header_block([("a", "1"), ("b", "2")])),
        wire.pub("s", b"x", "IN.1"),
    ]


def test_ttls_and_rollups_go_where_the_stream_takes_them():
    """A copied TTL or roll-up is left out where the target does not allow it."""
    known = {
        "a": Target.parse({"name": "A", "subjects": ["a"], "allow_msg_ttl": True}),
        "b": Target.parse({"name": "B", "subjects": ["b"], "allow_rollup_hdrs": True}),
    }
    targets = targets_of(known.get)
    both = [("Nats-TTL", "5s"), ("Nats-Rollup", "sub"), ("n", "1")]
    rows = batch(3, subject=pa.array(["a", "b", "c"]), headers=pa.array([both] * 3, TEXTS))
    sent = frames(Encoder("IN", targets=targets, allow_rollup=True, require_stream=False), rows)

    assert [[name for name, _ in wire.parse_headers(f.split(b"\r\n", 1)[1])] for f in sent] == [
        ["Nats-TTL", "n"],
        ["Nats-Rollup", "n"],
        ["Nats-TTL", "Nats-Rollup", "n"],
    ]


def test_a_rollup_goes_out_only_where_an_option_asks():
    """Whoever wrote a message that is copied would purge what others have on the row's subject."""
    mapping = SubjectMapping.parse('{"a.*": "b"}')
    rolled = [("Nats-Rollup", "sub"), ("n", "1")]
    rows = batch(2, subject=pa.array(["a.x", "b"]), headers=pa.array([rolled] * 2, TEXTS))

    for allowed in (False, True):
        sent = frames(Encoder("IN", mapping=mapping, allow_rollup=allowed), rows)
        assert [b"Nats-Rollup: sub" in each for each in sent] == [allowed] * 2
        assert all(b"\r\nn: 1\r\n" in each for each in sent)


def test_a_copied_rollup_purges_no_stream():
    """With the option a roll-up of a subject goes out; one of the whole stream never."""
    known = {"b": Target.parse({"name": "B", "subjects": ["b"], "allow_rollup_hdrs": True})}
    values = ["sub", "all", "ALL", " all", "x", None]
    headers = [[("Nats-Rollup", v), ("n", "1")] if v else None for v in values]
    rows = batch(len(values), subject=pa.array(["b"] * 6), headers=pa.array(headers, TEXTS))
    sent = frames(Encoder("IN", targets=targets_of(known.get), allow_rollup=True), rows)

    assert [b"Nats-Rollup" in each for each in sent] == [True] + [False] * 5
    assert [b"n: 1" in each for each in sent] == [True] * 5 + [False]


@pytest.mark.parametrize("ttl", ["never", "5", "90s", "1h30m", "1.5h", "100ms", None])
def test_a_ttl_is_a_header(ttl):
    """The column goes out as the message's TTL; null is none."""
    expected = wire.header_block([("Nats-TTL", ttl)]) if ttl else b""

    assert frames(Encoder("IN", subject="s"), batch(1, ttl=pa.array([ttl], pa.string()))) == [
        wire.pub("s", b"x", "IN.0", expected)
    ]

"""
Headers that nats-server sets or obeys: the one list, with who may read or send each.

A message that we read was written by others, and a row that we write may carry its headers. So a
header must not make the server do in our name what its author could not have it do: trace a row
instead of storing it, send traces where the author may not publish, take a row for a part of
somebody's batch. And what a server says of a message (its sequence, its size) is said by the one
that delivers it, never by the message.

| list | reads' `headers` | rows that we write |
|---|---|---|
| `MADE`, what servers say | without | without |
| `ORDERS`, what they are told of one publish | without | without |
| `PLACES`, what ties a message to its own stream | with | without |
| `EXPECTS`, what one publish expects of its stream | without | with, first |
| `KEPT`, what a row may want of the server | with | with, first |

**Names** are compared byte by byte, as the server does (`getHeaderKeyIndex`, client.go;
`genHeaderMapIfTraceHeadersPresent`, msgtrace.go): `nats-trace-dest` is a header like any other. The
one exception is `traceparent`, of any case.

**Order.** `FIRST` go out before all other headers of a row. The server gives up looking for a name
where it stands twice in a row in what comes before (`a: Nats-Msg-IdNats-Msg-Id`,
`getHeaderKeyIndex`): one copied value would hide the row's own id, or what it expects.

Rule 1: no I/O and no knowledge of rows; names, and why each is where it is. The files that are
named are those of nats-server 2.15.1, in `server/`.
"""

from __future__ import annotations

from typing import Final

# * Nats-Stream: of a direct get and of a republished message: its stream (stream.go)
# * Nats-Subject: likewise its subject
# * Nats-Sequence: likewise its sequence
# * Nats-Time-Stamp: likewise its time
# * Nats-Last-Sequence: likewise the sequence of the message before it
# * Nats-Num-Pending: of a direct get: how many messages follow (stream.go)
# * Nats-UpTo-Sequence: of a direct get of several: as of which sequence it is (stream.go)
# * Nats-Msg-Size: of a consumer or republish without payloads: the payload's size (consumer.go,
#   convertToHeadersOnly)
# * Nats-Pin-Id: of a pinned consumer: who it is pinned to (consumer.go)
# * Nats-Pending-Messages: of a pull's end: what of it was not delivered (consumer.go)
# * Nats-Pending-Bytes: likewise in bytes
# * Nats-Last-Consumer: of heartbeats and flow control: the consumer's sequence; acted on by
#   mirrors, sources and consumers (stream.go, consumer.go)
# * Nats-Last-Stream: likewise the stream's sequence
# * Nats-Consumer-Stalled: of heartbeats: where to answer; acted on by mirrors and sources
# * Nats-Stream-Source: of a copy: where it comes from; a publish with it is refused (10227), a
#   source believes it (stream.go, filestore.go)
# * Nats-Request-Info: of a request to another account: who asks; services believe it, and the
#   server finds a fast batch by it (client.go, accounts.go, stream.go)
MADE: Final = frozenset(
    """
    Nats-Stream Nats-Subject Nats-Sequence Nats-Time-Stamp Nats-Last-Sequence Nats-Num-Pending
    Nats-UpTo-Sequence Nats-Msg-Size Nats-Pin-Id Nats-Pending-Messages Nats-Pending-Bytes
    Nats-Last-Consumer Nats-Last-Stream Nats-Consumer-Stalled Nats-Stream-Source
    Nats-Request-Info
    """.split()
)
"""
Headers that servers add when they deliver, republish or copy a message: stale in any stored
message.
"""

# * Nats-Trace-Dest: trace the message, and publish the trace there; whoever may not publish there
#   loses the message (msgtrace.go, initMsgTrace)
# * Nats-Trace-Only: trace it, and do not deliver or store it (msgtrace.go, stream.go)
# * Nats-Trace-Hop: where on its way a traced message is (msgtrace.go)
# * Nats-Trace-Origin-Account: do not trace it, and log an error (msgtrace.go)
# * Nats-Required-Api-Level: refuse the request, or the whole batch, unless the server has this
#   level (jetstream_versioning.go, stream.go)
# * Nats-Stream-Identity: refuse the request unless the stream is this one (consumer.go,
#   jetstream_api.go)
# * Nats-Response-Type: the request is another server's answer (jetstream_api.go)
ORDERS: Final = frozenset(
    """
    Nats-Trace-Dest Nats-Trace-Only Nats-Trace-Hop Nats-Trace-Origin-Account
    Nats-Required-Api-Level Nats-Stream-Identity Nats-Response-Type
    """.split()
)
"""
Headers that are instructions for one publish or request: they say nothing about a stored message.
"""

# * Nats-Batch-Id: the message is part of this atomic batch (stream.go)
# * Nats-Batch-Sequence: likewise which one
# * Nats-Batch-Commit: likewise the last one
# * Nats-Incr: add this to the subject's counter; other streams refuse it (stream.go)
# * Nats-Counter-Sources: what a counter is the sum of (stream.go)
# * Nats-Schedule: publish the message again and again; other streams refuse it (scheduler.go)
# * Nats-Schedule-Time-Zone: likewise in which time zone
# * Nats-Schedule-TTL: likewise with which TTL
# * Nats-Schedule-Rollup: likewise with which roll-up
# * Nats-Schedule-Target: likewise where to
# * Nats-Schedule-Source: likewise whose last message
# * Nats-Schedule-Next: when next, or that the schedule is to be purged (stream.go)
# * Nats-Scheduler: which schedule made the message, or is to be purged (stream.go)
# * Nmqtt-Pub: an MQTT client published it, with this QoS: MQTT subscribers of QoS 1 and 2 wait for
#   it elsewhere (mqtt.go, mqttDeliverMsgCbQoS0)
PLACES: Final = frozenset(
    """
    Nats-Batch-Id Nats-Batch-Sequence Nats-Batch-Commit Nats-Incr Nats-Counter-Sources
    Nats-Schedule Nats-Schedule-Time-Zone Nats-Schedule-TTL Nats-Schedule-Rollup
    Nats-Schedule-Target Nats-Schedule-Source Nats-Schedule-Next Nats-Scheduler Nmqtt-Pub
    """.split()
)
"""
Headers about a message's place in its stream. A reader may want them; in another stream they are
wrong.
"""

# * Nats-Expected-Stream: refuse it unless this is the stream
# * Nats-Expected-Last-Sequence: refuse it unless this is the stream's last sequence
# * Nats-Expected-Last-Subject-Sequence: likewise the subject's
# * Nats-Expected-Last-Subject-Sequence-Subject: likewise of this subject
# * Nats-Expected-Last-Msg-Id: refuse it unless this is the stream's last id
EXPECTS: Final = frozenset(
    """
    Nats-Expected-Stream Nats-Expected-Last-Sequence Nats-Expected-Last-Subject-Sequence
    Nats-Expected-Last-Subject-Sequence-Subject Nats-Expected-Last-Msg-Id
    """.split()
)
"""
Expectations of a publish about its stream at that moment. A copy would be refused for it, for ever;
a row that says so itself means it.
"""

# * Nats-Msg-Id: drop the message if one with this id came lately
# * Nats-TTL: remove it after so long, where the stream allows that
# * Nats-Rollup: purge what came before it, where the stream allows that
# * Nats-Marker-Reason: it is a marker; its own removal leaves none (sdm.go)
# * KV-Operation: likewise, if this is PURGE (sdm.go)
KEPT: Final = frozenset(
    """
    Nats-Msg-Id Nats-TTL Nats-Rollup Nats-Marker-Reason KV-Operation
    """.split()
)
"""
Requests to the server that a row may make in its `headers`.

Not named, though the server looks at them: `B3`, `X-B3-…` and `Uber-Trace-Id`, by which an exporter
chooses the requests whose latency it measures (accounts.go, shouldSample); `Accept-Encoding`, of
traces and of requests to `$SYS` (events.go); `Nmqtt-` others than `-Pub`, on MQTT's own subjects.
"""

ROLLUP: Final = "Nats-Rollup"
ROLLUP_OF_SUBJECT: Final = "sub"
"""
The one value with which a row may say `ROLLUP`, if the option `allowRollup` lets it: it takes the
place of what its subject has. With `all` whoever published one message on a stream that is copied
would purge the whole of another.
"""

BAD_NAME: Final = r"^$|[^!-9;-~]"
"""Finds what makes a text no name of a header (ADR-4): printable ASCII without the colon is one."""

BAD_VALUE: Final = r"[\r\n]"
"""Likewise no value. A server stores both, and no read shows them: they cannot be written again."""

TRACEPARENT: Final = "traceparent"
"""
Header of W3C, in any case: where the account has a `msg_trace` the server traces the message, and
drops it if its publisher may not publish on the account's destination (msgtrace.go). It is the
application's all the same, so it is copied, with `UNTRACED` beside it.
"""

UNTRACED: Final = ("Nats-Trace-Dest", "trace disabled")
"""
The header by which a server itself marks a message that is not to be traced (MsgTraceDestDisabled).
"""

FIRST: Final = EXPECTS | KEPT
"""Headers that the server acts on, and that therefore come first."""

NOT_READ: Final = MADE | ORDERS | EXPECTS
"""Left out of the column `headers` of reads."""

NOT_WRITTEN: Final = MADE | ORDERS | PLACES
"""Left out of what is published."""


_MEANS: Final = {
    "Nats-Schedule": "the rows are stored at once, and no message is scheduled; that takes the"
    " columns deliver_at or schedule, and schedule_target",
    "Nats-Incr": "nothing is added to a counter; that takes the column increment. A copy would add"
    " it once more",
    "Nats-TTL": "their stream does not allow it (allow_msg_ttl); the rows do not expire",
    ROLLUP: "that takes allowRollup=true, the value sub, and allow_rollup_hdrs of their stream",
}


def left_out_because(name: str) -> str:
    """Reason that a header of a row did not go out, and what that means."""
    if name in _MEANS:
        return _MEANS[name]
    for listed, why in (
        (MADE, "it is what a server says of a message"),
        (ORDERS, "it is an order to the server for one publish"),
        (PLACES, "it ties a message to the stream that it is in"),
    ):
        if name in listed:
            return why
    return "it is no header"


def copied(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers of a stored message as they may be published again, in their order."""
    left_out = NOT_WRITTEN | EXPECTS
    kept = [(name, value) for name, value in headers if name not in left_out]
    if any(name.lower() == TRACEPARENT for name, _ in kept):
        kept.append(UNTRACED)
    return kept

"""What JetStream's API says of streams, consumers and messages, typed where we read it."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from . import wire
from .blocks import Direct, lines_of, stored_before

__all__ = [
    "ConsumerInfo",
    "Mark",
    "Message",
    "Stored",
    "StreamInfo",
    "SubjectPage",
    "consumer_info_of",
    "consumer_name_of",
    "microseconds",
    "message_of",
    "stored_of",
    "stream_info_of",
]


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Mark:
    """
    A stream at one moment, to tell later whether it still is that stream.

    Messages leave a stream by its limits, by acks, deletes and purges. Its last sequence stays
    then, and no message takes another one's place. So where the creation time is another one, the
    last sequence is lower, or another message stands at this one, the stream was made anew or taken
    back to an older copy of its store.
    """

    created: str
    """When the stream was made, as the server writes it."""
    sequence: int
    """Its last sequence."""
    time: str = ""
    """
    When the message of that sequence was stored, as the server writes it; "" where not known. Where
    there was none of that sequence it is any time.
    """
    seen_us: int | None = None
    """
    The server's clock at that moment, microseconds since 1970, rounded up: no message that was
    there was stored later. None where not known.
    """


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What a read plans by: the stream's configuration and state at one moment."""

    name: str
    created: str
    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    num_subjects: int
    num_deleted: int
    """Sequences missing between the first and the last."""
    now: datetime
    """When the server answered, by its own clock."""
    config: dict[str, Any]
    cluster: dict[str, Any] = field(default_factory=dict)
    """Its leader and other replicas, where the server is one of a cluster."""
    sources: list[dict[str, Any]] = field(default_factory=list)
    """How far copying from each stream it is filled from is."""
    last_time: str = ""
    """When the last message was stored, as the server writes it."""

    @property
    def mark(self) -> Mark:
        """The stream as it is at this moment."""
        return Mark(self.created, self.last_seq, self.last_time, microseconds(self.now) + 1)

    @property
    def leader(self) -> tuple[str, str]:
        """Who leads it, and since when, as far as the server says so."""
        return str(self.cluster.get("leader") or ""), str(self.cluster.get("leader_since") or "")

    @property
    def origin(self) -> int:
        """The sequence that its first message ever had."""
        return int(self.config.get("first_seq") or 1)

    @property
    def removed(self) -> int:
        """Messages that have left the stream so far; it never goes down."""
        return self.last_seq - self.messages

    @property
    def retention(self) -> str:
        """`limits`, `interest` or `workqueue`."""
        return str(self.config.get("retention", "limits"))

    @property
    def allow_direct(self) -> bool:
        """Whether direct get is on."""
        return bool(self.config.get("allow_direct"))

    @property
    def clustered(self) -> bool:
        """
        Whether its server is one of a cluster. One that stands alone names a leader, too; a leaf
        node also a cluster, by that name.
        """
        name = self.cluster.get("name")
        return bool(name) and name != self.cluster.get("leader")

    @property
    def loses_the_oldest(self) -> bool:
        """
        Whether limits remove the oldest messages first: not where messages leave one by one as they
        should, replaced per subject or by their own TTL.
        """
        by_subject = int(self.config.get("max_msgs_per_subject") or 0) > 0
        return not by_subject and not self.config.get("allow_msg_ttl")

    @property
    def keeps_history(self) -> bool:
        """
        Whether a first sequence that moved on means that unread messages are gone, whoever has
        acknowledged what.
        """
        return self.retention == "limits" and self.loses_the_oldest


@dataclass(frozen=True, slots=True)
class SubjectPage:
    """A page of a stream's subjects, cut from their sorted list."""

    last_seq: int
    """The stream's last sequence just before they were listed."""
    offset: int
    total: int
    counts: dict[str, int]
    """Messages of each subject."""


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """Where a consumer stands."""

    name: str
    consumer_seq: int
    """Deliveries since creation or the last reset."""
    stream_seq: int
    """The last stream sequence delivered."""
    num_pending: int
    """Messages of its filter not yet delivered."""
    pinned_id: str
    """The pinned client's id, "" when nobody is pinned."""
    config: dict[str, Any]
    num_ack_pending: int = 0
    """Messages delivered and not acknowledged."""
    num_waiting: int = 0
    """Pulls that are open."""
    pinned_ts: str = ""
    """Since when `pinned_id` is."""
    created: str = ""
    """When it was made, as the server writes it."""
    now: datetime | None = None
    """The server's clock, when it said so."""
    led_s: float | None = None
    """For how long it has had its leader, by that clock; None without replicas."""
    pause_s: float = 0.0
    """For how long it still is paused (`nats consumer pause`); 0 where it is not."""
    ack_floor: int = 0
    """The stream sequence up to which all is acknowledged."""


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message, as the stream's leader has it."""

    sequence: int
    subject: str
    headers: list[tuple[str, str]]
    """Empty where what was stored is no header block."""
    data: bytes
    stored: bytes = b""
    """What would stand before header lines that a server adds (`blocks`)."""
    time: str = ""
    """When it was stored, as the server writes it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored message's place, without its content."""

    stream: str
    sequence: int
    subject: str
    pending: int
    """Messages of the same filter behind it (batched direct get only)."""
    nbytes: int = 0
    """Bytes of subject, header lines and payload."""


def stream_info_of(answer: dict[str, Any]) -> StreamInfo:
    """An answer of STREAM.INFO."""
    state = answer["state"]
    return StreamInfo(
        name=answer["config"]["name"],
        created=answer["created"],
        first_seq=int(state["first_seq"]),
        last_seq=int(state["last_seq"]),
        messages=int(state["messages"]),
        bytes=int(state["bytes"]),
        num_subjects=int(state.get("num_subjects", 0)),
        num_deleted=int(state.get("num_deleted", 0)),
        now=parse_time(answer["ts"]),
        config=answer["config"],
        cluster=answer.get("cluster") or {},
        sources=answer.get("sources") or [],
        last_time=str(state.get("last_ts") or ""),
    )


def message_of(answer: dict[str, Any]) -> Message:
    """A message of STREAM.MSG.GET."""
    stored = stored_before(base64.b64decode(answer.get("hdrs") or ""))
    return Message(
        sequence=int(answer["seq"]),
        subject=str(answer["subject"]),
        headers=wire.parse_headers(stored) if lines_of(stored) is not None else [],
        stored=stored,
        data=base64.b64decode(answer.get("data") or ""),
        time=str(answer.get("time") or ""),
    )


def consumer_name_of(answer: dict[str, Any]) -> str:
    """The name in an entry of CONSUMER.LIST, which may have it in its configuration only."""
    config = answer["config"]
    return str(answer["name"] or config.get("name") or config.get("durable_name"))


def consumer_info_of(answer: dict[str, Any]) -> ConsumerInfo:
    """An answer of CONSUMER.INFO."""
    delivered = answer["delivered"]
    groups = answer.get("priority_groups") or [{}]
    now = parse_time(answer["ts"]) if answer.get("ts") else None
    since = (answer.get("cluster") or {}).get("leader_since")
    return ConsumerInfo(
        name=answer["name"],
        consumer_seq=int(delivered["consumer_seq"]),
        stream_seq=int(delivered["stream_seq"]),
        num_pending=int(answer.get("num_pending", 0)),
        pinned_id=str(groups[0].get("pinned_client_id") or ""),
        config=answer.get("config") or {},
        num_ack_pending=int(answer.get("num_ack_pending", 0)),
        num_waiting=int(answer.get("num_waiting", 0)),
        pinned_ts=str(groups[0].get("pinned_ts") or ""),
        created=str(answer.get("created") or ""),
        now=now,
        led_s=(now - parse_time(since)).total_seconds() if now and since else None,
        pause_s=int(answer.get("pause_remaining") or 0) / 1e9 if answer.get("paused") else 0.0,
        ack_floor=int((answer.get("ack_floor") or {}).get("stream_seq") or 0),
    )


def stored_of(got: Direct, data: bytes = b"") -> Stored:
    """The place of a message that a direct get brought, with this payload."""
    return Stored(
        stream=got.stream.decode("utf-8", "replace"),
        sequence=got.sequence,
        subject=got.subject.decode("utf-8", "replace"),
        pending=got.pending,
        # A message without headers has this preamble, too, when the server adds its own.
        nbytes=len(got.subject) + max(0, len(got.stored) - len(b"NATS/1.0\r\n")) + len(data),
    )


def microseconds(time: datetime) -> int:
    """Since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def parse_time(text: str) -> datetime:
    """An RFC 3339 time of the server; Python keeps microseconds, the rest is cut off."""
    return datetime.fromisoformat(text)

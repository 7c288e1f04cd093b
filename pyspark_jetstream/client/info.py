"""
JetStream's answers: what their members have to be, and their facts about streams, consumers and
messages, with types for the fields that we read.

What members have to be stands in one table, by their names: a name means the same in every answer
that has it. So one pass over an answer (`checked`) is the border: behind it a member that stands in
the table has its type or is not there, as null counts as missing. Members that nobody here reads
may be anything, and a configuration that is handed on has no surprises. A member that is missing
is a `KeyError`, which `jetstream` makes an error that names the request. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from ..foreign import Reader, base64_bytes, each, flag, number, text, time
from . import wire
from .blocks import Direct, lines_of, stored_before

# ── what members have to be ──────────────────────────────────────────────────────────────────

_OBJECTS: Final = """
    ack_floor cluster config consumer_limits delivered error external message mirror republish state
    subject_transform
""".split()

_LISTS: Final = "consumers priority_groups replicas sources streams subject_transforms".split()
"""Of objects."""

_NEEDED: Final = {"mirror": "name", "sources": "name", "subject_transforms": "src"}
"""What such an object cannot be without; other members are asked for by whoever reads them."""

_SEQUENCES: Final = "consumer_seq first_seq last_seq seq stream_seq".split()

_COUNTS: Final = """
    bytes consumer_count duplicate_window lag limit max_age messages num_ack_pending num_deleted
    num_pending
    num_redelivered num_replicas num_subjects num_waiting purged total
""".split()

_NUMBERS: Final = """
    ack_wait code err_code inactive_threshold max_ack_pending max_batch max_bytes max_deliver
    max_msg_size max_msgs max_msgs_per_subject pause_remaining priority_timeout
""".split()

_FLAGS: Final = """
    allow_atomic allow_batched allow_direct allow_msg_counter allow_msg_schedules allow_msg_ttl
    allow_rollup_hdrs current deny_delete deny_purge discard_new_per_subject headers_only offline
    paused push_bound sealed
""".split()

_TEXTS: Final = """
    ack_policy deliver_subject description dest discard durable_name filter_subject leader name
    pinned_client_id priority_policy retention src storage stream subject
""".split()

_TIMES: Final = "created last_active last_ts leader_since pause_until pinned_ts time ts".split()

_MAX: Final = (1 << 63) - 1
"""A row holds no larger sequence."""

_sequence: Final = number(0, _MAX)
_count: Final = number(0, 2 * _MAX + 1)

_SCALARS: Final[dict[str, Reader]] = {
    **dict.fromkeys(_SEQUENCES, _sequence),
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(_NUMBERS, number(-_MAX - 1, _MAX)),
    **dict.fromkeys(_FLAGS, flag),
    **dict.fromkeys(_TEXTS, text),
    **dict.fromkeys(_TIMES, time),
    "data": base64_bytes,
    "hdrs": base64_bytes,
    **dict.fromkeys(("filter_subjects", "missing"), each(text)),
    **dict.fromkeys(("backoff", "deleted"), each(_sequence)),
    "metadata": each(text, dict),
}


def checked(answer: Any) -> dict[str, Any]:
    """
    An answer, or a configuration, with members that are what they have to be.

    Raises:
        ValueError: One is not; the message begins with its place.
    """
    if not isinstance(answer, dict):
        return each(text, dict)(answer)  # type: ignore[no-any-return]  # says what it is not
    todo: list[tuple[str, dict[str, Any]]] = [("", answer)]
    while todo:
        place, found = todo.pop()
        for name in [name for name, value in found.items() if value is None]:
            del found[name]
        for name, value in found.items():
            try:
                inner = list(_inner(place, name, value))
                if name in _SCALARS:
                    found[name] = _SCALARS[name](value)
            except ValueError as error:
                raise ValueError(f"{place}.{name}{error}") from None
            for at, one in inner:
                if name in _NEEDED and one.get(_NEEDED[name]) is None:
                    raise ValueError(f"{place}.{name}{at}.{_NEEDED[name]} is missing")
                todo.append((f"{place}.{name}{at}", one))
    return answer


def _inner(place: str, name: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in a member, each with its place in it."""
    if name == "subjects":  # of a configuration their names, of a state their counts
        each(_count, dict)(value) if isinstance(value, dict) else each(text)(value)
    elif name in _OBJECTS:
        _object(value)
        yield "", value
    elif name in _LISTS:
        # Likewise those of the answer of NAMES, and of a consumer's configuration.
        may_be_names = name == "streams" or name == "priority_groups" and place.endswith("config")
        are_names = may_be_names and not _has_objects(value)
        each(text if are_names else _object)(value)
        yield from () if are_names else ((f"[{at}]", one) for at, one in enumerate(value))


def _object(value: Any) -> Any:
    return each(lambda member: member, dict)(value)


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)


# ── facts ────────────────────────────────────────────────────────────────────────────────────

_BOUNDS: Final = ("max_msgs", "max_bytes", "max_age")
"""A stream's limits, of which any removes the oldest messages."""

_NONE: Final = wire.HEADER_PREAMBLE + wire.CRLF
"""`Found.stored` of a message without headers."""

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
    """Creation time of the stream, in the server's text."""
    sequence: int
    """Its last sequence."""
    time: str = ""
    """
    Time when the message of that sequence was stored, as the server writes it; "" where not known.
    Where there was none of that sequence it is any time.
    """


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream's configuration and state at one moment, by which reads are planned."""

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
    """Time of the answer, by the server's clock."""
    config: dict[str, Any]
    cluster: dict[str, Any] = field(default_factory=dict)
    """Its leader and other replicas, where the server is one of a cluster."""
    sources: list[dict[str, Any]] = field(default_factory=list)
    """Progress of copying from each of the stream's sources."""
    last_time: str = ""
    """Time when the last message was stored, in the server's text."""
    consumers: int = 0
    """Number of its consumers."""

    @property
    def mark(self) -> Mark:
        """The stream as it is at this moment."""
        return Mark(self.created, self.last_seq, self.last_time)

    @property
    def origin(self) -> int:
        """The sequence that its first message ever had."""
        return int(self.config.get("first_seq") or 1)

    @property
    def retention(self) -> str:
        """`limits`, `interest` or `workqueue`."""
        return str(self.config.get("retention", "limits"))

    @property
    def allow_direct(self) -> bool:
        """Whether direct get is on."""
        return bool(self.config.get("allow_direct"))

    @property
    def replicas(self) -> int:
        """Number of servers that have it."""
        return int(self.config.get("num_replicas") or 1)

    @property
    def is_filled(self) -> bool:
        """Whether its messages may have subjects that are none of its own."""
        return any(self.config.get(key) for key in ("mirror", "sources", "subject_transform"))

    @property
    def is_bounded(self) -> bool:
        """Whether it has a limit, of messages, bytes or age, that removes the oldest."""
        return any(int(self.config.get(name) or 0) > 0 for name in _BOUNDS)

    @property
    def keeps_history(self) -> bool:
        """
        Whether a first sequence that moved on means that unread messages are gone, whoever has
        acknowledged what. Not where messages leave one by one as they should: replaced per subject,
        by their own TTL, or as schedules whose time has come.
        """
        by_subject = int(self.config.get("max_msgs_per_subject") or 0) > 0
        leaving = self.config.get("allow_msg_ttl") or self.config.get("allow_msg_schedules")
        return self.retention == "limits" and not by_subject and not leaving


@dataclass(frozen=True, slots=True)
class SubjectPage:
    """A page of a stream's subjects, cut from their sorted list."""

    last_seq: int
    """The stream's last sequence just before they were listed."""
    end: int
    """The offset of what follows. Subjects that are no UTF-8 may be one here."""
    total: int
    counts: dict[str, int]
    """Messages of each subject."""


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer's configuration and position."""

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
    created: str = ""
    """Creation time of the consumer, in the server's text."""
    pause_s: float = 0.0
    """Seconds that it is still paused (`nats consumer pause`); 0 where it is not."""
    ack_floor: int = 0
    """The stream sequence up to which all is acknowledged."""
    pinned_s: float = 0.0
    """Seconds since the client was pinned, by the server's clock; 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A stored message, as the stream's leader has it."""

    sequence: int
    subject: str
    headers: list[tuple[str, str]]
    """Empty where what was stored is no header block."""
    data: bytes
    stored: bytes = b""
    """Lines that would stand before header lines of the server (`blocks`)."""
    time: str = ""
    """Time when the message was stored, in the server's text."""

    @property
    def found(self) -> Found:
        """As a direct get brings it."""
        subject, time = self.subject.encode(), self.time.encode()
        return Found(subject, self.sequence, time, self.stored, self.data)


class Found(NamedTuple):
    """A stored message as a direct get brought it."""

    subject: bytes
    sequence: int
    time: bytes
    stored: bytes
    """Lines before the server's header lines (`blocks`)."""
    data: bytes
    pending: int = 0
    """Messages of the same request behind it (batched direct get only)."""

    @property
    def lines(self) -> bytes | None:
        """The header lines it was stored with; None where it was stored with something else."""
        return lines_of(self.stored)

    @property
    def stored_bytes(self) -> int:
        """Bytes that count towards `max_bytes`."""
        block = 0 if self.stored == _NONE else len(self.stored) + len(wire.CRLF)
        return len(self.subject) + block + len(self.data)


def stream_info_of(answer: dict[str, Any]) -> StreamInfo:
    """An answer of STREAM.INFO, with the server's time."""
    state = answer["state"]
    return StreamInfo(
        name=answer["config"]["name"],
        created=answer["created"],
        first_seq=state["first_seq"],
        last_seq=state["last_seq"],
        messages=state["messages"],
        bytes=state["bytes"],
        num_subjects=state.get("num_subjects", 0),
        num_deleted=state.get("num_deleted", 0),
        now=parse_time(answer["ts"]),
        config=answer["config"],
        cluster=answer.get("cluster") or {},
        sources=answer.get("sources") or [],
        last_time=state.get("last_ts") or "",
        consumers=state.get("consumer_count", 0),
    )


def message_of(answer: dict[str, Any]) -> StoredMessage:
    """The message that STREAM.MSG.GET answers."""
    message = answer["message"]
    stored = stored_before(message.get("hdrs") or b"")
    return StoredMessage(
        sequence=message["seq"],
        subject=message["subject"],
        headers=wire.parse_headers(stored) if lines_of(stored) is not None else [],
        stored=stored,
        data=message.get("data") or b"",
        time=message.get("time") or "",
    )


def consumer_name_of(answer: dict[str, Any]) -> str:
    """The name in an entry of CONSUMER.LIST, which may have it in its configuration only."""
    config = answer.get("config") or {}
    return str(answer["name"] or config.get("name") or config.get("durable_name"))


def consumer_info_of(answer: dict[str, Any]) -> ConsumerInfo:
    """An answer of CONSUMER.INFO."""
    delivered = answer["delivered"]
    groups = answer.get("priority_groups") or [{}]
    now, then = answer.get("ts"), groups[0].get("pinned_ts")
    return ConsumerInfo(
        name=answer["name"],
        consumer_seq=delivered["consumer_seq"],
        stream_seq=delivered["stream_seq"],
        num_pending=answer.get("num_pending", 0),
        pinned_id=groups[0].get("pinned_client_id") or "",
        config=answer.get("config") or {},
        num_ack_pending=answer.get("num_ack_pending", 0),
        num_waiting=answer.get("num_waiting", 0),
        created=answer.get("created") or "",
        pause_s=answer.get("pause_remaining", 0) / 1e9 if answer.get("paused") else 0.0,
        ack_floor=(answer.get("ack_floor") or {}).get("stream_seq", 0),
        pinned_s=(parse_time(now) - parse_time(then)).total_seconds() if now and then else 0.0,
    )


def found_of(got: Direct, data: bytes) -> Found:
    """The message that a direct get brought."""
    return Found(got.subject, got.sequence, got.time, got.stored, data, got.pending)


def microseconds(time: datetime) -> int:
    """Microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def parse_time(text: str) -> datetime:
    """An RFC 3339 time of the server; Python keeps microseconds, the rest is cut off."""
    return datetime.fromisoformat(text)

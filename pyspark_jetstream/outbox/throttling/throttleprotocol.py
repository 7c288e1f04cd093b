"""
What operators and writers say on the throttle's control subject (PIP-385 over NATS).

Rule 1: no I/O and no clock. `Operators` is a writer's part, for one task; its callers pass `now`
(seconds, monotonic) and send what is returned.
Rule 2: field names are those of PIP-385's protobuf; `type` tells messages apart, as in ADR-50.

    {"type":"discover"}                                   to all writers: who is there?
    {"type":"producer","producer_id":7,                   a writer: I am, and know the protocol
     "feature_flags":{"supports_throttle_producer_commands":true},
     "subjects_sent":["orders.eu"],"throttled":[],
     "query":"orders","host":"worker-3"}
    {"type":"throttle_producer","request_id":42,          to all, or to the producer it names
     "subject":"orders.*","throttling_reason":"TopicProduceQuotaExceeded","pause_for_millis":640}
    {"type":"throttle_producer_receipt","request_id":42,"producer_id":7}
                                                          a writer: none of it leaves me now
    {"type":"active","commands":1}                        to a writer that begins: you know it all

docs/overload.md has every field, and who says what when; it is enough to write the other
side from. `producer_id` in the receipt is an extension, because one command reaches many; so is
`subject`, a filter of destination subjects, `>` where it is left out. A reason is its name; its
number is taken, too. Unknown fields are ignored (overload.md §4.1).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from ...foreign import read_json
from ...sanitize import get_logger
from ...subjects import MAX_SUBJECT_BYTES, REST, filter_fault

if TYPE_CHECKING:
    from .throttle import Throttle

logger = get_logger(__name__)

THROTTLE_SUBJECT: Final = "spark.jetstream.throttle"
"""Default control subject, on which operators and writers meet."""

DISCOVER: Final = b'{"type":"discover"}'
"""Asks every writer to announce itself."""

_SUPPORTS: Final = "supports_throttle_producer_commands"
MAX_SUBJECTS: Final = 32
_MAX_TEXT: Final = 255
"""Characters of a query's or a host's name."""
ID_BITS: Final = 53
"""Of a producer's id, and of any other integer: as many as every JSON reader keeps exact."""

_MAX_PAUSE_S: Final = 86_400.0
"""Seconds that one command pauses; a longer pause is said again."""

PATIENCE_S: Final = 1.0
"""For a controller that listens and does not answer; later its commands come when they come."""

LEAST_PATIENCE_S: Final = 0.01
"""Lower bound of the patience: each task of a process without an answer halves it."""

T = TypeVar("T")


class Reason(IntEnum):
    """Reason of a producer's pause (PIP-385, `ThrottlingReason`)."""

    TopicProduceQuotaExceeded = 0
    ResourceGroupProduceQuotaExceeded = 1
    ConnectionPendingMessagesBreach = 2
    MessageBufferSizeBreach = 3
    BrokerProduceQuotaExceeded = 4

    @property
    def is_quota(self) -> bool:
        """Whether it pauses the matching subjects only; otherwise it is the whole connection."""
        return self <= Reason.ResourceGroupProduceQuotaExceeded


class ThrottleProducer(NamedTuple):
    """A command to pause."""

    request_id: int
    """Unique among those of one controller."""
    reason: Reason
    pause_s: float
    """From when it arrives; 0 lifts."""
    subject: str = REST
    """Filter of the destination subjects it is about."""
    producer_id: int | None = None
    """The writer that the command is for; None for all."""

    def encode(self) -> bytes:
        """The command as JSON in UTF-8."""
        return _json(
            type="throttle_producer",
            request_id=self.request_id,
            subject=self.subject,
            throttling_reason=self.reason.name,
            pause_for_millis=round(self.pause_s * 1000),
            producer_id=self.producer_id,
        )


class Receipt(NamedTuple):
    """A writer's word that the pause is in force."""

    request_id: int
    producer_id: int | None = None
    """None in a receipt as PIP-385 has it; then it is who the command was for."""

    def encode(self) -> bytes:
        """The command as JSON."""
        return _json(
            type="throttle_producer_receipt",
            request_id=self.request_id,
            producer_id=self.producer_id,
        )


class Paused(NamedTuple):
    """A subject of a writer that is paused."""

    subject: str
    reason: Reason
    pause_s: float
    """Seconds for which it is still paused."""
    filter: str
    """The paused subjects, of which this is one."""
    source: str
    """`operator` or `server`."""
    request_id: int
    """Number of the command; 0 where there was none."""


class Producer(NamedTuple):
    """A writer's answer to `DISCOVER`, and its first word when it begins."""

    producer_id: int
    """Drawn for one attempt of a task."""
    supports_throttle: bool
    subjects: tuple[str, ...] = ()
    """Some of those it has sent to."""
    throttled: tuple[Paused, ...] = ()
    """Some of its subjects that are paused; none is if it is empty."""
    query: str = ""
    """The user's name for the query or the write, else the query's id."""
    host: str = ""
    """The machine it runs on."""

    def encode(self) -> bytes:
        """The answer as JSON in UTF-8, with the first 32 subjects."""
        return _json(
            type="producer",
            producer_id=self.producer_id,
            feature_flags={_SUPPORTS: self.supports_throttle},
            subjects_sent=self.subjects[:MAX_SUBJECTS],
            throttled=[
                {
                    "subject": paused.subject,
                    "throttling_reason": paused.reason.name,
                    "pause_for_millis": round(paused.pause_s * 1000),
                    "filter": paused.filter,
                    "source": paused.source,
                    "request_id": paused.request_id,
                }
                for paused in self.throttled[:MAX_SUBJECTS]
            ],
            query=self.query or None,
            host=self.host or None,
        )


class Active(NamedTuple):
    """A controller's answer to a writer that begins: what it has in force has been told before."""

    commands: int
    """Number of commands that it has sent the writer."""

    def encode(self) -> bytes:
        """The answer as JSON."""
        return _json(type="active", commands=self.commands)


class Discover(NamedTuple):
    """The question that `Producer` answers."""


def active_subject(subject: str) -> str:
    """The subject below this control subject on which writers announce themselves."""
    return f"{subject}.active"


Message: TypeAlias = ThrottleProducer | Receipt | Producer | Discover | Active
"""A message on the control subject, or a reply there."""


def understand(data: bytes) -> Message:
    """
    The message on the control subject, or the reply to one, that these bytes are.

    Raises:
        ValueError: It says nothing that is defined; nothing may follow from it.
    """
    try:
        said = read_json(data)
    except ValueError:
        raise ValueError(f"expected JSON, got {data[:60]!r}") from None
    if not isinstance(said, dict):
        raise ValueError(f"expected a JSON object, got {data[:60]!r}")
    match said.get("type"):
        case "discover":
            return Discover()
        case "throttle_producer":
            return ThrottleProducer(
                _integer(said, "request_id"),
                _reason(said.get("throttling_reason")),
                min(_integer(said, "pause_for_millis") / 1000, _MAX_PAUSE_S),
                _filter(said.get("subject", REST)),
                _producer_id(said),
            )
        case "throttle_producer_receipt":
            return Receipt(_integer(said, "request_id"), _producer_id(said))
        case "producer":
            flags = said.get("feature_flags")
            return Producer(
                _integer(said, "producer_id"),
                isinstance(flags, dict) and flags.get(_SUPPORTS) is True,
                _texts(said.get("subjects_sent")),
                tuple(_sound(said.get("throttled"), _paused)),
                _text(said.get("query")),
                _text(said.get("host")),
            )
        case "active":
            return Active(_integer(said, "commands"))
    raise ValueError(f"unknown type {said.get('type')!r}")


def _json(**content: object) -> bytes:
    """The members that are not None."""
    content = {name: value for name, value in content.items() if value is not None}
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _integer(said: dict[str, Any], name: str) -> int:
    value = said.get(name)
    if type(value) is not int or not 0 <= value < 1 << ID_BITS:
        raise ValueError(f"{name}: expected an integer of at least 0, got {value!r}")
    return value


def _producer_id(said: dict[str, Any]) -> int | None:
    return _integer(said, "producer_id") if said.get("producer_id") is not None else None


def _text(value: object) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _texts(values: object) -> tuple[str, ...]:
    return tuple(v for v in values if isinstance(v, str)) if isinstance(values, list) else ()


def _sound(values: object, parse: Callable[[Any], T]) -> Iterator[T]:
    """Values that say something; the rest of the message counts all the same."""
    for value in values if isinstance(values, list) else ():
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            yield parse(value)


def _paused(value: Any) -> Paused:
    return Paused(
        _filter(value["subject"]),
        _reason(value["throttling_reason"]),
        _integer(value, "pause_for_millis") / 1000,
        _filter(value.get("filter", value["subject"])),
        "server" if value.get("source") == "server" else "operator",
        _integer(value, "request_id") if "request_id" in value else 0,
    )


def _reason(value: object) -> Reason:
    if isinstance(value, str) and value in Reason.__members__:
        return Reason[value]
    if type(value) is int and 0 <= value < len(Reason):
        return Reason(value)
    raise ValueError(f"throttling_reason: unknown {value!r}")


def _filter(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"subject: expected a filter, got {value!r}")
    if len(value) > MAX_SUBJECT_BYTES:
        raise ValueError(f"subject: {len(value)} characters, the server takes {MAX_SUBJECT_BYTES}")
    fault = filter_fault(value)
    if fault is not None:
        raise ValueError(f"subject: {fault}")
    return value


# ── a writer ─────────────────────────────────────────────────────────────────────────────────


class TooManyFiltersError(ValueError):
    """There is no room for another filter."""


class Operators:
    """
    A writer's part: it announces itself, receives pauses, acknowledges them.

        begins ──word on <throttleSubject>.active──▸ holds its rows ──┬ nobody listens ──▸ sends
                                                                      ├ an answer ───────▸ sends
                                                                      └ `PATIENCE_S` ────▸ sends

    A controller sends a writer that begins the commands in force, and then says that this was all.
    So a pause reaches the writer before its first row, however short the task is (overload.md B7).
    If no operator runs, the server says at once that nobody listens. After the first controller's
    answer, the others get as much time again. If a listener never answers (a monitor of all
    subjects), it holds a process's first task for `PATIENCE_S`, and later ones for ever less.

    Args:
        subject: the control subject.
        writer: this writer, as it announces itself.
        throttle: what is paused.
        patience_s: how long the first row waits for an answer.
    """

    def __init__(
        self, subject: str, writer: Producer, throttle: Throttle, patience_s: float = PATIENCE_S
    ) -> None:
        self.listens = subject, f"{subject}.{writer.producer_id}"
        """Subjects of commands to this writer."""
        self.active = active_subject(subject)
        """Subject on which the writer announces itself."""
        self.throttle = throttle
        """Pauses in force."""
        self.writer = writer
        """This writer, as it says who it is."""
        self.is_unanswered = False
        """Whether nobody has answered the announcement."""
        self._sent: dict[str, None] = {}
        self._began = self._until = -math.inf
        self._patience_s = patience_s
        self._is_told = False  # that something was left out

    def __repr__(self) -> str:
        return f"<Operators on {self.listens[1]}, {self.throttle!r}>"

    def announce(self, now: float) -> bytes:
        """
        The announcement for `active`, sent with a reply subject; no row leaves before its answer.
        """
        self._began, self._until = now, now + self._patience_s
        self.is_unanswered = True
        return self.writer.encode()

    def nobody(self) -> None:
        """Nobody listens on `active`, says the server."""
        self._until, self.is_unanswered = -math.inf, False

    def holds(self, now: float) -> bool:
        """Whether the first row has to wait still."""
        return now < self._until

    def next_deadline(self, now: float) -> float:
        """The time when patience for the answer ends; infinite for never."""
        return self._until if self.holds(now) else math.inf

    def sent(self, subjects: Iterable[str]) -> None:
        """Rows have gone to these; some of them are shown to operators."""
        for subject in subjects if len(self._sent) < MAX_SUBJECTS else ():
            self._sent[subject] = None
            if len(self._sent) == MAX_SUBJECTS:
                return

    def heard(self, data: bytes, now: float, lately: Iterable[Sequence[str]] = ()) -> bytes | None:
        """
        An operator spoke.

        Args:
            lately: subjects of the rows that wait, in any number of parts.

        Returns:
            What to answer, behind everything sent before and ahead of everything sent from now on
            (B12). What a receipt says is in force when this returns. Without an answer nothing is
            new (B4).
        """
        try:
            said = understand(data)
        except ValueError as error:
            self._leave_out(error)
            return None
        match said:
            case Active():
                self.is_unanswered = False
                self._until = min(self._until, now + (now - self._began))
                return None
            case Discover():
                sent = tuple(self._sent)
                throttled = self.throttle.throttled([sent, *lately], now)
                return self.writer._replace(subjects=sent, throttled=throttled).encode()
            case ThrottleProducer():
                return self._command(said, now)
        self._leave_out("it is an answer, and no command")
        return None

    def _command(self, said: ThrottleProducer, now: float) -> bytes | None:
        if said.producer_id not in (None, self.writer.producer_id):
            return None
        try:
            self.throttle.table.command(said, now)
        except TooManyFiltersError as error:
            self._leave_out(f"the pause of '{said.subject}' is refused: {error}")
            return None
        return Receipt(said.request_id, self.writer.producer_id).encode()

    def _leave_out(self, why: object) -> None:
        """Says once of a writer that somebody spoke in vain."""
        if not self._is_told:
            logger.warning(
                "what somebody says on '%s' counts for nothing and gets no receipt: %.300s. More"
                " of that kind is left out without a warning", self.listens[0], why,
            )  # fmt: skip
        self._is_told = True

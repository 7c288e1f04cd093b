"""
The lane of a task's publishes: a PubAck for each message, on `<prefix>.<ordinal>`.

Rule 1: every decision about sending a message, sending it again and giving it up is taken here.
Rule 2: no I/O and no clock; callers pass `now` and send what `frames_to_send` returns.

A *publish* is known by its *ordinal*, its number among the publishes that this lane has framed. It
is also the last token of its reply subject. Publishes arrive in blocks of consecutive ordinals
(`Publishes`) and go out in that order. An ordinal is

    offered → sent → acked
       ↓       ↑ ↓
    recalled  waiting ⇄ held    a nack, no PubAck within `ackTimeout`, or a broken connection

or, whatever its state, the reason why the task fails: rejected for good, or not stored within
`publishTimeout` of its first sending. *Recalled* are those that were not sent, when some subject is
paused; they may come back later. *Held* are those that were, and are to be sent again to a paused
subject: they stay here until it is free, and only their PubAck, the task's failure or shedding
takes them away. A publish that is sent again is the same bytes: same reply subject, same
`Nats-Msg-Id`.

**Order.** While any publish waits to be sent again or awaits the PubAck of such a sending,
nothing new is sent, and waiting publishes go out in the order of their ordinals. So within a
subject nothing that was still here overtakes. What is held stops nothing new of other subjects. It
goes before anything new as soon as its own is free, and what is new goes on behind it before its
PubAck. What the window cannot recall is what was already on the wire: if the server drops *a* but
stores *b* that was sent behind it, the stream reads *b, a*. `maxInFlight=1` excludes that.

**Overload.** `Window` is how many may be in flight. It hears of PubAcks and of push-backs: 429,
resources, limits, silence. It hears nothing of what fails without a word about load: no responders,
a broken connection, an id in process. PubAcks of publishes that were sent again do not count: which
sending they answer cannot be told (Karn's rule).
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow.compute as pc

from ...arrays import ranks
from ...errors import PublishRejectedError
from ...outbox.messages import Messages
from ..settings import WindowOptions
from .answers import WRONG_LAST, Fate, Outcome, Refusal, classify
from .flight import Flight, Publishes, Window, framed, is_ordinal
from .retries import Retries, Trouble

_PART_BYTES: Final = 8 << 20
"""
Payloads whose frames are made at one time, about. Of a batch of 64 MB they would be as much again,
and the server would be waiting for them.
"""

_SLOW: Final = 0.2
"""Part of `ackTimeout`: where PubAcks take longer, more on the wire would only wait longer."""

BROKEN: Final = "the connection broke"
_SILENCE: Final = "no PubAck within ackTimeout (is no_ack set, or does no stream listen?)"


@dataclass(slots=True)
class Tally:
    """Counts of a lane; its caller takes sets, dictionaries and lists, and clears them."""

    acked: int = 0
    """Messages stored."""
    duplicates: int = 0
    """Messages among `acked` that the stream already had, as far as its PubAcks say."""
    retries: int = 0
    """Publishes sent again."""
    ignored: int = 0
    """Sendings that failed for a cause unrelated to the server's load."""
    stored_in: dict[str, int] = field(default_factory=dict)
    """
    The streams that stored messages of the lane, as PubAcks name them, each with the sequence of
    the one that was acknowledged last; duplicates do not count. Not to clear.
    """
    pushed_back: int = 0
    """Number of push-backs."""
    refusals: set[Refusal] = field(default_factory=set)
    """Recent refusals of the server."""
    push_backs: dict[str, float] = field(default_factory=dict)
    """
    Subjects on which the server pushed back recently, at least one of each stream. The time is when
    the lane tries again; after silence, when it noticed.
    """
    rejected: list[tuple[Messages, Outcome]] = field(default_factory=list)
    """Messages that left the lane because the server will never store them, with its answers."""


class Lane:
    """
    A PubAck for each message, many on the wire at one time.

    Args:
        prefix: replies come on `<prefix>.<ordinal>`.
        window: how many may be on the wire.
        rejects: whether a message that the server will never store leaves the lane, or ends the
            task.
    """

    def __init__(
        self, prefix: str, window: Window, limits: WindowOptions, rejects: bool = False
    ) -> None:
        self.prefix = prefix
        self.window = window
        self._limits = limits
        self._rejects = rejects
        self.tally = Tally()
        self._cut_at = -math.inf
        """When the window was cut last: push-back of what was sent before says nothing more."""
        self._parts: deque[Messages] = deque()  # offered and not framed
        self._flight = Flight()
        self.again = Retries(limits)
        """Those that were sent and are not acked, held ones among them."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.in_flight}/{self.limit} in flight,"
            f" {self.bytes_in_flight} bytes, {len(self.again.waiting)} waiting,"
            f" {len(self.again.held)} held, {self._flight.end - self._flight.next} unsent,"
            f" {self.tally.acked} acked>"
        )

    @property
    def limit(self) -> int:
        """The most publishes that may be in flight."""
        return self.window.value

    @property
    def in_flight(self) -> int:
        """Publishes on the wire without an answer."""
        return self._flight.outstanding + self.again.on_wire

    @property
    def unanswered(self) -> int:
        """Publishes in flight, or waiting to be sent again; none that is held."""
        return self.in_flight + len(self.again.waiting)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes on the wire without an answer."""
        return self._flight.nbytes + self.again.nbytes

    @property
    def wants_rows(self) -> bool:
        """Whether no offered message waits to be sent, or sent again, so that more may come."""
        return not self._parts and self._has_room

    @property
    def _has_room(self) -> bool:
        """Whether all that was framed is on its way, or held."""
        return self._flight.next == self._flight.end and not self.again.stops

    @property
    def busy(self) -> bool:
        """Whether any offered message is not stored."""
        return bool(self._parts or len(self.again)) or self._flight.low < self._flight.end

    def lower_timeout(self, publish_timeout_s: float) -> None:
        """Lowers the publish timeout of all messages to this, where it is lower."""
        if publish_timeout_s < self._limits.publish_timeout_s:
            ack_timeout_s = min(self._limits.ack_timeout_s, publish_timeout_s)
            self._limits = replace(
                self._limits, publish_timeout_s=publish_timeout_s, ack_timeout_s=ack_timeout_s
            )
            self.again.lower(self._limits)

    # ── offers ───────────────────────────────────────────────────────────────────────────────

    def offer(self, messages: Messages) -> None:
        """Queues messages behind those offered before."""
        if self._limits.strict_order and len(messages) > 1:
            turns = ranks(messages.indices)
            for turn in range(pc.max(turns).as_py() + 1):
                self._parts.append(messages.where(pc.equal(turns, turn)))
            return
        rows = max(1, len(messages) * _PART_BYTES // max(1, messages.data.nbytes))
        starts = range(0, len(messages), rows)
        self._parts.extend(messages.slice(start, rows) for start in starts)

    def append(self, block: Publishes) -> None:
        """Takes the publishes that follow those framed before."""
        self._flight.append(block)

    # ── recalling ────────────────────────────────────────────────────────────────────────────

    def recall(self) -> list[Messages]:
        """Gives back the messages that were not sent."""
        back = [*self._flight.unsent, *self._parts]
        self._flight.drop_unsent()
        self._parts.clear()
        return back

    def has_paused(self, is_paused: Callable[[str], bool]) -> bool:
        """Whether an unsent message may be on a paused subject."""
        unsent = (*self._flight.unsent, *self._parts)
        return any(is_paused(subject) for part in unsent for subject in part.subjects)

    # ── sending ──────────────────────────────────────────────────────────────────────────────

    def frames_to_send(self, now: float, max_bytes: int) -> bytes | memoryview | None:
        """
        The frames to send now, about `max_bytes` at most; None when there are none. The caller
        sends them before it asks again. With `max_bytes=0` only retries go.
        """
        flight, again = self._flight, self.again
        if self._parts and self._has_room and not (self._limits.strict_order and self.in_flight):
            self.append(framed(self._parts.popleft(), flight.end, self.prefix))
        if now < again.resume_at:
            return None
        again.resume_at = -math.inf  # from here on answers wake up who waits
        if again.stops:
            # What may have no time left is not sent: its stream may know its id no more.
            return self._resend(now, max_bytes) if now < again.check_at else None
        start = flight.next
        if start == flight.end or max_bytes <= 0:
            return None
        block = flight.block(start)
        in_flight, nbytes = self.in_flight, self.bytes_in_flight
        limit = self.limit
        room = limit - in_flight
        left = block.end - start
        # With a full window, a send per PubAck would be a system call per row: await an eighth.
        if in_flight and room < min(left, -(-limit // 8)):
            return None
        offsets, first = block.offsets, block.first
        at = offsets[start - first]
        most = self._limits.max_in_flight_bytes
        maximum = most - nbytes
        if in_flight and maximum < min(offsets[block.end - first] - at, most // 8):
            return None
        end = first - 1 + bisect.bisect_right(offsets, at + min(maximum, max_bytes), start - first)
        if end == start:
            if in_flight and offsets[start - first + 1] - at > maximum:
                return None
            end += 1
        end = min(end, start + room)
        flight.note_sent(end, offsets[end - first] - at, now)
        return block.slice(start, end)

    def _resend(self, now: float, max_bytes: int) -> bytes | None:
        frames: list[bytes | memoryview] = []
        nbytes, in_flight = 0, self.in_flight
        room = self._limits.max_in_flight_bytes - self.bytes_in_flight
        for trouble in self.again.first(self.limit - in_flight):
            nbytes += len(trouble.frame)
            if (frames and nbytes > max_bytes) or (nbytes > room and (frames or in_flight)):
                break
            frames.append(trouble.frame)
        self.again.resend(len(frames), now)
        self.tally.retries += len(frames)
        return b"".join(frames) or None

    # ── answers ──────────────────────────────────────────────────────────────────────────────

    def on_reply(
        self, token: bytes, status: int, description: str, data: bytes, now: float
    ) -> None:
        """Handles the reply with this token: the answer to one publish."""
        if is_ordinal(token):  # else it answers nothing of ours
            outcome = classify(status, description, data)
            if outcome.kind is Fate.STORED:
                self.tally.stored_in[outcome.stream] = outcome.sequence
            self.on_answer(int(token), outcome, now)

    def on_pubacks(self, ordinals: list[int], now: float, duplicates: bool = False) -> None:
        """The PubAcks of these ordinals came; one that was acked before counts once."""
        flight, fresh = self._flight, len(ordinals)
        if flight.follows(ordinals):
            self._widen(flight.low, fresh, now)
            flight.advance(fresh)
        else:
            if ordinals:  # one stands for all: acks out of order are those of several streams
                self._widen(ordinals[-1], fresh, now)
            places = flight.undone(ordinals)
            flight.finish(places)
            fresh = len(places) + self.again.drop(ordinals)
        self.tally.acked += fresh
        if duplicates:
            self.tally.duplicates += fresh
        if fresh:
            self.again.succeed()

    def _widen(self, ordinal: int, count: int, now: float) -> None:
        """Tells the window of PubAcks, one of them of this ordinal, unless it was sent again."""
        oldest_at = self._flight.oldest_at
        if oldest_at is not None and self._flight.is_outstanding(ordinal):
            is_slow = now - oldest_at > _SLOW * self._limits.ack_timeout_s
            self.window.acked(count, self.in_flight, is_slow)

    def on_answer(self, ordinal: int, outcome: Outcome, now: float) -> None:
        """
        Any other answer came.

        Raises:
            PublishRejectedError: The server will never store this publish.
        """
        if outcome.kind in (Fate.STORED, Fate.DUPLICATE):
            self.on_pubacks([ordinal], now, outcome.kind is Fate.DUPLICATE)
            return
        again, is_first = self.again, self._flight.is_outstanding(ordinal)
        if is_first:
            self._begin_again([(ordinal, self._flight.first_sent(ordinal))])
        trouble = again.get(ordinal)
        if trouble is None:
            return
        if outcome.kind is Fate.REJECTED:
            self._reject(trouble, outcome, may_be_stored=not is_first)
            return
        if trouble.waiting:
            return  # the late answer to a sending that had been given up
        trouble.is_unsure |= outcome.kind is Fate.IN_PROCESS  # by another sending
        again.queue(trouble, f"{outcome.kind.value}: {outcome.detail}", outcome.err_code)
        self.tally.ignored += outcome.is_ignored
        if again.pause(outcome.is_push_back, now) and outcome.is_push_back:
            self.tally.pushed_back += 1
        if outcome.is_push_back and trouble.last_sent > self._cut_at:
            self._cut(now)
        subject = trouble.subject
        if outcome.is_push_back:
            self.tally.push_backs[subject] = again.resume_at
        if outcome.kind in (Fate.LIMITED, Fate.OVERLOADED):
            self.tally.refusals.add(Refusal(subject, outcome, again.resume_at))

    def _reject(self, trouble: Trouble, outcome: Outcome, may_be_stored: bool) -> None:
        """
        The publish never will be stored. If an earlier sending may be what it is refused for, it is
        no dead letter: the task fails, and its next attempt finds out.
        """
        is_of_stream = outcome.err_code != 0
        is_doubted = outcome.err_code == WRONG_LAST and may_be_stored
        if is_doubted or not (self._rejects and is_of_stream):
            why = f"row {trouble.row}: {outcome.detail}"
            if is_doubted:
                why += "; it was sent more than once, and may be stored"
            raise PublishRejectedError(trouble.subject, why, outcome.err_code)
        self.tally.rejected.append((trouble.messages.slice(trouble.place, 1), outcome))
        self.again.drop([trouble.ordinal])

    def _cut(self, now: float) -> None:
        if self.window.pushed_back():
            self._cut_at = now

    def on_disconnect(self, why: str = BROKEN) -> None:
        """The connection broke: all that is on the wire is to be sent again, in order."""
        self._begin_again(self._flight.drop_sendings(math.inf, 0.0))
        self.tally.ignored += self.again.lose_all(why)

    def _begin_again(self, sent: list[tuple[int, float]]) -> list[Trouble]:
        """Takes publishes, and when each was sent once and not acked, out of the flight."""
        troubles = [
            self.again.add(Trouble.of(self._flight.block(ordinal), ordinal, at))
            for ordinal, at in sent
        ]
        self._flight.finish([ordinal for ordinal, _ in sent])
        return troubles

    # ── time ─────────────────────────────────────────────────────────────────────────────────

    def expire(self, now: float) -> None:
        """
        Queues what was sent `ackTimeout` ago to be sent again.

        Call it only when all answers that have arrived were handed in.

        Raises:
            PublishTimeoutError: A publish was not stored within `publishTimeout`.
        """
        late = self._begin_again(self._flight.drop_sendings(now, self._limits.ack_timeout_s))
        for trouble in late:
            self.again.lose(trouble, _SILENCE)
        late += self.again.expire(now, _SILENCE)
        if late:
            self.tally.pushed_back += 1
            self._cut(now)
            self.tally.push_backs |= {overdue.subject: now for overdue in late}

    def next_deadline(self, now: float) -> float:
        """Next call of `frames_to_send` and `expire` if nothing happens; infinite when never."""
        deadline, oldest = self.again.next_deadline(now), self._flight.oldest_at
        return deadline if oldest is None else min(deadline, oldest + self._limits.ack_timeout_s)

    @property
    def give_up_at(self) -> float:
        """Deadline of the oldest publish on its way; infinite when there is none."""
        at = self._flight.oldest_at
        oldest = min(self.again.oldest, math.inf if at is None else at)
        return oldest + self._limits.publish_timeout_s

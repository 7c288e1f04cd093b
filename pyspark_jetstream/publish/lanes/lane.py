"""
The lane of a task's publishes: a PubAck for each message, on `<prefix>.<ordinal>`.

Rule 1: every decision about sending a message, sending it again and giving it up is taken here.
Rule 2: no I/O and no clock; callers pass `now` and send what `frames_to_send` returns.

A *publish* is known by its *ordinal*, its number among the publishes that this lane has framed. It
is also the last token of its reply subject; the row's position in the task's input is
`Publishes.row(ordinal)`. Publishes arrive in blocks of consecutive ordinals (`Publishes`)
and go out in that order. An ordinal is

    offered → sent → acked
       ↓        ↑ ↓
    recalled ← waiting    a nack, no PubAck within `ackTimeout`, or a broken connection

or, whatever its state, the reason why the task fails: rejected for good, or not stored within
`publishTimeout` of its first sending. *Recalled* are, when some subject is paused, those that were
not sent, and of that subject those that wait to be sent again; they may come back later, under
another ordinal. A publish that is sent again is the same bytes: same reply
subject, same `Nats-Msg-Id`.

**Order.** While any publish waits to be sent again or awaits the PubAck of such a sending,
nothing new is sent, and waiting publishes go out in the order of their ordinals. So within a
subject nothing that was still here overtakes. What the window cannot recall is what was already
on the wire: if the server drops *a* but stores *b* that was sent behind it, the stream reads
*b, a*. `maxInFlight=1` excludes that.

**Overload.** `Window` is how many may be in flight. It hears of PubAcks and of push-backs: 429,
resources, limits, silence. It hears nothing of what fails without a word about load: no responders,
a broken connection, an id in process. PubAcks of publishes that were sent again do not count: which
sending they answer cannot be told (Karn's rule).
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import ranks
from ...errors import PublishRejectedError
from ...outbox.messages import Messages
from ...outbox.window import Window
from ..options import WindowOptions
from .answers import WRONG_LAST, Fate, Outcome, Refusal, classify, is_ordinal
from .flight import Flight
from .frames import Publishes, framed
from .retries import Retries, Trouble
from .tally import BROKEN, Tally

_PART_BYTES: Final = 8 << 20
"""
Payloads whose frames are made at one time, about. Of a batch of 64 MB they would be as much again,
and the server would be waiting for them.
"""

_NEVER: Final = (math.inf, math.inf)
_SILENCE: Final = "no PubAck within ackTimeout (is no_ack set, or does no stream listen?)"


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
        self._parts: deque[Messages] = deque()  # offered and not framed
        self._flight = Flight()
        self._again = Retries(limits)
        self._earlier: dict[int, tuple[float, float]] = {}
        """
        Times of rows that were sent before they were offered, and not again since: of the first
        sending, and since when it may be stored.
        """

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.in_flight}/{self.limit} in flight,"
            f" {self.bytes_in_flight} bytes, {len(self._again.waiting)} waiting,"
            f" {self._flight.end - self._flight.next} unsent, {self.tally.acked} acked>"
        )

    @property
    def limit(self) -> int:
        """The most publishes that may be in flight."""
        return self.window.value

    @property
    def in_flight(self) -> int:
        """Publishes on the wire without an answer."""
        return self._flight.outstanding - len(self._again.waiting)

    @property
    def unanswered(self) -> int:
        """Publishes that were sent and are not stored: in flight, or waiting to be sent again."""
        return self._flight.outstanding

    @property
    def cause(self) -> str:
        """Why the first of the publishes that are sent again are; "" where none is."""
        return self._again.cause

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the publishes that were sent and are not stored, those that wait included."""
        return self._flight.nbytes

    @property
    def wants_rows(self) -> bool:
        """Whether no offered message waits to be sent, or sent again, so that more may come."""
        return not self._parts and self._has_room

    @property
    def _has_room(self) -> bool:
        """Whether all that was framed is on its way."""
        return self._flight.next == self._flight.end and not len(self._again)

    @property
    def busy(self) -> bool:
        """Whether any offered message is not stored."""
        return bool(self._parts) or self._flight.low < self._flight.end

    def lower_timeout(self, publish_timeout_s: float) -> None:
        """Lowers the publish timeout of all messages to this, where it is lower."""
        if publish_timeout_s < self._limits.publish_timeout_s:
            ack_timeout_s = min(self._limits.ack_timeout_s, publish_timeout_s)
            self._limits = replace(
                self._limits, publish_timeout_s=publish_timeout_s, ack_timeout_s=ack_timeout_s
            )
            self._again.lower(self._limits)

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

    def _frame_part(self, now: float) -> None:
        part, first = self._parts.popleft(), self._flight.end
        self.append(framed(part, first, self.prefix))
        if part.sent is not None:
            for place in pc.indices_nonzero(pc.is_valid(part.sent)).to_pylist():
                unsure = math.inf if part.unsure is None else part.unsure[place].as_py()
                self._earlier[first + place] = part.sent[place].as_py(), unsure
            self._check_earlier(now)  # their stream may know their ids no more

    # ── recalling ────────────────────────────────────────────────────────────────────────────

    def recall(self, is_paused: Callable[[str], bool], unsent: bool) -> list[Messages]:
        """
        Gives back the unsent messages, and the messages to retry whose subject is paused, with the
        times of their first sending. Nothing goes out on a paused subject until offered again.

        Args:
            unsent: whether to give back the unsent messages.
        """
        back = []
        waiting = self.waiting(is_paused)
        if waiting:
            ordinals, *times = zip(*waiting, strict=True)
            sent, unsure = (pa.array(column, pa.float64()) for column in times)
            rows = Messages.joined(self._flight.messages(ordinals))
            back.append(replace(rows, sent=sent, unsure=unsure))
        self._finish(ordinal for ordinal, *_ in waiting)
        if unsent:
            back += [*self._flight.unsent, *self._parts]
            self._flight.drop_unsent()
            end = self._flight.end
            self._earlier = {ordinal: at for ordinal, at in self._earlier.items() if ordinal < end}
            self._parts.clear()
        return back

    def has_paused(self, is_paused: Callable[[str], bool]) -> bool:
        """Whether an unsent message may be on a paused subject."""
        unsent = (*self._flight.unsent, *self._parts)
        return any(is_paused(subject) for part in unsent for subject in part.subjects)

    def waiting(self, is_paused: Callable[[str], bool]) -> list[tuple[int, float, float]]:
        """Rows of paused subjects that wait to go again, since when, since when maybe stored."""
        return [
            (ordinal, each.first_sent, each.unsure)
            for ordinal, each in self._again.of(self._again.waiting)
            if is_paused(self._flight.subject(ordinal))
        ]

    # ── sending ──────────────────────────────────────────────────────────────────────────────

    def frames_to_send(self, now: float, max_bytes: int) -> bytes | memoryview | None:
        """
        The frames to send now, about `max_bytes` at most; None when there are none. The caller
        sends them before it asks again. With `max_bytes=0` only retries go.
        """
        flight = self._flight
        goes_on = flight.low == flight.end if self._limits.strict_order else self._has_room
        if self._parts and goes_on:
            self._frame_part(now)
        if now < self._again.resume_at:
            return None
        if len(self._again):
            return self._resend(now, max_bytes) if self._again.waiting else None
        start = flight.next
        if start == flight.end or max_bytes <= 0:
            return None
        block = flight.block(start)
        in_flight = flight.outstanding
        limit = self.limit
        room = limit - in_flight
        left = block.end - start
        # With a full window, a send per PubAck would be a system call per row: await an eighth.
        if in_flight and room < min(left, -(-limit // 8)):
            return None
        offsets, first = block.offsets, block.first
        at = offsets[start - first]
        most = self._limits.max_in_flight_bytes
        maximum = most - flight.nbytes
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
        frames: list[memoryview] = []
        room = max(0, min(self.limit - self.in_flight, len(self._again.waiting)))
        ordinals: list[int] = []
        nbytes = 0
        for ordinal in self._again.waiting[:room]:
            block = self._flight.block(ordinal)
            size = block.nbytes(ordinal, ordinal + 1)
            if frames and nbytes + size > max_bytes:
                break
            frames.append(block.slice(ordinal, ordinal + 1))
            ordinals.append(ordinal)
            nbytes += size
        self._again.resend(ordinals, now)
        self.tally.retries += len(ordinals)
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
        if not self._again and not self._earlier and flight.follows(ordinals):
            self._widen(flight.low, fresh)
            flight.advance(fresh)
        else:
            if ordinals:  # one stands for all: acks out of order are those of several streams
                self._widen(ordinals[-1], fresh)
            fresh = self._finish(ordinals)
        self.tally.acked += fresh
        if duplicates:
            self.tally.duplicates += fresh
        if fresh:
            self._again.succeed()

    def _widen(self, ordinal: int, count: int) -> None:
        """Tells the window of PubAcks, one of them of this ordinal, unless it was sent again."""
        if ordinal not in self._again and self._flight.is_outstanding(ordinal):
            self.window.acked(count, self.in_flight)

    def _finish(self, ordinals: Iterable[int]) -> int:
        """Finishes ordinals, in any order; the number of those that were not finished before."""
        places = self._flight.undone(ordinals)
        self._again.drop(places)
        self._flight.finish(places)
        for ordinal in self._earlier.keys() & places if self._earlier else ():
            del self._earlier[ordinal]
        return len(places)

    def on_answer(self, ordinal: int, outcome: Outcome, now: float) -> None:
        """
        Any other answer came.

        Raises:
            PublishRejectedError: The server will never store this publish.
        """
        if outcome.kind in (Fate.STORED, Fate.DUPLICATE):
            self.on_pubacks([ordinal], now, outcome.kind is Fate.DUPLICATE)
            return
        if not self._flight.is_outstanding(ordinal):
            return
        if outcome.kind is Fate.REJECTED:
            self._reject(ordinal, outcome)
            return
        again = self._again
        trouble = again.get(ordinal)
        if trouble is not None and trouble.waiting:
            return  # the late answer to a sending that had been given up
        if trouble is None:
            trouble = self._begin_again(ordinal, self._flight.first_sent(ordinal))
        if outcome.kind is Fate.IN_PROCESS:  # by another sending
            trouble.unsure = min(trouble.unsure, trouble.last_sent)
        again.queue(ordinal, trouble, f"{outcome.kind.value}: {outcome.detail}", outcome.err_code)
        self.tally.ignored += outcome.is_ignored
        if again.pause(outcome.kind, now) and outcome.is_push_back:
            self._pushed_back()
        subject = self._flight.subject(ordinal)
        if outcome.is_push_back:
            self.tally.push_backs[subject] = again.resume_at
        if outcome.kind in (Fate.LIMITED, Fate.OVERLOADED):
            self.tally.refusals.add(Refusal(subject, outcome, again.resume_at))

    def _reject(self, ordinal: int, outcome: Outcome) -> None:
        """
        The publish never will be stored. If an earlier sending may be what it is refused for, it is
        no dead letter: the task fails, and its next attempt finds out.
        """
        is_of_stream = outcome.err_code != 0
        may_be_stored = self._earlier.get(ordinal, _NEVER)[1] < math.inf or ordinal in self._again
        is_doubted = outcome.err_code == WRONG_LAST and may_be_stored
        if is_doubted or not (self._rejects and is_of_stream):
            block = self._flight.block(ordinal)
            why = f"row {block.row(ordinal)}: {outcome.detail}"
            if is_doubted:
                why += "; it was sent more than once, and may be stored"
            raise PublishRejectedError(block.subject(ordinal), why, outcome.err_code)
        (message,) = self._flight.messages([ordinal])
        self.tally.rejected.append((message, outcome))
        self._finish([ordinal])

    def _pushed_back(self) -> None:
        self.tally.pushed_back += 1
        self.window.pushed_back()

    def on_disconnect(self, why: str = BROKEN) -> None:
        """The connection broke: all that is on the wire is to be sent again, in order."""
        for ordinal, at in self._flight.drop_sendings(math.inf, 0.0):
            if ordinal not in self._again:
                self._begin_again(ordinal, at)
        self.tally.ignored += self._again.lose_all(why)

    def _begin_again(self, ordinal: int, sent_at: float) -> Trouble:
        """Takes in a publish that was sent then, and maybe before, and is not acked."""
        first_sent, unsure = self._earlier.pop(ordinal, (sent_at, math.inf))
        return self._again.add(ordinal, first_sent, sent_at, unsure)

    # ── time ─────────────────────────────────────────────────────────────────────────────────

    def expire(self, now: float) -> None:
        """
        Queues what was sent `ackTimeout` ago to be sent again.

        Call it only when all answers that have arrived were handed in.

        Raises:
            PublishTimeoutError: A publish was not stored within `publishTimeout`.
        """
        late: list[int] = []
        for ordinal, at in self._flight.drop_sendings(now, self._limits.ack_timeout_s):
            if ordinal not in self._again:
                self._again.lose(ordinal, self._begin_again(ordinal, at), _SILENCE)
                late.append(ordinal)
        silent, failed = self._again.expire(now, _SILENCE)
        if failed is not None:
            ordinal, trouble = failed
            raise trouble.error(self._flight.block(ordinal), ordinal, now)
        self._check_earlier(now)
        late += silent
        if late:
            self._pushed_back()
            self.tally.push_backs |= {self._flight.subject(overdue): now for overdue in late}

    def next_deadline(self, now: float) -> float:
        """Next call of `frames_to_send` and `expire` if nothing happens; infinite when never."""
        deadline = min(self._again.next_deadline(now), self._earlier_until)
        oldest = self._flight.oldest_at
        if oldest is not None:
            deadline = min(deadline, oldest + self._limits.ack_timeout_s)
        return deadline

    @property
    def give_up_at(self) -> float:
        """Deadline of the oldest publish on its way; infinite when there is none."""
        at = self._flight.oldest_at
        oldest = min(self._again.oldest, math.inf if at is None else at)
        return min(oldest + self._limits.publish_timeout_s, self._earlier_until)

    @property
    def _earlier_until(self) -> float:
        """
        Deadline of the oldest publish of an earlier attempt, which is to be stored or found stored.
        """
        oldest, _ = min(self._earlier.values(), default=_NEVER)
        return oldest + self._limits.publish_timeout_s

    def _check_earlier(self, now: float) -> None:
        """
        Raises:
            PublishTimeoutError: A publish that was here before has no time left.
        """
        if self._earlier_until <= now:
            (first_sent, _), ordinal = min((at, each) for each, at in self._earlier.items())
            trouble = Trouble(first_sent, "no PubAck yet")
            raise trouble.error(self._flight.block(ordinal), ordinal, now)

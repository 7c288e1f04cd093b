"""
The window of one task's publishes: what goes on the wire now, what waits, what has failed.

Rule 1: every decision about sending, sending again and giving up is taken here.
Rule 2: no I/O and no clock; callers pass `now` and put on the wire what `ready` returns.

A *publish* is known by its *ordinal*, the row's position in the task's input, which is also the
last token of its reply subject. Publishes arrive in blocks of consecutive ordinals (`Publishes`)
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

**Overload.** How many may be on the wire is a `Limit`'s to say (`limits`). It hears of PubAcks and
their round trips, and of push-backs: 429, resources, limits, silence. It hears nothing of a publish
that was sent again: which sending its PubAck answers cannot be told (Karn's rule). Nor of what
fails without a word about load: no responders, a broken connection, an id in process.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...errors import PublishError, PublishRejectedError, PublishTimeoutError
from ...outbox.limits import Kind, Limit, pause_s
from .answers import Outcome, Refusal
from .frames import Frames, Publishes, size_of

__all__ = ["Window"]

NO_STREAM_GRACE_S: Final = 10.0
"""How long a subject on which this task has stored nothing yet may be without any stream."""

_SERVED_LIMIT: Final = 10_000
"""Subjects remembered as served by a stream; others get the grace only."""


@dataclass(slots=True)
class _Trouble:
    """A publish whose first sending was not acked."""

    first_sent: float
    cause: str
    err_code: int = 0
    last_sent: float = 0.0
    sendings: int = 1
    waiting: bool = False
    unsure: float = math.inf
    """Since when it may be stored, though no PubAck came."""
    absent_since: float | None = None
    """Since when nobody listens on its subject; None when that was not the last answer."""


class _Run(NamedTuple):
    """Ordinals sent for the first time together."""

    first: int
    end: int
    at: float


class _Before(NamedTuple):
    """When a publish that was here before was first sent, and since when it may be stored."""

    at: float
    unsure: float


_NEW: Final = _Before(math.inf, math.inf)

_SILENCE: Final = "no PubAck within ackTimeout (is the stream's no_ack set?)"


class Window:
    """
    The publishes of one task between the row and the PubAck.

    Args:
        limit: how many may be on the wire at one time.
        max_bytes: their bytes; one larger publish may still go alone.
        ack_timeout_s: how long a PubAck may take before the publish is sent again.
        publish_timeout_s: how long a publish may take in all, from its first sending.
    """

    def __init__(
        self, limit: Limit, max_bytes: int, ack_timeout_s: float, publish_timeout_s: float
    ) -> None:
        self.acked = 0
        self.duplicates = 0
        self.retries = 0
        """Sendings beyond the first of each publish."""
        self.late_retries = 0
        self.ignored = 0
        """Sendings that failed for a cause that says nothing of the load."""
        self._limit = limit
        self._max_bytes = max_bytes
        self._ack_timeout_s = min(ack_timeout_s, publish_timeout_s)
        self._publish_timeout_s = publish_timeout_s
        self._forgets_s = math.inf
        self._blocks: deque[Publishes] = deque()
        self.low = 0
        """Every ordinal below is settled."""
        self._next = 0  # the first ordinal never sent
        self.end = 0
        """The first ordinal not offered."""
        self._done: set[int] = set()  # acked, above `low`
        self._bytes = 0  # of everything sent and not acked
        self._runs: deque[_Run] = deque()  # first sendings, oldest first; acked ones may linger
        self._troubled: dict[int, _Trouble] = {}
        self._waiting: list[int] = []  # the troubled that are to be sent again, ascending
        self._check_at = math.inf  # no troubled publish expires before
        self._resume_at = -math.inf  # nothing is sent before
        self._refusals = 0  # rounds of refusals since something was acked
        self._unread = False  # what comes may have come long ago
        self._served: set[str] = set()  # subjects stored on in retired blocks
        self._withdrawn: set[int] = set()  # of the other blocks; they are not stored
        self._older: dict[int, _Before] = {}  # of those that were here once before
        self.refusals: set[Refusal] = set()
        """What the server refused; who looks at the refusals clears them."""
        self.push_backs: dict[str, float] = {}
        """When each subject pushed back last; who looks at them clears them."""

    def __repr__(self) -> str:
        return (
            f"<Window {self.in_flight}/{self.limit} in flight, {self._bytes} bytes,"
            f" {len(self._waiting)} waiting, {self.unsent} unsent, {self.acked} acked>"
        )

    @property
    def unsent(self) -> int:
        """Publishes that were never sent, the last ones offered."""
        return self.end - self._next

    @property
    def limit(self) -> int:
        """How many publishes may be on the wire now."""
        return self._limit.value

    @property
    def in_flight(self) -> int:
        """Publishes on the wire without an answer."""
        return self._next - self.low - len(self._done) - len(self._waiting)

    @property
    def unanswered(self) -> int:
        """Those, and the publishes that wait to be sent again."""
        return self._next - self.low - len(self._done)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes on the wire without an answer."""
        return self._bytes

    @property
    def busy(self) -> bool:
        """Whether any offered publish is not acked."""
        return self.low < self.end

    @property
    def is_frozen(self) -> bool:
        """Whether nothing new goes out until what was refused or lost is settled."""
        return bool(self._troubled)

    @property
    def wants_rows(self) -> bool:
        """Whether everything offered is on its way, so that the next block may come."""
        return self._next == self.end and not self._troubled

    def narrow(self, publish_timeout_s: float) -> None:
        """Gives publishes less time, if that is less than they have."""
        if publish_timeout_s < self._publish_timeout_s and self._troubled:
            self._check_at = -math.inf  # their time may be up
        self._publish_timeout_s = min(self._publish_timeout_s, publish_timeout_s)
        self._ack_timeout_s = min(self._ack_timeout_s, self._publish_timeout_s)

    def forgets(self, after_s: float) -> None:
        """A stream of these publishes knows their message ids for so long."""
        self._forgets_s = min(self._forgets_s, after_s)

    def append(self, block: Publishes) -> None:
        """Takes the publishes that follow those offered before."""
        if block.first != self.end:
            raise ValueError(f"expected the block of ordinal {self.end}, got {block.first}")
        if block.end > block.first:
            self._blocks.append(block)
            self.end = block.end

    def sent_before(self, ordinal: int, at: float, unsure: float = math.inf) -> None:
        """This publish, which is offered, was first sent then, and may be stored since `unsure`."""
        self._older[ordinal] = _Before(at, unsure)

    def was_sent_once(self, ordinal: int) -> bool:
        """Whether only the sending that awaits its answer can have stored this publish."""
        is_new = self._outstanding(ordinal) and ordinal not in self._troubled
        return is_new and self._older.get(ordinal, _NEW).unsure == math.inf

    def serves(self, subjects: Sequence[str]) -> None:
        """Notes subjects that a stream has taken."""
        if len(self._served) < _SERVED_LIMIT:
            self._served.update(subjects[:_SERVED_LIMIT])

    # ── recalling ────────────────────────────────────────────────────────────────────────────

    def cut(self) -> int:
        """Forgets the publishes that were never sent, the last ones offered; how many."""
        count = self.unsent
        while self._blocks and self._blocks[-1].first >= self._next and count:
            self._blocks.pop()
        if self._blocks and self._blocks[-1].end > self._next:
            self._blocks.append(self._blocks.pop().before(self._next))
        self.end = self._next
        self._older = {ordinal: at for ordinal, at in self._older.items() if ordinal < self.end}
        return count

    def waiting(self, is_paused: Callable[[str], bool]) -> list[tuple[int, float, float]]:
        """Those of paused subjects that wait to go again, since when, since when maybe stored."""
        return [
            (ordinal, min(trouble.first_sent, self._older.get(ordinal, _NEW).at), trouble.unsure)
            for ordinal, trouble in (
                (ordinal, self._troubled[ordinal]) for ordinal in self._waiting
            )
            if is_paused(self._block(ordinal).subject(ordinal))
        ]

    def withdraw(self, ordinals: Iterable[int]) -> None:
        """Forgets publishes that wait to be sent again."""
        ordinals = list(ordinals)
        self._withdrawn.update(ordinals)
        self._leave(ordinals)
        if not self._troubled:
            self._resume_at = -math.inf

    # ── sending ──────────────────────────────────────────────────────────────────────────────

    def ready(self, now: float, max_bytes: int) -> Frames | None:
        """
        The frames to send now, about `max_bytes` at most; None when there is nothing to send.

        The caller sends them before it asks again. With 0 only what goes again: its bytes count.
        """
        self._unread = False
        if now < self._resume_at:
            return None
        if self._troubled:
            return self._again(now, max_bytes) if self._waiting else None
        start = self._next
        if start == self.end or max_bytes <= 0:
            return None
        block = next(block for block in self._blocks if block.end > start)
        in_flight = start - self.low - len(self._done)
        limit = self.limit
        room = limit - in_flight
        left = block.end - start
        # With a full window, a send per PubAck would be a system call per row: await an eighth.
        if in_flight and room < min(left, -(-limit // 8)):
            return None
        offsets, first = block.offsets, block.first
        at = offsets[start - first]
        maximum = self._max_bytes - self._bytes
        if in_flight and maximum < min(offsets[block.end - first] - at, self._max_bytes // 8):
            return None
        end = first - 1 + bisect.bisect_right(offsets, at + min(maximum, max_bytes), start - first)
        if end == start:
            if in_flight and offsets[start - first + 1] - at > maximum:
                return None
            end += 1
        end = min(end, start + room)
        nbytes = offsets[end - first] - at
        self._bytes += nbytes
        self._next = end
        self._runs.append(_Run(start, end, now))
        if self._older:
            few = self._older if len(self._older) < end - start else range(start, end)
            known = [self._older[i].unsure for i in few if start <= i < end and i in self._older]
            self.late_retries += sum(now - unsure > self._forgets_s for unsure in known)
        return block.slice(start, end)

    def _again(self, now: float, max_bytes: int) -> bytes | None:
        frames: list[memoryview] = []
        room = min(self.limit - self.in_flight, len(self._waiting))
        count = nbytes = 0
        for ordinal in self._waiting[: max(room, 0)]:
            block = self._block(ordinal)
            size = block.nbytes(ordinal, ordinal + 1)
            if frames and nbytes + size > max_bytes:
                break
            frame = block.slice(ordinal, ordinal + 1)
            frames += frame if isinstance(frame, list) else [frame]
            count += 1
            nbytes += size
            trouble = self._troubled[ordinal]
            trouble.waiting = False
            self.late_retries += now - trouble.unsure > self._forgets_s
            trouble.last_sent = now
            trouble.sendings += 1
        del self._waiting[:count]
        self.retries += count
        self._check_at = min(self._check_at, now + self._ack_timeout_s)
        return b"".join(frames) or None

    # ── answers ──────────────────────────────────────────────────────────────────────────────

    def unread(self) -> None:
        """
        What is handed in before the next sending may have come long ago: it tells no round trip.
        """
        self._unread = True

    def stored(self, ordinals: list[int], now: float, duplicates: bool = False) -> None:
        """The PubAcks of these ordinals came; one that was acked before counts once."""
        before = self.acked
        low, end = self.low, self.low + len(ordinals)
        if (
            not self._done
            and not self._troubled
            and end <= self._next
            and ordinals == list(range(low, end))
        ):
            self._sample(low, end, now)
            self._advance(end)
        else:
            if ordinals:  # one stands for all: acks out of order are those of several streams
                self._sample(ordinals[-1], ordinals[-1] + 1, now, len(ordinals))
            self.acked += self._leave(ordinals)
        fresh = self.acked - before
        if duplicates:
            self.duplicates += fresh
        if fresh:
            self._refusals = 0

    def _sample(self, start: int, end: int, now: float, weight: int = 0) -> None:
        """The limit hears of the PubAcks of these ordinals, unless they were sent again."""
        if self._unread or start in self._troubled or not self._outstanding(start):
            return
        in_flight = self.in_flight
        for run in self._runs:
            if run.first >= end:
                break
            count = min(run.end, end) - max(run.first, start)
            if count > 0:
                self._limit.acked(weight or count, now - run.at, in_flight, now)

    def _advance(self, end: int) -> None:
        """The fast path: PubAcks in the order of the publishes."""
        self.acked += end - self.low
        while self.low < end:
            block = self._blocks[0]
            upto = min(end, block.end)
            self._bytes -= block.nbytes(self.low, upto)
            self.low = upto
            self._retire()

    def _leave(self, ordinals: Iterable[int]) -> int:
        """
        These are done with, in any order, as they are where acks are those of several streams; how
        many of them were not before.
        """
        places = sorted(set(ordinals).difference(self._done))
        if places and not self.low <= places[0] <= places[-1] < self._next:
            places = [ordinal for ordinal in places if self._outstanding(ordinal)]
        for ordinal in self._troubled.keys() & places if self._troubled else ():
            if self._troubled.pop(ordinal).waiting:
                del self._waiting[bisect.bisect_left(self._waiting, ordinal)]
        self._bytes -= size_of(self._blocks, places)
        self._done.update(places)
        low = self.low
        self.low = next(itertools.filterfalse(self._done.__contains__, itertools.count(low)))
        self._done.difference_update(range(low, self.low))
        self._retire()
        return len(places)

    def _retire(self) -> None:
        while self._blocks and self._blocks[0].end <= self.low:
            block = self._blocks.popleft()
            if len(self._served) < _SERVED_LIMIT:
                self._serve(block)
            if self._withdrawn:
                self._withdrawn.difference_update(range(block.first, block.end))
        while self._runs and self._runs[0].end <= self.low:
            self._runs.popleft()

    def _serve(self, block: Publishes) -> None:
        """All of it is stored, but what was withdrawn; its subjects may be those of more rows."""
        few = len(block.subjects) <= len(block.codes)
        if few and self._served.issuperset(block.subjects):
            return
        codes = set(block.codes)
        if self._withdrawn:
            places = enumerate(block.codes, block.first)
            codes = {code for ordinal, code in places if ordinal not in self._withdrawn}
        self._served.update(block.subjects[code] for code in codes)

    def settled(self, ordinal: int, outcome: Outcome, now: float) -> None:
        """
        Any other answer came.

        Raises:
            PublishRejectedError: The server will never store this publish.
            PublishTimeoutError: No stream has its subject.
        """
        if outcome.kind in (Kind.STORED, Kind.DUPLICATE):
            self.stored([ordinal], now, outcome.kind is Kind.DUPLICATE)
            return
        if not self._outstanding(ordinal):
            return
        if outcome.kind is Kind.REJECTED:
            self._reject(ordinal, outcome)
            return
        trouble = self._troubled.get(ordinal)
        if trouble is not None and trouble.waiting:
            return  # the late answer to a sending that had been given up
        if trouble is None:
            trouble = self._trouble(ordinal, self._first_sent(ordinal))
        absent_since = trouble.absent_since
        if outcome.kind is Kind.IN_PROCESS:  # by another sending
            trouble.unsure = min(trouble.unsure, trouble.last_sent)
        self._wait(ordinal, trouble, f"{outcome.kind.value}: {outcome.detail}", outcome.err_code)
        self.ignored += outcome.is_ignored
        if outcome.kind is Kind.ABSENT:
            trouble.absent_since = now if absent_since is None else absent_since
            self._check_absent(ordinal, trouble, now)
        if now >= self._resume_at:  # the first refusal of a round
            self._resume_at = now + pause_s(outcome.kind, self._refusals)
            self._refusals += 1
            if outcome.is_push_back:
                self._pushed_back(now)
        subject = self._block(ordinal).subject(ordinal)
        if outcome.is_push_back:
            self.push_backs[subject] = self._resume_at
        if outcome.kind in (Kind.LIMITED, Kind.OVERLOADED):
            self.refusals.add(Refusal(subject, outcome.err_code, self._resume_at, outcome.detail))

    def _reject(self, ordinal: int, outcome: Outcome) -> None:
        raise PublishRejectedError(
            self._block(ordinal).subject(ordinal),
            f"row {self._block(ordinal).row(ordinal)}: {outcome.detail}",
            outcome.err_code,
        )

    def _pushed_back(self, now: float) -> None:
        self._limit.dropped(now)

    def broken(self) -> None:
        """The connection broke: all that is on the wire is to be sent again, in order."""
        for run in self._runs:
            for ordinal in range(max(run.first, self.low), run.end):
                if ordinal not in self._done and ordinal not in self._troubled:
                    self._trouble(ordinal, run.at)
        self._runs.clear()
        for ordinal, trouble in self._troubled.items():
            if not trouble.waiting:
                self._lost(ordinal, trouble, "the connection broke")
                self.ignored += 1

    # ── time ─────────────────────────────────────────────────────────────────────────────────

    def expire(self, now: float) -> None:
        """
        What was sent `ackTimeout` ago waits to be sent again.

        Call it only when all answers that have arrived were handed in.

        Raises:
            PublishTimeoutError: A publish was not stored within `publishTimeout`.
        """
        late: list[int] = []
        if self._older_until <= now:
            self._check_older(now)
        while self._runs and self._runs[0].at + self._ack_timeout_s <= now:
            run = self._runs.popleft()
            for ordinal in range(max(run.first, self.low), run.end):
                if ordinal not in self._done and ordinal not in self._troubled:
                    self._lost(ordinal, self._trouble(ordinal, run.at), _SILENCE)
                    late.append(ordinal)
        if now >= self._check_at:
            self._check_at = math.inf
            for ordinal, trouble in self._troubled.items():
                if trouble.first_sent + self._publish_timeout_s <= now:
                    raise self._timeout(ordinal, trouble, now)
                if not trouble.waiting and trouble.last_sent + self._ack_timeout_s <= now:
                    self._lost(ordinal, trouble, _SILENCE)
                    late.append(ordinal)
                self._check_at = min(self._check_at, self._deadline(trouble))
        if late:
            self._pushed_back(now)
            self.push_backs |= {self._block(overdue).subject(overdue): now for overdue in late}

    def next_deadline(self, now: float) -> float:
        """When to call `ready` and `expire` again if nothing happens; infinite when never."""
        deadline = min(self._check_at, self._older_until)
        if self._runs:
            deadline = min(deadline, self._runs[0].at + self._ack_timeout_s)
        if self._waiting and now < self._resume_at:
            deadline = min(deadline, self._resume_at)
        return deadline

    @property
    def give_up_at(self) -> float:
        """When the oldest publish on its way has to be stored; infinite when there is none."""
        self._forget_older()
        oldest = [trouble.first_sent for trouble in self._troubled.values()]
        oldest += [before.at for before in self._older.values()]
        if self._runs:
            oldest.append(self._runs[0].at)
        return min(oldest, default=math.inf) + self._publish_timeout_s

    @property
    def _older_until(self) -> float:
        """When the oldest that was here before has to be stored, or to be found stored."""
        return min(self._older.values(), default=_NEW).at + self._publish_timeout_s

    def _forget_older(self) -> None:
        self._older = {
            ordinal: before
            for ordinal, before in self._older.items()
            if ordinal >= self.low and ordinal not in self._done
        }

    def _check_older(self, now: float) -> None:
        self._forget_older()
        for ordinal, (at, _) in self._older.items():
            if at + self._publish_timeout_s <= now:
                trouble = self._troubled.get(ordinal) or _Trouble(at, "no PubAck yet")
                trouble.first_sent = min(trouble.first_sent, at)
                raise self._timeout(ordinal, trouble, now)

    # ── one publish ──────────────────────────────────────────────────────────────────────────

    def _outstanding(self, ordinal: int) -> bool:
        return self.low <= ordinal < self._next and ordinal not in self._done

    def _block(self, ordinal: int) -> Publishes:
        return next(block for block in self._blocks if ordinal < block.end)

    def _first_sent(self, ordinal: int) -> float:
        return next(run.at for run in self._runs if ordinal < run.end)

    def _trouble(self, ordinal: int, first_sent: float) -> _Trouble:
        unsure = self._older.get(ordinal, _NEW).unsure
        trouble = _Trouble(first_sent, "", last_sent=first_sent, unsure=unsure)
        self._troubled[ordinal] = trouble
        return trouble

    def _lost(self, ordinal: int, trouble: _Trouble, cause: str) -> None:
        """A publish was sent and no answer came: it may be stored or not."""
        trouble.unsure = min(trouble.unsure, trouble.last_sent)
        self._wait(ordinal, trouble, cause)

    def _wait(self, ordinal: int, trouble: _Trouble, cause: str, err_code: int = 0) -> None:
        trouble.waiting = True
        trouble.cause = cause
        trouble.err_code = err_code
        trouble.absent_since = None
        bisect.insort(self._waiting, ordinal)
        self._check_at = min(self._check_at, self._deadline(trouble))

    def _deadline(self, trouble: _Trouble) -> float:
        give_up_at = trouble.first_sent + self._publish_timeout_s
        if trouble.waiting:
            return give_up_at
        return min(give_up_at, trouble.last_sent + self._ack_timeout_s)

    def _check_absent(self, ordinal: int, trouble: _Trouble, now: float) -> None:
        grace = min(self._publish_timeout_s, NO_STREAM_GRACE_S)
        if trouble.absent_since is None or now - trouble.absent_since < grace:
            return
        subject = self._block(ordinal).subject(ordinal)
        if subject in self._served:
            return
        acked = {*range(self._blocks[0].first, self.low), *self._done} - self._withdrawn
        if not any(self._block(other).subject(other) == subject for other in acked):
            raise self._timeout(ordinal, trouble, now)
        self._served.add(subject)

    def _timeout(self, ordinal: int, trouble: _Trouble, now: float) -> PublishError:
        hint = {
            Kind.ABSENT: "; no stream listens on this subject: create it, check the subject, or"
            " enable JetStream for this account",
            Kind.LIMITED: "; lift the limit, or make room",
        }
        tail = next((t for kind, t in hint.items() if trouble.cause.startswith(kind.value)), "")
        block = self._block(ordinal)
        return PublishTimeoutError(
            block.subject(ordinal),
            f"row {block.row(ordinal)}: not stored {now - trouble.first_sent:.1f}s after it was"
            f" first sent ({trouble.sendings} times in all); {trouble.cause}{tail}",
            trouble.err_code,
        )

"""
The lane of plain publishes: a PubAck for each message, on `<prefix>.<ordinal>`.

Rule 1: no I/O and no clock; callers pass `now` and put on the wire what `ready` returns.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import ne
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import ranks
from ...outbox.limits import Kind
from ...outbox.messages import Messages
from .answers import (
    Outcome,
    alike_pattern,
    batch_answer_pattern,
    classify,
    is_ordinal,
    puback_pattern,
)
from .frames import Frames, Publishes, frame, numbered
from .lane import Doubted, Lane, LaneTerms, Rejected, Tally
from .window import Window

_PART_BYTES: Final = 8 << 20
"""
Payloads whose frames are made at one time, about. Of a batch of 64 MB they would be as much again,
and the server would be waiting for them.
"""


def framed(messages: Messages, first: int, prefix: str) -> Publishes:
    """The messages with PubAcks to `<prefix>.<ordinal>`, the first one's ordinal being `first`."""
    return frame(messages, first, numbered(f"{prefix}.", first, len(messages)))


class Alike(NamedTuple):
    """PubAcks that have all but their numbers in common."""

    head: bytes
    """First bytes of their payloads, through the field name of the sequence."""
    parts: tuple[str, int, bytes, bytes, int, bytes]
    """Parts of which `alike_pattern` makes the pattern of their frames."""
    size: int
    """Bytes of a frame without the ordinal."""
    duplicate: bool

    @property
    def pattern(self) -> re.Pattern[bytes]:
        """Their frames; captures the ordinal. Compiled when first asked for, which takes long."""
        return alike_pattern(*self.parts)


class AsyncLane(Window):
    """
    A PubAck for each message, many on the wire at one time.

    Args:
        prefix: replies come on `<prefix>.<ordinal>`.
        tally: as in `Window`.
    """

    def __init__(self, prefix: str, terms: LaneTerms, tally: Tally | None = None) -> None:
        super().__init__(terms, tally)
        self._prefix = prefix
        self._parts: deque[Messages] = deque()  # offered and not framed
        self._framed: deque[tuple[int, Messages]] = deque()  # by the first one's ordinal

    @property
    def inbox(self) -> str:
        """Inbox of the replies to all lanes of the task."""
        return self._prefix.rpartition(".")[0]

    @property
    def is_midway(self) -> bool:
        """Never: each publish is answered."""
        return False

    @property
    def busy(self) -> bool:
        """Whether any offered message is not stored."""
        return bool(self._parts) or super().busy

    @property
    def wants_rows(self) -> bool:
        """Whether everything offered is on its way, so that more may come."""
        return not self._parts and super().wants_rows

    def offer(self, messages: Messages) -> None:
        """Takes the messages that follow those offered before."""
        if self.terms.strict and len(messages) > 1:
            turns = ranks(messages.indices)
            for turn in range(pc.max(turns).as_py() + 1):
                self._parts.append(messages.where(pc.equal(turns, turn)))
            return
        rows = max(1, len(messages) * _PART_BYTES // max(1, messages.data.nbytes))
        starts = range(0, len(messages), rows)
        self._parts.extend(messages.slice(start, rows) for start in starts)

    def ready(self, now: float, max_bytes: int) -> Frames | None:
        """The frames to send now, about `max_bytes` at most; None when there are none."""
        if self._parts and (not super().busy if self.terms.strict else super().wants_rows):
            part, first = self._parts.popleft(), self._flight.end
            self.append(framed(part, first, self._prefix))
            low = self._flight.low
            while self._framed and self._framed[0][0] + len(self._framed[0][1]) <= low:
                self._framed.popleft()
            self._framed.append((first, part))
            if part.sent is not None:
                for place in pc.indices_nonzero(pc.is_valid(part.sent)).to_pylist():
                    unsure = math.inf if part.unsure is None else part.unsure[place].as_py()
                    self.sent_before(first + place, part.sent[place].as_py(), unsure)
                self._check_earlier(now)  # their stream may know their ids no more
        return super().ready(now, max_bytes)

    def recall(self, is_paused: Callable[[str], bool], unsent: bool = True) -> list[Messages]:
        """Gives back what was not sent, and what waits to be sent again and is paused."""
        back = []
        waiting = self.waiting(is_paused)
        for first, part in self._framed:
            own = [entry for entry in waiting if 0 <= entry[0] - first < len(part)]
            if own:
                ordinals, *times = zip(*own, strict=True)
                sent, unsure = (pa.array(column, pa.float64()) for column in times)
                rows = part.take(pa.array([ordinal - first for ordinal in ordinals], pa.int64()))
                back.append(replace(rows, sent=sent, unsure=unsure))
        self.withdraw(ordinal for ordinal, *_ in waiting)
        if not unsent:
            return back
        count = self.drop_unsent()
        if count:
            first, part = self._framed.pop()
            back.append(part.slice(len(part) - count, count))
            if count < len(part):
                self._framed.append((first, part.slice(0, len(part) - count)))
        back += self._parts
        self._parts.clear()
        return back

    def has_paused(self, is_paused: Callable[[str], bool]) -> bool:
        """Whether an unsent message is on a paused subject."""
        parts = list(self._parts)
        count = self.unsent
        if count:
            part = self._framed[-1][1]
            parts.append(part.slice(len(part) - count, count))
        return any(is_paused(subject) for part in parts for subject in part.subjects)

    def on_reply(
        self, token: bytes, status: int, description: str, data: bytes, now: float
    ) -> None:
        """The answer to one publish."""
        if is_ordinal(token):  # else it answers nothing of ours
            outcome = classify(status, description, data)
            if outcome.kind is Kind.STORED:
                self.tally.stored_in.setdefault(outcome.stream, outcome.sequence)
            self.on_answer(int(token), outcome, now)

    def on_pubacks(self, ordinals: list[int], now: float, duplicates: bool = False) -> None:
        """The PubAcks of these ordinals came; one that was acked before counts once."""
        if duplicates:
            once = sorted(ordinal for ordinal in set(ordinals) if self.was_sent_once(ordinal))
            for first, part in self._framed if once else ():
                own = [ordinal - first for ordinal in once if 0 <= ordinal - first < len(part)]
                if own:
                    self.tally.repeated.append(part.take(pa.array(own, pa.int64())))
        super().on_pubacks(ordinals, now, duplicates)

    def _reject(self, ordinal: int, outcome: Outcome) -> None:
        first, part = next(pair for pair in reversed(self._framed) if pair[0] <= ordinal)
        doubted = Doubted(part.slice(ordinal - first, 1), outcome, ordinal)
        if outcome.may_be_its_own and part.ids is not None and not self.was_sent_once(ordinal):
            self.tally.doubted.append(doubted)
        else:
            self._refuse(doubted)

    def _refuse(self, doubted: Doubted) -> None:
        messages, outcome, ordinal = doubted
        is_of_stream = outcome.err_code != 0
        if not (self.terms.rejects and is_of_stream):
            super()._reject(ordinal, outcome)
        self.tally.rejected.append(Rejected(messages, outcome))
        self._finish([ordinal])

    def settle(self, doubted: Doubted, is_stored: bool, now: float) -> None:
        """The message is stored, by an earlier sending, or never will be."""
        if is_stored:
            self.on_pubacks([doubted.ordinal], now, duplicates=True)
        elif self._flight.is_outstanding(doubted.ordinal):
            self._refuse(doubted)

    def plain(
        self, sid: int, buffer: bytes, start: int, end: int, duplicate: bool = False
    ) -> list[int]:
        """
        The ordinals of this lane's plain PubAcks among the frames of `buffer[start:end]`.

        Plain is what the server writes when it has stored a message, or, with `duplicate`, had it.
        """
        found = puback_pattern(self._prefix, sid, duplicate).findall(buffer, start, end)
        ordinals, sizes, payloads, names = zip(*found, strict=True) if found else ((),) * 4
        if any(map(ne, map(int, sizes), map(len, payloads))):
            return []  # sizes that are not those of the bytes: for whoever looks at each frame
        if not duplicate:
            firsts = dict(zip(reversed(names), reversed(payloads), strict=True))
            for name, payload in firsts.items():
                self._stores(name, payload)
        return list(map(int, ordinals))

    def _stores(self, name: bytes, payload: bytes) -> None:
        """A plain PubAck of a stream of this name came, the first of its buffer."""
        if (stream := name.decode()) not in self.tally.stored_in:
            self.tally.stored_in[stream] = classify(0, "", payload).sequence

    def alike(self, sid: int, buffer: bytes, start: int, end: int) -> Alike | None:
        """The pattern of PubAcks that differ from this lane's first plain one in numbers alone."""
        for duplicate in (False, True):
            first = puback_pattern(self._prefix, sid, duplicate).search(buffer, start, end)
            if first is not None and int(first[2]) == len(first[3]):
                before, key, rest = first[3].rpartition(b'"seq":')
                after = rest.lstrip(b"0123456789")
                head, digits = before + key, len(rest) - len(after)
                parts = self._prefix, sid, first[2], head, digits, after
                if not duplicate:
                    self._stores(first[4], first[3])
                return Alike(head, parts, len(first[0]) - len(first[1]), duplicate)
        return None


def absorb(
    lanes: Sequence[Lane], sid: int, buffer: bytes, start: int, end: int, now: float
) -> bool:
    """
    Takes the frames of `buffer[start:end]` at one go, if all are plain PubAcks; that is the usual
    case, and so is that a lane's are alike but for their numbers. That there is nothing else shows
    in the bytes that these take, or in the number of lines: two a PubAck. Those of several streams
    are not alike, which is told by counting before any is taken apart. Where other lanes publish
    batches, their answers may stand between; each is for its lane.
    """
    async_lanes = [lane for lane in lanes if isinstance(lane, AsyncLane)]
    lines = buffer.count(b"\n", start, end) if async_lanes else -1
    alike = [lane.alike(sid, buffer, start, end) for lane in async_lanes]
    heads = {each.head for each in alike if each is not None}
    if 2 * sum(buffer.count(head, start, end) for head in heads) == lines:
        found = [each.pattern.findall(buffer, start, end) if each else [] for each in alike]
        each_size = [each.size if each else 0 for each in alike]
        size = sum(
            n * len(own) + sum(map(len, own)) for n, own in zip(each_size, found, strict=True)
        )
        if size == end - start:
            for lane, each, own in zip(async_lanes, alike, found, strict=True):
                if each is not None and own:
                    lane.on_pubacks(list(map(int, own)), now, each.duplicate)
            return True
    others = []
    if async_lanes and len(async_lanes) < len(lanes):
        inbox = async_lanes[0].inbox
        others = batch_answer_pattern(inbox, sid).findall(buffer, start, end)
        if any(int(size) != len(payload) for _, _, size, payload in others):
            return False
    for duplicate in (False, True):
        by_lane = [lane.plain(sid, buffer, start, end, duplicate) for lane in async_lanes]
        if 2 * (sum(map(len, by_lane)) + len(others)) == lines:
            for lane, ordinals in zip(async_lanes, by_lane, strict=True):
                if ordinals:
                    lane.on_pubacks(ordinals, now, duplicate)
            for number, token, _, payload in others:
                for other in lanes[int(number) : int(number) + 1]:
                    other.on_reply(token, 0, "", payload, now)
            return True
    return False

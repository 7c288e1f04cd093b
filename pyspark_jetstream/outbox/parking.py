"""
Parking: rows of a paused subject are stored in a stream to wait, or stay in it.

Rule 1: no I/O and no clock; the caller brings the function that says whether there is room.

A task parks (`Parking`): a row of a subject that an operator pauses is stored in the parking
stream, on `<stream>.<query>.<subject>`, as a dead letter is (`deadletters`). Its id there is
`<query>.<target>.<row's id>`: rows for several streams, or of several queries, may have one id.
What has rows there is parked for the rest of the attempt, whatever becomes of the pause, so that no
row overtakes those before it. A row that was sent is not: it may be stored. Nor are those behind it
while it is on its way or waits to go again, else the next attempt would park it behind them.

A drain sends what is parked (`Staying`): a row whose subject is paused stays, and all behind it.

What cannot be parked waits as without: rows of a stream that replaces messages or changes their
subjects, as nobody could tell later whether they are stored there; on a subject that is too long,
or that are too large; that expect another message to be the last one, which it may not be later;
and all while the stream is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import BINARY, CRLF, join, scalar
from ..errors import RowError
from .deadletters import BEHIND, MAX_HEADERS, DeadLetters
from .messages import Messages
from .targets import Targets
from .throttling.throttle import PausedBy, Throttle

_ROOM: Final = 4096
"""Bytes that a parked row may have beside its own headers and payload."""

_LONGEST: Final = 1000
"""Bytes of the longest subject whose rows are parked."""

_EXPECTED: Final = "(?m)^Nats-Expected-Last-"
"""Finds the header of a row that expects another message to be the last one."""

_REASON: Final = "Parked"


def parking_prefix(stream: str, query: str | None = None) -> str:
    """Prefix of the subjects in the parking stream: of all, or of a query's."""
    return f"{stream}." if query is None else f"{stream}.{query}."


class Aside(Protocol):
    """Rows that do not go where they should now."""

    def mask(self, messages: Messages, throttle: Throttle, now: float) -> pa.Array | None:
        """BOOL: which of these rows step aside; None for none."""

    def put_aside(self, messages: Messages) -> Messages | None:
        """The stored form of rows that step aside; None if none is stored."""

    def note_wire(self, is_empty: bool) -> bool:
        """Takes whether no row is on its way; whether others, which waited for that, step aside."""


class Parking:
    """
    The rows of one task that are parked.

    Args:
        letters: makes what is stored of a row; its subject is of the parking stream.
        targets: the streams of rows.
        behind: by the place of a stream, what is noted of its end before the task.
        known: subjects that have rows in the parking stream.
        room: says whether the parking stream takes more.
    """

    def __init__(
        self,
        letters: DeadLetters,
        targets: Targets,
        behind: Callable[[int], str],
        known: Iterable[str],
        room: Callable[[], bool],
    ) -> None:
        self.known = set(known)
        """Subjects whose rows are parked."""
        self.has_room = True
        """Whether the parking stream takes more, as it was seen last."""
        self._letters = letters
        self._targets = targets
        self._behind = behind
        self._room = room
        self._looked = False
        self._never: set[str] = set()
        """Subjects of which a row could not be parked, so none behind it is."""
        self._sent: set[str] = set()
        """Paused subjects of which a row that was sent waits to go again."""
        self._ready: set[str] = set()
        """Paused subjects without a row on its way."""
        self._is_wire_empty = True
        self._waits = False
        """Whether rows wait for an empty wire."""

    def __repr__(self) -> str:
        return f"<Parking of {len(self.known)} subjects{'' if self.has_room else ', full'}>"

    def mask(self, messages: Messages, throttle: Throttle, now: float) -> pa.Array | None:
        """
        BOOL: which of these rows are parked; None for none.

        Raises:
            RowError: A row cannot be parked, and rows before it are.
        """
        is_active = throttle.active(now)
        if not is_active:
            self._ready.clear()
            self._sent.clear()
        if not len(messages) or not (self.known or is_active):
            return None
        if is_active and not self._looked:
            self._looked, self.has_room = True, self._room()
        if messages.sent is not None:
            again = messages.indices.filter(pc.is_valid(messages.sent))
            self._sent.update(messages.distinct[code] for code in pc.unique(again).to_pylist())
        codes = pc.unique(messages.indices).to_pylist()
        wanted = {code for code in codes if self._wants(messages, code, throttle, now)}
        if not wanted:
            return None
        unfit = self._unfit(messages, wanted)
        for code in unfit:
            subject = messages.distinct[code]
            if subject in self.known:
                raise RowError(
                    subject,
                    "rows of it are parked (throttleParkStream), and one cannot be parked after"
                    " them: it has a Nats-Expected-… header, or less than 4 KiB left of the"
                    " server's max_payload or of the 64 KiB of a message's headers;"
                    " `pyspark-jetstream throttle parked --drain` sends those before it",
                )
            self._never.add(subject)
        mask = pa.array(
            [code in wanted - unfit for code in range(len(messages.distinct))], pa.bool_()
        ).take(messages.indices)
        return mask if messages.sent is None else pc.and_(mask, pc.is_null(messages.sent))

    def put_aside(self, messages: Messages) -> Messages:
        """Messages for the parking stream, one for each of these rows."""
        if not len(messages):
            return messages
        self.known.update(messages.subjects)
        ids = messages.ids
        if ids is None:  # a ledger makes them, and parking needs a ledger
            raise RowError(messages.subjects[0], "its rows have no id; report this")
        before = [
            ("", "") if place is None else (self._targets[place].name, self._behind(place))
            for place in messages.targets.to_pylist()
        ]
        names, behind = (pa.array(texts, BINARY) for texts in zip(*before, strict=True))
        own = join(
            scalar(f"{self._letters.query_id}."), names.take(messages.indices), scalar("."), ids
        )
        letters = self._letters.of(replace(messages, ids=own), _REASON)
        behind = behind.take(messages.indices)
        lines = join(letters.lines, scalar(f"{BEHIND}: "), behind, CRLF)
        self.has_room = self._room()
        return replace(letters, lines=lines)

    def note_wire(self, is_empty: bool) -> bool:
        """Takes whether no row is on its way; whether others, which waited for that, are parked."""
        self._is_wire_empty = is_empty
        goes_on, self._waits = is_empty and self._waits, self._waits and not is_empty
        return goes_on

    def _wants(self, messages: Messages, code: int, throttle: Throttle, now: float) -> bool:
        subject = messages.distinct[code]
        if subject in self.known:
            if not throttle.is_paused(subject, now, (PausedBy.OPERATOR,)):
                return True
            return self.has_room and throttle.is_subject_paused(subject, now)
        if not throttle.is_subject_paused(subject, now):
            self._ready.discard(subject)
            self._sent.discard(subject)
            return False
        if not self.has_room or subject in self._never or not self._keeps(messages, code):
            return False
        if self._is_wire_empty and subject not in self._sent:
            self._ready.add(subject)
        self._waits |= subject not in self._ready | self._sent
        return subject in self._ready

    def _keeps(self, messages: Messages, code: int) -> bool:
        """Whether a later look can tell if a parked row is stored."""
        place = messages.targets[code].as_py()
        if place is None or len(messages.distinct[code].encode()) > _LONGEST:
            return False
        target = self._targets[place]
        return not (target.replaces or target.transforms)

    def _unfit(self, messages: Messages, codes: set[int]) -> set[int]:
        """Subjects that have a row that is too large, or that expects what is now."""
        limit = self._letters.max_payload
        sizes = pc.binary_length(messages.data)
        is_unfit = pa.repeat(pa.scalar(False), len(messages))
        if messages.lines is not None:
            headers = pc.binary_length(messages.lines)
            sizes = pc.add(sizes, headers)
            expects = pc.match_substring_regex(messages.lines, _EXPECTED)
            is_unfit = pc.or_(expects, pc.greater(headers, MAX_HEADERS - _ROOM))
        if limit is not None:
            is_unfit = pc.or_(is_unfit, pc.greater(sizes, limit - _ROOM))
        unfit = pc.unique(messages.indices.filter(is_unfit))
        return codes & set(unfit.to_pylist())


class Staying:
    """The parked rows that a drain leaves where they are."""

    def __init__(self) -> None:
        self.subjects: set[str] = set()
        """Subjects of which none goes any more."""
        self.rows: list[pa.Array] = []
        """INT64: numbers of the rows that stay."""

    def __repr__(self) -> str:
        return f"<Staying {len(self.subjects)} subjects>"

    def mask(self, messages: Messages, throttle: Throttle, now: float) -> pa.Array | None:
        """BOOL: which of these rows stay; None for none."""
        if not self.subjects and not throttle.active(now):
            return None
        for subject in messages.subjects:
            if throttle.is_paused(subject, now, (PausedBy.OPERATOR,)):
                self.subjects.add(subject)
        stays = [subject in self.subjects for subject in messages.distinct]
        if not any(stays):
            return None
        mask = pa.array(stays, pa.bool_()).take(messages.indices)
        return mask if messages.sent is None else pc.and_(mask, pc.is_null(messages.sent))

    def put_aside(self, messages: Messages) -> None:
        """Nothing: they are stored. Their numbers are noted."""
        self.rows.append(messages.rows)

    def note_wire(self, is_empty: bool) -> bool:
        """Nothing: what stays does not depend on it."""
        return False

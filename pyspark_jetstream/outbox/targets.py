"""
The target streams of a write: the one that takes a subject, and its limits.

Rule 1: every decision that depends on a target's configuration is taken here.
Rule 2: no I/O; the caller brings what asks the server (`Find`).

The subjects of two streams of an account never overlap, so a subject has one target or none. A
server that maps subjects itself (the account's `mappings`) may send it elsewhere, and it may be of
another account's stream: then a subject can have no target here and be stored all the same
(`requireStream`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import int32
from ..subjects import REST, is_literal, literal_beginning, pattern, tokens

_DEFAULT_WINDOW_NS: Final = 120 * 10**9
"""The server's, where a configuration does not name one."""

_MANY: Final = 4
"""
Streams from which on a subject is looked up by its first tokens; of fewer each filter is tried,
which is faster then.
"""

_TOGETHER: Final = 64
"""Subjects that are looked up at one time where those before had no stream."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stream's configuration, as far as a write depends on it."""

    name: str
    subjects: tuple[str, ...]
    retention: str
    duplicate_window_s: float
    allow_ttl: bool
    allow_rollup: bool
    allow_schedules: bool
    allow_counter: bool
    max_per_subject: int
    """Messages kept of one subject; 0 for no limit."""
    transforms: bool
    """Whether it stores messages on other subjects than they are published on."""

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Target:
        """From a stream's configuration, as the server gives it."""
        return cls(
            name=str(config["name"]),
            subjects=tuple(config.get("subjects") or ()),
            retention=str(config.get("retention") or "limits"),
            duplicate_window_s=(config.get("duplicate_window") or _DEFAULT_WINDOW_NS) / 1e9,
            allow_ttl=bool(config.get("allow_msg_ttl")),
            allow_rollup=bool(config.get("allow_rollup_hdrs")),
            allow_schedules=bool(config.get("allow_msg_schedules")),
            allow_counter=bool(config.get("allow_msg_counter")),
            max_per_subject=max(0, int(config.get("max_msgs_per_subject") or 0)),
            transforms=bool(config.get("subject_transform")),
        )

    def fault(self, ack_timeout_s: float) -> str | None:
        """Fault of this stream for writes exactly once, or None if they can be."""
        if self.retention != "limits":
            return (
                f"stream '{self.name}' has {self.retention} retention: what was read is gone, so a"
                " batch that runs again could not tell which rows it had stored; write into a"
                " stream with limits retention, or set exactlyOnce=false"
            )
        if self.max_per_subject and self.transforms:
            return (
                f"stream '{self.name}' has both a subject_transform and max_msgs_per_subject:"
                " which rows were stored and replaced since could not be told; map subjects with"
                " subjectMapping instead, or set exactlyOnce=false"
            )
        if self.max_per_subject and self.allow_counter:
            return (
                f"stream '{self.name}' has counters and max_msgs_per_subject: an increment that was"
                " stored is gone with the next one of its subject, so a batch that runs again could"
                " not tell whether it was added; take that limit off, or set exactlyOnce=false"
            )
        if self.duplicate_window_s < 2 * ack_timeout_s:
            return (
                f"stream '{self.name}' has a duplicate_window of {self.duplicate_window_s:g}s, less"
                f" than two ackTimeouts of {ack_timeout_s:g}s: a publish that is sent again could"
                " be stored twice; raise the window, lower ackTimeout, or set exactlyOnce=false"
            )
        return None

    @property
    def replaces(self) -> bool:
        """Whether a later message of a subject may take the place of an earlier one."""
        return self.max_per_subject > 0 or self.allow_rollup

    def later_rows_fault(self, why: str, instead: str) -> str | None:
        """
        Fault of a stream that cannot tell of a row whether it is stored: a stream that replaces
        messages tells it by later rows of the subject.

        Args:
            why: what later rows say nothing of.
            instead: what may be done.
        """
        if not self.replaces:
            return None
        return (
            f"stream '{self.name}' replaces messages (max_msgs_per_subject or roll-ups): that a row"
            f" was stored is then told by later rows of its subject, which says nothing {why};"
            f" {instead}, or set exactlyOnce=false"
        )


def untaken(subject: str) -> str:
    """Reason that nothing is published on this subject, and what to do."""
    return (
        f"no stream of this account takes '{subject}': create the stream (createStream does), or"
        " check subject and subjectMapping. If the server maps it, or it is of another account's"
        " stream, set exactlyOnce=false and requireStream=false"
    )


Find: TypeAlias = Callable[[list[str]], list["Target | None"]]
"""Asks for the stream that takes each of these subjects, None for none."""


class _Known:
    """
    Streams at one moment, and which of them takes a subject. It never changes, so threads may share
    it.
    """

    def __init__(self, streams: tuple[Target, ...] = ()) -> None:
        self.streams = streams

    def places(self, subjects: pa.Array) -> pa.Array:
        """The place of the stream that takes each subject (STRING), as INT32; null for none."""
        literals, beginnings, others = self._filters
        found = _looked_up(subjects, literals)
        for count, by_beginning in beginnings.items():
            if not found.null_count:
                return found
            parts = pc.split_pattern(subjects, ".", max_splits=count)
            firsts = pc.binary_join(pc.list_slice(parts, 0, count), ".")
            is_longer = pc.greater(pc.list_value_length(parts), count)
            places = pc.if_else(is_longer, _looked_up(firsts, by_beginning), int32(None))
            found = pc.coalesce(found, places)
        for filter_, place in others.items():
            if not found.null_count:
                return found
            found = pc.if_else(_matched(filter_, subjects), int32(place), found)
        return found

    @cached_property
    def _filters(self) -> tuple[dict[str, int], dict[int, dict[str, int]], dict[str, int]]:
        """
        The places of streams by their filters: the literal ones; what stands before `.>`, by its
        number of tokens, which is one look-up however many streams there are; and the others, which
        are tried one after the other.
        """
        literals: dict[str, int] = {}
        beginnings: dict[int, dict[str, int]] = {}
        others: dict[str, int] = {}
        are_many = len(self.streams) >= _MANY
        for place, target in enumerate(self.streams):
            for filter_ in target.subjects:
                beginning = filter_.removesuffix(f".{REST}")
                if is_literal(filter_):
                    literals[filter_] = place
                elif beginning != filter_ and is_literal(beginning) and are_many:
                    beginnings.setdefault(len(tokens(beginning)), {})[beginning] = place
                else:
                    others[filter_] = place
        return literals, beginnings, others


class Targets:
    """
    The streams that subjects were looked up for so far, in that order.

    The thread that makes rows adds them, and the publisher's reads them meanwhile: each look is at
    one `_Known`, which is replaced as a whole.

    Args:
        find: asks the server for the stream that takes each subject; without it none is asked.
    """

    def __init__(self, find: Find | None = None) -> None:
        self._find = find
        self.is_blind = find is None
        """Whether streams may not be looked up: that none is known says nothing then."""
        self._known = _Known()

    def __repr__(self) -> str:
        return f"<Targets {', '.join(target.name for target in self.streams) or 'none'}>"

    def __getitem__(self, place: int) -> Target:
        return self.streams[place]

    @property
    def streams(self) -> tuple[Target, ...]:
        """The streams by their places."""
        return self._known.streams

    def of(self, subjects: pa.Array, every: bool = False) -> pa.Array:
        """
        The place of the stream that takes each subject (STRING), as INT32; null for none.

        One subject of each stream is looked up. Behind the first without a stream none is looked
        up any more in this call, so the first null is one that has none.

        Args:
            every: whether it is to be known of each; those that have none are then looked up
                many at one time, and once.
        """
        places, together = self.known(subjects), 1
        untaken = pa.array([], pa.string())
        while places.null_count and not self.is_blind and self._find is not None:
            left = pc.and_not(pc.is_null(places), pc.is_in(subjects, untaken))
            asked = subjects.take(pc.indices_nonzero(left).slice(0, together))
            if not len(asked):
                break
            found = [each for each in self._find(asked.to_pylist()) if each is not None]
            self._known = _Known(tuple(dict.fromkeys((*self.streams, *found))))
            places = self.known(subjects)
            # Also where a stream's subjects are not what they were a moment ago.
            none = asked.filter(pc.is_null(self.known(asked)))
            if len(none) and not every:
                break
            untaken = pa.concat_arrays([untaken, none])
            together = min(2 * together, _TOGETHER) if len(none) else 1
        return places

    def known(self, subjects: pa.Array) -> pa.Array:
        """As `of`, among the streams found so far; nothing is looked up."""
        return self._known.places(subjects)

    def names(self, subjects: Sequence[str]) -> list[str]:
        """The names of these subjects' streams, as far as they were found; "" for the others."""
        known = self._known
        places = known.places(pa.array(subjects, pa.string())).to_pylist()
        return ["" if place is None else known.streams[place].name for place in places]


def _looked_up(subjects: pa.Array, places: Mapping[str, int]) -> pa.Array:
    """The place of each of these texts, as INT32; null for none."""
    indices = pc.index_in(subjects, pa.array(places, pa.string()))
    return pa.array(places.values(), pa.int32()).take(indices)


def _matched(filter_: str, subjects: pa.Array) -> pa.Array:
    """Whether a filter with wildcards matches, for each subject."""
    beginning = literal_beginning(filter_)
    if filter_ == f"{beginning}>":
        return pc.starts_with(subjects, beginning)
    return pc.match_substring_regex(subjects, f"^{pattern(filter_)}$")

"""
Marks of streams: they show that a store was replaced by an older copy.

That a stream was made anew, or ends before its mark, shows in STREAM.INFO. One that was taken back
and then written to beyond its mark shows in another message where the mark's was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .info import Mark, microseconds, parse_time
from .jetstream import JetStream

_BACK: Final = 24
"""
Power of two of the sequences in which the last message before the mark's is looked for, where the
mark's has left the stream.
"""


def replaced(js: JetStream, marks: Mapping[str, Mark]) -> set[str]:
    """
    The streams in which another message stands where the mark's was. The leaders of all are asked
    in one round trip.

    Where the mark's message has left its stream, or never was in it (`interest` streams count
    messages that nobody wants), the last one before it is looked at, in a second round trip: it was
    stored before the mark was made. Two limits: where all messages up to the mark have left the
    stream nothing tells; where the clocks of servers that led the stream in turn differ, and the
    mark's message has left it, a stream may be named that is what it was.
    """
    known = {name: mark for name, mark in marks.items() if mark.sequence and mark.time}
    queries: list[tuple[str, dict[str, Any]]] = [
        (name, {"seq": mark.sequence}) for name, mark in known.items()
    ]
    there = dict(zip(known, js.messages_of(queries), strict=True))
    others = {
        name
        for name, message in there.items()
        if message is not None and message.time != known[name].time
    }
    gone = [name for name, message in there.items() if message is None]
    return others | {name for name in gone if _is_later(js, name, known[name])}


def _is_later(js: JetStream, stream: str, mark: Mark) -> bool:
    """Whether the last message up to the mark was stored after the mark was made."""
    if mark.seen_us is None:
        return False
    starts = {max(1, mark.sequence - (1 << power)) for power in range(_BACK)}
    queries = [(stream, {"seq": start, "next_by_subj": ">"}) for start in sorted(starts)]
    found = [message for message in js.messages_of(queries) if message is not None]
    before = [message for message in found if message.sequence <= mark.sequence]
    if not before:
        return False
    last = max(before, key=lambda message: message.sequence)
    return microseconds(parse_time(last.time)) > mark.seen_us

"""
Mirrors that answer direct gets for a stream, and proof that an answer is the stream's.

ADR-31 lets the servers of a mirror answer for the stream that it copies. On nats-server 2.15.1
every mirror does so whose origin has direct get on, also one with a filter, with another subject
for each message, or with limits of its own. `Nats-Stream` names whoever answered; a 404 names
nobody. So after each answer that names another stream both are looked at (STREAM.INFO, which
leaders answer), and what it brought counts only where

* that stream is a plain mirror of this one, younger than it, and without transforms: then it has
  the stream's messages under the stream's sequences, as far as it has them;
* the leader holds these very messages: a mirror may keep what was deleted from its origin;
* nothing can lie between them that the mirror lacks.

What a mirror does not have proves nothing, and is asked of the stream's leader.

No proof against two things that leave no trace: a mirror whose `subject_transform` was taken away
again, and an origin that was restored to an older state. Such a mirror is to be made again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple

from ..client.info import StreamInfo, parse_time
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..errors import ApiError, OptionError, PermissionsError, ReadTimeoutError
from ..sanitize import get_logger

logger = get_logger(__name__)

_DELETED: Final = 20_000
"""Missing sequences of a stream that are asked for one by one."""

ANY: Final = "mirror"
"""Value of `readFrom` that names no stream: the only mirror there is."""


class OriginState(NamedTuple):
    """State of the stream's leader, by which answers of a mirror are measured."""

    first: int
    last: int
    deleted: tuple[int, ...]
    """Sequences missing in between."""
    whole: bool
    """Whether the mirror holds all that the stream holds, from `first` to its own last one."""

    def holds(self, sequence: int) -> bool:
        """Whether this message is there."""
        return self.first <= sequence <= self.last and self._gaps(sequence - 1, sequence) == 0

    def is_run(self, after: int, first: int, last: int, count: int) -> bool:
        """
        Whether `count` messages, `first` to `last`, are as many as are there in (after, last]. They
        are the same if none of them is missing there (`lacks`).
        """
        begin = max(after + 1, self.first)
        there = last - begin + 1 - self._gaps(begin - 1, last)
        return begin <= first and last <= self.last and count == there

    def lacks(self, sequences: Iterable[int]) -> bool:
        """Whether one of these messages, of between `first` and `last`, is not there."""
        return not frozenset(self.deleted).isdisjoint(sequences)

    def is_part(self, first: int, last: int) -> bool:
        """
        Whether a whole mirror's answer, from `first` to `last`, is the stream's: the mirror may
        have more before, and behind if the stream lost its end.
        """
        return self.whole and self.first <= first and last <= self.last

    def _gaps(self, after: int, last: int) -> int:
        return bisect_right(self.deleted, last) - bisect_right(self.deleted, after)


class Mirrors:
    """The mirrors of one stream."""

    def __init__(self, js: JetStream, stream: str) -> None:
        self._js = js
        self._stream = stream
        self.have_answered = False
        """Whether one of them has answered in the stream's place so far."""
        self._forbidden: set[str] = set()
        """Mirrors that the user may not ask about, and is not to be refused again and again."""

    def __repr__(self) -> str:
        return f"<Mirrors of {self._stream}>"

    def held(self, name: str) -> OriginState | None:
        """
        State of the stream of which `name`, which has answered in its place, may have copies; None
        if nothing that it answered counts, or if the user may not ask.
        """
        self.have_answered = True
        if not name or set(name) & set(" \t\r\n.*>") or name in self._forbidden:
            return None  # no stream has such a name, or nobody says what it is
        try:
            origin, mirror = self._js.stream_infos_now([self._stream, name])
            if origin is None or mirror is None or not _is_plain(mirror, origin):
                return None
            if origin.num_deleted > _DELETED:
                return None
            deleted = sorted(self._js.deleted(self._stream)) if origin.num_deleted else []
        except ApiError:
            return None
        except PermissionsError as error:
            logger.info("answers of '%s' for stream '%s' do not count: %s",
                name, self._stream, error)  # fmt: skip
            self._forbidden.add(name)
            return None
        is_whole = _is_whole(mirror, origin)
        return OriginState(origin.first_seq, origin.last_seq, tuple(deleted), is_whole)


def mirror_to_read(js: JetStream, origin: StreamInfo, name: str) -> StreamInfo:
    """
    The mirror that a read takes instead of its stream, once it has come to the stream's end.

    Args:
        name: of the mirror, or `ANY`.

    Raises:
        OptionError: There is no such mirror, or it is no copy of the stream.
        ReadTimeoutError: It does not come to the stream's end within `requestTimeout`.
    """
    if name == ANY:
        listed = js.streams_listed(lambda each: each != origin.name)
        names = [each for each, info in listed.items() if info and _is_plain(info, origin)]
        if len(names) != 1:
            what = f"several: {', '.join(sorted(names))}; give the name of one" if names else "none"
            raise OptionError("readFrom", f"of mirrors of stream '{origin.name}' there are {what}")
        (name,) = names
    (mirror,) = js.stream_infos_there([name])
    if mirror is None or not _is_plain(mirror, origin):
        raise OptionError(
            "readFrom",
            f"no stream '{name}' is a copy of stream '{origin.name}': expected a mirror of it, made"
            " after it, that transforms no subject",
        )
    patience = Patience(js.client.options.request_timeout_s, mirror.last_seq, longest_s=1.0)
    while mirror.last_seq < origin.last_seq:
        if patience.over:
            raise ReadTimeoutError(
                origin.name,
                0,
                f"mirror '{name}' stands at sequence {mirror.last_seq}, the stream at"
                f" {origin.last_seq}, and it has not moved for {patience.timeout_s:.0f}s"
                " (requestTimeout); see `nats stream info`, or read without readFrom",
            )
        patience.pause()
        mirror = js.stream_info(name)
        patience.progress(mirror.last_seq)
    return mirror


def lack_of(
    js: JetStream, mirror: StreamInfo, origin: StreamInfo, start: int, end: int
) -> str | None:
    """Part of (start, end] that the mirror lacks and its origin has, for an error, or None."""
    begin = max(start + 1, origin.first_seq)
    before = range(begin, min(mirror.first_seq, end + 1))
    if not before and not mirror.num_deleted:
        return None
    if max(mirror.num_deleted, origin.num_deleted) > _DELETED:
        lack = f"has more than {_DELETED:,} gaps, or the stream has; nobody can compare them"
        return f"mirror '{mirror.name}' {lack}; read without readFrom"
    deleted = frozenset(js.deleted(origin.name) if origin.num_deleted else ())
    missing = chain(before, js.deleted(mirror.name) if mirror.num_deleted else ())
    first = next((s for s in missing if begin <= s <= end and s not in deleted), None)
    if first is None:
        return None
    return f"mirror '{mirror.name}' lacks the message with sequence {first}; read without readFrom"


def _is_plain(mirror: StreamInfo, origin: StreamInfo) -> bool:
    """Whether what the mirror has under a sequence is what its origin has, or had, there."""
    of, config = mirror.config.get("mirror") or {}, mirror.config
    return (
        of.get("name") == origin.name
        and not of.get("external")  # a stream of that name elsewhere
        and not of.get("subject_transforms")
        and not config.get("subject_transform")
        # Of an origin that was deleted and made again it still has the old messages.
        and parse_time(mirror.created) > parse_time(origin.created)
    )


def _is_whole(mirror: StreamInfo, origin: StreamInfo) -> bool:
    """
    Whether the mirror has every message of its origin up to its own last one.

    It has had since it was made, as it never gets back what it has lost; what a filter leaves out
    counts as deleted there. Not with an age, by which its replicas drop messages each at its time.
    """
    config = mirror.config
    return (
        not config.get("max_age")
        and not config.get("allow_msg_ttl")
        and mirror.num_deleted == origin.num_deleted == 0
        and 0 < mirror.first_seq <= origin.first_seq
    )

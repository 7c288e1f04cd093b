"""
The subjects of a stream by name, and the last message of each at a sequence.

A replica that lags, or a mirror, may answer. So no answer is believed that may be old:

* STREAM.INFO, which lists the subjects, is answered by the stream's leader.
* `multi_last` names the sequence its answer is as of, which must have reached the pin. A message
  it brings at or below the pin is then the last there.
* `multi_last` with `up_to_seq` does not show what the answerer knows. Where the stream has
  replicas, what it brings counts once the subject's next message lies beyond the pin, which proves
  that nothing lies between them, and that the answerer has come that far.
* A subject has nothing at or below the pin when its first message lies beyond.

Measured on nats-server 2.15.1: with `up_to_seq` the server walks back through the stream block by
block, and to the beginning for a subject that has nothing there; so only subjects that have
something are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..client.connection import away_s
from ..client.info import Found
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..errors import ReadTimeoutError
from ..fetch.call import PAGE_BYTES, DirectCall
from ..fetch.decoding.markers import purges
from ..fetch.decoding.rows import user_headers
from ..fetch.directcalls import DirectCalls
from ..fetch.pace import FAR_S, answer_s
from .lasts import LastOfEach
from .snapshotplan import READ_COST, shards

_TOGETHER: Final = 128
"""
Names of one request. The server would take 1,024, but writers wait while it looks them up: 10 µs
each. As of the past it takes longer (`snapshotplan.past_cost`), and there are fewer.
"""

_TOGETHER_FAR: Final = 256
"""Names of one request where requests follow each other: no longer a wait than a range's is."""

_WORTH_READING: Final = 1e6
"""µs that have to be saved before all messages are read where subjects were looked up."""

_AT_ONE_TIME: Final = 1_000
"""Subjects whose first messages are held at one time, while it is seen where they lie."""


@dataclass(slots=True)
class Seen:
    """Findings about some subjects at the pin."""

    last: LastOfEach = field(default_factory=LastOfEach)
    """Subjects that are there, also with messages beyond the pin only."""
    vanished: list[str] = field(default_factory=list)
    """Subjects of which nothing is left at all."""


class Point(NamedTuple):
    """The point that subjects are looked up at."""

    pin: int
    """Its sequence."""
    replicas: int
    """Servers that have the stream."""
    cost: float
    """µs to look up one subject as of the pin that has changed since."""
    messages: int
    """Messages up to the pin; to read them all is the other way."""


class Lookups:
    """Questions about one stream's subjects."""

    def __init__(self, js: JetStream, calls: DirectCalls) -> None:
        self._js = js
        self._calls = calls
        self._stream = calls.stream

    def at(self, point: Point, counts: dict[str, int], seen: Seen) -> bool:
        """
        Puts the last message of each subject at or below the pin to what has been seen.

        Returns:
            False if so many subjects have changed since that it costs less to read all messages:
            then nothing is complete.
        """
        pin, left = point.pin, list[str]()
        for names, found in self._latest(pin, list(counts)):
            last = {name: sequence for name, sequence in found.items() if sequence <= pin}
            seen.last.put(last)
            left += [name for name in names if name not in last]
        if len(left) * point.cost > point.messages * READ_COST + _WORTH_READING:
            return False
        patience = Patience(self._js.client.options.request_timeout_s, len(left))
        while left:
            left = [
                name
                for names in shards(left, _AT_ONE_TIME)
                for name in self._changed(point, names, counts, seen)
            ]
            if patience.progress(len(left)):
                continue
            if patience.over:
                raise ReadTimeoutError(
                    self._stream,
                    0,
                    f"nobody answered for '{left[0]}' as of sequence {pin} within"
                    f" {patience.timeout_s:.0f}s (requestTimeout) who knew the stream up to there;"
                    " see `nats stream info` for replicas that lag",
                )
            patience.pause()
        return True

    def _latest(
        self, pin: int, names: Sequence[str]
    ) -> Iterator[tuple[Sequence[str], dict[str, int]]]:
        """The last messages of all names, some at a time, by servers that have come to the pin."""
        is_far = away_s(self._js.client.connection) >= FAR_S
        size = _TOGETHER_FAR if is_far else _TOGETHER
        while names:
            parts = list(shards(names, size))
            calls = [DirectCall(multi_last=tuple(part), max_bytes=PAGE_BYTES) for part in parts]
            left: list[str] = []
            for place, answer in self._calls.answers(calls, lambda page: page.is_as_of(pin)):
                found, part = _sequences(answer.found), parts[place]
                rest = [name for name in part if name not in found] if answer.ending.pending else []
                yield [name for name in part if name in found or not rest], found
                left += rest
            if len(left) > len(names) // 2:  # large messages: looked up for nothing most times
                size = max(1, size // 8)
            names = left

    def _changed(
        self, point: Point, names: Sequence[str], counts: dict[str, int], seen: Seen
    ) -> list[str]:
        """Looks up subjects whose last message lies beyond the pin; those that are still open."""
        pin = point.pin
        firsts = self._calls.each([DirectCall(next_by_subj=name) for name in names])
        there: list[str] = []
        for name, first in zip(names, firsts, strict=True):
            if first is None:
                seen.vanished.append(name)
            elif first.sequence > pin:
                purged = purges(user_headers(first.lines))
                seen.last.put_later([name.encode()], [counts[name]], [purged])
            else:
                there.append(name)
        left: list[str] = []
        longest_s = answer_s(self._js.client.options.max_publish_delay_s)
        parts = list(shards(there, max(1, min(_TOGETHER, int(1e6 * longest_s / point.cost)))))
        calls = [
            DirectCall(multi_last=tuple(part), up_to_seq=pin, max_bytes=PAGE_BYTES)
            for part in parts
        ]
        found = [(place, _sequences(page.found)) for place, page in self._calls.answers(calls)]
        for place, last in found:
            if point.replicas > 1:
                last = self._proven(pin, last)
            seen.last.put(last)
            left += [name for name in parts[place] if name not in last]
        return left

    def _proven(self, pin: int, last: dict[str, int]) -> dict[str, int]:
        """The subjects of which nothing follows at or below the pin, with their sequences."""
        nexts = self._calls.each(
            [DirectCall(next_by_subj=name, seq=seq + 1) for name, seq in last.items()]
        )
        return {
            name: seq
            for (name, seq), following in zip(last.items(), nexts, strict=True)
            if following is None or following.sequence > pin
        }


def _sequences(messages: Iterable[Found]) -> dict[str, int]:
    return {message.subject.decode("utf-8", "replace"): message.sequence for message in messages}

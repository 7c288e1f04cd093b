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
from typing import Final

from ..client.connection import away_s
from ..client.info import Found
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..errors import ReadTimeoutError
from ..fetch.call import PAGE_BYTES, DirectCall
from ..fetch.decoding.markers import purges
from ..fetch.decoding.rows import user_headers
from ..fetch.directcalls import DirectCalls, Page
from ..fetch.pace import FAR_S
from .lasts import LastOfEach
from .manycalls import together
from .snapshotplan import shards

_TOGETHER: Final = 128
"""
Names of one request. The server would take 1,024, but writers wait while it looks them up: 10 µs
each, 75 to 230 µs as of the past.
"""

_TOGETHER_FAR: Final = 256
"""Names of one request where requests follow each other: no longer a wait than a range's is."""

_AT_ONE_TIME: Final = 1_000
"""Subjects whose first messages are held at one time, while it is seen where they lie."""


@dataclass(slots=True)
class Seen:
    """Findings about some subjects at the pin."""

    last: LastOfEach = field(default_factory=LastOfEach)
    """Those that are there, also with messages beyond the pin only."""
    vanished: list[str] = field(default_factory=list)
    """Those of which nothing is left at all."""


class Lookups:
    """Questions about one stream's subjects."""

    def __init__(self, js: JetStream, calls: DirectCalls) -> None:
        self._js = js
        self._calls = calls
        self._stream = calls.stream

    def at(self, pin: int, counts: dict[str, int], replicas: int, seen: Seen) -> None:
        """Puts the last message of each subject at or below the pin to what has been seen."""
        left: list[str] = []
        for names, found in self._latest_of_all(pin, list(counts)):
            last = {name: sequence for name, sequence in found.items() if sequence <= pin}
            seen.last.put(last)
            left += [name for name in names if name not in last]
        patience = Patience(self._js.client.options.request_timeout_s, len(left))
        while left:
            left = [
                name
                for names in shards(left, _AT_ONE_TIME)
                for name in self._changed(pin, names, counts, replicas, seen)
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

    def _latest_of_all(
        self, pin: int, names: Sequence[str]
    ) -> Iterator[tuple[Sequence[str], dict[str, int]]]:
        """The last messages of all names, some at a time, far away several requests at a time."""
        client = self._js.client
        size = _TOGETHER
        while len(names) > size and away_s(client.connection) >= FAR_S:
            size = _TOGETHER_FAR
            asked = list(shards(names, size))
            calls = [DirectCall(multi_last=tuple(part)) for part in asked]
            left: list[str] = []
            open_ = dict(enumerate(asked))
            for place, answer in together(client, self._stream, calls):
                up_to = answer.ending.up_to
                if up_to is None or up_to < pin:
                    continue
                found, part = _sequences(answer.found), open_.pop(place)
                rest = [name for name in part if name not in found] if answer.ending.pending else []
                yield [name for name in part if name in found or not rest], found
                left += rest
            few = len(left) > len(names) // 2  # large messages: looked up for nothing most times
            names = left + [name for part in open_.values() for name in part]
            if few or open_:
                break
        for part in shards(names, _TOGETHER):
            yield part, _sequences(self._latest(pin, part))

    def _latest(self, pin: int, names: Sequence[str]) -> Iterator[Found]:
        """The last messages of the names, answered by a server that has come to the pin."""

        def good(answer: Page) -> bool:
            if answer.ending.up_to is not None:
                return answer.ending.up_to >= pin
            # Nothing of all of them, which only the leader can know.
            queries = [(self._stream, {"last_by_subj": name}) for name in left]
            return not any(self._js.messages_of(queries))

        left = list(names)
        while left:
            call = DirectCall(multi_last=tuple(left), max_bytes=PAGE_BYTES)
            answer = self._calls.ask(call, good)
            yield from answer.found
            if answer.ending.pending == 0:
                return
            got = _sequences(answer.found)
            left = [name for name in left if name not in got]

    def _changed(
        self,
        pin: int,
        names: Sequence[str],
        counts: dict[str, int],
        replicas: int,
        seen: Seen,
    ) -> list[str]:
        """Looks up subjects whose last message lies beyond the pin; those that are still open."""
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
        parts = list(shards(there, _TOGETHER))
        calls = [
            DirectCall(multi_last=tuple(part), up_to_seq=pin, max_bytes=PAGE_BYTES)
            for part in parts
        ]
        client = self._js.client
        far = len(calls) > 1 and away_s(client.connection) >= FAR_S
        answers = dict(together(client, self._stream, calls)) if far else {}
        for place, part in enumerate(parts):
            last = _sequences((answers.get(place) or self._calls.ask(calls[place])).found)
            if replicas > 1:
                last = self._proven(pin, last)
            seen.last.put(last)
            left += [name for name in part if name not in last]
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

"""
The last message of each of many subjects, at a sequence, by name (`multi_last` of ADR-31).

A replica that lags may answer, so no answer is believed that may be old:

* `multi_last` names the sequence its answer is as of, which must have reached the one asked about.
  A message that it brings at or below that is the last there.
* `multi_last` with `up_to_seq` does not show what the answerer knows. Where the stream has
  replicas, what it brings counts once the subject's next message lies beyond, which proves that
  nothing lies between, and that the answerer has come that far.

Measured on nats-server 2.15.1: with `up_to_seq` the server walks back through the stream block by
block, and to the beginning for a subject that has nothing there. So only subjects are asked for
that have something, and have changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from ..client.connection import Client, away_s
from ..client.info import Found
from ..client.patience import Patience
from ..errors import ReadTimeoutError
from ..fetch.call import DirectCall
from ..fetch.directcalls import DirectCalls
from ..fetch.pace import FAR_S

_TOGETHER: Final = 128
"""
Names of one request. The server would take 1,024, but writers wait while it looks them up: 10 µs
each, and as of the past 150 µs.
"""

_TOGETHER_FAR: Final = 1_000
"""Names of one request to a server far away, where each takes a round trip."""

T = TypeVar("T")


class Without(NamedTuple):
    """Subjects that have nothing at or below the sequence."""

    vanished: list[str]
    """Nothing is left of these at all."""
    later: dict[str, Found]
    """These have messages beyond only, of which this is the first."""


class Lookups:
    """
    Questions about one stream's subjects at a sequence.

    Args:
        replicas: servers that have the stream.
    """

    def __init__(self, client: Client, stream: str, sequence: int, replicas: int) -> None:
        self._client = client
        self._calls = DirectCalls(client, stream)
        self._sequence = sequence
        self._replicas = replicas

    def last(
        self, names: Sequence[str], rows: Callable[[list[Found]], T]
    ) -> Generator[T, None, Without]:
        """
        The last message of each subject that has one there, some at a time, as `rows` makes them.

        Raises:
            ReadTimeoutError: Nobody who is up to date answered within `requestTimeout`.
        """
        without, changed = Without([], {}), list[str]()
        for part, found in self._latest(names):
            there = [message for message in found if message.sequence <= self._sequence]
            if there:
                yield rows(there)
            known = set(map(_name, there))
            changed += [name for name in part if name not in known]
        patience = Patience(self._client.options.request_timeout_s, len(changed))
        while changed:
            left: list[str] = []
            for part in _shards(changed, _TOGETHER):
                there = self._at(self._with_past(part, without))
                if there:
                    yield rows(there)
                known = {*map(_name, there), *without.vanished, *without.later}
                left += [name for name in part if name not in known]
            changed = left
            if patience.progress(len(changed)):
                continue
            if patience.over:
                raise ReadTimeoutError(
                    self._calls.stream,
                    0,
                    f"nobody answered for '{changed[0]}' as of sequence {self._sequence} within"
                    f" {patience.timeout_s:.0f}s (requestTimeout) who knew the stream up to there;"
                    " see `nats stream info` for replicas that lag",
                )
            patience.pause()
        return without

    def _latest(self, names: Sequence[str]) -> Iterator[tuple[Sequence[str], list[Found]]]:
        """Names with their last messages now, by servers that have come to the sequence."""
        size = _TOGETHER_FAR if away_s(self._client.connection) >= FAR_S else _TOGETHER
        while names:
            parts = list(_shards(names, size))
            calls = [DirectCall(multi_last=tuple(part)) for part in parts]
            left: list[str] = []
            for place, answer in self._calls.answers(
                calls, lambda page: page.is_as_of(self._sequence)
            ):
                part, found = parts[place], set(map(_name, answer.found))
                rest = [name for name in part if name not in found] if answer.ending.pending else []
                yield [name for name in part if name in found or not rest], answer.found
                left += rest
            if len(left) > len(names) // 2:  # large messages: looked up for nothing most times
                size = max(1, size // 8)
            names = left

    def _with_past(self, names: Sequence[str], without: Without) -> list[str]:
        """Those that have something at or below the sequence; the others are noted."""
        there = []
        firsts = self._calls.each([DirectCall(next_by_subj=name) for name in names])
        for name, first in zip(names, firsts, strict=True):
            if first is None:
                without.vanished.append(name)
            elif first.sequence > self._sequence:
                without.later[name] = first._replace(data=b"")
            else:
                there.append(name)
        return there

    def _at(self, names: Sequence[str]) -> list[Found]:
        """Last messages as of the sequence, as far as they fit an answer and are proven."""
        if not names:
            return []
        call = DirectCall(multi_last=tuple(names), up_to_seq=self._sequence)
        found = self._calls.ask(call).found
        if self._replicas == 1:
            return found
        nexts = self._calls.each(
            [DirectCall(next_by_subj=_name(each), seq=each.sequence + 1) for each in found]
        )
        return [
            message
            for message, following in zip(found, nexts, strict=True)
            if following is None or following.sequence > self._sequence
        ]


def _name(message: Found) -> str:
    return message.subject.decode("utf-8", "replace")


def _shards(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """The names in groups of at most `size`."""
    for low in range(0, len(names), size):
        yield names[low : low + size]

"""
Messages and bytes that streams store on the subjects of filters, asked again and again.

Of a filter that covers a stream, the last sequence says it, whatever has left the stream since. Of
a part of a stream, direct get counts what the sequences since the last call hold of it; with
replicas, those between the two calls before, so that any replica that answers has them too.
`STREAM.INFO` with a filter would list every subject (14 times as slow with 50,000), and its counts
fall when messages leave.

Bytes are as the stream stores them (subject, headers, payload, and some for each message). Of a
whole stream they are what it holds more than at the last call, and for each message that has left
meanwhile the mean size of those that were there: exact while none leaves, right in the long run
where old ones do. Of a part of a stream the count is exact, and the size is the mean of samples:
of the message that each question brings along.

Limits: messages that leave within two calls are not counted in a part of a stream; where that is
the rule, the filter is refused. It is counted whoever publishes, and only what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..client.info import StreamInfo
from ..client.jetstream import JetStream
from ..errors import JetStreamError
from ..subjects import covers

_NEW: Final = 0.2
"""Weight of a new sample in the mean size of the messages of a part of a stream."""


class Came(NamedTuple):
    """Messages and bytes that were published."""

    messages: int
    nbytes: int


@dataclass(slots=True)
class _Baseline:
    """Ends of a stream at the last call, and at the one before."""

    created: str
    last: int
    before: int
    messages: int
    bytes: int
    mean: float = 0.0
    """Bytes of a message, of those it held when it last held any."""

    def came(self, info: StreamInfo) -> Came:
        """Messages and bytes that the stream has stored since the last call."""
        count = max(0, info.last_seq - self.last)
        left = self.messages + count - info.messages
        mean = self.mean or (info.bytes / info.messages if info.messages else 0.0)
        more = info.bytes - self.bytes + left * mean
        return Came(count, max(0, round(more)) if count else 0)

    def move(self, info: StreamInfo) -> None:
        """Moves the baseline to where the stream is now; later messages are counted from here."""
        self.before, self.last = self.last, info.last_seq
        self.messages, self.bytes = info.messages, info.bytes
        if info.messages:
            self.mean = info.bytes / info.messages


class Usage:
    """The messages of these filters from now on."""

    def __init__(self, js: JetStream, filters: Sequence[str]) -> None:
        self._js = js
        self._filters = filters
        self._baselines: dict[str, _Baseline] = {}
        self._sizes: dict[tuple[str, str], float] = {}  # of a stream's messages of a filter
        self.unknown: list[str] = []
        """Filters of which no stream takes a subject."""
        self.count()

    def since_last(self) -> list[int]:
        """The messages of each filter since the last call, as `count` has them."""
        came = self.count()
        return [came[filter].messages for filter in self._filters]

    def count(self) -> dict[str, Came]:
        """
        Messages that have come on each filter since the last call; of a part of a stream with
        replicas, between the two calls before.

        Raises:
            JetStreamError: A filter is a part of a stream that cannot be counted.
        """
        streams = {filter: self._js.stream_names(filter) for filter in self._filters}
        self.unknown = [filter for filter, within in streams.items() if not within]
        names = sorted({name for those in streams.values() for name in those})
        infos = dict(zip(names, self._js.stream_infos(names), strict=True)) if names else {}
        more = {name: self._baseline(info).came(info) for name, info in infos.items()}
        total = dict.fromkeys(self._filters, Came(0, 0))
        parts: list[tuple[str, str, int, int]] = []
        for filter, within in streams.items():
            for name in within:
                info, baseline = infos[name], self._baselines[name]
                if all(covers(filter, subject) for subject in info.config.get("subjects") or ()):
                    total[filter] = _sum(total[filter], more[name])
                    continue
                self._check(filter, info)
                replicated = int(info.config.get("num_replicas") or 1) > 1
                span = (
                    (baseline.before, baseline.last)
                    if replicated
                    else (baseline.last, info.last_seq)
                )
                if span[1] > span[0]:
                    parts.append((name, filter, *span))
        for (_, filter, *_), counted in zip(parts, self._count(parts), strict=True):
            total[filter] = _sum(total[filter], counted)
        for name, info in infos.items():
            self._baselines[name].move(info)
        return total

    def _baseline(self, info: StreamInfo) -> _Baseline:
        """The stream's end then; messages that a new stream holds came before."""
        baseline = self._baselines.get(info.name)
        if baseline is None or baseline.created != info.created:
            last = info.last_seq
            baseline = _Baseline(info.created, last, last, info.messages, info.bytes)
            self._baselines[info.name] = baseline
        return baseline

    def _check(self, filter: str, info: StreamInfo) -> None:
        if info.keeps_history and info.allow_direct and not info.config.get("subject_transform"):
            return
        held = ", ".join(info.config.get("subjects") or ())
        raise JetStreamError(
            f"'{filter}' is a part of stream '{info.name}' that cannot be counted, for the stream"
            " has no allow_direct, transforms subjects, or lets messages go one by one; give"
            f" filters that cover all of it ({held})"
        )

    def _count(self, parts: Sequence[tuple[str, str, int, int]]) -> list[Came]:
        """Messages of the filter behind one sequence up to another, by the server's count."""
        messages = self._js.next_messages(
            [
                (name, {"seq": after + 1, "next_by_subj": filter})
                for name, filter, *span in parts
                for after in span
            ]
        )
        behind = [message.pending + 1 if message is not None else 0 for message in messages]
        came = []
        for (name, filter, *_), sample, a, b in zip(
            parts, messages[::2], behind[::2], behind[1::2], strict=True
        ):
            # Between the two questions more may have come: then it is less, by some ten
            # microseconds'.
            count = max(0, a - b)
            if count and sample is not None:
                mean = self._sizes.get((name, filter), float(sample.stored_bytes))
                self._sizes[name, filter] = mean + _NEW * (sample.stored_bytes - mean)
            came.append(Came(count, round(count * self._sizes.get((name, filter), 0.0))))
        return came


def _sum(a: Came, b: Came) -> Came:
    return Came(a.messages + b.messages, a.nbytes + b.nbytes)

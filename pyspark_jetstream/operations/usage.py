"""
How many messages streams store on the subjects of filters, asked again and again.

Of a filter that covers a stream, the last sequence says it, whatever has left the stream since. Of
a part of a stream, direct get counts what the sequences since the last call hold of it; with
replicas, those between the two calls before, so that any replica that answers has them too.
`STREAM.INFO` with a filter would list every subject (14 times as slow with 50,000), and its counts
fall when messages leave.

Limits: messages that leave within two calls are not counted in a part of a stream; where that is
the rule, the filter is refused. It is counted whoever publishes, and only what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..client.info import StreamInfo
from ..client.jetstream import JetStream
from ..errors import JetStreamError
from ..subjects import covers

__all__ = ["Usage"]


@dataclass(slots=True)
class _Mark:
    """Where a stream stood at the last call, and at the one before."""

    created: str
    last: int
    before: int


class Usage:
    """The messages of these filters from now on."""

    def __init__(self, js: JetStream, filters: Sequence[str]) -> None:
        self._js = js
        self._filters = filters
        self._marks: dict[str, _Mark] = {}
        self.unknown: list[str] = []
        """Filters of which no stream takes a subject."""
        self.since_last()

    def since_last(self) -> list[int]:
        """
        Messages of each filter that have come since the last call; of a part of a stream with
        replicas, between the two calls before.

        Raises:
            JetStreamError: A filter is a part of a stream that cannot be counted.
        """
        streams = [self._js.stream_names(filter) for filter in self._filters]
        self.unknown = [f for f, within in zip(self._filters, streams, strict=True) if not within]
        names = sorted({name for each in streams for name in each})
        infos = dict(zip(names, self._js.stream_infos(names), strict=True)) if names else {}
        came = {name: self._advance(info) for name, info in infos.items()}
        counts = [0] * len(self._filters)
        parts: list[tuple[int, str, str, int, int]] = []
        for number, (filter, within) in enumerate(zip(self._filters, streams, strict=True)):
            for name in within:
                info, mark = infos[name], self._marks[name]
                if all(covers(filter, each) for each in info.config.get("subjects") or ()):
                    counts[number] += came[name]
                    continue
                self._check(filter, info)
                replicated = int(info.config.get("num_replicas") or 1) > 1
                span = (mark.before, mark.last) if replicated else (mark.last, info.last_seq)
                if span[1] > span[0]:
                    parts.append((number, name, filter, *span))
        for (number, *_), count in zip(parts, self._count(parts), strict=True):
            counts[number] += count
        for name, info in infos.items():
            mark = self._marks[name]
            mark.before, mark.last = mark.last, info.last_seq
        return counts

    def _advance(self, info: StreamInfo) -> int:
        """How many messages it has stored since the last call."""
        mark = self._marks.get(info.name)
        if mark is None or mark.created != info.created:  # what a new stream holds came before
            mark = self._marks[info.name] = _Mark(info.created, info.last_seq, info.last_seq)
        return max(0, info.last_seq - mark.last)

    def _check(self, filter: str, info: StreamInfo) -> None:
        if info.keeps_history and info.allow_direct and not info.config.get("subject_transform"):
            return
        held = ", ".join(info.config.get("subjects") or ())
        raise JetStreamError(
            f"'{filter}' is a part of stream '{info.name}' that cannot be counted, for the stream"
            " has no allow_direct, transforms subjects, or lets messages go one by one; give"
            f" filters that cover all of it ({held})"
        )

    def _count(self, parts: Sequence[tuple[int, str, str, int, int]]) -> list[int]:
        """Messages of the filter behind one sequence up to another, by the server's count."""
        found = self._js.next_messages(
            [
                (name, {"seq": after + 1, "next_by_subj": filter})
                for _, name, filter, *span in parts
                for after in span
            ]
        )
        behind = [each.pending + 1 if each is not None else 0 for each in found]
        # Between the two questions more may have come: then it is less, by some ten microseconds'.
        return [max(0, a - b) for a, b in zip(behind[::2], behind[1::2], strict=True)]

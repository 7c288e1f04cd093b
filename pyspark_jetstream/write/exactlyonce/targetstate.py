"""
A target stream as a task found it, and whether it still holds what it held.

A PubAck says that a row was stored, not that it still is. A stream that was made anew, or that ends
before the sequence at which it was seen to end, has lost rows that were acknowledged: a server lost
them, an older copy was put back, or somebody deleted the stream. That is an error wherever it
shows: before an attempt begins, when it looks for rows of an earlier one, and at the commit.

What is removed from the middle of a stream, and a stream that was taken back and has outgrown its
end since, does not show, and is not looked for (docs/reference/guarantees.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...client.info import StreamInfo
from ...client.jetstream import JetStream
from ...client.patience import Patience
from ...errors import TargetChangedError

SETTLES_S: Final = 3.0
"""Time for which a loss must show: a leader that was just elected may not know all that it has."""


@dataclass(frozen=True, slots=True)
class FoundStream:
    """A target stream at one moment."""

    name: str
    created: str
    end: int
    """Its last sequence."""

    @classmethod
    def of(cls, info: StreamInfo) -> FoundStream:
        """The stream as STREAM.INFO shows it now."""
        return cls(info.name, info.created, info.last_seq)

    def upto(self, stored_in: Mapping[str, int]) -> FoundStream:
        """The same, once it has a row at this sequence."""
        return replace(self, end=max(self.end, stored_in.get(self.name, 0)))

    def loss(self, now: StreamInfo | None) -> str | None:
        """Proof that rows are gone, by the stream as it is now; None if there is none."""
        if now is None:
            return "it was deleted, and the rows in it are gone"
        if now.created != self.created:
            return (
                f"it was made anew at {now.created}; rows that were stored in the one of"
                f" {self.created} are gone"
            )
        if now.last_seq < self.end:
            return (
                f"it ended at sequence {self.end}, and ends at {now.last_seq} now: its server lost"
                " what it had acknowledged, or an older copy of it was put back"
            )
        return None


def check_targets(
    js: JetStream, seen: Iterable[FoundStream], remedy: str
) -> Mapping[str, StreamInfo]:
    """
    The streams as they are now, by their names.

    Args:
        seen: the streams as they were; one may stand there more than once.
        remedy: what to do where one has lost rows.

    Raises:
        TargetChangedError: One was made anew, ends before where it ended, or is gone.
    """
    seen, patience = list(seen), Patience(SETTLES_S, pause_s=0.1)
    names = list(dict.fromkeys(stream.name for stream in seen))
    while True:
        infos = dict(zip(names, js.stream_infos_there(names), strict=True)) if names else {}
        losses = [(each, why) for each in seen if (why := each.loss(infos[each.name]))]
        if not losses:
            return {name: info for name, info in infos.items() if info is not None}
        if patience.over:
            stream, why = losses[0]
            raise TargetChangedError(stream.name, f"{why}. {remedy}")
        patience.pause()

"""
A commit's record of its target streams: a later batch sees by it that one lost rows.

A PubAck is no write to the disk: a power cut, or an older copy of a store that is put back, takes
from the end of a stream what the ledger and Spark's checkpoint call written. Spark's batches count
up by one, each has a task at least, and each commit is noted before Spark's own. So:

* A ledger that ends before the batch ahead of this one has lost records.
* A stream has lost rows when it is another one now, when it ends before the sequence at which it
  ended at a commit, or when another message stands there.

Rule: only what is certain. Limits, TTLs, deletes and purges leave a stream's last sequence as it is
and no message in another one's place; what they removed says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ...errors import PublishError, TakenBackError, TargetChangedError
from ...foreign import each, number, record, text
from .changes import Before, FoundStream

_ENDS: Final = 100
"""Number of batches whose stream ends are kept: two minutes of them, at more than one a second."""

_ENDS_IN_ALL: Final = 2_000
MAX_COUNT: Final = 1 << 63
_STREAMS: Final = 1_000
"""Number of streams that are noted, those written to last."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A target stream as commits found it."""

    created: str
    ends: tuple[tuple[int, int], ...]
    """Batches, the last one last, and with which sequence the stream ended at their commits."""
    time: str
    """Time of the message with the last of these sequences; "" where that is not known."""

    @property
    def end(self) -> int:
        """The stream's last sequence at the last commit."""
        return self.ends[-1][1]

    @property
    def before(self) -> Before:
        """The stream's state for a task that begins behind that commit."""
        return Before(self.end, self.created)

    def until(self, batch: int) -> Noted | None:
        """The notes up to this batch; None if there are none."""
        ends = tuple(pair for pair in self.ends if pair[0] <= batch)
        time = self.time if ends == self.ends else ""
        return Noted(self.created, ends, time) if ends else None


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch that a query has committed."""

    batch: int = -1
    """-1 for none."""
    streams: Mapping[str, Noted] = field(default_factory=dict)
    rewound: bool = False
    """Whether the next batch may have been written before (`pyspark-jetstream rewind`)."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Committed:
        """
        Content of a record; earlier versions note no streams.

        Raises:
            ValueError: It is none.
        """
        content = _COMMITTED(content)
        rewound = content.get("rewound") is True
        batch = number(-1 if rewound else 0, MAX_COUNT)(content["batch"])
        streams = content.get("streams", {}).items()
        noted = {name: Noted(s["created"], tuple(s["ends"]), s["time"]) for name, s in streams}
        return cls(batch, noted, rewound)

    def content(self) -> dict[str, Any]:
        """Content of its record."""
        streams = {
            name: {"created": noted.created, "ends": noted.ends, "time": noted.time}
            for name, noted in self.streams.items()
        }
        return {
            "batch": self.batch,
            **({"streams": streams} if streams else {}),
            **({"rewound": True} if self.rewound else {}),
        }

    def followed_by(self, batch: int, targets: Iterable[FoundStream]) -> Committed:
        """The record of a later batch, whose commit found its target streams so."""
        streams = dict(self.streams)
        for target in targets:
            before = streams.pop(target.name, None)
            ends = before.ends if before is not None and before.created == target.created else ()
            streams[target.name] = Noted(target.created, (*ends, (batch, target.end)), target.time)
        kept = list(streams.items())[-_STREAMS:]
        most = max(1, min(_ENDS, _ENDS_IN_ALL // max(1, len(kept))))
        noted = {name: Noted(n.created, n.ends[-most:], n.time) for name, n in kept}
        return Committed(batch, noted)

    def shortened(self) -> Committed:
        """The same with half as many ends, or streams, but for the last ones."""
        if any(len(noted.ends) > 1 for noted in self.streams.values()):
            halves = {
                name: replace(noted, ends=noted.ends[len(noted.ends) // 2 :])
                for name, noted in self.streams.items()
            }
            return replace(self, streams=halves)
        names = list(self.streams)
        return replace(
            self, streams={name: self.streams[name] for name in names[(len(names) + 1) // 2 :]}
        )

    def rewound_to(self, batch: int, there: Iterable[FoundStream]) -> Committed:
        """
        As if this batch and those behind it had not been committed.

        Args:
            there: the streams that are there now; one made anew has nothing of what was noted.
        """
        streams = {}
        for target in there:
            noted = self.streams[target.name]
            if noted.created == target.created:
                # Of a stream without a note of then all is read.
                unknown = Noted(noted.created, ((max(batch - 1, 0), 0),), "")
                streams[target.name] = noted.until(batch - 1) or unknown
        return Committed(batch - 1, streams, rewound=True)

    def loss(self, write: str, batch: int, targets: Iterable[FoundStream]) -> PublishError | None:
        """
        Error if rows of committed batches are gone, before this batch is written; None if nothing
        shows it.
        """
        if self.rewound and self.batch < batch - 1:
            return TakenBackError(
                write,
                f"it was rewound to batch {self.batch + 1} while it ran, and goes on with {batch}:"
                " stop it, rewind it again, and start it (or, if exactlyOnce was false meanwhile:"
                " `pyspark-jetstream rewind --checkpoint <checkpointLocation> --accept`)",
                batch=self.batch + 1,
            )
        if 0 <= self.batch < batch - 1:
            gone = f"{self.batch + 1} to {batch - 1}" if self.batch < batch - 2 else f"{batch - 1}"
            return TakenBackError(
                write,
                f"the ledger ends with batch {self.batch}, and batch {batch} begins: the records of"
                f" {gone} are gone, for its server lost what it had acknowledged, or an older copy"
                " of its store was put back, and rows of target streams may be gone as well"
                " (or exactlyOnce was false meanwhile)",
                batch=self.batch + 1,
            )
        for target in targets:
            noted = self.streams.get(target.name)
            if noted is not None and noted.created != target.created:
                return self.made_anew(write, target)
            if noted is not None and target.end < noted.end:
                return self._taken_back(write, target, noted)
        return None

    def replaced(self, write: str, target: FoundStream) -> TakenBackError:
        """The loss of a stream in which another message stands where this batch ended."""
        noted = self.streams[target.name]
        return TakenBackError(
            write,
            f"stream '{target.name}' ended at sequence {noted.end} when batch {noted.ends[-1][0]}"
            " was committed, and another message stands there now: the stream was taken back, and"
            f" others wrote since. Rows of batch {self.batch} are gone, and may be of earlier ones"
            f" ({_CAUSE})",
            batch=self.batch,
        )

    def made_anew(self, write: str, target: FoundStream) -> TargetChangedError:
        """The loss of a stream that is another one now."""
        noted = self.streams[target.name]
        return TargetChangedError(
            target.name,
            f"it was made anew at {target.created}, after batch {noted.ends[-1][0]} was committed;"
            f" rows stored in the one of {noted.created} are gone. To go on with this one:"
            " `pyspark-jetstream rewind --checkpoint <checkpointLocation> --accept`",
        )

    def _taken_back(self, write: str, target: FoundStream, noted: Noted) -> TakenBackError:
        # The first batch that is not whole; whether that is the first one that is known.
        batch = next(batch for batch, end in noted.ends if end > target.end)
        more = ", and maybe of earlier ones" if batch == noted.ends[0][0] and batch > 0 else ""
        return TakenBackError(
            write,
            f"stream '{target.name}' ends at sequence {target.end}, and ended at {noted.end} when"
            f" batch {noted.ends[-1][0]} was committed: sequences {target.end + 1} to {noted.end}"
            f" are gone, and with them rows from batch {batch} on{more} ({_CAUSE})",
            batch=batch,
        )


_CAUSE: Final = "its server lost what it had acknowledged, or an older copy of it was put back"


def _ends(value: Any) -> list[tuple[int, int]]:
    if not each(each(_COUNT))(value) or any(len(pair) != 2 for pair in value):
        raise ValueError(" is no list of pairs")
    return [(batch, end) for batch, end in value]


_COUNT: Final = number(0, MAX_COUNT)
_COMMITTED: Final = record(
    {"batch": number(-1, MAX_COUNT)},
    {"streams": each(record({"created": text, "ends": _ends, "time": text}), dict)},
)

"""
Offsets of a streaming read: what a checkpoint holds, as canonical JSON.

An offset says for every partition the last stream sequence that belongs to the batch: the batch
between two offsets is `(start, end]`. What each partition is, a stream or a filter on one, stands
in it, too (`layout`). A batch is read by the layout of its end; where its start has another one, as
of several streams that come and go, a partition that is new begins at the end's base (`begins`).

It also carries what a later run must agree with: every stream's creation time, the names of
consumers and query, and `base`, the position the query resolved its start to. `base` travels
because Spark does not checkpoint the initial offset: until batch 0 is committed, `partitions` gets
the symbolic start again, and takes the base from the end. Spark compares offsets as strings, so
equal offsets must be equal text: `to_json` is the only way out.

A version or a key that is not known is one of a newer package, and refused: what it says of a batch
would be left out in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..client.info import Mark
from ..errors import OffsetError
from ..fetch.layout import Layout, Place, SubjectPartition
from ..fetch.options import Several

VERSION: Final = 1

_KEYS: Final = frozenset(
    ("version", "consumer", "query", "streams", "marks", "consumers", "layout")
    + ("base", "sequences", "idle", "resumed", "one_pass")
)


@dataclass(frozen=True, slots=True)
class Offset:
    """Positions of all partitions, by index."""

    sequences: tuple[int, ...]
    """The last sequence read of each partition; 0 stands before the first."""
    base: tuple[int, ...]
    """Start of the query."""
    streams: Mapping[str, str]
    """Creation time of each stream, by name."""
    consumer: str
    """Prefix of the durable consumers' names."""
    layout: Layout
    idle: frozenset[int] = frozenset()
    """
    Partitions without a message in the batch that ends here: they get no task. It is noted, because
    asked again the server might say otherwise, and then the tasks' numbers would shift.
    """
    resumed: tuple[int, ...] = ()
    """
    Start of the batch that ends here, if not where the last one of this checkpoint ended: a query
    that took another one's place (`standby`) goes on where that one was, and one whose stream was
    restored from an older copy (`failOnDataLoss=false`) at its first message.
    """
    query: str = ""
    """Names the query as long as it has this checkpoint."""
    one_pass: bool = False
    """
    Whether the batch that ends here is read in one pass over its stream, and not by a task for each
    partition: noted for the same reason as `idle`.
    """
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """
    Each stream as it was when the batch that ends here was planned, by name. By its mark a stream
    is known that was taken back since, however long it is.
    """
    consumers: Mapping[int, str] = field(default_factory=dict)
    """
    By partition when the consumers were made for which alone their streams keep messages
    (`interest` and `workqueue`), as far as they had been when the batch was planned.
    """

    def to_json(self) -> dict[str, Any]:
        """The offset with its keys in the one order there is; what is empty is left out."""
        marks = {name: [mark.sequence, mark.time] for name, mark in sorted(self.marks.items())}
        made = {str(index): self.consumers[index] for index in sorted(self.consumers)}
        return {
            "version": VERSION,
            "consumer": self.consumer,
            "streams": dict(sorted(self.streams.items())),
            "layout": _layout_json(self.layout),
            "base": list(self.base),
            "sequences": list(self.sequences),
            "idle": sorted(self.idle),
            **({"resumed": list(self.resumed)} if self.resumed else {}),
            **({"one_pass": True} if self.one_pass else {}),
            **({"query": self.query} if self.query else {}),
            **({"marks": marks} if marks else {}),
            **({"consumers": made} if made else {}),
        }

    @property
    def by_place(self) -> dict[Place, int]:
        """The sequences by what their partitions are."""
        return dict(zip(self.layout.places, self.sequences, strict=True))

    def at(self, sequences: tuple[int, ...]) -> Offset:
        """The same query at other positions."""
        return replace(self, sequences=sequences, idle=frozenset(), resumed=(), one_pass=False)

    def laid_out(
        self, layout: Layout, begins: Mapping[Place, int], created: Mapping[str, str]
    ) -> Offset:
        """
        The same query with these partitions: those that it has stay where they are.

        Args:
            begins: where each of the others begins.
            created: when their streams were made, by name.
        """
        at = {place: i for i, place in enumerate(self.layout.places)}
        places = layout.places

        def moved(values: Sequence[int]) -> tuple[int, ...]:
            return tuple(values[at[p]] if p in at else begins[p] for p in places)

        names = layout.streams
        return replace(
            self,
            layout=layout,
            sequences=moved(self.sequences),
            base=moved(self.base),
            resumed=moved(self.resumed) if self.resumed else (),
            idle=frozenset(i for i, place in enumerate(places) if at.get(place) in self.idle),
            streams={name: self.streams.get(name) or created[name] for name in names},
            marks={name: self.marks[name] for name in names if name in self.marks},
        )

    def is_at(self, other: Offset) -> bool:
        """Whether both stand at the same sequences of the same streams."""
        return self.sequences == other.sequences and dict(self.streams) == dict(other.streams)

    def bare(self) -> Offset:
        """As the start of a batch, where `idle`, `resumed` and `one_pass` say nothing."""
        return replace(self, idle=frozenset(), resumed=(), one_pass=False)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """
        The offset a checkpoint holds.

        Raises:
            OffsetError: It was written by something else, or by a newer version.
        """
        if isinstance(value, Mapping) and "claims" in value:
            raise OffsetError(
                "the checkpoint was written by a query that shares its consumer (priorityPolicy="
                f"{value.get('policy')}); give the options it had, or a new checkpointLocation"
            )
        check_written(value, _KEYS)
        with reading("the checkpoint holds no offset of this source", value):
            offset = cls(
                sequences=tuple(value["sequences"]),
                base=tuple(value["base"]),
                streams=dict(value["streams"]),
                consumer=value["consumer"],
                idle=frozenset(value.get("idle", ())),
                resumed=tuple(value.get("resumed", ())),
                one_pass=bool(value.get("one_pass")),
                query=value.get("query", ""),
                layout=_laid(value["layout"]),
                marks={
                    name: Mark(value["streams"][name], at, time)
                    for name, (at, time) in value.get("marks", {}).items()
                },
                consumers={int(i): created for i, created in value.get("consumers", {}).items()},
            )
            lengths = {len(each) for each in (offset.sequences, offset.base, offset.layout)}
            if len(lengths | {len(offset.resumed or offset.base)}) > 1:
                raise ValueError("places, base and sequences differ in length")
        return offset


@contextmanager
def reading(fault: str, content: object) -> Iterator[None]:
    """
    Reads what somebody has stored.

    Args:
        fault: what it means if that cannot be read.

    Raises:
        OffsetError: It cannot.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OffsetError(f"{fault} ({error!r}): {str(content)[:200]}") from None


def begins(start: Mapping[str, Any], end: Offset) -> Offset:
    """
    Start of the batch between two offsets, by these alone, in the layout of its end. `resumed` is
    not looked at; of the symbolic start the marks are the end's.
    """
    if is_initial(start):
        return end.at(end.base)
    offset = Offset.from_json(start).bare()
    if offset.layout == end.layout:
        return offset
    places = dict(zip(end.layout.places, end.base, strict=True))
    return offset.laid_out(end.layout, places, end.streams)


def is_initial(value: Any) -> bool:
    """Whether this is the symbolic start; a checkpoint of another source holds any JSON."""
    return isinstance(value, Mapping) and bool(value.get("initial"))


def check_written(value: Any, keys: Set[str]) -> None:
    """
    Accepts what this package may have written as an offset.

    Args:
        keys: all that such an offset may have.

    Raises:
        OffsetError: Another source wrote it, or a newer package.
    """
    if not isinstance(value, Mapping) or "version" not in value:
        raise OffsetError(
            f"the checkpoint is one of another source, whose offset is {json.dumps(value)[:200]}:"
            " give this query a checkpointLocation of its own, and let startingOffsets or"
            " startingTimestamp say where it begins"
        )
    version, unknown = value["version"], sorted(value.keys() - keys)
    is_known = type(version) is int and version == VERSION
    if is_known and not unknown:
        return
    what = f"of version {version!r}" if not is_known else f"with '{unknown[0]}'"
    raise OffsetError(
        f"the checkpoint holds an offset {what}, written by another pyspark-jetstream: this one"
        f" reads version {VERSION}, and what it does not know might be rows of a batch; use the one"
        " that wrote it"
    )


SWITCHING: Final = (
    "to read another layout, stop the query, run it once more with the options it had, up to a cut"
    " that both layouts have, and let pyspark-jetstream partition --switch write its checkpoint for"
    " the new one"
)
"""Remedy where a checkpoint is of other partitions."""


def check_layout(then: Layout, now: Layout, several: Several | None) -> None:
    """
    Accepts a checkpoint of these partitions for a query that has others, or several streams.

    Raises:
        OffsetError: The query does not read what the checkpoint has.
    """
    if then.is_several and several is not None:
        takes = several.takes()
        strange = [stream for stream in then.streams if not takes(stream)]
        if strange:
            raise OffsetError(
                f"the checkpoint has stream '{strange[0]}', too, which is none of {several.option}"
                f"={several}: name it as well, or give this query a checkpointLocation of its own"
            )
    elif not set(then.streams) & set(now.streams):
        raise OffsetError(
            f"the checkpoint is of stream {', '.join(then.streams)}, not of"
            f" {', '.join(now.streams)}: give this query a checkpointLocation of its own, or name"
            " that stream in the option stream. If this stream takes that one's place,"
            f" {SWITCHING}"
        )
    elif then != now:
        raise OffsetError(
            f"the checkpoint was written for {then}; this query has {now}. Give it the options that"
            f" it had, or a checkpointLocation of its own; {SWITCHING}"
        )


INITIAL: Final[Mapping[str, Any]] = {"version": VERSION, "initial": True}
"""
The symbolic start of every query. It must say nothing that can change between two calls.
"""


def _layout_json(layout: Layout) -> dict[str, Any]:
    return {
        "places": [list(place) for place in layout.places],
        **({"subject": layout.partition_subject} if layout.partition_subject else {}),
        **({"several": True} if layout.is_several else {}),
    }


def _laid(laid: Mapping[str, Any]) -> Layout:
    if set(laid) - {"places", "subject", "several"}:
        raise ValueError(f"layout {sorted(laid)}")
    places = tuple(SubjectPartition(index, *place) for index, place in enumerate(laid["places"]))
    return Layout(places, laid.get("subject"), bool(laid.get("several")))

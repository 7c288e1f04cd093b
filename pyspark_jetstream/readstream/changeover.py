"""
A query's way from one layout of its partitions to another, under the same checkpoint.

Both layouts are copies of one stream, or that stream itself. One message of it is the *cut*: the
old layout is read up to it, then the new one from behind it. It stands in the offsets that Spark
logs, so a run that is killed is taken up by the next one.

* *Drain*: batches of the old layout end at the cut at the latest.
* *Switch*: when nothing is left before the cut, a batch without rows begins in the old layout and
  ends in the new one. All rows of the old layout are in committed batches by then, and none of the
  new one is, so the order of each subject holds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from ..client.info import StreamInfo
from ..client.jetstream import JetStream
from ..errors import JetStreamError, OffsetError, OptionError, further
from ..fetch.layout import Layout, replacing
from ..sanitize import get_logger
from .offsets import Change, Offset, check_filters, check_layout
from .options import SourceOptions

logger = get_logger(__name__)

HANDING_OVER: Final = (
    "keep both layouts, let pyspark-jetstream partition --hand-over name one"
    " point in both, drain the old one with the old options, its endingOffsets and"
    " trigger(availableNow=True), then start with the new options, its startingOffsets and"
    " a new checkpointLocation"
)
"""Remedy where a query cannot go over under its checkpoint."""

CHANGING: Final = (
    "let pyspark-jetstream partition --replaces make the new layout from the stream of which the"
    " old one is a copy: a query then goes over under its checkpoint, with partitions=auto while it"
    f" runs{further('guides/partitions')}. If that cannot be, {HANDING_OVER}"
)
"""Remedy where two layouts have no stream in common."""

_RETRY_S: Final = 60.0

_STALL_S: Final = 60.0
"""Seconds without a copied message after which the query gives up."""


class Changeover:
    """
    A query's way to the layout that its options say.

    Args:
        wanted: that layout; the query may come from another one.
    """

    def __init__(self, js: JetStream, options: SourceOptions, wanted: Layout) -> None:
        self.change: Change | None = None
        """None where the query has gone over, or never had another layout."""
        self._js = js
        self._options = options
        self._wanted = wanted
        self._known = [wanted]
        """The options' layout, what replaces that, and so on, as this run began."""
        self._retry_at = 0.0
        """Time of the next attempt to change to the layout that replaces the query's."""

    def __repr__(self) -> str:
        return f"<Changeover to {self._wanted}, {self.change}>"

    def first_layout(self) -> Layout:
        """The layout to begin in: the options', or what replaces that (`partitions=auto`)."""
        while self._options.follows:
            first = self._js.stream_infos_there([self._wanted.streams[0]])[0]
            try:
                layout = replacing(first.config) if first is not None else None
            except ValueError as error:
                logger.warning(
                    "the query does not go over to the new layout. Mend this, and start the query"
                    " again: %s",
                    error,
                )
                break
            if layout is None or layout in self._known or not self._may_go(layout):
                break
            self._known.append(layout)
            self._wanted = layout
        return self._wanted

    def _may_go(self, layout: Layout) -> bool:
        """Whether all streams of this layout are there, and have an origin with the other's."""
        if None in self._js.stream_infos_there(list(layout.streams)):
            why = "not all of its streams exist"
        elif not self._is_related(layout):
            why = "its streams are copies of another stream"
        else:
            return True
        logger.warning(
            "the query does not go over to the new layout (%s), because %s. Mend this, and start"
            " the query again",
            ", ".join(layout.streams), why,
        )  # fmt: skip
        return False

    def _is_related(self, layout: Layout) -> bool:
        """Whether one stream feeds this layout and that of the options."""
        from .copies import Copies  # few queries go over

        return Copies(self._js).origin_of([*self._wanted.streams, *layout.streams]) is not None

    def follow(self, offset: Offset, infos: Mapping[str, StreamInfo]) -> None:
        """
        Begins a change where a layout replaces the one that the query has, while it runs
        (`partitions=auto`). Where there is no way to it, that is said, and the query goes on.

        Args:
            infos: the query's streams.
        """
        if not self._options.follows or self.change is not None or offset.layout is None:
            return
        if time.monotonic() < self._retry_at:
            return
        try:
            layout = replacing(infos[offset.layout.streams[0]].config)
            if layout is not None and layout != offset.layout:
                self.change = begin_change(self._js, offset, layout)
                self._wanted = layout
                self._known.append(layout)
        except (JetStreamError, ValueError) as error:
            self._retry_at = time.monotonic() + _RETRY_S
            logger.warning(
                "the query does not go over to the new layout, and tries again in %g s: %s",
                _RETRY_S,
                error,
            )

    def meet(self, offset: Offset) -> None:
        """
        Notes which layout the query has: that of an offset.

        Raises:
            OptionError: An option is given that goes with one layout alone.
            OffsetError: There is no way from one to the other.
        """
        self.change = None
        if offset.layout == self._wanted:
            return
        options, layout = self._options, offset.layout
        follows = options.follows and (options.standby or layout not in self._known)
        if follows and layout is not None and self._is_related(layout):
            # The streams that led to it may be gone. What replaces it is found by `follow`, of a
            # standby when it is known where the query goes on.
            self._wanted = layout
            return
        given = {"standby": options.standby, "endingOffsets": bool(options.ending.sequences)}
        for name in (name for name, is_given in given.items() if is_given):
            raise OptionError(
                name,
                "the query goes over from other partitions, which its checkpoint has: leave"
                " this option out until it has done so",
            )
        self.change = begin_change(self._js, offset, self._wanted)

    def upto(self, offset: Offset) -> tuple[int, ...]:
        """The sequences up to which an offset's layout is read, at most."""
        assert self.change is not None and offset.layout is not None
        return self.change.upto(offset.layout, offset.sequences)

    def switched(self, offset: Offset) -> Offset:
        """The end of the batch without rows in which the query goes over from `offset`."""
        assert self.change is not None
        infos = self._js.stream_infos(list(self.change.to.streams))
        return offset.switched(self.change, {info.name: info.mark for info in infos})


def begin_change(js: JetStream, offset: Offset, new: Layout) -> Change:
    """
    The change from the layout of an offset to this one. Waits until all copies have what their
    origin holds by now.

    Raises:
        OffsetError: No one stream feeds both, or one of them does not keep its messages.
        CopyStalledError: The server stopped copying.
        CopyMismatchError: A message was published into a copy.
    """
    from .copies import Copies  # as above

    old, change, copies = offset.layout, offset.change, Copies(js)
    assert old is not None
    check_filters(old, new)
    streams = list(dict.fromkeys((*old.streams, *new.streams)))
    infos = dict(zip(streams, js.stream_infos_there(streams), strict=True))
    for name, info in infos.items():
        if info is None or info.created != offset.streams.get(name, info.created):
            what = "deleted" if info is None else "made anew"
            raise OffsetError(
                f"the checkpoint was written for stream {', '.join(old.streams)}, and stream"
                f" '{name}' was {what} before it was read to a common point with stream"
                f" {', '.join(new.streams)}: what is left of it cannot be read. Give this query a"
                " checkpointLocation of its own, and startingOffsets"
            )
        if info.retention != "limits":
            raise OffsetError(
                f"a query goes over from stream {', '.join(old.streams)} to"
                f" {', '.join(new.streams)} only where all keep their messages, and stream '{name}'"
                f" has retention {info.retention}. To hand over to a new checkpoint,"
                f" {HANDING_OVER}"
            )
    created = {name: info.created for name, info in infos.items() if info is not None}
    created = {name: created[name] for name in new.streams}
    if change is not None and change.to == new and change.created == created:
        return change
    origin = copies.origin_of(streams)
    if origin is None:
        check_layout(len(old), old.streams, new.streams, len(new), CHANGING)
        raise OffsetError(f"the layouts have no origin in common: {CHANGING}")
    # Where the origin itself was read, others' filters may have let pass what the new layout reads.
    cut = max(offset.sequences) if old.streams == (origin,) else js.stream_info(origin).last_seq
    cuts = copies.cuts(streams, origin, cut, lambda _: None, _STALL_S)
    logger.info(
        "the query goes over from %d partitions of %s to %d of %s: at sequence %d of %s",
        len(old), ",".join(old.streams), len(new), ",".join(new.streams), cut, origin,
    )  # fmt: skip
    return Change(new, cuts, created)

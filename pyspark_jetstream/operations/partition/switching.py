"""
Switches a query's checkpoint from one layout of a stream to another, while the query is stopped.

Both layouts hold the messages of one origin, in its order. A *cut* is a sequence of the origin such
that the query has read all up to it, and nothing behind it. There the end offset of the last batch
is written anew, in the new layout: whatever dies at whatever step leaves the old file or the new
one. Spark's state belongs to the batch and is not touched, so it is kept.

The server notes in a copied message only the sequence in the stream that fed it, so a cut is found
hop by hop; sequences ascend from hop to hop, so by halving.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ...client.jetstream import JetStream
from ...errors import CheckpointError, OffsetError, PartitioningError
from ...fetch.dataloss import loss_of
from ...fetch.layout import Layout, SubjectPartition
from ...readstream.offsets import Offset, is_initial
from ...subjects import REST
from ..batches import offsets_of, read_batches, with_offset
from ..files import Files
from .copies import Progress, copied_from, settle
from .making import missing_names
from .plan import Feeding, PartitionPlan

_KEPT: Final = ".before-switch"
"""Behind the name of the file of a batch: the same, as it was."""

_HOPS: Final = 3


def switch(
    js: JetStream, plan: PartitionPlan, files: Files, *, dry_run: bool, progress: Progress
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """
    Switches a checkpoint to the layout of a plan that was made.

    Returns up to where each new partition has read, and the batch whose end was written, its source
    and the cut.

    Args:
        dry_run: only look, and change nothing.

    Raises:
        CheckpointError: Its last batch is not committed, or it has no source of the plan's origin.
        PartitioningError: It does not stand at a cut, the query runs, or the layout was not made.
        CopyStalledError: The server stopped copying.
    """
    if missing := missing_names(js, plan):
        raise PartitioningError(min(missing), "is not there: make the layout first")
    batch, content = _last(files)
    offsets = offsets_of(content)
    new = _layout(plan)
    chains = _Chains(js, plan.origin)
    found = [
        (name, old)
        for name, value in offsets.items()
        if (old := _read(value)) is not None
        and all(chains.of(stream) is not None for stream in old.streams)
    ]
    if len(found) != 1:
        raise CheckpointError(
            files.location,
            f"expected one source that reads '{plan.origin}' or its copies, found {len(found)}",
        )
    ((source, old),) = found
    if old.layout == new:
        raise CheckpointError(files.location, f"source {source} stands in this layout already")
    _check_stopped(js, old)
    end = js.stream_info(plan.origin).last_seq
    chains.settle([*old.streams, *new.streams], progress)
    cut = _cut(chains, old, end)
    offset = Offset(
        sequences=(after := tuple(chains.position(p.stream, cut) for p in new)),
        base=after,
        streams={name: js.stream_info(name).created for name in new.streams},
        consumer=old.consumer,
        query=old.query,
        layout=new,
    )
    if not dry_run:
        files.write(f"offsets/{batch}{_KEPT}", content.encode())
        text = with_offset(content, source, json.dumps(offset.to_json()))
        files.write(f"offsets/{batch}", text.encode())
    rows = [
        {"partition": " ".join(place), "read_up_to": at} for place, at in offset.by_place.items()
    ]
    return rows, {"batch": batch, "source": source, "cut": cut}


def undo_switch(files: Files, *, dry_run: bool) -> int:
    """
    Gives a checkpoint its file of before; the batch.

    Raises:
        CheckpointError: There is none of its last batch, or that is not committed.
    """
    batch, _ = _last(files)
    try:
        content = files.read(f"offsets/{batch}{_KEPT}")
    except FileNotFoundError:
        raise CheckpointError(
            files.location,
            f"its last batch, {batch}, was not switched: there is nothing to undo, or the query has"
            " run since",
        ) from None
    if not dry_run:
        files.write(f"offsets/{batch}", content)
    return batch


class _Chains:
    """The hops that lead from streams to the one whose messages they hold."""

    def __init__(self, js: JetStream, origin: str) -> None:
        self._js, self._origin = js, origin
        self._found: dict[str, list[tuple[str, Feeding]] | None] = {}

    def of(self, stream: str) -> list[tuple[str, Feeding]] | None:
        """The copies from the origin to a stream, and what feeds each; None: it leads elsewhere."""
        if stream not in self._found:
            chain: list[tuple[str, Feeding]] = []
            feed = stream
            while feed != self._origin and len(chain) < _HOPS:
                (info,) = self._js.stream_infos_there([feed])
                sources = info.config.get("sources") or [] if info is not None else []
                if len(sources) != 1:
                    break
                (transform, *_) = sources[0].get("subject_transforms") or [{}]
                filter_ = sources[0].get("filter_subject") or transform.get("src") or REST
                chain.insert(0, (feed, Feeding(sources[0]["name"], filter_)))
                feed = sources[0]["name"]
            self._found[stream] = chain if feed == self._origin else None
        return self._found[stream]

    def settle(self, streams: list[str], progress: Progress) -> None:
        """Waits until these streams hold what the origin holds by now."""
        links: dict[str, Feeding] = {}
        for hop in range(_HOPS):  # feeds before their copies
            for name in streams:
                links |= (self.of(name) or [])[hop : hop + 1]
        settle(self._js, links, progress)

    def position(self, stream: str, cut: int) -> int:
        """The sequence of a stream up to which it holds what its origin has up to a cut."""
        for name, _ in self.of(stream) or ():
            info = self._js.stream_info(name)
            low, high = info.first_seq, info.last_seq + 1  # the first message beyond lies in these
            while low < high:
                middle = (low + high) // 2
                fed = self._fed(name, middle)
                if fed is None or fed > cut:
                    high = middle
                else:
                    low = middle + 1
            cut = low - 1
        return cut

    def next_of(self, partition: SubjectPartition, behind: int) -> int | None:
        """The sequence of a partition's next message in its stream; None where there is none."""
        query = {"seq": behind + 1, "next_by_subj": partition.filter or REST}
        found = self._js.message_get(partition.stream, **query)
        return found.sequence if found is not None else None

    def origin_of(self, stream: str, sequence: int) -> int:
        """The sequence in the origin of a message of a stream."""
        for name, _ in reversed(self.of(stream) or []):
            sequence = self._fed(name, sequence) or 0
        return sequence

    def _fed(self, stream: str, sequence: int) -> int | None:
        """The sequence in its feed of the first message of a stream at or behind `sequence`."""
        message = self._js.message_get(stream, seq=sequence, next_by_subj=REST)
        return copied_from(stream, message) if message is not None else None


def _cut(chains: _Chains, old: Offset, end: int) -> int:
    """
    The sequence of the origin up to which a query has read all, and behind which nothing.

    Args:
        end: the last one of the origin, which all copies have reached.

    Raises:
        PartitioningError: There is none; it says how to come to one.
    """
    partitions = old.layout.partitions
    cut = end
    for each in partitions:
        unread = chains.next_of(each, old.sequences[each.index])
        if unread is not None:
            cut = min(cut, chains.origin_of(each.stream, unread) - 1)
    for each in partitions:
        beyond = chains.next_of(each, chains.position(each.stream, cut))
        if beyond is not None and beyond <= old.sequences[each.index]:
            ends = {str(p.index): chains.position(p.stream, end) for p in partitions}
            raise PartitioningError(
                each.stream,
                f"the checkpoint stands at no cut: partition {each.index} has read further than"
                " others. Run the query once more with the options it had, trigger(availableNow="
                f"True) and endingOffsets='{json.dumps(ends)}', then this again",
            )
    return cut


def _last(files: Files) -> tuple[int, str]:
    """The last batch, which is committed, and the file with its offsets."""
    batches = read_batches(files)
    if batches.planned is None or batches.planned != batches.committed:
        raise CheckpointError(
            files.location,
            f"its last batch, {batches.planned}, is not committed: run the query with the options"
            " it had until it is",
        )
    return batches.planned, files.read(f"offsets/{batches.planned}").decode()


def _read(value: Any) -> Offset | None:
    """An offset of ours with a layout, of a query that has its consumers for itself."""
    try:
        offset = Offset.from_json(value) if not is_initial(value) else None
    except OffsetError:
        return None
    return None if offset is None or offset.layout.is_several else offset


def _layout(plan: PartitionPlan) -> Layout:
    """The layout that a reader of a plan has."""
    if plan.stream_names:
        return Layout.of_streams(plan.stream_names, is_several=False)
    return Layout.of_filters(plan.streams, plan.template, plan.partitions)


def _check_stopped(js: JetStream, old: Offset) -> None:
    """That nobody reads, and that nothing is lost: behind a cut the query would not see it."""
    for each in old.layout:
        info, name = js.stream_info(each.stream), f"{old.consumer}-{each.index}"
        if loss := loss_of(info, old.streams.get(each.stream, ""), old.sequences[each.index]):
            detail = f"{loss.text}. Run the query once more with the options it had"
            raise PartitioningError(each.stream, detail)
        (consumer,) = js.consumer_infos([(each.stream, name)])
        if consumer is not None and consumer.num_waiting:
            detail = f"a client waits at consumer '{name}': stop the query first"
            raise PartitioningError(each.stream, detail)

"""
The durable consumers of a query, from the driver: made, put where the checkpoint is, settled.

What was committed is settled late or not at all (Spark commits a batch only when it builds the
next one), so nothing here carries a guarantee except that a restart settles what is left over.
Per retention, each O(1) a partition:

* `limits`: nothing to settle. A consumer is moved along only when a batch was read without it, so
  that the lag the server shows stays true.
* `interest`: a reset beyond the batch; what a reset skips counts as acknowledged.
* `workqueue`: a reset skips without removing, so the committed range is purged by its filter.
  Exactly that range: such a stream is always read from its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from .consumer import ConsumerRead, consumer_config
from .errors import ApiError, OptionError, ReadError
from .jetstream import ConsumerInfo, JetStream, StreamInfo
from .layout import Layout, SubjectPartition
from .offsets import Offset
from .options import SourceOptions

__all__ = ["Durables"]

logger = logging.getLogger(__name__)


class Durables:
    """The consumers of all partitions of one query."""

    def __init__(self, js: JetStream, options: SourceOptions, layout: Layout) -> None:
        self._js = js
        self._options = options
        self._layout = layout
        self._prepared = False

    def read(
        self,
        partition: SubjectPartition,
        offset: Offset,
        info: StreamInfo,
        end: int = 0,
        expected: int | None = None,
    ) -> ConsumerRead:
        """What a task reads of `partition`, from `offset` on, through its consumer."""
        options = self._options
        return ConsumerRead(
            partition=partition.index,
            stream=partition.stream,
            filter=partition.filter,
            consumer=f"{offset.consumer}-{partition.index}",
            group=options.priority_group,
            priority_timeout_s=options.priority_timeout_s,
            retention=info.retention,
            start=offset.sequences[partition.index],
            end=end,
            expected=expected,
            include_headers=options.include_headers,
            fail_on_data_loss=options.fail_on_data_loss,
        )

    def prepare(
        self,
        start: Offset,
        resumed: bool,
        infos: Mapping[str, StreamInfo],
        lost: Callable[[str, int, str], None],
    ) -> None:
        """
        Once a run, when the offsets are safe: every consumer exists and stands at `start`, and
        what the run before committed but could not settle is settled.

        Raises:
            OptionError: A consumer of that name belongs to somebody else.
            ReadError: The server refuses to make one.
        """
        if self._prepared:
            return
        reads = [self.read(p, start, infos[p.stream]) for p in self._layout]
        found = self._js.consumer_infos([(read.stream, read.consumer) for read in reads])
        for read, info in zip(reads, found, strict=True):
            if info is None:
                if resumed and read.retention == "interest":
                    lost(
                        read.stream,
                        read.partition,
                        f"the consumer '{read.consumer}' is gone, and with it the stream's interest"
                        " in what came since",
                    )
                info = self._create(read)
            else:
                _check(read, info)
                wanted = consumer_config(read)
                if info.config.get("priority_timeout") != wanted.get(
                    "priority_timeout", info.config.get("priority_timeout")
                ):
                    self._create(read)  # an update: the server takes another timeout
            # A reset also settles what an interest stream still keeps of the run before.
            if info.stream_seq != read.start or (read.retention == "interest" and resumed):
                self._js.reset(read.stream, read.consumer, read.start + 1)
            if read.retention == "workqueue" and resumed:
                self._js.purge(read.stream, read.filter, read.start + 1)
        self._prepared = True

    def settle(self, end: Offset, infos: Mapping[str, StreamInfo], direct: set[int]) -> None:
        """Settles what is at or before `end`; `direct` are the partitions read without consumer."""
        reads = [self.read(p, end, infos[p.stream]) for p in self._layout]
        resets = [r for r in reads if r.retention == "interest" or r.partition in direct]
        # A reset of a consumer that is gone is not answered at all.
        found = self._js.consumer_infos([(r.stream, r.consumer) for r in resets])
        there = {r.partition for r, info in zip(resets, found, strict=True) if info is not None}
        for read in reads:
            if read.retention == "workqueue":
                self._js.purge(read.stream, read.filter, read.start + 1)
            elif read.partition in there:
                self._js.reset(read.stream, read.consumer, read.start + 1)

    def _create(self, read: ConsumerRead) -> ConsumerInfo:
        try:
            return self._js.create_consumer(read.stream, consumer_config(read))
        except ApiError as error:
            raise ReadError(
                read.stream,
                read.partition,
                f"the server refuses the consumer '{read.consumer}': {error.description} (err_code"
                f" {error.err_code}); see `nats consumer ls {read.stream}` for one in its way",
            ) from None


def _check(read: ConsumerRead, info: ConsumerInfo) -> None:
    wanted = consumer_config(read)
    for key in ("filter_subject", "ack_policy", "priority_policy", "priority_groups"):
        if info.config.get(key) != wanted.get(key):
            raise OptionError(
                "consumer",
                f"stream '{read.stream}' has a consumer '{read.consumer}' with {key}"
                f" {info.config.get(key)!r} where this query needs {wanted.get(key)!r}; delete it"
                " or choose another prefix",
            )

"""
`spark.read` with `sequence`, `lastBySubject`, `nextBySubject` or `batch`: one direct get.

| options | call of ADR-31 |
|---|---|
| `sequence` | `seq` |
| `lastBySubject` | `last_by_subj`: a subject in the subject-appended form, a filter in the body |
| `nextBySubject` | `next_by_subj` |
| `nextBySubject`, `sequence` | `next_by_subj`, `seq` |
| `nextBySubject`, `startingTimestamp` | `next_by_subj`, `start_time` |
| `startingTimestamp`, `batch=1` | `start_time` |
| `batch` with `sequence` or `startingTimestamp`, and `nextBySubject`, `maxBytes` as you like | \
`batch` with `seq` or `start_time`, `next_by_subj`, `max_bytes` |
| `batch`, `nextBySubject` | the same from sequence 1 |
| `batch`, `multiLast`, and `upToSequence` or `upToTime` as you like | `multi_last` with `batch` |
| `multiLast` without `batch` | a snapshot, see `snapshot` |

A stream is read by its own name, whoever answers; no message is an empty result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from .. import subjects
from ..client.connection import Client, borrow
from ..client.info import StreamInfo
from ..client.jetstream import JetStream
from ..errors import PermissionsError
from ..fetch.call import DirectCall
from ..fetch.decoding.rows import RowBuilder
from ..fetch.directcalls import DirectCalls, record_batch
from ..fetch.layout import Layout, resolve_layout
from ..fetch.survey import check_answers, check_direct, check_past, check_subjects
from ..sanitize import get_logger
from ..tasks.rows import ReadTask, SentAsRows, TaskRows
from ..tasks.shape import numbered
from .options import CallOptions

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CallRead:
    """The work of the one task of a direct get."""

    stream: str
    call: DirectCall
    layout: Layout
    on_invalid_subject: str = "fail"

    def __repr__(self) -> str:
        return f"<CallRead {self.call.query()}>"

    def batches(self, client: Client) -> Iterator[pa.RecordBatch]:
        """The rows."""
        builder = RowBuilder(self.stream, include_headers=True, on_invalid=self.on_invalid_subject)
        pages = DirectCalls(client, self.stream).pages(self.call)
        batches = (record_batch(builder, page) for page in pages)
        classify = self.layout.classifier()
        return batches if classify is None else numbered(batches, "subject", classify)


class JetStreamCallReader(SentAsRows, DataSourceReader):
    """Reads what one direct get brings."""

    def __init__(self, options: CallOptions) -> None:
        self._options = options
        self.rows = TaskRows.of(options, options.drop_markers)

    def partitions(self) -> Sequence[ReadTask]:
        """
        One task.

        Raises:
            OptionError: A bound in the future, a filter outside of the stream, no direct get.
            UnsupportedServerError: The server is too old.
        """
        options = self._options
        with borrow(options.connection, at_start=True) as client:
            info = self._info(client)
            if info is not None:
                self._check(JetStream(client), info)
        configs = {info.name: info.config} if info is not None else {}
        work = CallRead(
            options.stream,
            # By the server's clock, which the messages' times are of, if the user may ask for it.
            self._call(info.now if info is not None else datetime.now(UTC)),
            resolve_layout(options, configs),
            options.on_invalid_subject,
        )
        return [ReadTask(options.connection, work)]

    def _call(self, now: datetime) -> DirectCall:
        options = self._options
        last = options.last_by_subject
        return DirectCall(
            seq=options.sequence,
            last_by_subj=last,
            next_by_subj=options.next_by_subject,
            start_time=options.start_time.rfc3339(now) if options.start_time else None,
            # A batch of one is the plain call, which does not count what follows.
            batch=options.batch if options.batch != 1 or options.multi_last else None,
            max_bytes=options.max_bytes if options.batch != 1 else None,
            multi_last=options.multi_last,
            up_to_seq=options.up_to_sequence,
            up_to_time=options.up_to_time.rfc3339(now) if options.up_to_time else None,
            appended=last is not None and subjects.is_literal(last),
        )

    def _info(self, client: Client) -> StreamInfo | None:
        """The stream; None where the user may read one subject, and ask nothing else."""
        try:
            return JetStream(client).stream_info(self._options.stream)
        except PermissionsError as error:
            if self._options.last_by_subject is None:
                raise
            logger.info("stream=%s not checked: %s", self._options.stream, error)
            return None

    def _check(self, js: JetStream, info: StreamInfo) -> None:
        options = self._options
        check_direct(info)
        if options.batch or options.multi_last:
            check_answers(js, info.name)
        filters = {
            "multiLast": options.multi_last,
            "lastBySubject": (options.last_by_subject,),
            "nextBySubject": (options.next_by_subject,),
        }
        for option, of in filters.items() if not info.is_filled else ():
            check_subjects(js, info, option, [filter_ for filter_ in of if filter_ is not None])
        moments = {"upToTime": options.up_to_time, "startingTimestamp": options.start_time}
        check_past(info, options.up_to_sequence, moments)

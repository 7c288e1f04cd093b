"""
`spark.read` with `bucket`: a Key-Value bucket as a table (ADR-8).

A bucket is the stream `KV_<bucket>` with a subject `$KV.<bucket>.<key>` for every key; a revision
is a sequence. Its latest values are a snapshot of that stream, its history a range. Deletes and
purges, the server's own for keys that expire included (ADR-48), are messages: of the latest values
they are left out, as by the KV API, unless `dropMarkers=false`; in a history they stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from .. import subjects
from ..client.connection import borrow
from ..client.info import StreamInfo
from ..errors import OptionError, StreamNotFoundError
from ..fetch.options import StreamOptions
from ..fetch.survey import Span, Survey, check_direct
from ..option import parsed
from ..subjects import bucket_prefix
from ..tasks.rows import ReadTask, SentAsRows, TaskRows
from ..values import LATEST, Starting, disjoint_filters
from .narrowing import Narrowing
from .options import BucketOptions, RangeOptions
from .pushdown import NarrowedReader, TakesFilters
from .ranges import JetStreamRangeReader
from .snapshot import JetStreamSnapshotReader, bound


class JetStreamBucketReader(SentAsRows, NarrowedReader):
    """Reads the latest values of a bucket, as of now or then, or its history."""

    def __init__(self, options: BucketOptions) -> None:
        self._options = options
        self.rows = TaskRows.of(options, options.drop_markers)

    def partitions(self) -> Sequence[ReadTask]:
        """
        The tasks of the read.

        Raises:
            OptionError: No such bucket, a bound in the future, direct get is off, or keys of a
                history that overlap.
            SnapshotLossError: The bucket no longer holds what it held then (`failOnDataLoss`).
        """
        options = self._options
        with borrow(options.connection, at_start=True) as client:
            survey = Survey(client, options)
            info = self._stream(survey)
            prefix = _prefix(survey, info, options.bucket)
            filters = tuple(f"{prefix}{key}" for key in options.keys)
            upto = None
            if options.history:
                upto = bound(survey.js, info, options.up_to_sequence, options.up_to_time)
        narrowing = _of_subjects(self.narrowing, prefix)
        if not options.history:
            latest = JetStreamSnapshotReader(replace(options, filters=filters))
            latest.narrowing = narrowing
            return latest.partitions()
        same = {field.name: getattr(options, field.name) for field in fields(StreamOptions)}
        same |= {"bucket": None, "include_headers": True}
        same["subjects"] = parsed("keys", disjoint_filters, ",".join(filters))
        ends = dict.fromkeys(range(len(same["subjects"])), upto) if upto is not None else {}
        ending = Starting(LATEST, ends)
        history = JetStreamRangeReader(RangeOptions(**same, ending=ending, drop_markers=False))
        history.narrowing = narrowing
        return history.partitions()

    def _stream(self, survey: Survey) -> StreamInfo:
        bucket = self._options.bucket
        try:
            info = survey.js.stream_info(self._options.stream)
        except StreamNotFoundError:
            raise OptionError(
                "bucket", f"there is no bucket '{bucket}' (no stream 'KV_{bucket}') in this account"
            ) from None
        config = info.config
        if not (config.get("mirror") or config.get("sources")) and not any(
            subjects.overlaps(f"{bucket_prefix(bucket)}>", subject)
            for subject in config.get("subjects") or []
        ):
            raise OptionError(
                "bucket",
                f"stream '{info.name}' is no bucket: it does not take {bucket_prefix(bucket)}>;"
                " read it as a stream, with option stream",
            )
        check_direct(info, "bucket")
        return info


class FilteredBucketReader(TakesFilters, JetStreamBucketReader):
    """A bucket reader that takes the filters of a query."""

    column_names: Mapping[str, str] = {"key": "subject", "revision": "sequence"}


def _of_subjects(narrowing: Narrowing, prefix: str) -> Narrowing:
    """A narrowing of keys as one of the subjects that they stand for."""
    keys = narrowing.subjects
    return replace(
        narrowing,
        subjects=None if keys is None else frozenset(f"{prefix}{key}" for key in keys),
        prefix=f"{prefix}{narrowing.prefix}" if narrowing.prefix else "",
    )


def _prefix(survey: Survey, info: StreamInfo, bucket: str) -> str:
    """
    Prefix of a key's subject; of a bucket that is filled from others what its messages say.

    Raises:
        OptionError: They are not those of one bucket.
    """
    every = bucket_prefix("*") + subjects.REST
    if not info.is_filled or not info.messages:
        return bucket_prefix(bucket)
    first = survey.js.message_get(info.name, seq=1, next_by_subj=every)
    if first is None:
        raise OptionError(
            "bucket",
            f"stream '{info.name}' holds no keys of a bucket ($KV.BUCKET.KEY); read it as a stream,"
            " with option stream",
        )
    origin = subjects.tokens(first.subject)[1]
    prefix = bucket_prefix(origin)
    spans = [Span(info.name, each, 0, info.last_seq) for each in (every, prefix + subjects.REST)]
    all_, those = survey.counts(spans, {info.name: info})
    if all_ != those:
        raise OptionError(
            "bucket",
            f"stream '{info.name}' holds keys of bucket '{origin}' and of others, so that a key may"
            " stand for several; give its sources subject_transforms to"
            f" {bucket_prefix(bucket)}>, or read it as a stream, with option stream",
        )
    return prefix

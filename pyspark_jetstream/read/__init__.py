"""`spark.read`: a range, a snapshot, a Key-Value bucket, one direct get; push-down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import face

if TYPE_CHECKING:
    from .buckets import JetStreamBucketReader
    from .options import BucketOptions, CallOptions, RangeOptions, SnapshotOptions
    from .ranges import JetStreamRangeReader
    from .singleget import JetStreamCallReader
    from .snapshot import JetStreamSnapshotReader

__all__ = [
    "BucketOptions",
    "CallOptions",
    "JetStreamBucketReader",
    "JetStreamCallReader",
    "JetStreamRangeReader",
    "JetStreamSnapshotReader",
    "RangeOptions",
    "SnapshotOptions",
]

__getattr__ = face(
    __name__,
    {
        "JetStreamRangeReader": "ranges",
        "JetStreamSnapshotReader": "snapshot",
        "JetStreamBucketReader": "buckets",
        "JetStreamCallReader": "singleget",
        "RangeOptions": "options",
        "SnapshotOptions": "options",
        "BucketOptions": "options",
        "CallOptions": "options",
    },
)

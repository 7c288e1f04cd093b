"""
The options of batch reads beside ranges: snapshots, single direct gets, Key-Value buckets.

Only what `optiontable` needs to know of each: its name, how its text is read, its default and its
sentence. What they mean together is decided in `readoptions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from . import values as value_of

__all__ = ["BATCH_READS"]

BATCH_READS: Final[tuple[tuple[str, Callable[[str], Any], str, str], ...]] = (
    (
        "multiLast",
        value_of.filters,
        "",
        "A snapshot: the last message of every subject that matches; a comma list or JSON list.",
    ),
    (
        "upToSequence",
        value_of.positive,
        "",
        "A snapshot or a bucket as it was at this sequence.",
    ),
    (
        "upToTime",
        value_of.moment,
        "",
        "As it was just before this moment: RFC 3339, or `-10m`.",
    ),
    (
        "sequence",
        value_of.positive,
        "",
        "One message by its sequence; where a `batch` or `nextBySubject` begins.",
    ),
    (
        "lastBySubject",
        value_of.subject_filter,
        "",
        "The last message of a subject or filter.",
    ),
    (
        "nextBySubject",
        value_of.subject_filter,
        "",
        "The first message of a subject or filter, from `sequence` or `startingTimestamp` on.",
    ),
    (
        "batch",
        value_of.positive,
        "",
        "Up to so many messages of one direct get, instead of one.",
    ),
    (
        "maxBytes",
        value_of.size,
        "",
        "End a `batch` at the message that reaches so many bytes.",
    ),
    (
        "bucket",
        value_of.bucket_name,
        "",
        "A Key-Value bucket as a table: its keys with their latest values.",
    ),
    (
        "keys",
        value_of.filters,
        "",
        "Only keys of the bucket that match, such as `user.*.name`; a comma list or JSON list.",
    ),
    (
        "history",
        value_of.boolean,
        "false",
        "Every revision the bucket holds, instead of each key's latest.",
    ),
    (
        "dropMarkers",
        value_of.boolean,
        "",
        "Leave delete and TTL markers out; `true` by default only for a bucket's latest values.",
    ),
)
"""Name, parser, default and sentence of each."""

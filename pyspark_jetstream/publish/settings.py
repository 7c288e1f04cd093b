"""
What a write was told, as values; tasks get no more of its options.

Rule 1: how values are written, and which contradict each other, is in `options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..client.options import ConnectionOptions, MetricsOptions
from ..outbox.admission import Rules
from ..outbox.priority import Priorities

if TYPE_CHECKING:
    from ..mapping.subjectmapping import SubjectMapping


@dataclass(frozen=True, slots=True)
class StreamCreation:
    """The streams that a write creates where they are missing (`createStream`)."""

    stream: str
    """With `{partition}` in it, one stream a partition."""
    stream_subjects: tuple[str, ...]
    """With `{partition}` as a token where there are partitions."""
    partitions: int
    config: Mapping[str, Any]
    """The user's part of the configuration, in the server's words; without name and subjects."""


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Rows that are messages, and their subjects."""

    subject: str | None
    """Subject of every row, instead of a column."""
    bucket: str | None
    """The Key-Value bucket whose keys the rows are."""
    mapping: SubjectMapping | None
    mapping_key: str | None
    allow_rollup: bool
    """Whether a row may replace what its stream has of its subject (`Nats-Rollup: sub`)."""
    require_stream: bool
    """Whether a row goes out only if a stream of the account is known to take it."""
    rejects: bool
    """Whether rows that will never be stored become dead letters (`onReject`)."""
    reserved: str
    """Finds subjects on which no row may go."""
    reroutes_weights: bool
    """Whether rows of paused subjects go to other destinations of their weights."""


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """Bounds of a task's publishes without a PubAck: number and time."""

    min_in_flight: int
    """The window never becomes smaller than this, nor than `max_in_flight`."""
    max_in_flight: int
    max_in_flight_bytes: int
    ack_timeout_s: float
    publish_timeout_s: float
    strict_order: bool
    """Whether of each subject no two publishes may be without a PubAck."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`write` and `writeStream`."""

    connection: ConnectionOptions
    rows: RowOptions
    message_ids: bool
    """Whether rows without an id are given one."""
    ledger: bool
    """Whether attempts and batches are kept track of in JetStream (`exactlyOnce`)."""
    create: StreamCreation | None
    window: WindowOptions
    throttle_subject: str | None
    """Control subject on which operators pause subjects; None where they may not."""
    rules: Rules
    priorities: Priorities
    dead_letter_subject: str | None
    """Subject of rows that are shed or rejected."""
    drops: bool
    """Whether rows that are shed are gone (`overloadPolicy=drop`)."""
    metrics: MetricsOptions

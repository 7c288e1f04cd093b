"""What a write is told: where rows go, how they are published, which stream is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .. import values as value_of
from ..client.options import ConnectionOptions, connection_options
from ..errors import OptionError
from ..mapping.subjectmapping import SubjectMapping
from ..option import Option, only, parsed
from ..outbox.admission import Rules
from ..outbox.priority import Priorities
from .pressure import PRESSURE_OPTIONS, fields

__all__ = ["SINK_OPTIONS", "SinkOptions", "StreamCreation"]


_CREATION: Final = (
    "stream streamSubjects partitions replicas retention duplicateWindow allowDirect allowBatched"
    " allowAtomic"
).split()
"""Options of a write that describe the stream to create."""


SINK_OPTIONS: Final[tuple[Option, ...]] = (
    only(
        "sink",
        "subject",
        value_of.publish_subject,
        "",
        "Subject of every row, instead of a `subject` column.",
    ),
    only(
        "sink",
        "subjectMapping",
        lambda value: SubjectMapping.parse(value_of.inline_or_file(value)),
        "",
        "Rules that map each subject before it is published: JSON, or a file with a nats-server's"
        " `mappings` block.",
    ),
    only(
        "sink",
        "mappingKey",
        value_of.text,
        "",
        "What decides among weighted destinations instead of the message id: `subject`, or a"
        " header's name.",
    ),
    only(
        "sink",
        "publishMode",
        value_of.choice("auto", "async", "fast", "atomic"),
        "auto",
        "How messages go out: each with its PubAck, as a fast-ingest batch, as atomic batches.",
    ),
    only(
        "sink",
        "exactlyOnce",
        value_of.boolean,
        "",
        "Keep a ledger of what is written; default for `writeStream`. `false`: no message ids"
        " either.",
    ),
    only(
        "sink",
        "createStream",
        value_of.boolean,
        "false",
        "Create the target stream if it is missing; never changes one that is there.",
    ),
    only(
        "sink",
        "stream",
        value_of.text,
        "",
        "Name of the stream to create; with `{partition}` in it, one stream a partition.",
    ),
    only(
        "sink",
        "streamSubjects",
        value_of.stream_subjects,
        "",
        "Its subjects, a comma list; `{partition}` is the token of the partition.",
    ),
    only("sink", "partitions", value_of.positive, "1", "Number of partitions."),
    only("sink", "replicas", value_of.positive, "1", "Its replicas."),
    only(
        "sink",
        "retention",
        value_of.choice("limits", "interest", "workqueue"),
        "limits",
        "Its retention.",
    ),
    only("sink", "duplicateWindow", value_of.duration, "2m", "Its duplicate window."),
    only("sink", "allowDirect", value_of.boolean, "true", "Whether it allows direct get."),
    only("sink", "allowBatched", value_of.boolean, "true", "Whether it allows fast publishing."),
    only("sink", "allowAtomic", value_of.boolean, "false", "Whether it allows atomic batches."),
    only(
        "sink",
        "limiter",
        value_of.choice("gradient", "fixed"),
        "gradient",
        "What `maxInFlight` means: the most that round trips and refusals may lead to, or always.",
    ),
    only(
        "sink",
        "minInFlight",
        value_of.positive,
        "1",
        "So many publishes without a PubAck are always allowed.",
    ),
    only(
        "sink",
        "initialInFlight",
        value_of.positive,
        "64",
        "So many in the first task of a worker process, but not above `maxInFlight`.",
    ),
    only(
        "sink",
        "maxInFlight",
        value_of.positive,
        "4096",
        "Publishes without a PubAck at one time, a task.",
    ),
    only("sink", "maxInFlightBytes", value_of.size, "32MiB", "Their bytes."),
    only(
        "sink",
        "ackTimeout",
        value_of.duration,
        "5s",
        "Publish again when no PubAck came within it.",
    ),
    only(
        "sink",
        "publishTimeout",
        value_of.duration,
        "2m",
        "Fail when a message is not stored after it, retries included.",
    ),
    *PRESSURE_OPTIONS,
)
"""The options of batch and streaming writes."""


@dataclass(frozen=True, slots=True)
class StreamCreation:
    """The streams that a write creates where they are missing (`createStream`)."""

    stream: str
    """With `{partition}` in it, one stream a partition."""
    subjects: tuple[str, ...]
    """With `{partition}` as a token where there are partitions."""
    partitions: int = 1
    replicas: int = 1
    retention: str = "limits"
    duplicate_window_s: float = 120.0
    allow_direct: bool = True
    allow_batched: bool = True
    allow_atomic: bool = False


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`write` and `writeStream`."""

    connection: ConnectionOptions
    subject: str | None = None
    mapping: SubjectMapping | None = None
    mapping_key: str | None = None
    publish_mode: str = "auto"
    message_ids: bool = True
    """Whether rows without an id are given one."""
    ledger: bool = False
    """Whether attempts and batches are kept track of in JetStream (`exactlyOnce`)."""
    create: StreamCreation | None = None
    limiter: str = "gradient"
    max_cpu_percent: float | None = None
    """Of a core, what a task's process may use before it has too much to do."""
    min_in_flight: int = 1
    initial_in_flight: int = 64
    max_in_flight: int = 4096
    max_in_flight_bytes: int = 32 << 20
    ack_timeout_s: float = 5.0
    publish_timeout_s: float = 120.0
    throttle: bool = True
    """Whether operators may pause subjects."""
    throttle_subject: str = "spark.jetstream.throttle"
    reroutes_weights: bool = False
    """Whether rows of paused subjects go to other destinations of their weights."""
    rules: Rules = Rules()
    strict_order: bool = False
    """Whether of each subject no two publishes may be without a PubAck, but in fast batches."""
    priorities: Priorities = Priorities()
    priority_resolver: str | None = None
    """Where the function of `priorities` is; imported where the rows are."""
    dead_letter_subject: str | None = None
    """Where rows go that are shed or rejected."""
    drops: bool = False
    """Whether rows that are shed are gone (`overloadPolicy=drop`)."""
    rejects: bool = False
    """Whether rows that the server will never store become dead letters (`onReject`)."""
    metrics_subject: str | None = None
    metrics_interval_s: float = 5.0


def _check_limits(values: Mapping[str, Any]) -> None:
    """minInFlight ≤ initialInFlight ≤ maxInFlight, as far as they are given."""
    for name in ("minInFlight", "initialInFlight"):
        if name in values and values.get("limiter") == "fixed":
            raise OptionError(name, "contradicts limiter=fixed, which is always at maxInFlight")
    least, most = values.get("minInFlight", 1), values.get("maxInFlight", 4096)
    if least > most:
        raise OptionError("minInFlight", f"{least} is more than maxInFlight {most}")
    initial = values.get("initialInFlight", least)
    if not least <= initial <= most:
        raise OptionError(
            "initialInFlight", f"{initial} is not from minInFlight {least} to maxInFlight {most}"
        )


def _creation(values: Mapping[str, Any]) -> StreamCreation | None:
    if not values.get("createStream", False):
        given = next((name for name in _CREATION if name in values), None)
        if given is not None:
            raise OptionError(given, "describes the stream to create: it needs createStream=true")
        return None
    for name in ("stream", "streamSubjects"):
        if name not in values:
            raise OptionError("createStream", f"needs option '{name}' too")
    stream, subjects = values["stream"], values["streamSubjects"]
    partitions = values.get("partitions", 1)
    parsed("stream", value_of.stream_name, stream.replace("{partition}", "0"))
    templates = [subject for subject in subjects if "{partition}" in subject]
    if "{partition}" in stream and len(templates) < len(subjects):
        raise OptionError(
            "streamSubjects",
            "streams cannot share subjects: with {partition} in the stream's name it belongs into"
            " each subject, too",
        )
    if "partitions" in values and not templates:
        raise OptionError("partitions", "needs {partition} in streamSubjects")
    if "{partition}" in stream and "partitions" not in values:
        raise OptionError("stream", "with {partition} in it needs option 'partitions' too")
    default = StreamCreation(stream, subjects)
    return StreamCreation(
        stream,
        subjects,
        partitions,
        values.get("replicas", default.replicas),
        values.get("retention", default.retention),
        values.get("duplicateWindow", default.duplicate_window_s),
        values.get("allowDirect", default.allow_direct),
        values.get("allowBatched", default.allow_batched),
        values.get("allowAtomic", default.allow_atomic),
    )


def sink_options(values: Mapping[str, Any], streaming: bool) -> SinkOptions:
    """
    Options of `df.write` or, when `streaming`, of `df.writeStream`, of their typed values.

    Raises:
        OptionError: The first mistake found.
    """
    if values.get("ackTimeout", 5.0) > values.get("publishTimeout", 120.0):
        raise OptionError("ackTimeout", "is longer than publishTimeout")
    mapping = values.get("subjectMapping")
    if "mappingKey" in values and (mapping is None or not mapping.needs_identity):
        raise OptionError("mappingKey", "needs a subjectMapping with weights or random")
    if values.get("throttleReroute"):
        if mapping is None or not mapping.needs_identity:
            raise OptionError("throttleReroute", "needs a subjectMapping with weights or random")
        if "mappingKey" in values:
            raise OptionError("throttleReroute", "would move keys from one destination to another")
    _check_limits(values)
    return SinkOptions(
        connection=connection_options(values),
        subject=values.get("subject"),
        mapping=mapping,
        mapping_key=values.get("mappingKey"),
        publish_mode=values.get("publishMode", "auto"),
        message_ids=values.get("exactlyOnce", True),
        ledger=values.get("exactlyOnce", streaming),
        create=_creation(values),
        limiter=values.get("limiter", "gradient"),
        min_in_flight=values.get("minInFlight", 1),
        initial_in_flight=values.get("initialInFlight", 64),
        max_in_flight=values.get("maxInFlight", 4096),
        max_in_flight_bytes=values.get("maxInFlightBytes", 32 << 20),
        ack_timeout_s=values.get("ackTimeout", 5.0),
        publish_timeout_s=values.get("publishTimeout", 120.0),
        **fields(values),
    )

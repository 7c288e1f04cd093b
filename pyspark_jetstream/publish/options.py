"""What a write is told: where rows go, how they are published, which stream is created."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .. import subjects
from .. import values as value_of
from ..client.options import ConnectionOptions, connection_options
from ..errors import OptionError
from ..mapping.subjectmapping import SubjectMapping
from ..option import Option, Values, parsed, table
from ..outbox.admission import Rules
from ..outbox.priority import Priorities
from ..outbox.throttleprotocol import THROTTLE_SUBJECT
from .pressure import PRESSURE_OPTIONS, under_pressure

__all__ = ["RowOptions", "SINK_OPTIONS", "SinkOptions", "StreamCreation"]


def _mapping(value: str) -> SubjectMapping:
    return SubjectMapping.parse(value_of.inline_or_file(value))


CREATION_OPTIONS: Final = table(
    "sink",
    Option("stream", "stream", value_of.text, "",
        "Name of the stream to create; with `{partition}` in it, one stream a partition."),
    Option("streamSubjects", "stream_subjects", value_of.stream_subjects, "",
        "Its subjects, a comma list; `{partition}` is the token of the partition."),
    Option("partitions", "partitions", value_of.positive, "1", "Number of partitions."),
    Option("replicas", "replicas", value_of.positive, "1", "Its replicas."),
    Option("retention", "retention", value_of.choice("limits", "interest", "workqueue"), "limits",
        "Its retention."),
    Option("duplicateWindow", "duplicate_window_s", value_of.duration, "2m",
        "Its duplicate window."),
    Option("allowDirect", "allow_direct", value_of.boolean, "true",
        "Whether it allows direct get."),
    Option("allowBatched", "allow_batched", value_of.boolean, "true",
        "Whether it allows fast publishing."),
    Option("allowAtomic", "allow_atomic", value_of.boolean, "false",
        "Whether it allows atomic batches."),
)  # fmt: skip
"""The options of a write that describe the stream to create."""

_OWN: Final = table(
    "sink",
    Option("subject", "subject", value_of.publish_subject, "",
        "Subject of every row, instead of a `subject` column."),
    Option("subjectMapping", "mapping", _mapping, "",
        "Rules that map each subject before it is published: JSON, or a file with a nats-server's"
        " `mappings` block."),
    Option("mappingKey", "mapping_key", value_of.text, "",
        "What decides among weighted destinations instead of the message id: `subject`, or a"
        " header's name."),
    Option("allowRollup", "allow_rollup", value_of.boolean, "false",
        "Whether the header `Nats-Rollup: sub` of a row goes out, which purges what its stream has"
        " of its subject."),
    Option("publishMode", "publish_mode",
        value_of.choice("auto", "async", "fast", "atomic"), "auto",
        "How messages go out: each with its PubAck, as a fast-ingest batch, as atomic batches."),
    Option("exactlyOnce", "", value_of.boolean, "",
        "Keep a ledger of what is written; default for `writeStream`. `false`: no message ids"
        " either."),
    Option("requireStream", "require_stream", value_of.boolean, "true",
        "Send no row that no stream of this account is known to take. `false`, with"
        " `exactlyOnce=false`, is for subjects that the server maps, or of another account."),
    Option("createStream", "", value_of.boolean, "false",
        "Create the target stream if it is missing; never changes one that is there."),
    Option("limiter", "limiter", value_of.choice("gradient", "fixed"), "gradient",
        "What `maxInFlight` means: the most that round trips and refusals may lead to, or always."),
    Option("minInFlight", "min_in_flight", value_of.positive, "1",
        "So many publishes without a PubAck are always allowed."),
    Option("initialInFlight", "initial_in_flight", value_of.positive, "64",
        "So many in the first task of a worker process, but not above `maxInFlight`."),
    Option("maxInFlight", "max_in_flight", value_of.positive, "4096",
        "Publishes without a PubAck at one time, a task. Unless it is given, twice as many where a"
        " round trip to the server takes 10 ms or more."),
    Option("maxInFlightBytes", "max_in_flight_bytes", value_of.size, "32MiB", "Their bytes."),
    Option("ackTimeout", "ack_timeout_s", value_of.duration, "5s",
        "Publish again when no PubAck came within it."),
    Option("publishTimeout", "publish_timeout_s", value_of.duration, "2m",
        "Fail when a message is not stored after it, retries included."),
)  # fmt: skip

SINK_OPTIONS: Final = (*_OWN, *CREATION_OPTIONS, *PRESSURE_OPTIONS)
"""The options of batch and streaming writes."""


@dataclass(frozen=True, slots=True)
class StreamCreation:
    """The streams that a write creates where they are missing (`createStream`)."""

    stream: str
    """With `{partition}` in it, one stream a partition."""
    stream_subjects: tuple[str, ...]
    """With `{partition}` as a token where there are partitions."""
    partitions: int
    replicas: int
    retention: str
    duplicate_window_s: float
    allow_direct: bool
    allow_batched: bool
    allow_atomic: bool


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Which rows are messages, and where they go."""

    subject: str | None
    """Of every row, instead of a column."""
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
    cluster: str | None = None
    """Of the server, for mappings that depend on it; each task sets it."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`write` and `writeStream`."""

    connection: ConnectionOptions
    rows: RowOptions
    publish_mode: str
    message_ids: bool
    """Whether rows without an id are given one."""
    ledger: bool
    """Whether attempts and batches are kept track of in JetStream (`exactlyOnce`)."""
    create: StreamCreation | None
    limiter: str
    max_cpu_percent: float | None
    """Of a core, what a task's process may use before it has too much to do."""
    min_in_flight: int
    initial_in_flight: int
    max_in_flight: int
    max_in_flight_far: int
    """The same where the server is far away."""
    max_in_flight_bytes: int
    ack_timeout_s: float
    publish_timeout_s: float
    throttle: bool
    """Whether operators may pause subjects."""
    throttle_subject: str
    reroutes_weights: bool
    """Whether rows of paused subjects go to other destinations of their weights."""
    rules: Rules
    strict_order: bool
    """Whether of each subject no two publishes may be without a PubAck, but in fast batches."""
    priorities: Priorities
    priority_resolver: str | None
    """Where the function of `priorities` is; imported where the rows are."""
    dead_letter_subject: str | None
    """Where rows go that are shed or rejected."""
    drops: bool
    """Whether rows that are shed are gone (`overloadPolicy=drop`)."""
    metrics_subject: str | None
    metrics_interval_s: float


def _spoken_on(values: Values) -> Iterator[str]:
    """Where operators, writers and those who measure them speak."""
    yield THROTTLE_SUBJECT
    yield values["throttleSubject"]
    if "metricsSubject" in values:
        yield values["metricsSubject"]


def _check_limits(values: Values) -> None:
    """minInFlight ≤ initialInFlight ≤ maxInFlight, as far as they are given."""
    for name in ("minInFlight", "initialInFlight"):
        if name in values and values["limiter"] == "fixed":
            raise OptionError(name, "contradicts limiter=fixed, which is always at maxInFlight")
    minimum, maximum = values["minInFlight"], values["maxInFlight"]
    if minimum > maximum:
        raise OptionError("minInFlight", f"{minimum} is more than maxInFlight {maximum}")
    initial = values["initialInFlight"]
    if "initialInFlight" in values and not minimum <= initial <= maximum:
        raise OptionError(
            "initialInFlight",
            f"{initial} is not from minInFlight {minimum} to maxInFlight {maximum}",
        )


def _creation(values: Values) -> StreamCreation | None:
    if not values["createStream"]:
        given = next((row.name for row in CREATION_OPTIONS if row.name in values), None)
        if given is not None:
            where = (
                "; rows go to the option subject, or a column of that name, and so to its stream"
                if given == "stream"
                else ""
            )
            raise OptionError(
                given, f"describes the stream to create: it needs createStream=true{where}"
            )
        return None
    for name in ("stream", "streamSubjects"):
        if name not in values:
            raise OptionError("createStream", f"needs option '{name}' too")
    stream, stream_subjects = values["stream"], values["streamSubjects"]
    parsed("stream", value_of.stream_name, stream.replace("{partition}", "0"))
    templates = [subject for subject in stream_subjects if "{partition}" in subject]
    if "{partition}" in stream and len(templates) < len(stream_subjects):
        raise OptionError(
            "streamSubjects",
            "streams cannot share subjects: with {partition} in the stream's name it belongs into"
            " each subject, too",
        )
    if "partitions" in values and not templates:
        raise OptionError("partitions", "needs {partition} in streamSubjects")
    if "{partition}" in stream and "partitions" not in values:
        raise OptionError("stream", "with {partition} in it needs option 'partitions' too")
    return values.fill(StreamCreation)


def sink_options(values: Values, streaming: bool) -> SinkOptions:
    """
    Options of `df.write` or, when `streaming`, of `df.writeStream`, of their typed values.

    Raises:
        OptionError: The first mistake found.
    """
    if values["ackTimeout"] > values["publishTimeout"]:
        raise OptionError("ackTimeout", "is longer than publishTimeout")
    mapping = values["subjectMapping"]
    if "mappingKey" in values and (mapping is None or not mapping.needs_identity):
        raise OptionError("mappingKey", "needs a subjectMapping with weights or random")
    if values["throttleReroute"]:
        if mapping is None or not mapping.needs_identity:
            raise OptionError("throttleReroute", "needs a subjectMapping with weights or random")
        if "mappingKey" in values:
            raise OptionError("throttleReroute", "would move keys from one destination to another")
    _check_limits(values)
    maximum, once = values["maxInFlight"], values["exactlyOnce"]
    connection = connection_options(values)
    rows = values.fill(
        RowOptions,
        rejects=values["onReject"] == "dead-letter",
        reserved=subjects.reserved(
            f"{connection.api_prefix}.", f"{connection.inbox_prefix}.", *_spoken_on(values)
        ),
    )
    if not rows.require_stream and once is not False:
        raise OptionError(
            "requireStream",
            "false needs exactlyOnce=false: what an unknown stream has stored cannot be told",
        )
    return values.fill(
        SinkOptions,
        connection=connection,
        rows=rows,
        message_ids=once is not False,
        ledger=streaming if once is None else once,
        max_in_flight_far=maximum if "maxInFlight" in values else 2 * maximum,
        create=_creation(values),
        **under_pressure(values),
    )

"""
Options as users write them, and the typed values the rest of the package works with.

Rule 1: option names are strings only here and in `optiontable`, the table of all of them. Everyone
else receives the frozen dataclasses.
Rule 2: a mistake is an `OptionError` that names the option, the value (never a secret's) and what
was expected; it is raised where the options are parsed, which is on the driver.

Names and meaning are fixed by the README's tables; a test compares the two.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from . import values as value_of
from .errors import OptionError
from .mapping.subjectmapping import SubjectMapping
from .option import Kind
from .optiontable import CONNECTION_OPTIONS, OPTIONS, SPARKS_OWN
from .outbox.admission import Rules
from .outbox.priority import Priorities
from .publish import pressure
from .readstream.options import Sharing, shared_by
from .values import EARLIEST, LATEST, Secret, Starting

__all__ = [
    "ConnectionOptions",
    "RangeOptions",
    "SinkOptions",
    "SourceOptions",
    "StreamCreation",
    "StreamOptions",
    "parse_connection",
    "parse_sink",
    "parse_stream",
    "range_options",
]


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach and enter the servers; hashable, so that a process can pool by it."""

    servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    credentials: Secret | None = None
    nkey_seed: Secret | None = None
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    api_prefix: str = "$JS.API"
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    client_name: str = "pyspark-jetstream"

    @property
    def display_servers(self) -> tuple[str, ...]:
        """The servers without what may stand before an @."""
        return tuple(re.sub(r"//[^@/]*@", "//", server) for server in self.servers)

    def __repr__(self) -> str:
        return f"<ConnectionOptions {', '.join(self.display_servers)}>"


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What every read of a stream needs to know."""

    connection: ConnectionOptions
    stream: str
    subject: str | None = None
    partitions: int | None = None
    partition_subject: str | None = None
    include_headers: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    starting: Starting = Starting()


@dataclass(frozen=True, slots=True)
class SourceOptions(StreamOptions):
    """`readStream`."""

    consumer: str | None = None
    priority_group: str = "spark"
    priority_timeout_s: float | None = None
    standby: bool = False
    read_mode: str = "auto"
    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int | None = None
    max_trigger_delay_s: float = 900.0
    sharing: Sharing | None = None
    """How a consumer is shared with others; None where it is our own."""
    ending: Starting = Starting(LATEST)
    """Beyond it nothing is read, whatever comes."""


@dataclass(frozen=True, slots=True)
class RangeOptions(StreamOptions):
    """`read`."""

    ending: Starting = Starting(LATEST)
    drop_markers: bool = False


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


SHORTEST_PIN_S: Final = 6.0
"""
The shortest `priorityTimeout`: a third of it, in which a reader renews its pin (`consumer`), is two
heartbeats, and a shorter one ends whenever Spark asks for no rows for a moment.
"""

_WHERE: Final = {"stream": "spark.readStream", "range": "spark.read", "sink": "a write"}


def _typed(options: Mapping[str, str], kind: Kind) -> dict[str, Any]:
    """Values by canonical name; only those that were given."""
    # `subject` is two options, a filter of reads and a subject of writes: the kind asked for wins.
    ordered = sorted(OPTIONS, key=lambda option: kind in option.kinds)
    known = {option.name.lower(): option for option in ordered}
    values: dict[str, Any] = {}
    for key, text in options.items():
        name = key.lower()
        if name in SPARKS_OWN:
            if name == "path" and text:
                raise OptionError(
                    "path", "a stream has no path; use load() without one, and option stream"
                )
            continue
        option = known.get(name)
        if option is None:
            candidates = {n: o.name for n, o in known.items() if kind in o.kinds}
            near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)
            hint = f"; did you mean '{candidates[near[0]]}'?" if near else ""
            raise OptionError(key, f"unknown option{hint}")
        if kind not in option.kinds:
            places = " and ".join(sorted(_WHERE[k] for k in option.kinds))
            raise OptionError(option.name, f"applies to {places}, not to {_WHERE[kind]}")
        if text is None:
            raise OptionError(option.name, "expected a value, got null")
        try:
            values[option.name] = option.parse(str(text))
        except OptionError:
            raise
        except ValueError as error:
            raise OptionError(option.name, str(error)) from None
    return values


def _exclusive(values: Mapping[str, Any], *names: str) -> None:
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise OptionError(given[1], f"contradicts option '{given[0]}'; give one of them")


def _needs(values: Mapping[str, Any], name: str, *others: str) -> None:
    for other in others:
        if name in values and other not in values:
            raise OptionError(name, f"needs option '{other}' too")


def _connection(values: Mapping[str, Any]) -> ConnectionOptions:
    _exclusive(values, "credentialsFile", "credentials", "nkeySeedFile", "user", "token")
    _needs(values, "password", "user")
    _needs(values, "user", "password")
    _needs(values, "tlsCertFile", "tlsKeyFile")
    _needs(values, "tlsKeyFile", "tlsCertFile")
    _exclusive(values, "jsDomain", "jsApiPrefix")
    credentials = values.get("credentials") or values.get("credentialsFile")
    if credentials is not None and "NATS USER JWT" not in credentials.reveal():
        name = "credentials" if "credentials" in values else "credentialsFile"
        raise OptionError(name, "expected the text of a .creds file (with BEGIN NATS USER JWT)")
    default = ConnectionOptions()
    prefix = values.get("jsApiPrefix", default.api_prefix)
    if "jsDomain" in values:
        prefix = f"$JS.{values['jsDomain']}.API"
    return ConnectionOptions(
        servers=values.get("servers", default.servers),
        credentials=credentials,
        nkey_seed=values.get("nkeySeedFile"),
        user=values.get("user"),
        password=values.get("password"),
        token=values.get("token"),
        tls_ca_file=values.get("tlsCaFile"),
        tls_cert_file=values.get("tlsCertFile"),
        tls_key_file=values.get("tlsKeyFile"),
        api_prefix=prefix,
        connect_timeout_s=values.get("connectTimeout", default.connect_timeout_s),
        request_timeout_s=values.get("requestTimeout", default.request_timeout_s),
    )


def parse_connection(options: Mapping[str, str]) -> ConnectionOptions:
    """
    Connection options alone, for programs that talk to the servers without Spark.

    Raises:
        OptionError: The first mistake found; an option that is none of the connection's is one.
    """
    known = {option.name.lower() for option in CONNECTION_OPTIONS}
    for name in options:
        if name.lower() not in known:
            raise OptionError(name, "is none of the connection's options")
    return _connection(_typed(options, "sink"))


def _stream_values(values: dict[str, Any]) -> dict[str, Any]:
    """The fields that `StreamOptions` describes."""
    if "stream" not in values:
        raise OptionError("stream", "required: the name of the stream to read")
    stream = values["stream"]
    if "{partition}" in stream:
        _exclusive(values, "stream", "partitionSubject")
        _needs(values, "stream", "partitions")
        _parsed("stream", value_of.stream_name, stream.replace("{partition}", "0"))
        if stream.count("{partition}") > 1:
            raise OptionError("stream", f"expected one {{partition}}, got '{stream}'")
    else:
        _parsed("stream", value_of.stream_name, stream)
        _needs(values, "partitionSubject", "partitions")
    if "subject" in values and ("partitions" in values or "partitionSubject" in values):
        raise OptionError(
            "subject",
            "contradicts partitions: partitionSubject is the filter of each partition",
        )
    _exclusive(values, "startingOffsets", "startingTimestamp")
    starting = values.get("startingOffsets", Starting())
    if "startingTimestamp" in values:
        starting = Starting(moment=values["startingTimestamp"])
    _parsed("startingOffsets", _inside(values.get("partitions")), starting)
    return {
        "connection": _connection(values),
        "stream": stream,
        "subject": values.get("subject"),
        "partitions": values.get("partitions"),
        "partition_subject": values.get("partitionSubject"),
        "include_headers": values.get("includeHeaders", False),
        "fail_on_data_loss": values.get("failOnDataLoss", True),
        "min_partitions": values.get("minPartitions"),
        "max_records_per_partition": values.get("maxRecordsPerPartition"),
        "starting": starting,
    }


def _inside(partitions: int | None) -> Callable[[Starting], Starting]:
    def check(starting: Starting) -> Starting:
        for index in starting.sequences:
            if partitions is not None and index >= partitions:
                raise ValueError(f"partition {index} is none of 0 to {partitions - 1}")
        return starting

    return check


def _parsed(name: str, parse: Callable[[Any], Any], value: Any) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise OptionError(name, str(error)) from None


def parse_stream(options: Mapping[str, str]) -> SourceOptions:
    """
    Options of `spark.readStream`.

    Raises:
        OptionError: The first mistake found.
    """
    values = _typed(options, "stream")
    common = _stream_values(values)
    read_mode = values.get("readMode", "auto")
    _needs(values, "maxTriggerDelay", "minRecordsPerTrigger")
    most, least = values.get("maxRecordsPerTrigger"), values.get("minRecordsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(
            "minRecordsPerTrigger", f"{least} is more than maxRecordsPerTrigger {most}"
        )
    for name in ("consumer", "priorityPolicy", "priorityTimeout", "priorityGroup", "ackPolicy"):
        if read_mode == "direct" and name in values:
            raise OptionError(name, "contradicts readMode=direct, which reads without a consumer")
    sharing = shared_by(values)
    for name in ("minPartitions", "maxRecordsPerPartition"):
        if read_mode != "direct" and sharing is None and name in values:
            raise OptionError(name, "needs readMode=direct: a consumer's partition is one task")
    standby = values.get("standby", False)
    if standby:
        _needs(values, "standby", "consumer")
    timeout_s = values.get("priorityTimeout")
    if timeout_s is not None and timeout_s < SHORTEST_PIN_S:
        raise OptionError(
            "priorityTimeout",
            f"expected at least {SHORTEST_PIN_S:.0f}s, got {timeout_s:g}s: a reader renews its pin"
            " every third of it, but not while Spark keeps it waiting",
        )
    return SourceOptions(
        **common,
        consumer=values.get("consumer"),
        priority_group=values.get("priorityGroup", "spark"),
        priority_timeout_s=timeout_s,
        standby=standby,
        read_mode=read_mode,
        max_records=most,
        max_bytes=values.get("maxBytesPerTrigger"),
        min_records=least,
        max_trigger_delay_s=values.get("maxTriggerDelay", 900.0),
        sharing=sharing,
        ending=_ending(values),
    )


def _ending(values: Mapping[str, Any]) -> Starting:
    """`endingOffsets`."""
    ending: Starting = values.get("endingOffsets", Starting(LATEST))
    if ending.word == EARLIEST and not ending.sequences:
        raise OptionError("endingOffsets", "expected latest or JSON, got 'earliest'")
    if EARLIEST in ending.sequences.values():
        raise OptionError("endingOffsets", "expected sequences or latest, got 'earliest'")
    _parsed("endingOffsets", _inside(values.get("partitions")), ending)
    return Starting(LATEST, ending.sequences)


def range_options(values: dict[str, Any]) -> RangeOptions:
    """
    Options of a range read, of their typed values; `readoptions` tells it from other batch reads.
    """
    common = _stream_values(values)
    _exclusive(values, "endingOffsets", "endingTimestamp")
    ending = _ending(values)
    if "endingTimestamp" in values:
        ending = Starting(LATEST, moment=values["endingTimestamp"])
    return RangeOptions(**common, ending=ending, drop_markers=values.get("dropMarkers", False))


def parse_sink(options: Mapping[str, str], streaming: bool = False) -> SinkOptions:
    """
    Options of `df.write` and, when `streaming`, of `df.writeStream`.

    Raises:
        OptionError: The first mistake found.
    """
    values = _typed(options, "sink")
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
        connection=_connection(values),
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
        **pressure.fields(values),
    )


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


_CREATION: Final = (
    "stream streamSubjects partitions replicas retention duplicateWindow allowDirect allowBatched"
    " allowAtomic"
).split()
"""Options of a write that describe the stream to create."""


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
    _parsed("stream", value_of.stream_name, stream.replace("{partition}", "0"))
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

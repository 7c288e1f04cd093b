"""
The options of a write: where their words become values.

Those of a write under pressure are few words for what `throttle`, `admission` and `priority`
decide; combinations that cannot be meant are refused (overload.md §10).
"""

from __future__ import annotations

import math
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .. import subjects
from .. import values as value_of
from ..client.info import checked
from ..client.jetstream import DEFAULT_PREFIX
from ..client.options import MetricsOptions, connection_options
from ..errors import OptionError
from ..foreign import read_json
from ..option import Option, Values, exclusive, parsed, table
from ..outbox.admission import OVERLOAD_WINDOW_S, QUEUE_ROWS, Rules
from ..outbox.lettersubjects import dead_letter_subject, template_fault
from ..outbox.priority import Priorities, Priority, Publish, Resolver, claim_values, subject_rules
from ..outbox.throttling.throttleprotocol import THROTTLE_SUBJECT
from .settings import RowOptions, SinkOptions, StreamCreation, WindowOptions

if TYPE_CHECKING:
    from ..mapping.subjectmapping import SubjectMapping


def _mapping(value: str) -> SubjectMapping:
    from ..mapping.subjectmapping import SubjectMapping  # few writes have one

    return SubjectMapping.parse(value_of.inline_or_file(value))


def _stream_config(value: str) -> dict[str, Any]:
    content = value_of.inline_or_file(value)
    try:
        config = checked(read_json(content))
    except ValueError as error:
        raise ValueError(
            f"expected a stream's configuration as the server's JSON, or a file of it: {error}"
        ) from None
    return config


def _shed(value: str) -> frozenset[Priority]:
    priorities = {Priority.of(word.strip()) for word in value.split(",")}
    if None in priorities or not priorities:
        raise ValueError(f"expected non-critical, or normal, non-critical, got '{value}'")
    if Priority.CRITICAL in priorities:
        raise ValueError("critical rows are never shed")
    return frozenset(priority for priority in priorities if priority is not None)


def _throttle_subject(value: str) -> str | None:
    if value.strip().lower() in ("", "none"):
        return None
    return value_of.publish_subject(value)


def _queue_size(value: str) -> int:
    """20 at least (overload.md A11), as in Farfetch's LoadShedding library."""
    return max(20, value_of.positive(value))


@cache
def _imported(name: str) -> Resolver:
    """
    The function of the user's, imported where the rows are.

    Raises:
        OptionError: There is no such function here.
    """
    module, _, function = name.partition(":")
    try:
        found: Resolver = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise OptionError("priorityResolver", f"{error}; executors must have it, too") from None
    return found


def _resolved(name: str, row: Publish) -> Priority | int | str | None:
    return _imported(name)(row)


def _resolver(value: str) -> Resolver:
    module, colon, function = value.strip().partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), function)):
        raise ValueError(f"expected package.module:function, got '{value}'")
    return partial(_resolved, value.strip())


CREATION_OPTIONS: Final = table(
    "sink",
    Option("stream", "stream", value_of.text, "",
        "Name of the stream to create. With `{partition}` in the name, each partition has a"
        " stream of its own."),
    Option("streamSubjects", "stream_subjects", value_of.stream_subjects, "",
        "Subjects of the stream to create, a comma list. `{partition}` stands for the number of"
        " the partition."),
    Option("partitions", "partitions", value_of.positive, "1",
        "Number of partitions of the streams to create."),
    Option("streamConfig", "config", _stream_config, "",
        'Other settings of the stream to create, as JSON of the server: `{"max_age":'
        ' 86400000000000, "num_replicas": 3}`. The path of a file for `nats stream add --config`'
        ' is taken as well.',
        absent={}),
)  # fmt: skip
"""The options of a write that describe the stream to create."""

_OWN: Final = table(
    "sink",
    Option("subject", "subject", value_of.publish_subject, "",
        "Subject of every row. Without this option the column `subject` says it."),
    Option("bucket", "bucket", value_of.bucket_name, "",
        "Write keys of this Key-Value bucket. The columns are `key`, `value`, `operation`,"
        " `revision` and `ttl`."),
    Option("subjectMapping", "mapping", _mapping, "",
        "Rules that change each subject before it is published. They are JSON, or the path of a"
        " file with a nats-server's `mappings` block."),
    Option("mappingKey", "mapping_key", value_of.text, "",
        "Choose among weighted destinations by `subject` or by the header of this name, instead"
        " of by message id."),
    Option("allowRollup", "allow_rollup", value_of.boolean, "false",
        "Whether the header `Nats-Rollup: sub` of a row is sent. This header makes the stream"
        " purge the earlier messages of the row's subject."),
    Option("exactlyOnce", "", value_of.boolean, "",
        "Whether a ledger of what is written is kept, so that each row is stored once."
        " Without this option `writeStream` keeps a ledger, and `df.write` keeps none: it only"
        " makes a message id for each row."),
    Option("requireStream", "require_stream", value_of.boolean, "true",
        "Send a row only if a stream of this account is known to take its subject. Set `false`,"
        " with `exactlyOnce=false`, for subjects that the server maps or that are of another"
        " account."),
    Option("createStream", "", value_of.boolean, "false",
        "Create the target stream if it is missing. A stream that is there is never changed."),
    Option("maxInFlight", "max_in_flight", value_of.positive, "8192",
        "Largest size of a task's window: the publishes that have no PubAck yet. While the server"
        " pushes back the window is smaller."),
    Option("bufferMemory", "", value_of.size, "128MiB",
        "Largest size of all rows that a task holds. A quarter is on the wire, a quarter is in the"
        " queue, and half is for rows of paused subjects."),
    Option("ackTimeout", "ack_timeout_s", value_of.duration, "5s",
        "If no PubAck came within this time, the message is sent again."),
    Option("publishTimeout", "publish_timeout_s", value_of.duration, "2m",
        "If a message is not stored within this time, the task fails. Retries are included. With"
        " `exactlyOnce` the time is at most the stream's `duplicate_window` less `ackTimeout`."),
)  # fmt: skip

_UNDER_PRESSURE: Final = table(
    "sink",
    Option("throttleSubject", "throttle_subject", _throttle_subject, THROTTLE_SUBJECT,
        "Subject on which operators pause subjects (`pyspark-jetstream throttle`). Every user who"
        " may publish there can stop the write. With `none` nobody can."),
    Option("throttleMaxWait", "throttle_max_wait_s", value_of.duration, "10m",
        "Longest time that a paused row waits."),
    Option("onThrottleTimeout", "", value_of.choice("fail", "dead-letter"), "fail",
        "Action for a paused row that has waited for `throttleMaxWait`."),
    Option("throttleReroute", "reroutes_weights", value_of.boolean, "false",
        "Whether rows of a paused subject go to another destination of a mapping with weights."),
    Option("publishOrder", "", value_of.choice("subject", "strict", "none"), "subject",
        "The order that rows keep."),
    Option("queueSize", "queue_size", _queue_size, str(QUEUE_ROWS),
        "Largest number of rows that wait for the window, 20 at least."),
    Option("queueTimeout", "queue_timeout_s", value_of.duration, "",
        "Longest time that a row waits until it is first sent, pauses included. After this time the"
        " row is shed, or its task fails. Without this option rows wait.",
        absent=math.inf),
    Option("prioritySubjects", "subjects", subject_rules, "",
        "Priorities by subject. The first filter that matches counts: `orders.>=critical,"
        " metrics.*=non-critical`.",
        absent=()),
    Option("priorityHeader", "header", value_of.text, "",
        "Name of a header that has the row's priority."),
    Option("priorityClaim", "claim", value_of.text, "",
        "Key of the map column `claims`, such as the claims of a token. The value of the key"
        " decides the priority. If there is no such column, the option names a header."),
    Option("priorityClaimValues", "claim_values", claim_values, "",
        "Priority of each value of `priorityClaim`: `acme=critical, free=non-critical`.",
        absent=()),
    Option("priorityResolver", "resolver", _resolver, "",
        "Function for rows without a priority: `package.module:function`. The function gets the row"
        " as a `Publish` of `pyspark_jetstream.outbox.priority`, and returns the priority."),
    Option("overloadPolicy", "", value_of.choice("block", "dead-letter", "drop"), "block",
        "Action for rows for which the server has no room."),
    Option("shedPriorities", "", _shed, "non-critical",
        "Priorities of rows that may be shed. The option needs another `overloadPolicy` than"
        " `block`, and never contains `critical`."),
    Option("onReject", "", value_of.choice("fail", "dead-letter"), "fail",
        "Action for a row that cannot be a message, or that the server will never store."),
    Option("deadLetterSubject", "dead_letter_subject", dead_letter_subject, "",
        "Subject for rows that are shed or rejected. `{subject}` stands for the row's own"
        " subject."),
)  # fmt: skip
"""In the order of docs/reference/options.md."""


_LONGEST_HISTORY: Final = 64
"""Most values of a key that clients take for a bucket's (ADR-8)."""

SINK_OPTIONS: Final = (*_OWN, *CREATION_OPTIONS, *_UNDER_PRESSURE)
"""The options of batch and streaming writes."""


def _one_of(values: Values, name: str, inside: Any) -> Any:
    """Value of an option, or of its field in `streamConfig`."""
    given = values.given(name)
    if given and inside and given != inside:
        raise OptionError(name, "contradicts option 'streamConfig', which has another")
    if not given and not inside:
        raise OptionError("createStream", f"needs option '{name}' too")
    return given or inside


def _bucket_creation(values: Values, bucket: str) -> StreamCreation:
    """A bucket is a stream of this kind (ADR-8), and more as `streamConfig` says."""
    from ..client.keyvalue import BUCKET  # few writes create one

    stream, of_keys = f"KV_{bucket}", f"{subjects.bucket_prefix(bucket)}>"
    config = dict(values["streamConfig"])
    for field, own in (("name", stream), ("subjects", [of_keys])):
        if config.pop(field, own) != own:
            raise OptionError("streamConfig", f"has other {field} than option 'bucket': {own}")
    history = config.get("max_msgs_per_subject", 1)
    if not 1 <= history <= _LONGEST_HISTORY:
        raise OptionError(
            "streamConfig",
            f"has max_msgs_per_subject {history}; a bucket's history is 1 to {_LONGEST_HISTORY}",
        )
    return StreamCreation(stream, (of_keys,), 1, BUCKET | config)


def _creation(values: Values) -> StreamCreation | None:
    if "bucket" in values:
        for name in (
            "subject", "subjectMapping", "stream", "streamSubjects", "partitions", "allowRollup",
            "priorityHeader",
        ):  # fmt: skip
            exclusive(values, "bucket", name)
        if values["createStream"]:
            return _bucket_creation(values, values["bucket"])
    if not values["createStream"]:
        given = next((row.name for row in CREATION_OPTIONS if row.name in values), None)
        if given is not None:
            why = "describes the stream to create: it needs createStream=true"
            if given == "stream":
                why = (
                    "is only for createStream=true. Leave it out: the subject of each row (column"
                    " or option subject) says to which stream the row goes"
                )
            raise OptionError(given, why)
        return None
    config = dict(values["streamConfig"])
    inside = parsed("streamConfig", value_of.stream_filters, config.pop("subjects", ()))
    stream = _one_of(values, "stream", config.pop("name", ""))
    stream_subjects = _one_of(values, "streamSubjects", inside)
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
    return values.fill(
        StreamCreation, stream=stream, stream_subjects=stream_subjects, config=config
    )


def _window(values: Values) -> WindowOptions:
    return values.fill(
        WindowOptions,
        min_in_flight=1,
        max_in_flight_bytes=max(1, values["bufferMemory"] // 4),
        strict_order=values["publishOrder"] == "strict",
    )


def _under_pressure(values: Values) -> dict[str, Any]:
    """
    The fields of `SinkOptions` that several of these options, or their words, decide.

    Raises:
        OptionError: Two of them contradict each other, or one lacks another.
    """
    policy = values["overloadPolicy"]
    if "shedPriorities" in values and policy == "block":
        why = "does nothing with overloadPolicy=block; set dead-letter or drop, or leave it out"
        raise OptionError("shedPriorities", why)
    names = "onReject", "overloadPolicy", "onThrottleTimeout"
    makes = [name for name in names if values[name] == "dead-letter"]
    letters = values["deadLetterSubject"]
    if makes and letters is None:
        why = f"required with {makes[0]}=dead-letter, such as rejected.{{subject}}"
        raise OptionError("deadLetterSubject", why)
    if letters is not None:
        fault = template_fault(letters, values["subject"])
        if not makes:
            fault = f"does nothing without one of {', '.join(names)} that is dead-letter"
        if fault is not None:
            raise OptionError("deadLetterSubject", fault)
    if ("priorityClaim" in values) != ("priorityClaimValues" in values):
        raise OptionError("priorityClaim", "belongs to priorityClaimValues: give both or none")
    memory = values["bufferMemory"]
    return {
        "drops": policy == "drop",
        "rules": values.fill(
            Rules,
            sheddable=frozenset() if policy == "block" else values["shedPriorities"],
            queue_bytes=max(1, memory // 4),
            held_bytes=max(1, memory // 2),
            overload_window_s=OVERLOAD_WINDOW_S,
            by_subject=values["publishOrder"] != "none",
            buries_paused=values["onThrottleTimeout"] == "dead-letter",
        ),
        "priorities": values.fill(Priorities),
    }


def sink_options(values: Values, streaming: bool) -> SinkOptions:
    """
    Options of `df.write` or, when `streaming`, of `df.writeStream`, of their typed values.

    Raises:
        OptionError: The first mistake found.
    """
    if values["ackTimeout"] > values["publishTimeout"]:
        raise OptionError("ackTimeout", "is longer than publishTimeout")
    mapping = values["subjectMapping"]
    for name in ("mappingKey", "throttleReroute"):
        if values[name] and (mapping is None or not mapping.needs_identity):
            raise OptionError(name, "needs a subjectMapping with weights or random")
    if values["throttleReroute"] and "mappingKey" in values:
        raise OptionError("throttleReroute", "would move keys from one destination to another")
    once = values["exactlyOnce"]
    connection = connection_options(values)
    spoken_on = filter(None, (values["throttleSubject"], values["metricsSubject"]))
    rows = values.fill(
        RowOptions,
        rejects=values["onReject"] == "dead-letter",
        reserved=subjects.reserved(
            f"{connection.api_prefix}.", f"{connection.inbox_prefix}.", THROTTLE_SUBJECT, *spoken_on
        ),
    )
    if rows.bucket is not None and connection.api_prefix != DEFAULT_PREFIX:
        raise OptionError(
            "bucket",
            "is written in the account of the connection alone: leave jsDomain and jsApiPrefix out,"
            " or write subjects",
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
        create=_creation(values),
        window=_window(values),
        metrics=values.fill(MetricsOptions),
        **_under_pressure(values),
    )

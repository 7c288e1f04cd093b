"""
The options of `spark.readStream`, and of one that shares its consumer (ADR-42).

Their rows of the table, what they mean together, and what those of a shared consumer (`overflow`,
`prioritized`) make of a pull request. Where such a read goes on from and which rows a batch has is
in `shared.claims`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from .. import subjects
from .. import values as value_of
from ..errors import OptionError
from ..fetch.options import StreamOptions, ending_of, stream_values
from ..option import Option, Values, needs, parsed, refuse, table
from ..outbox.lettersubjects import dead_letter_subject, template_fault
from ..subjects import bucket_prefix
from ..values import Starting

POLICIES: Final = ("overflow", "prioritized")
"""Priority policies whose consumers serve several readers at a time."""

MAX_CLAIMS: Final = 50_000
"""
Claims of one batch without `maxRecordsPerTrigger`: all that waits would be one shared reader's.
"""

_LOWEST: Final = 9
"""ADR-42: a pull's priority is 0 (first) to 9; nats-server 2.15 answers others with 400."""


SHORTEST_PIN_S: Final = 6.0
"""
The shortest `priorityTimeout`: a third of it, in which a reader renews its pin (`consumer`), is two
heartbeats, and a shorter one ends whenever Spark asks for no rows for a moment.
"""


def _priority(value: str) -> int:
    """A priority, 0 to 9."""
    if not re.fullmatch(r"[0-9]", value.strip()):
        raise ValueError(f"expected 0 (first) to {_LOWEST}, got '{value}'")
    return int(value)


SHARING_OPTIONS: Final = table(
    "stream",
    Option("minPending", "min_pending", value_of.positive, "",
        "For `overflow`: the query gets messages of a partition only while this many wait in it."
        " With `minAckPending` as well, one of the two numbers is enough."),
    Option("minAckPending", "min_ack_pending", value_of.positive, "",
        "For `overflow`: the query gets messages of a partition only while this many are claimed"
        " and not acknowledged. With `minPending` as well, one of the two numbers is enough."),
    Option("priority", "priority", _priority, "0",
        "For `prioritized`: the priority of this query among those that share the consumer. The"
        " server serves 0 first and 9 last."),
    Option("ackWait", "ack_wait_s", value_of.duration, "2m",
        "If a reader of a shared consumer is gone for this time, its claims return to the other"
        " readers."),
    Option("maxAckPending", "max_ack_pending", value_of.positive, "500000",
        "Largest number of claims that all readers of a shared consumer hold together."),
    Option("maxDeliver", "max_deliver", value_of.positive, "",
        "If a message is claimed more often than this, it goes to `deadLetterSubject` and is"
        " terminated."),
    Option("deadLetterSubject", "dead_letter_subject", dead_letter_subject, "",
        "Subject for messages that are beyond `maxDeliver`. `{subject}` stands for the subject of"
        " the message."),
)  # fmt: skip

_OWN: Final = table(
    "stream",
    Option("consumer", "consumer", value_of.consumer_name, "",
        "Prefix of the names of the durable consumers. Without this option a name is made once"
        " and kept in the checkpoint."),
    Option("priorityPolicy", "policy", value_of.choice("pinned_client", *POLICIES), "pinned_client",
        "Whether the query's consumers are its own or shared with other queries."),
    Option("priorityGroup", "priority_group", value_of.priority_group, "spark",
        "Name of the consumers' priority group."),
    Option("priorityTimeout", "priority_timeout_s", value_of.duration, "",
        "If the pinned client is silent for this time, the server unpins it. With `standby` this is"
        " also the time after which another query takes over. The least is `6s`. Without this"
        " option the server waits 2 minutes, and a standby 30 seconds."),
    Option("standby", "standby", value_of.boolean, "false",
        "Wait while an identical query reads. That query has the same `consumer` and another"
        " checkpoint. If it dies, this query takes its place."),
    Option("maxRecordsPerTrigger", "max_records", value_of.positive, "",
        "Largest number of messages in a batch."),
    Option("maxBytesPerTrigger", "max_bytes", value_of.size, "",
        "Largest number of bytes in a batch, approximately: it is computed from the average message"
        " of the stream."),
    Option("minRecordsPerTrigger", "min_records", value_of.positive, "",
        "A batch begins only when this many messages wait, or after `maxTriggerDelay`."),
    Option("maxTriggerDelay", "max_trigger_delay_s", value_of.duration, "15m",
        "Longest time to wait for `minRecordsPerTrigger`."),
)  # fmt: skip

STREAM_OPTIONS: Final = (*_OWN, *SHARING_OPTIONS)
"""The options of streaming reads alone."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """One query's part of a shared consumer."""

    policy: str
    """`overflow` or `prioritized`."""
    min_pending: int | None
    min_ack_pending: int | None
    priority: int | None
    ack_wait_s: float
    max_ack_pending: int
    max_deliver: int | None
    dead_letter_subject: str | None
    asked: frozenset[str]
    """Given ones of `ackWait` and `maxAckPending`: a consumer that is there must have them."""

    @property
    def pull(self) -> dict[str, int]:
        """The fields of this policy in a pull request (ADR-42, "Priority Policies")."""
        fields = {
            "min_pending": self.min_pending,
            "min_ack_pending": self.min_ack_pending,
            "priority": self.priority,
        }
        return {name: value for name, value in fields.items() if value is not None}


def shared_by(values: Values) -> Sharing | None:
    """
    Sharing of a consumer by the options of `spark.readStream`; None where they share none.

    Raises:
        OptionError: An option belongs to another policy, or does not go with sharing.
    """
    policy = values["priorityPolicy"]
    for its, names in (
        ("overflow", ("minPending", "minAckPending")),
        ("prioritized", ("priority",)),
    ):
        if policy != its:
            why = f"belongs to priorityPolicy={its}, this query has {policy}"
            refuse(values, why, *names)
    if policy not in POLICIES:
        why = f"belongs to priorityPolicy={' or '.join(POLICIES)}"
        refuse(values, why, *(option.name for option in SHARING_OPTIONS))
        return None
    if "consumer" not in values:
        why = f"required with priorityPolicy={policy}: the same name for all queries that share"
        raise OptionError("consumer", f"{why} the stream")
    this = f"; this query has priorityPolicy={policy}"
    why = f"belongs to priorityPolicy=pinned_client{this}"
    refuse(values, why, "priorityTimeout", "standby")
    why = f"is an end for one reader, not for all who share the consumer{this}"
    refuse(values, why, "endingOffsets", "endingTimestamp")
    why = f"would hold claims back from other readers{this}"
    refuse(values, why, "minRecordsPerTrigger", "maxTriggerDelay")
    needs(values, "maxDeliver", "deadLetterSubject")
    needs(values, "deadLetterSubject", "maxDeliver")
    letters = values["deadLetterSubject"]
    for subject in filter(subjects.is_literal, values["subject"] if letters is not None else ()):
        problem = template_fault(letters, subject)
        if problem is not None:
            raise OptionError("deadLetterSubject", problem)
    return values.fill(
        Sharing,
        priority=values["priority"] if policy == "prioritized" else None,
        asked=frozenset(name for name in ("ackWait", "maxAckPending") if name in values),
    )


@dataclass(frozen=True, slots=True)
class SourceOptions(StreamOptions):
    """`readStream`."""

    consumer: str | None
    priority_group: str
    priority_timeout_s: float | None
    standby: bool
    max_records: int | None
    max_bytes: int | None
    min_records: int | None
    max_trigger_delay_s: float
    query_name: str | None
    sharing: Sharing | None
    """Sharing of a consumer with others; None where it is our own."""
    ending: Starting
    """End beyond which nothing is read, whatever comes."""

    @property
    def term_s(self) -> float:
        """Seconds that the server keeps a pin for one that is silent."""
        return self.priority_timeout_s or (30.0 if self.standby else 120.0)


def _of_bucket(values: Values) -> Values:
    """The options of the stream of a Key-Value bucket, whose keys are read."""
    of_streams = ("stream", "streamPattern", "subject", "partitions", "partitionSubject")
    why = "contradicts option 'bucket'; give one of them"
    refuse(values, why, *of_streams, "includeCount", "includeData")
    if values["priorityPolicy"] != "pinned_client":
        raise OptionError("bucket", "is read by consumers of its own: leave priorityPolicy out")
    bucket = values["bucket"]
    given = {"stream": f"KV_{bucket}"}
    if "keys" in values:
        filters = [f"{bucket_prefix(bucket)}{key}" for key in values["keys"]]
        given["subject"] = parsed("keys", value_of.disjoint_filters, ",".join(filters))
    return values.also(**given)


def source_options(values: Values) -> SourceOptions:
    """
    Options of `spark.readStream`, of their typed values.

    Raises:
        OptionError: The first mistake found.
    """
    needs(values, "keys", "bucket")
    if "bucket" in values:
        values = _of_bucket(values)
    common = stream_values(values)
    several = common["several"]
    needs(values, "maxTriggerDelay", "minRecordsPerTrigger")
    maximum, minimum = values["maxRecordsPerTrigger"], values["minRecordsPerTrigger"]
    if maximum is not None and minimum is not None and minimum > maximum:
        raise OptionError(
            "minRecordsPerTrigger", f"{minimum} is more than maxRecordsPerTrigger {maximum}"
        )
    if several is not None:
        what = f"{several.option}={several}"
        why = f"belongs to consumers, and {what} reads without them; leave it out"
        refuse(
            values, why, "priorityPolicy", "priorityGroup", "standby", "consumer", "priorityTimeout"
        )
    sharing = shared_by(values)
    if values["standby"]:
        needs(values, "standby", "consumer")
    timeout_s = values["priorityTimeout"]
    if timeout_s is not None and timeout_s < SHORTEST_PIN_S:
        raise OptionError(
            "priorityTimeout",
            f"expected at least {SHORTEST_PIN_S:.0f}s, got {timeout_s:g}s: a reader renews its pin"
            " every third of it, but not while Spark keeps it waiting",
        )
    own = {"sharing": sharing, "ending": ending_of(values)}
    return values.fill(SourceOptions, **common, **own)

"""
The durable consumers of a query: their configuration, whose they are, and what others do to them.

The owner of a consumer is the run of a query that its metadata names. An operator may edit, pause
or delete it. What shows that messages of a stream are lost is in `dataloss`. Drivers go by both
before each batch, and `inspect` when it is asked (docs/reference/guarantees.md).

Rule: this module judges, by what callers were told by the server anyway. It reads no clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ..errors import ApiError, ReadError

if TYPE_CHECKING:
    from ..client.info import ConsumerInfo
    from ..client.jetstream import JetStream

DESCRIPTION: Final = "pyspark-jetstream"
"""Description of a query's own durable consumers."""

_LIMITED: Final = {10121: "max_ack_pending", 10153: "inactive_threshold"}
"""By err_code of JSConsumerMaxPendingAckExcessErrF and JSConsumerInactiveThresholdExcess."""

_ACK_WAIT_NS: Final = 365 * 86_400 * 10**9
"""
A year: longer than any batch. Not the largest the server takes, which overflows its timer and
keeps a core busy for every consumer with unacknowledged messages (measured on 2.15.1).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """The consumer of one partition of a query, as the query makes it."""

    partition: int
    stream: str
    filter: str | None
    name: str
    group: str
    retention: str = "limits"
    """That of the stream."""
    replicas: int = 1
    """Those of the stream."""
    priority_timeout_s: float = 0.0
    metadata: Mapping[str, str] = field(default_factory=dict, compare=False)


def consumer_config(of: Durable) -> dict[str, Any]:
    """
    The durable's configuration.

    Nobody reads by it: it delivers headers only, to the driver, as a sign that a message came.

    `limits` streams need no acks: the consumer stands where Spark read to, and lies in memory. On
    the others a message leaves the stream when it is settled, which the driver does after the
    commit; until then nothing may be redelivered behind our back, so the ack wait is a year.
    """
    config: dict[str, Any] = {
        "durable_name": of.name,
        "description": DESCRIPTION,
        "deliver_policy": "all",
        "ack_policy": {"limits": "none", "interest": "all"}.get(of.retention, "explicit"),
        "headers_only": True,
        "num_replicas": of.replicas,
        "priority_groups": [of.group],
        "priority_policy": "pinned_client",
        "priority_timeout": round(of.priority_timeout_s * 1e9),
        "metadata": dict(of.metadata),
    }
    if of.filter is not None:
        config["filter_subject"] = of.filter
    if of.retention == "limits":
        # Nothing is lost with it, so one whose query is gone may go, too.
        config["mem_storage"] = True
        config["inactive_threshold"] = 86_400 * 10**9
    else:
        config["max_ack_pending"] = -1
        config["ack_wait"] = _ACK_WAIT_NS
    return config


def create(js: JetStream, stream: str, config: Mapping[str, Any], action: str = "") -> ConsumerInfo:
    """
    Makes a consumer. A field that a limit of the server, account or stream refuses is left out:
    then the server fills in what it allows.

    Raises:
        ApiError: The server refuses it for another reason.
    """
    wanted = dict(config)
    while True:
        try:
            return js.create_consumer(stream, wanted, action)
        except ApiError as error:
            if wanted.pop(_LIMITED.get(error.err_code, ""), None) is None:
                raise


def refused(stream: str, partition: int, consumer: str, error: ApiError) -> ReadError:
    """The error for a durable that the server does not make."""
    return ReadError(
        stream,
        partition,
        f"the server refuses the consumer '{consumer}': {error.description} (err_code"
        f" {error.err_code}); look at max_consumers, max_ha_assets, `nats consumer ls {stream}`",
    )


# ── whose they are ───────────────────────────────────────────────────────────────────────────

_KEY: Final = "pyspark-jetstream."

FILTER: Final = f"{_KEY}filter"
"""
The key in a consumer's metadata with the filter it was made with, "" for none: an edit of the
filter leaves it as it is.
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """One run of a query, as the metadata of its consumers names it."""

    query: str
    """The same for every run over one checkpoint."""
    host: str
    pid: int
    """Process id of the driver's source process."""
    standby: bool = False
    """Whether others wait to take its place (`standby`)."""
    name: str = ""
    """The user's name for the query; "" where it has none."""

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"query {self.query or '?'}{name} (host {self.host or '?'}, process {self.pid})"

    def is_run(self, other: Owner) -> bool:
        """Whether both are the same run of the same query."""
        return (self.query, self.host, self.pid) == (other.query, other.host, other.pid)

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of the consumer's configuration that name its owner."""
        return {
            f"{_KEY}query": self.query,
            f"{_KEY}host": self.host,
            f"{_KEY}pid": str(self.pid),
            f"{_KEY}standby": "true" if self.standby else "false",
            f"{_KEY}name": self.name,
        }

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Owner | None:
        """Owner by a consumer's configuration; None where it names none."""
        metadata = config.get("metadata") or {}
        if f"{_KEY}query" not in metadata:
            return None
        pid = str(metadata.get(f"{_KEY}pid", ""))
        return cls(
            query=str(metadata.get(f"{_KEY}query", "")),
            host=str(metadata.get(f"{_KEY}host", "")),
            pid=int(pid) if pid.isdecimal() else 0,
            standby=metadata.get(f"{_KEY}standby") == "true",
            name=str(metadata.get(f"{_KEY}name", "")),
        )


# ── what others do to them ───────────────────────────────────────────────────────────────────

_MATTERS: Final[dict[str, Any]] = {
    "deliver_subject": None,
    "filter_subject": None,
    "filter_subjects": None,
    "ack_policy": "explicit",
    "priority_policy": None,
    "priority_groups": None,
    "deliver_policy": "all",
    "replay_policy": "instant",
    "headers_only": False,
    "max_deliver": -1,
    "max_batch": 0,
    "max_expires": 0,
    "max_bytes": 0,
    "rate_limit_bps": 0,
    "backoff": None,
}
"""Fields that decide the delivery, each with the meaning of a missing field."""

_SETTLING: Final = ("max_ack_pending", "ack_wait")
"""Further fields that matter where messages are acknowledged."""

_UNLIMITED: Final = frozenset({"max_deliver", "max_batch", "max_expires", "max_bytes"})
"""Fields in which 0 and -1 both mean no limit."""

_FILLED: Final = frozenset({"max_batch", "max_ack_pending"})
"""Fields that a limit of the server, account or stream fills in where no limit is asked for."""


def gone(name: str, info: ConsumerInfo | None, created: str) -> str | None:
    """
    What is lost with a consumer for which alone a stream keeps messages; None where it is still the
    one that was made at `created`.
    """
    if info is None:
        return (
            f"the consumer '{name}' is gone, and with it the stream's interest in what came since"
        )
    if info.created != created:
        return (
            f"the consumer '{name}' was made anew at {info.created} (the query made it at"
            f" {created}): in between the stream had no interest in what came"
        )
    return None


def misfit_of(
    wanted: Mapping[str, Any], info: ConsumerInfo, ignored: Collection[str] = ()
) -> str | None:
    """
    What of a consumer is not as its query makes it; None where there is no such thing.

    Args:
        ignored: fields of the configuration that may differ.
    """
    differing = []
    for key, default in (_MATTERS | {key: None for key in _SETTLING if key in wanted}).items():
        has, needs = info.config.get(key, default), wanted.get(key, default)
        filled = key in _FILLED and needs in (0, -1)
        same = has == needs or filled or (key in _UNLIMITED and has in (0, -1))
        if not same and key not in ignored:
            said = f"{_in_words(key, has)} where its query needs {_in_words(key, needs)}"
            differing.append(said)
    return f"the consumer '{info.name}' has {', '.join(differing)}" if differing else None


def way_back(
    stream: str, consumer: str, is_spare: bool, command: Callable[[str], str] = "`{}`".format
) -> str:
    """The way out of another configuration; `command` as `ConnectionOptions` has it."""
    what = (
        "set it back (`nats consumer edit`; its ack_policy by the stream's retention), or choose"
        " another prefix"
    )
    if is_spare:
        remove = command(f"nats consumer rm {stream} {consumer}")
        return (
            f"{what}. If no other program reads by it, you may delete it ({remove}): the query"
            " makes it anew, and nothing is lost"
        )
    return f"{what}, and do not delete it: the stream keeps messages for it alone"


def pause_of(info: ConsumerInfo) -> str | None:
    """How long a consumer is still paused; None where it is not."""
    if info.pause_s <= 0:
        return None
    until = re.sub(r"\.\d+", "", str(info.config.get("pause_until") or "?"))
    left = timedelta(seconds=round(info.pause_s))
    return f"the consumer '{info.name}' is paused until {until}, for {left} more"


def resumed_by(command: Callable[[str], str], stream: str, consumer: str) -> str:
    """The way out of a pause, by `ConnectionOptions.command`."""
    words = f"pyspark-jetstream resume --stream {stream} --consumer {consumer}"
    return f"{command(words)} ends it"


def _in_words(key: str, value: Any) -> str:
    """A field of a consumer's configuration, as errors say it."""
    if key == "deliver_subject":
        return f"deliver_subject '{value}', a push consumer" if value else "a pull consumer"
    return f"{key} {value!r}" if value is not None else f"no {key}"

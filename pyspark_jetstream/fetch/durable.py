"""The durable consumer of a partition: its configuration, and the way out if it has another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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

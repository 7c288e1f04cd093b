"""A consumer that is there, as a seat: whether it fits, what of it is changed, where it stands."""

from __future__ import annotations

from typing import Any

from ..client.info import ConsumerInfo, StreamInfo
from ..errors import OptionError
from ..fetch.assumptions import changed_fields, in_words
from ..fetch.durable import Durable, consumer_config
from ..fetch.owner import Owner


def position_of(durable: Durable, info: ConsumerInfo, stream: StreamInfo) -> int:
    """The last sequence that the query of a seat has committed and settled, or an earlier one."""
    if durable.retention == "workqueue":
        return max(0, stream.first_seq - 1)
    if durable.retention == "interest":
        return info.ack_floor
    return max(0, info.stream_seq - (1 if info.consumer_seq else 0))  # dealt with the pin


def check_fits(durable: Durable, info: ConsumerInfo, me: Owner | None) -> None:
    """
    Refuses a consumer that is there already and is not one of a query, or of another kind; and one
    that alone knows what another query has not read.

    Args:
        me: this run of the query; None where it stands by for others.

    Raises:
        OptionError: What it has, and what this query needs.
    """
    other = Owner.of(info.config)
    is_others = me is not None and other is not None and other.query not in ("", me.query)
    if is_others and durable.retention != "limits":
        raise OptionError(
            "consumer",
            f"'{durable.name}' is that of {other}, which has another checkpoint: give this query"
            " another consumer. If that query is not to go on, delete its consumers"
            f" (`nats consumer rm {durable.stream} {durable.name}`); what only it had not read goes"
            " then",
        )
    for key, has, needs in changed_fields(consumer_config(durable), info.config):
        raise OptionError(
            "consumer",
            f"stream '{durable.stream}' has a consumer '{durable.name}' with {in_words(key, has)}"
            f" where this query needs {in_words(key, needs)}; {_way_out(durable, key)}",
        )


def _way_out(durable: Durable, key: str) -> str:
    """Remedy for a consumer that does not fit, which costs nobody a message."""
    if durable.retention == "limits":
        return (
            "choose another prefix, or delete it if no other program reads by it: this query's"
            " positions are in its checkpoint"
        )
    kept = (
        f"do not delete it, for what it has not read the stream (retention {durable.retention}) may"
        " keep for it alone"
    )
    if key == "ack_policy":
        return (
            f"{kept}: set back the stream's retention, which was another one when the consumer was"
            " made; or begin anew under another prefix, with a new checkpointLocation and"
            " startingOffsets=earliest, which reads all that the stream still holds, and delete"
            " this one afterwards"
        )
    return f"{kept}; choose another prefix"


def updated(durable: Durable, info: ConsumerInfo) -> dict[str, Any]:
    """The configuration that is there, with the owner and the timeout of this run."""
    wanted = consumer_config(durable)
    metadata = (info.config.get("metadata") or {}) | wanted["metadata"]
    timeout = wanted["priority_timeout"]
    return info.config | {"metadata": metadata, "priority_timeout": timeout}

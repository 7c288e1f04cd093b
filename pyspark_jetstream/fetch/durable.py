"""The durable consumer of a partition: its configuration, and the error if it was edited."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..errors import ApiError, ConsumerEditedError, ReadError
from .owner import FILTER

if TYPE_CHECKING:
    from .assumptions import Change
    from .consumer import ConsumerRead
    from .layout import Slice

DESCRIPTION: Final = "pyspark-jetstream"
"""Description of a query's own durable consumers."""

_ACK_WAIT_NS: Final = 365 * 86_400 * 10**9
"""
A year: longer than any batch. Not the largest the server takes, which overflows its timer and
keeps a core busy for every consumer with unacknowledged messages (measured on 2.15.1).
"""


def consumer_config(read: ConsumerRead) -> dict[str, Any]:
    """
    The durable's configuration.

    `limits` streams need no acks: the consumer stands where Spark read to. On the others a
    message leaves the stream when it is settled, which the driver does after the commit; until
    then nothing may be redelivered behind our back, so the ack wait is a year.
    """
    config: dict[str, Any] = {
        "durable_name": read.consumer,
        "description": DESCRIPTION,
        "deliver_policy": "all",
        "ack_policy": {"limits": "none", "interest": "all"}.get(read.retention, "explicit"),
        "priority_groups": [read.group],
        "priority_policy": "pinned_client",
    }
    if read.filter is not None:
        config["filter_subject"] = read.filter
    if read.priority_timeout_s is not None:
        config["priority_timeout"] = round(read.priority_timeout_s * 1e9)
    if read.owner is not None:
        config["metadata"] = {**read.owner.metadata, FILTER: read.filter or ""}
    if read.retention == "limits":
        # Nothing is lost with it, so one whose query is gone may go, too.
        config["inactive_threshold"] = 86_400 * 10**9
    else:
        config["max_ack_pending"] = -1
        config["ack_wait"] = _ACK_WAIT_NS
    return config


def refused(stream: str, partition: int, consumer: str, error: ApiError) -> ReadError:
    """The error for a durable that the server does not make."""
    return ReadError(
        stream,
        partition,
        f"the server refuses the consumer '{consumer}': {error.description} (err_code"
        f" {error.err_code}); see `nats consumer ls {stream}` for one in its way",
    )


def edited(read: ConsumerRead, change: Change) -> ConsumerEditedError:
    """The error for a query's consumer whose configuration was changed."""
    return edited_error(read, read.consumer, change, read.retention == "limits")


def way_back(
    stream: str, consumer: str, is_spare: bool, command: Callable[[str], str] = "`{}`".format
) -> str:
    """The way out of an edit; `command` as `ConnectionOptions` has it."""
    what = "set it back (`nats consumer edit`)"
    if is_spare:
        remove = command(f"nats consumer rm {stream} {consumer}")
        return f"{what}, or delete it ({remove}): the query makes it anew, and nothing is lost"
    return f"{what}, and do not delete it: the stream keeps messages for it alone"


def edited_error(read: Slice, consumer: str, change: Change, is_spare: bool) -> ConsumerEditedError:
    """`edited` for any consumer; a spare one is made again, and nothing is lost with it."""
    what = way_back(read.stream, consumer, is_spare)
    detail = f"{change.text}. Rows would be empty, missing or others'; {what}"
    return ConsumerEditedError(read.stream, read.partition or 0, detail)

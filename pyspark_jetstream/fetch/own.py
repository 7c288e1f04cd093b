"""
A consumer of one attempt: the part of a stream that it reads, how it is configured, and whether the
server makes one. How a task reads through it is in `pulling.alone`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..errors import ApiError, PermissionsError
from ..sanitize import get_logger
from .layout import Slice
from .owner import NAMES, Owner

if TYPE_CHECKING:
    from ..client.jetstream import JetStream

logger = get_logger(__name__)

GROUP: Final = "spark"
"""The priority group where no option names one."""

_INACTIVE_S: Final = 60.0
"""
The server deletes one that nobody has pulled from for so long. A reader that Spark keeps waiting
for longer makes another one.
"""


@dataclass(frozen=True, slots=True)
class Own(Slice):
    """A slice by a consumer of the attempt's own."""

    group: str = GROUP
    owner: Owner | None = None
    """The run of the query whose task it is."""


def own_config(name: str, group: str, after: int = 0) -> dict[str, Any]:
    """Configuration of a consumer of the whole stream that begins behind a sequence."""
    return {
        "name": name,
        "description": "pyspark-jetstream: one attempt of a task, which deletes it",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": after + 1,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": round(_INACTIVE_S * 1e9),
        "priority_groups": [group],
        "priority_policy": "overflow",
    }


def new_name() -> str:
    """A name that no other attempt has."""
    return f"{NAMES}{os.urandom(8).hex()}"


def are_allowed(js: JetStream, streams: Sequence[str], group: str = GROUP) -> dict[str, bool]:
    """
    By stream, whether the server makes such a consumer for this user, and deletes it: one is made.
    That takes two round trips, where nothing is refused.

    Raises:
        JetStreamError: They cannot be asked.
    """
    name = new_name()
    try:
        try:
            js.create_consumers([(stream, own_config(name, group)) for stream in streams])
        finally:
            js.delete_consumers([(stream, name) for stream in streams])
    except (PermissionsError, ApiError) as error:
        if len(streams) > 1:  # which one it is, and why, is told one by one
            return {stream: are_allowed(js, [stream], group)[stream] for stream in streams}
        logger.info("stream=%s is read without consumers of the attempts' own: %s", *streams, error)
        return dict.fromkeys(streams, False)
    return dict.fromkeys(streams, True)

"""
What others do to a query's consumers: an operator edits, pauses or deletes them.

What shows that messages of a stream are lost is in `dataloss`. Drivers go by both before each
batch, and `inspect` when it is asked (docs/reference/guarantees.md).

Rule: this module judges, by what callers were told by the server anyway. It performs no I/O and
reads no clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Final

from ..client.info import ConsumerInfo


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

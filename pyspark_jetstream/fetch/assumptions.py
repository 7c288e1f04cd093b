"""
Assumptions of a read about its consumers, and the sign of each that is broken.

Others act on the same server: an operator edits, pauses or deletes a consumer. What shows that
messages of a stream are lost is in `dataloss`. Drivers go by both before each batch, and `inspect`
when it is asked (docs/reference/guarantees.md, "Neighbours").

Rule 1: this module judges, by what callers were told by the server anyway. It performs no I/O and
reads no clock.
Rule 2: only what is certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final

from .. import subjects
from ..client.info import ConsumerInfo, StreamInfo


class Assumption(Enum):
    """A fact taken for granted; the value says in short what is so when it does not hold."""

    CONSUMER_THERE = "consumer is gone"
    SAME_CONSUMER = "consumer was made anew"
    CONSUMER_AS_MADE = "consumer was edited"
    NOT_PAUSED = "consumer is paused"

    @property
    def is_loss(self) -> bool:
        """Whether messages are gone, or will come again, where it does not hold."""
        return self not in (Assumption.CONSUMER_AS_MADE, Assumption.NOT_PAUSED)


@dataclass(frozen=True, slots=True)
class Change:
    """One assumption that does not hold."""

    of: Assumption
    text: str
    """The fact, its place, and its consequence."""


def takes_all(filters: Sequence[str | None], info: StreamInfo) -> bool:
    """Whether each message that the stream can hold matches one of these filters."""
    if None in filters or subjects.REST in filters:
        return True
    if info.is_filled:
        return False
    taken: list[str] = info.config.get("subjects") or []
    return bool(taken) and all(
        any(filter_ is not None and subjects.covers(filter_, subject) for filter_ in filters)
        for subject in taken
    )


# ── consumers ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Made:
    """A durable consumer of a query, as it was made."""

    created: str
    """Creation time of the consumer, in the server's text."""
    since: int
    """
    Last sequence of its stream then: from there on nothing leaves the stream without the consumer.
    """


def consumer_changes(
    wanted: Mapping[str, Any],
    info: ConsumerInfo | None,
    made: Made | None = None,
) -> Iterator[Change]:
    """
    Broken assumptions about a consumer, the worst first.

    Args:
        wanted: its configuration, as it was made.
        info: the consumer now, None where it is gone.
        made: when it was made, where a stream keeps messages for it alone (`interest`).
    """
    name = wanted.get("durable_name") or wanted.get("name")
    if info is None:
        if made is not None:
            text = (
                f"the consumer '{name}' is gone, and with it the stream's interest in what came"
                " since"
            )
            yield Change(Assumption.CONSUMER_THERE, text)
        return
    if made is not None and info.created != made.created:
        text = (
            f"the consumer '{name}' was made anew at {info.created} (the query made it at"
            f" {made.created}): in between the stream had no interest in what came"
        )
        yield Change(Assumption.SAME_CONSUMER, text)
    edit = edit_of(wanted, info)
    if edit is not None:
        yield edit
    if info.pause_s > 0:
        until = re.sub(r"\.\d+", "", str(info.config.get("pause_until") or "?"))
        left = timedelta(seconds=round(info.pause_s))
        text = f"the consumer '{name}' is paused until {until}, for {left} more"
        yield Change(Assumption.NOT_PAUSED, text)


def edit_of(
    wanted: Mapping[str, Any], info: ConsumerInfo | None, ignored: Collection[str] = ()
) -> Change | None:
    """
    Edits of a consumer since it was made; None where there are none, or it is gone.

    Args:
        ignored: fields of the configuration that may differ.
    """
    config = info.config if info is not None else wanted
    differing = [each for each in changed_fields(wanted, config) if each[0] not in ignored]
    if not differing:
        return None
    now = ", ".join(
        f"{in_words(key, has)} where it was made with {in_words(key, needs)}"
        for key, has, needs in differing
    )
    name = wanted.get("durable_name") or wanted.get("name")
    text = f"the consumer '{name}' was edited: it has {now}"
    return Change(Assumption.CONSUMER_AS_MADE, text)


def resumed_by(command: Callable[[str], str], stream: str, consumer: str) -> str:
    """The way out of a pause, by `ConnectionOptions.command`."""
    words = f"pyspark-jetstream resume --stream {stream} --consumer {consumer}"
    return f"{command(words)} ends it"


def changed_fields(
    wanted: Mapping[str, Any], config: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    """The fields of a consumer's configuration that differ: name, what it has, what was set."""
    fields = _MATTERS | {key: None for key in _SETTLING if key in wanted}
    differing = []
    for key, default in fields.items():
        has, needs = config.get(key, default), wanted.get(key, default)
        filled = key in _FILLED and needs in (0, -1)
        if has != needs and not filled and not (key in _UNLIMITED and has in (0, -1)):
            differing.append((key, has, needs))
    return differing


def in_words(key: str, value: Any) -> str:
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

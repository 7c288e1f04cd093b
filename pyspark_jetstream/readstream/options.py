"""
The options of a read that shares its consumer with others (`overflow`, `prioritized`; ADR-42).

Their rows of the table, what they mean together, and what they make of a pull request. Where such
a read goes on from and which rows a batch has is in `claims`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .. import subjects
from .. import values as value_of
from ..errors import OptionError
from ..option import Option, only
from ..outbox import deadletters
from ..outbox.deadletters import dead_letter_subject

__all__ = ["POLICIES", "SHARING_OPTIONS", "Sharing", "shared_by"]

POLICIES: Final = ("overflow", "prioritized")
"""Priority policies whose consumers serve several readers at a time."""

_LOWEST: Final = 9
"""ADR-42: a pull's priority is 0 (first) to 9; nats-server 2.15 answers others with 400."""


def _priority(value: str) -> int:
    """A priority, 0 to 9."""
    if not re.fullmatch(r"[0-9]", value.strip()):
        raise ValueError(f"expected 0 (first) to {_LOWEST}, got '{value}'")
    return int(value)


SHARING_OPTIONS: Final[tuple[Option, ...]] = (
    only(
        "stream",
        "minPending",
        value_of.positive,
        "",
        "`overflow`: served only while so many messages wait, or `minAckPending` holds.",
    ),
    only(
        "stream",
        "minAckPending",
        value_of.positive,
        "",
        "`overflow`: served only while so many are claimed and not acknowledged.",
    ),
    only(
        "stream",
        "priority",
        _priority,
        "0",
        "`prioritized`: 0 is served first, 9 last.",
    ),
    only(
        "stream",
        "ackWait",
        value_of.duration,
        "2m",
        "Claims of a reader that is gone return to the others after it (shared consumers).",
    ),
    only(
        "stream",
        "maxAckPending",
        value_of.positive,
        "500000",
        "Claims of all readers of a shared consumer together.",
    ),
    only(
        "stream",
        "maxDeliver",
        value_of.positive,
        "",
        "A message claimed more often goes to `deadLetterSubject`, and is terminated.",
    ),
    only(
        "stream",
        "deadLetterSubject",
        dead_letter_subject,
        "",
        "Where it goes; `{subject}` stands for its own.",
    ),
)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How one query takes its part of a shared consumer; None leaves a setting to the consumer."""

    policy: str
    """`overflow` or `prioritized`."""
    min_pending: int | None = None
    min_ack_pending: int | None = None
    priority: int | None = None
    ack_wait_s: float | None = None
    max_ack_pending: int | None = None
    max_deliver: int | None = None
    dead_letter_subject: str | None = None

    @property
    def pull(self) -> dict[str, int]:
        """The fields of this policy in a pull request (ADR-42, "Priority Policies")."""
        fields = {
            "min_pending": self.min_pending,
            "min_ack_pending": self.min_ack_pending,
            "priority": self.priority,
        }
        return {name: value for name, value in fields.items() if value is not None}


def shared_by(values: Mapping[str, Any]) -> Sharing | None:
    """
    How the options of `spark.readStream` share a consumer; None where they do not.

    Raises:
        OptionError: An option belongs to another policy, or does not go with sharing.
    """
    policy = values.get("priorityPolicy", "pinned_client")
    for name, its in (
        ("minPending", "overflow"),
        ("minAckPending", "overflow"),
        ("priority", "prioritized"),
    ):
        if name in values and policy != its:
            raise OptionError(name, f"belongs to priorityPolicy={its}, this query has {policy}")
    if policy not in POLICIES:
        for option in SHARING_OPTIONS:
            if option.name in values:
                raise OptionError(option.name, f"belongs to priorityPolicy={' or '.join(POLICIES)}")
        return None
    if "consumer" not in values:
        raise OptionError("consumer", f"required with priorityPolicy={policy}: who shares it")
    for name, why in (
        ("priorityTimeout", "belongs to priorityPolicy=pinned_client"),
        ("standby", "belongs to priorityPolicy=pinned_client"),
        ("endingOffsets", "is an end for one reader, not for all who share the consumer"),
        ("endingTimestamp", "is an end for one reader, not for all who share the consumer"),
        ("minRecordsPerTrigger", "would hold claims back from other readers"),
        ("maxTriggerDelay", "would hold claims back from other readers"),
    ):
        if name in values:
            raise OptionError(name, f"{why}; this query has priorityPolicy={policy}")
    if values.get("readMode", "auto") != "auto":
        raise OptionError(
            "readMode", f"priorityPolicy={policy} claims by the consumer and reads by direct get"
        )
    if ("maxDeliver" in values) != ("deadLetterSubject" in values):
        raise OptionError("maxDeliver", "belongs to deadLetterSubject: give both or none")
    letters, subject = values.get("deadLetterSubject"), values.get("subject")
    if letters is not None and subject is not None and subjects.is_literal(subject):
        found = deadletters.fault(letters, subject)
        if found is not None:
            raise OptionError("deadLetterSubject", found)
    return Sharing(
        policy=policy,
        min_pending=values.get("minPending"),
        min_ack_pending=values.get("minAckPending"),
        priority=values.get("priority", 0 if policy == "prioritized" else None),
        ack_wait_s=values.get("ackWait"),
        max_ack_pending=values.get("maxAckPending"),
        max_deliver=values.get("maxDeliver"),
        dead_letter_subject=letters,
    )

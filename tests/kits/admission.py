"""What the tests of admission share: rows with priorities, loads, pauses."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pyspark_jetstream.outbox.admission import Admission, Rules
from pyspark_jetstream.outbox.messages import Messages
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason, ThrottleProducer

from . import lanes
from .options import rules_of

CRITICAL, NORMAL, NON_CRITICAL = Priority
IDLE, FULL = False, True
OF = {"c": CRITICAL, "n": NORMAL, "l": NON_CRITICAL}


def rows(text: str, first: int = 0, data: bytes | None = None) -> Messages:
    """`a.c b` are rows `first`…: a critical one to a, a normal one to b."""
    words = [word.partition(".") for word in text.split()]
    priorities = [OF[priority or "n"] for _, _, priority in words]
    found = lanes.messages(
        [subject for subject, _, _ in words],
        None if data is None else [data] * len(words),
        first=first,
    )
    plain = set(priorities) <= {NORMAL}
    return replace(found, priorities=None if plain else pa.array(priorities, pa.int8()))


def admission(rules: Rules = rules_of(), **rest) -> Admission:  # noqa: B008
    return Admission(rules, rest.get("throttle", Throttle()))


def numbers(messages: Messages | None) -> list[int]:
    return [] if messages is None else messages.rows.to_pylist()


def drained(one: Admission, now: float = 0.0, piece: int = 1) -> list[int]:
    """The numbers of all rows that may go, taken in pieces."""
    found: list[int] = []
    while (part := numbers(one.take(piece, now))) != []:
        found += part
    return found


def pause(throttle: Throttle, subject: str, pause_s: float, now: float = 0.0, **rest) -> None:
    reason = rest.get("reason", Reason.TopicProduceQuotaExceeded)
    throttle.table.command(ThrottleProducer(1, reason, pause_s, subject), now)

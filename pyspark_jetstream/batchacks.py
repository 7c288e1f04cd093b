"""
What a reply to a row or a ping of a fast-ingest batch means (ADR-50; `fastlane` shows them all).

Rule 1: no I/O and no state.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Final, NamedTuple

from .outbox.limits import Kind
from .pubacks import Outcome, classify

__all__ = ["Answer", "Says", "understand"]

_UNKNOWN: Final = 10208
"""err_code of JSBatchPublishUnknownBatchIDErr."""


class Says(Enum):
    """What a reply to a batch is."""

    ACK = "ack"
    GAP = "gap"
    ERR = "err"
    END = "end"
    UNKNOWN = "unknown batch"
    REFUSED = "refused"


class Answer(NamedTuple):
    """A reply, understood."""

    says: Says
    sequence: int = 0
    """Of an ack the last row stored, of an end their number, of an err the row."""
    flow: int = 0
    """Of an ack: rows until the next one."""
    outcome: Outcome = Outcome(Kind.REJECTED)
    """Of an err or a refusal."""


def understand(status: int, description: str, data: bytes) -> Answer:
    """What a reply to a row or a ping of a batch means."""
    outcome = classify(status, description, data)
    if outcome.err_code == _UNKNOWN:
        return Answer(Says.UNKNOWN, outcome=outcome)
    try:
        answer = json.loads(data) if data else {}
        if "error" in answer and "type" not in answer:
            return Answer(Says.REFUSED, outcome=outcome)
        match answer.get("type"):
            case "ack":
                return Answer(Says.ACK, int(answer["seq"]), int(answer["msgs"]))
            case "gap":
                return Answer(Says.GAP)
            case "err":
                return Answer(Says.ERR, int(answer["seq"]), outcome=outcome)
        if "batch" in answer:
            # `count` is left out of a PubAck where it would be 0 (omitempty), as of an empty batch.
            return Answer(Says.END, int(answer.get("count", 0)))
    except (ValueError, TypeError, KeyError, AttributeError):
        return Answer(Says.REFUSED, outcome=outcome)
    if outcome.kind in (Kind.STORED, Kind.DUPLICATE):
        detail = "the server does not know fast-ingest batches: it needs nats-server 2.14"
        outcome = Outcome(Kind.REJECTED, f"{detail}; use publishMode=async")
    return Answer(Says.REFUSED, outcome=outcome)

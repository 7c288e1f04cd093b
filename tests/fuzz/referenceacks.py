"""
The reference for answers to publishes: PubAcks, and those to batches (ADR-50, and nats-server's
errors.json). As `reference` it shares no code with the package.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from .reference import CONTROL, is_info, is_number, read, status

TOO_BUSY: Final = (10167, 10210, 10211, 10023, 10028, 10047)
AT_A_LIMIT: Final = (10077, 10002)


class Meaning(NamedTuple):
    """What an answer means, and the error's code."""

    kind: str
    code: int = 0


def _read(data: bytes) -> dict[str, Any] | None:
    """A JSON object in UTF-8; None of anything else."""
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _count(value: Any) -> int | None:
    """A number of JSON that counts something; None of anything else."""
    return value if type(value) is int and value >= 0 else None


def meaning(code: int, data: bytes) -> Meaning:
    """What an answer with this status and this payload says of its publish."""
    if not data:
        return Meaning({503: "absent", 429: "overloaded"}.get(code, "rejected"))
    said = _read(data)
    if said is None:
        return Meaning("rejected")
    if said.get("error"):
        error = said["error"]
        if not isinstance(error, dict):
            return Meaning("rejected")
        numbers = [_count(error.get(key) or 0) for key in ("code", "err_code")]
        if None in numbers:
            return Meaning("rejected")
        http, number = numbers
        assert http is not None and number is not None
        if number in AT_A_LIMIT:
            return Meaning("limited", number)
        if number in TOO_BUSY or http in (429, 503):
            return Meaning("overloaded", number)
        return Meaning("in process" if number == 10158 else "rejected", number)
    if isinstance(said.get("stream"), str) and (_count(said.get("seq")) or 0) > 0:
        return Meaning("duplicate" if said.get("duplicate") else "stored")
    return Meaning("rejected")


class Said(NamedTuple):
    """What a reply to a fast batch says."""

    what: str
    sequence: int = 0
    flow: int = 0


def batch_reply(code: int, data: bytes) -> Said:
    """What a reply to a row or a ping of a fast batch says."""
    if meaning(code, data).code == 10208:
        return Said("unknown batch")
    said = _read(data) if data else {}
    if said is None or ("error" in said and "type" not in said):
        return Said("refused")
    counts = {key: _count(said.get(key)) for key in ("seq", "msgs", "count")}
    kind = said.get("type")
    if kind == "ack":
        seq, msgs = counts["seq"], counts["msgs"]
        return Said("refused") if seq is None or msgs is None else Said("ack", seq, msgs)
    if kind == "gap":
        return Said("gap")
    if kind == "err":
        return Said("refused") if counts["seq"] is None else Said("err", counts["seq"])
    if "batch" in said:
        # Left out where it would be 0.
        count = 0 if "count" not in said else counts["count"]
        return Said("refused") if count is None else Said("end", count)
    return Said("refused")


def atomic_reply(code: int, data: bytes, size: int) -> Meaning:
    """What a reply to the last message of an atomic batch of this size says of the batch."""
    said = meaning(code, data)
    if said.kind != "stored":
        return said
    whole = _read(data)
    assert whole is not None
    return said if _count(whole.get("count")) == size else Meaning("rejected")


class Acks(NamedTuple):
    """The answers of a stream of frames by lane, and how it ended."""

    lanes: list[list[tuple[int, Meaning]]]
    at: int
    why: str


def acks(stream: bytes, sid: int, inbox: bytes, lanes: int) -> Acks:
    """The answers on `<inbox>.<lane>.<number>`; on anything else there is none."""
    whole = read(stream)
    found: list[list[tuple[int, Meaning]]] = [[] for _ in range(lanes)]
    for frame in whole.frames:
        if frame.verb == b"-ERR" or (frame.verb == b"INFO" and not is_info(frame.data)):
            return Acks(found, frame.begin, "fault")
        if frame.verb in CONTROL or frame.sid != sid or not frame.subject.startswith(inbox + b"."):
            continue
        lane, _, number = frame.subject[len(inbox) + 1 :].partition(b".")
        if is_number(lane, 4) and int(lane) < lanes and is_number(number):
            said = meaning(status(frame.headers)[0], frame.data)
            found[int(lane)].append((int(number), said))
    return Acks(found, whole.at, whole.why)

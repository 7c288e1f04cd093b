"""The reference for PubAcks (ADR-50, errors.json); it shares no code with the package."""

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

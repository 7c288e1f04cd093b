"""
The meaning of an answer to a publish: stored, refused for now and why, or rejected for good.

Rule 1: no I/O and no state; the err_codes are nats-server 2.15.1's (server/errors.json).
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

from ...client.wire import NO_RESPONDERS
from ...foreign import read_json, record

_OVERLOADED: Final = frozenset({10167, 10210, 10211, 10023, 10028, 10047})
"""err_codes of a server that is too busy or out of resources: nothing was stored."""

_LIMITED: Final = frozenset({10077, 10002})
"""err_codes of a limit of the stream or the account that somebody may lift: nothing was stored."""

_NO_ROOM: Final = frozenset({10077, 10002, 10023, 10028, 10047})
"""err_codes of a stream, an account or a server that has no room for a message."""

_OF_SUBJECT: Final = "per subject"
"""In the server's words for 10077, where it is the limit of a subject and not of the stream."""

_SUBJECT_IN_PROCESS: Final = 10164
"""
err_code of JSStreamWrongLastSequenceConstant: a message of the subject is on its way to the
replicas, maybe this one, and then this one's sequence is compared (measured on nats-server 2.15.1).
"""

_IN_PROCESS: Final = frozenset({10158, _SUBJECT_IN_PROCESS})
"""err_codes for what is being stored right now: this id (JSStreamDuplicateMessageConflict), too."""


WRONG_LAST: Final = 10071
"""
err_code of JSStreamWrongLastSequenceErrF. The server compares the sequence before the id: a message
that is stored, and sent again, is refused for itself (measured on nats-server 2.15.1).
"""

_OBJECT: Final = record({})


class Fate(Enum):
    """What an answer makes of a publish: stored, to be sent again and why, or never stored."""

    STORED = "stored"
    DUPLICATE = "stored before"
    OVERLOADED = "the server is overloaded"
    LIMITED = "a limit is reached"
    ABSENT = "nobody listens on the subject"
    IN_PROCESS = "another attempt is being stored"
    REJECTED = "rejected"


class Outcome(NamedTuple):
    """An answer to a publish, understood."""

    kind: Fate
    detail: str = ""
    err_code: int = 0
    stream: str = ""
    """Stream of a PubAck."""
    sequence: int = 0
    """Sequence of a PubAck."""

    @property
    def is_push_back(self) -> bool:
        """
        Whether the server has too much to do, or no room. A subject at its own limit says nothing
        of the others: cut for it, the window would slow them all down (overload.md I6).
        """
        return self.kind is Fate.OVERLOADED or (
            self.kind is Fate.LIMITED and _OF_SUBJECT not in self.detail
        )

    @property
    def has_no_room(self) -> bool:
        """Whether stream, account or server have no room for the message."""
        return self.err_code in _NO_ROOM

    @property
    def is_ignored(self) -> bool:
        """Whether it may succeed another time, and that it failed says nothing of the load."""
        may_succeed = self.kind in (Fate.ABSENT, Fate.IN_PROCESS, Fate.LIMITED)
        return may_succeed and not self.is_push_back


class Refusal(NamedTuple):
    """The server's answer to a publish that may be sent again."""

    subject: str
    outcome: Outcome
    until: float
    """Earliest time at which the subject is sent to again."""


def classify(status: int, description: str, data: bytes) -> Outcome:
    """
    Meaning of an answer to a publish.

    Args:
        status: of the header's preamble line, 0 without one.
        description: the text behind it.
        data: the payload, a PubAck in JSON unless the server had nothing to say.
    """
    if not data:
        if status == NO_RESPONDERS:
            return Outcome(Fate.ABSENT, "no responders")
        if status == 429:
            return Outcome(Fate.OVERLOADED, description or "too many requests")
        return Outcome(Fate.REJECTED, f"the answer is status {status} {description}".rstrip())
    try:
        answer = _OBJECT(read_json(data.decode()))  # whoever listens may answer anything
        error = answer.get("error")
        if error:
            return _error(
                _count(error.get("code") or 0),
                _count(error.get("err_code") or 0),
                str(error.get("description") or ""),
            )
        stream, sequence = answer["stream"], _count(answer["seq"])
        if isinstance(stream, str) and sequence > 0:
            kind = Fate.DUPLICATE if answer.get("duplicate") else Fate.STORED
            return Outcome(kind, stream=stream, sequence=sequence)
    except (ValueError, KeyError, AttributeError):
        pass  # said below: whatever it is, it is no PubAck
    return Outcome(
        Fate.REJECTED,
        f"the answer is no PubAck but {data[:60]!r}: not only a stream listens on this subject",
    )


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} counts nothing")
    return value


def _error(code: int, err_code: int, description: str) -> Outcome:
    if err_code in _LIMITED:
        return Outcome(Fate.LIMITED, description, err_code)
    if err_code in _OVERLOADED or code in (429, 503):
        return Outcome(Fate.OVERLOADED, description, err_code)
    if err_code in _IN_PROCESS:
        return Outcome(Fate.IN_PROCESS, description, err_code)
    return Outcome(Fate.REJECTED, description, err_code)

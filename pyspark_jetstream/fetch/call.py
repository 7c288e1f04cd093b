"""
Direct get as a request: the fields of ADR-31, their combinations, and the next page.

Rule 1: no I/O; times are RFC 3339 texts, the caller's clock has made them.
Rule 2: what the server would refuse (408) is a `ValueError` here, before it is sent.

Measured on nats-server 2.15.1, where it differs from the document: `up_to_seq` counts for
`multi_last` only; a batch without `seq` or `start_time` needs `next_by_subj`; the subject-appended
form takes a payload as long as it names none of these fields.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

MAX_MATCHES: Final = 1024
"""Subjects that one `multi_last` may match in all; one more is a 413, whatever `batch` says."""

PAGE_MESSAGES: Final = 10_000
"""Messages of one request at the most; a longer `batch` takes more requests."""

PAGE_BYTES: Final = 8 << 20
"""Bytes of one request at the most: the server cuts off a reader that is 64 MiB behind."""


@dataclass(frozen=True, slots=True)
class DirectCall:
    """
    One of the calls of ADR-31; the fields have the names they have in its requests.

    Raises:
        ValueError: Fields that do not go together.
    """

    seq: int | None = None
    last_by_subj: str | None = None
    next_by_subj: str | None = None
    start_time: str | None = None
    batch: int | None = None
    max_bytes: int | None = None
    multi_last: tuple[str, ...] = ()
    up_to_seq: int | None = None
    up_to_time: str | None = None
    appended: bool = False
    """Names the subject of `last_by_subj` in the request's subject, which permissions can bind."""

    def __post_init__(self) -> None:
        given = {name for name in _FIELDS if getattr(self, name) not in (None, ())}
        kind = next((name for name in ("multi_last", "last_by_subj") if name in given), "seq")
        strange = given - _TOGETHER[kind]
        if strange:
            raise ValueError(f"{min(strange)} does not go with {kind}")
        for one, other in (("seq", "start_time"), ("up_to_seq", "up_to_time")):
            if {one, other} <= given:
                raise ValueError(f"{one} and {other} contradict each other")
        if kind == "seq" and not given & {"seq", "start_time", "next_by_subj"}:
            raise ValueError("names no message")
        if "max_bytes" in given and not self.batched:
            raise ValueError("max_bytes needs batch")
        if self.appended and self.last_by_subj is None:
            raise ValueError("only last_by_subj has a subject to append")

    @property
    def batched(self) -> bool:
        """Whether several messages may answer, with an end marker behind them."""
        return bool(self.batch or self.multi_last)

    def query(self) -> dict[str, Any]:
        """The request's fields."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        if self.multi_last:
            fields["multi_last"] = list(self.multi_last)
        elif self.batch and self.seq is None and self.start_time is None:
            fields["seq"] = 1  # the document's default; the server has it only with next_by_subj
        return {name: value for name, value in fields.items() if value not in (None, ())}

    def request(self, prefix: str, stream: str) -> tuple[str, bytes]:
        """Subject and payload under an API prefix."""
        if self.appended:
            return f"{prefix}.DIRECT.GET.{stream}.{self.last_by_subj}", b""
        return f"{prefix}.DIRECT.GET.{stream}", json.dumps(self.query()).encode()

    def behind(self, last: int, up_to: int | None) -> DirectCall:
        """The same call from behind sequence `last` on, as of the same point (`up_to`)."""
        if not self.multi_last:
            return replace(self, seq=last + 1, start_time=None)
        # ADR-31: "This number would be used in subsequent requests as the up_to_seq value".
        return replace(self, seq=last + 1, up_to_seq=up_to, up_to_time=None)


_FIELDS: Final = (
    "seq", "last_by_subj", "next_by_subj", "start_time", "batch", "max_bytes", "multi_last",
    "up_to_seq", "up_to_time",
)  # fmt: skip

_TOGETHER: Final = {
    "seq": {"seq", "next_by_subj", "start_time", "batch", "max_bytes"},
    "last_by_subj": {"last_by_subj"},
    "multi_last": {"multi_last", "seq", "batch", "max_bytes", "up_to_seq", "up_to_time"},
}
"""Fields that may stand beside the field that names the kind of call."""

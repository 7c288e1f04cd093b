"""Whose a consumer is: the run of a query that its metadata names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["ANNOUNCED_WITHIN_S", "NAMES", "STRANGER", "Owner"]

NAMES: Final = "spark-own-"
"""How the names of consumers begin that belong to one attempt of a task (`own`)."""

ANNOUNCED_WITHIN_S: Final = 2.0
"""A pin that none of a query's attempts has announced so long after it was seen is a stranger's."""

STRANGER: Final = b"stranger"
"""What a driver answers on `<inbox>.whose` of a pin that no attempt of its query has announced."""


_KEY: Final = "pyspark-jetstream."


@dataclass(frozen=True, slots=True)
class Owner:
    """One run of a query, as the metadata of its consumers names it."""

    query: str
    """The same for every run over one checkpoint; "" for checkpoints of version 0.1.0."""
    host: str
    pid: int
    """Of the driver's source process."""
    inbox: str
    """
    Its driver answers on `<inbox>.owner` and, whose a pin is, on `<inbox>.whose`; its attempts
    announce pins on `<inbox>.pins`.
    """
    standby: bool = False
    """Whether others wait to take its place (`standby`)."""
    name: str = ""
    """As its users call it, "" where it has none."""

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"query {self.query or '?'}{name} (host {self.host or '?'}, process {self.pid})"

    @property
    def metadata(self) -> dict[str, str]:
        """What the consumer's configuration says of its owner."""
        return {
            f"{_KEY}query": self.query,
            f"{_KEY}host": self.host,
            f"{_KEY}pid": str(self.pid),
            f"{_KEY}inbox": self.inbox,
            f"{_KEY}standby": "true" if self.standby else "false",
            f"{_KEY}name": self.name,
        }

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Owner | None:
        """Who prepared the consumer with this configuration; None where it does not say."""
        metadata = config.get("metadata") or {}
        if f"{_KEY}inbox" not in metadata:
            return None
        pid = str(metadata.get(f"{_KEY}pid", ""))
        return cls(
            query=str(metadata.get(f"{_KEY}query", "")),
            host=str(metadata.get(f"{_KEY}host", "")),
            pid=int(pid) if pid.isdecimal() else 0,
            inbox=str(metadata[f"{_KEY}inbox"]),
            standby=metadata.get(f"{_KEY}standby") == "true",
            name=str(metadata.get(f"{_KEY}name", "")),
        )

"""The owner of a consumer: the run of a query that the metadata names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_KEY: Final = "pyspark-jetstream."

FILTER: Final = f"{_KEY}filter"
"""
The key in a consumer's metadata with the filter it was made with, "" for none: an edit of the
filter leaves it as it is.
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """One run of a query, as the metadata of its consumers names it."""

    query: str
    """The same for every run over one checkpoint."""
    host: str
    pid: int
    """Process id of the driver's source process."""
    standby: bool = False
    """Whether others wait to take its place (`standby`)."""
    name: str = ""
    """The user's name for the query; "" where it has none."""

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"query {self.query or '?'}{name} (host {self.host or '?'}, process {self.pid})"

    def is_run(self, other: Owner) -> bool:
        """Whether both are the same run of the same query."""
        return (self.query, self.host, self.pid) == (other.query, other.host, other.pid)

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of the consumer's configuration that name its owner."""
        return {
            f"{_KEY}query": self.query,
            f"{_KEY}host": self.host,
            f"{_KEY}pid": str(self.pid),
            f"{_KEY}standby": "true" if self.standby else "false",
            f"{_KEY}name": self.name,
        }

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Owner | None:
        """Owner by a consumer's configuration; None where it names none."""
        metadata = config.get("metadata") or {}
        if f"{_KEY}query" not in metadata:
            return None
        pid = str(metadata.get(f"{_KEY}pid", ""))
        return cls(
            query=str(metadata.get(f"{_KEY}query", "")),
            host=str(metadata.get(f"{_KEY}host", "")),
            pid=int(pid) if pid.isdecimal() else 0,
            standby=metadata.get(f"{_KEY}standby") == "true",
            name=str(metadata.get(f"{_KEY}name", "")),
        )

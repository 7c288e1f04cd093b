"""
Who is pinned where, told from advisories of the server and from what attempts announce.

Rule 1: no I/O and no clock; callers pass what came, and `now`.
Rule 2: an id is a stranger's only if its advisory came on the connection that announcements come
on too, and none came in time. After a break of that connection nothing older is judged.

Advisories: ADR-42, `$JS.EVENT.ADVISORY.CONSUMER.{PINNED,UNPINNED}`. That a leader was elected ends
a pin without one (a pin is in the memory of the consumer's leader).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["Pins"]

_ANNOUNCED_WITHIN_S: Final = 2.0
_MOST_IDS: Final = 1000
"""Announced ids that are remembered, a partition."""


class _Partition:
    """What is known of one consumer's pin."""

    def __init__(self) -> None:
        self.pinned = ""
        self.since: str | None = None
        self.pins = 0
        self.strangers = 0
        self.unpins = {"attempt": 0, "admin": 0, "timeout": 0, "leader": 0}
        self.announced: OrderedDict[str, None] = OrderedDict()
        self.unjudged: dict[str, float] = {}
        """Ids whose advisory came and whose announcement did not, and when."""
        self.foreign = ""
        """The last id that turned out to be a stranger's."""


class Pins:
    """The pins of all partitions of a query."""

    def __init__(self, consumers: Mapping[tuple[str, str], int]) -> None:
        """Args: consumers: partition by (stream, consumer)."""
        self.audible = False
        """Whether announcements reach us at all."""
        self._index = dict(consumers)
        self._partitions = {index: _Partition() for index in consumers.values()}

    def advised(self, event: Mapping[str, Any], now: float) -> str | None:
        """Takes an advisory in; what to log of it, None when it is not about these consumers."""
        name = (str(event.get("stream")), str(event.get("consumer")))
        kind = str(event.get("type", "")).rpartition(".")[2]
        if name not in self._index:
            return None
        partition = self._partitions[self._index[name]]
        what = f"stream={name[0]} consumer={name[1]}"
        moment = str(event.get("timestamp", ""))
        if kind == "consumer_group_pinned":
            pin = str(event.get("pinned_id", ""))
            partition.pinned, partition.since = pin, moment
            partition.pins += 1
            if pin not in partition.announced:
                partition.unjudged[pin] = now
            return f"pinned {what} id={pin}"
        if kind == "consumer_group_unpinned":
            reason = str(event.get("reason", ""))
            if reason in partition.unpins:
                partition.unpins[reason] += 1
        elif kind == "consumer_leader_elected" and partition.pinned:
            reason = "leader"
            partition.unpins[reason] += 1
        else:
            return None
        # Every UNPIN is advised, also one of a consumer where nobody is pinned.
        was, partition.pinned, partition.since = partition.pinned, "", moment
        return f"unpinned {what} id={was or '-'} reason={reason}"

    def announced(self, note: Mapping[str, Any]) -> None:
        """Takes in what an attempt says: the id it has, or that it has unpinned whoever had one."""
        index = note.get("partition")  # anybody may publish there, and anything
        partition = self._partitions.get(index) if isinstance(index, int) else None
        if note.get("hello"):
            self.audible = True
        if partition is None:
            return
        if note.get("unpin"):
            partition.unpins["attempt"] += 1
        pin = str(note.get("pinned") or "")
        if pin:
            partition.announced[pin] = None
            partition.unjudged.pop(pin, None)
            if pin == partition.foreign:  # late, but ours
                partition.foreign = ""
                partition.strangers -= 1
            if len(partition.announced) > _MOST_IDS:
                partition.announced.popitem(last=False)

    def seen(self, partition: int, pin: str, since: str) -> None:
        """Takes in who is pinned by the server's own word (CONSUMER.INFO); "" for nobody."""
        state = self._partitions[partition]
        if pin != state.pinned:
            state.pinned, state.since = pin, since if pin else None

    def broke(self) -> None:
        """The connection broke: what was heard on it says nothing about what came meanwhile."""
        self.audible = False
        for partition in self._partitions.values():
            partition.unjudged.clear()

    def strangers(self, now: float) -> list[tuple[int, str]]:
        """(partition, id) of pins that turned out not to be this query's since the last call."""
        found: list[tuple[int, str]] = []
        if not self.audible:
            return found
        for index, partition in self._partitions.items():
            for pin, heard in list(partition.unjudged.items()):
                if now - heard > _ANNOUNCED_WITHIN_S:
                    del partition.unjudged[pin]
                    partition.strangers += 1
                    partition.foreign = pin
                    found.append((index, pin))
        return found

    def is_stranger(self, partition: int, pin: str) -> bool:
        """Whether this id is known to be none of the query's attempts (`strangers` was called)."""
        return bool(pin) and pin == self._partitions[partition].foreign

    def report(self, partition: int) -> dict[str, Any]:
        """
        As the query's progress shows it: who is pinned, since when by the server's clock (or since
        when nobody is); how often somebody was; pins of other clients; pins that ended, by what.
        `admin` leaves out what the query's own attempts did, `attempt`.
        """
        state = self._partitions[partition]
        unpins = dict(state.unpins)
        unpins["admin"] = max(0, unpins["admin"] - unpins["attempt"])
        return {
            "pinned": state.pinned or None,
            "pinnedTs": state.since,
            "pins": state.pins,
            "strangers": state.strangers,
            "unpins": unpins,
        }

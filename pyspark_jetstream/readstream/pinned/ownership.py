"""
Ownership of pins: the holder of each, and the pulls of others that are an error.

The server does not say who pulls. What it says is compared with what this query knows of itself:

* the *metadata* of a consumer names the query that prepared it last, and a subject on which its
  driver answers as long as it lives;
* a *pin* that none of the query's attempts has announced is another client's;
* a pull that *waits* while no attempt runs is another client's, unless it is left over from an
  attempt that was cut off, which ends within `requestTimeout`.

Who is pinned is told from advisories of the server and from what attempts announce.

Rule 1: no I/O and no clock; callers pass what came, and `now`.
Rule 2: an id is a stranger's only if its advisory came on the connection that announcements come
on too, and none came in time. After a break of that connection nothing older is judged.

Advisories: ADR-42, `$JS.EVENT.ADVISORY.CONSUMER.{PINNED,UNPINNED}`. That a leader was elected ends
a pin without one (a pin is in the memory of the consumer's leader).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...fetch.owner import ANNOUNCED_WITHIN_S, STRANGER, UNJUDGED

_MAX_NAME: Final = 200
_MAX_IDS: Final = 1000
"""Announced ids that are remembered, a partition."""

_SAID_EVERY_S: Final = 60.0
"""Between two lines about strangers at one partition: a client may take the pin each second."""


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """One consumer as seen before a batch, while no attempt of the query runs."""

    pinned: str
    """The pinned client's id, "" when nobody is."""
    stranger: bool
    """Whether that id is known to be none of the query's attempts."""
    waiting: int
    """Pulls that are open."""
    waiting_for_s: float
    """Seconds for which pulls were open at every look."""
    settles: bool
    """Whether a message that another client acknowledges is gone."""
    gap_s: float
    """Time since the batch before was planned."""
    timeout_s: float
    """The consumer's `priority_timeout`."""
    age_s: float
    """Time since this run began: at first, an attempt of the run before it may still be alive."""
    patience_s: float
    """After so long no attempt that was cut off still pulls."""


def foreign_client(sight: ConsumerView) -> str | None:
    """
    Reason not to go on beside another client of the consumer; None when the query can.

    Alone, a pin that lapses between batches costs nothing, because every attempt takes it anew. A
    stranger who came and went costs nothing either where nothing is acknowledged.
    """
    if sight.stranger and sight.age_s > sight.patience_s:
        lapsed = sight.gap_s > sight.timeout_s
        if lapsed or sight.waiting or sight.settles:
            why = (
                f": {sight.gap_s:.0f}s passed since the batch before, and a pin lasts"
                f" {sight.timeout_s:.0f}s (priorityTimeout). Set priorityTimeout above the"
                " trigger's interval, and"
                if lapsed
                else "."
            )
            return (
                f"another client is pinned, with id '{sight.pinned}', which none of this query's"
                f" attempts has{why} let no other client pull from this consumer, or give the query"
                " another name in option consumer"
            )
    if sight.waiting and sight.waiting_for_s > sight.patience_s:
        return (
            f"{sight.waiting} pulls of another client wait, and did each time in the last"
            f" {sight.waiting_for_s:.0f}s before a batch: it would be pinned, and take messages,"
            " whenever this query's pin ends (priorityTimeout"
            f" {sight.timeout_s:.0f}s, time between batches {sight.gap_s:.0f}s); let no other"
            " client pull from this consumer, or give the query another name in option consumer"
        )
    return None


class _PartitionPins:
    """Pins of one partition's consumer."""

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
        self.say_at = -math.inf
        """Time when a stranger's pin is to be said again."""


class Pins:
    """The pins of all partitions of a query."""

    def __init__(self, consumers: Mapping[tuple[str, str], int]) -> None:
        """Args: consumers: partition by (stream, consumer)."""
        self.audible = False
        """Whether announcements arrive: one of our own came back."""
        self.query_name = ""
        """The name that Spark's user gave the query: its attempts know it, its driver does not."""
        self.consumers = dict(consumers)
        self._partitions = {index: _PartitionPins() for index in consumers.values()}

    def add_advisory(self, event: Mapping[str, Any], now: float) -> str | None:
        """Adds an advisory; the line to log of it, None when it is not about these consumers."""
        name = (str(event.get("stream")), str(event.get("consumer")))
        kind = str(event.get("type", "")).rpartition(".")[2]
        if name not in self.consumers:
            return None
        partition = self._partitions[self.consumers[name]]
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
        # An attempt's UNPIN is an administrator's to the server; `report` tells them apart.
        said = "UNPIN" if reason == "admin" else reason
        return f"unpinned {what} id={was or '-'} reason={said}"

    def elected(self, event: Mapping[str, Any]) -> int | None:
        """The partition of whose consumer an advisory says that a leader was elected."""
        if not str(event.get("type", "")).endswith(".consumer_leader_elected"):
            return None
        return self.consumers.get((str(event.get("stream")), str(event.get("consumer"))))

    def add_announcement(self, note: Mapping[str, Any]) -> None:
        """Adds an attempt's announcement: the id it has, or that it has unpinned whoever was."""
        partition = self._named(note)
        if note.get("hello"):
            self.audible = True
        if partition is None:
            return
        if note.get("unpin"):
            partition.unpins["attempt"] += 1
        pin = str(note.get("pinned") or "")
        if pin:
            self.query_name = str(note.get("name") or "")[:_MAX_NAME]
            partition.announced[pin] = None
            partition.unjudged.pop(pin, None)
            if pin == partition.foreign:  # late, but ours
                partition.foreign = ""
                partition.strangers -= 1
            if len(partition.announced) > _MAX_IDS:
                partition.announced.popitem(last=False)

    def set_pinned(self, partition: int, pin: str, since: str) -> None:
        """Notes who is pinned by the server's own word (CONSUMER.INFO); "" for nobody."""
        state = self._partitions[partition]
        if pin != state.pinned:
            state.pinned, state.since = pin, since if pin else None

    def break_off(self) -> None:
        """Forgets what is not judged: the connection broke, and announcements may be lost."""
        self.audible = False
        for partition in self._partitions.values():
            partition.unjudged.clear()

    def strangers(self, now: float) -> list[tuple[int, str, int]]:
        """
        (partition, id, number of such pins so far) of pins that turned out not to be this query's
        since the last call; of each partition one a minute at most, as all are counted.
        """
        strangers: list[tuple[int, str, int]] = []
        if not self.audible:
            return strangers
        for index, partition in self._partitions.items():
            for pin, heard in list(partition.unjudged.items()):
                if now - heard > ANNOUNCED_WITHIN_S:
                    del partition.unjudged[pin]
                    partition.strangers += 1
                    partition.foreign = pin
                    if now >= partition.say_at:
                        partition.say_at = now + _SAID_EVERY_S
                        strangers.append((index, pin, partition.strangers))
        return strangers

    def is_stranger(self, partition: int, pin: str) -> bool:
        """Whether this id is known to be none of the query's attempts (`strangers` was called)."""
        return bool(pin) and pin == self._partitions[partition].foreign

    def pin(self, partition: int) -> str:
        """The id that an attempt of this query announced last, "" if none has."""
        state = self._partitions.get(partition)
        return next(reversed(state.announced), "") if state is not None else ""

    def _named(self, note: Mapping[str, Any]) -> _PartitionPins | None:
        index = note.get("partition")  # anybody may publish there, and anything
        return self._partitions.get(index) if isinstance(index, int) else None

    def is_announced(self, question: Mapping[str, Any]) -> bool | None:
        """Whether an attempt has announced `pin` of `partition`; None if that cannot be known."""
        partition = self._named(question)
        if partition is None or not self.audible:
            return None
        return str(question.get("pin")) in partition.announced

    def verdict(self, question: Mapping[str, Any]) -> bytes:
        """
        Verdict on `pin` of `partition`: `STRANGER`, `UNJUDGED`, or nothing against it, as of one
        that an earlier run of the query had.
        """
        partition, pin = self._named(question), str(question.get("pin"))
        if partition is None or not self.audible:
            return b""
        if pin in partition.unjudged:
            return UNJUDGED
        return STRANGER if pin and pin == partition.foreign else b""

    def report(self, partition: int) -> dict[str, Any]:
        """
        As the query's progress shows it: who is pinned, since when by the server's clock (or since
        when nobody is); how often somebody was; pins of other clients; pins that ended, by what.
        `admin` leaves out what the query's own attempts did, `attempt`. Empty before there is a
        consumer.
        """
        state = self._partitions.get(partition)
        if state is None:
            return {}
        unpins = dict(state.unpins)
        unpins["admin"] = max(0, unpins["admin"] - unpins["attempt"])
        return {
            "pinned": state.pinned or None,
            "pinnedTs": state.since,
            "pins": state.pins,
            "strangers": state.strangers,
            "unpins": unpins,
        }

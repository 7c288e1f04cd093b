"""
Leases of hot standbys, as operators read them: who holds one, until when, and who waits.

What stands in the bucket `SPARK_STANDBY` is told, nothing goes by it. All times are the server's:
when it stored a record, and when it was asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from ...client.info import StoredMessage, parse_time
from ...errors import OffsetError
from ...fetch.owner import Owner
from ...readstream.offsets import Offset
from ...readstream.standby import BUCKET, SEVERAL, LeaseRecord

_KEY: Final = re.compile(r"([^.]+)\.([^.]+)(?:\.waits\.[^.]+)?")


@dataclass(frozen=True, slots=True)
class WaitingState:
    """A query that waits for another one's lease."""

    query: str
    name: str
    """The user's name for it; "" where it has none."""
    host: str
    pid: int
    seen: str
    """Time of its last report."""

    @property
    def called(self) -> str:
        """The user's name for it, else its id."""
        return self.name or self.query


@dataclass(frozen=True, slots=True)
class LeaseState:
    """One lease; times are RFC 3339."""

    stream: str
    """With `{partition}` for the number, where each partition has a stream; of several how many."""
    consumer: str
    holder: str = ""
    """The id of the query that reads, "" of nobody."""
    name: str = ""
    host: str = ""
    pid: int = 0
    term: int = 0
    """Number of times that it has changed hands."""
    renewed: str = ""
    until: str = ""
    """Till then nobody takes it, unless its holder gives it back."""
    left_s: float | None = None
    """
    Seconds until then; less than zero: it has run out. None where nobody holds it, or whoever held
    it last reads on without it.
    """
    streams: tuple[str, ...] = ()
    """Streams that the query reads, of several."""
    waiting: tuple[WaitingState, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def called(self) -> str:
        """The user's name for the query that reads, else its id."""
        return self.name or self.holder

    @property
    def is_read(self) -> bool:
        """Whether somebody reads: the lease's holder, in time, or without it."""
        return bool(self.holder) and (self.left_s is None or self.left_s >= 0)


def wanted_keys(keys: Iterable[str], streams: Sequence[str], consumers: Sequence[str]) -> list[str]:
    """
    The keys of leases of these streams, and of who waits for them; with `consumers` only those of
    these prefixes of consumers.
    """
    found = [(key, _KEY.fullmatch(key)) for key in keys]
    return [
        key
        for key, parts in found
        if parts and _is_of(parts[1], streams) and (not consumers or parts[2] in consumers)
    ]


def lease_states(
    messages: Mapping[str, StoredMessage],
    now: datetime,
    command: Callable[[str], str],
    alone: Collection[tuple[str, str]] = (),
) -> tuple[LeaseState, ...]:
    """
    The leases, by what stands under their keys.

    Args:
        now: by the server's clock.
        command: makes of a command line one that reaches this server, in quotes.
        alone: prefix of the consumers and id of each query that runs without `standby`.
    """
    held: dict[tuple[str, str], StoredMessage] = {}
    waits: dict[tuple[str, str], list[WaitingState]] = {}
    gone: dict[tuple[str, str], list[WaitingState]] = {}
    for key, message in messages.items():
        stream, consumer, *waiting = key.split(".")
        if not waiting:
            if message.data:  # else it was removed
                held[stream, consumer] = message
            continue
        with suppress(OffsetError):  # nobody waits by this
            said = LeaseRecord.from_bytes(message.data)
            is_late = (now - parse_time(message.time)).total_seconds() > said.lease_s
            who = said.owner
            (gone if is_late else waits).setdefault((stream, consumer), []).append(
                WaitingState(who.query, who.name, who.host, who.pid, message.time)
            )
    return tuple(
        _lease(
            place, held.get(place), waits.get(place, []), gone.get(place, []), now, command, alone
        )
        for place in sorted({*held, *waits})
    )


def recorded(messages: Mapping[str, StoredMessage]) -> dict[str, Offset]:
    """Positions of the holders of the leases, by the prefix of their consumers."""
    found = {}
    for key, message in messages.items():
        if ".waits." not in key and message.data:
            with suppress(OffsetError):  # `lease_states` says so
                offset = LeaseRecord.from_bytes(message.data).offset
                if offset is not None:
                    found[offset.consumer] = offset
    return found


def _is_of(token: str, streams: Sequence[str]) -> bool:
    """
    Whether a key's stream is one of these, or may be, as only the record tells; `=` in a name
    stands for the number of a partition.
    """
    pattern = re.escape(token).replace("=", "[0-9]+")
    return token == SEVERAL or any(re.fullmatch(pattern, stream) for stream in streams)


def _alone(record: LeaseRecord, gone: Sequence[WaitingState]) -> str:
    """That nobody waits, and who is missing, as far as that is known."""
    others = [each for each in gone if each.query != record.owner.query]
    last = max(others, key=lambda each: each.seen, default=None)
    known = []
    if last is not None:
        who = Owner(last.query, last.host, last.pid, name=last.name)
        known = [f"{who} waited, the last time at {last.seen[:19]}Z"]
    if last is not None and last.query in record.before:
        known[0] += ". It also read, maybe as another process, before the query that reads now"
    elif record.before:
        known.append(f"{record.before} read before")
    return "; ".join(["nobody waits to take its place", *known])


def _lease(
    place: tuple[str, str],
    message: StoredMessage | None,
    waits: list[WaitingState],
    gone: list[WaitingState],
    now: datetime,
    command: Callable[[str], str],
    alone: Collection[tuple[str, str]],
) -> LeaseState:
    token, consumer = place
    stream = token.replace("=", "{partition}") if token != SEVERAL else "several streams"
    waiting = tuple(sorted(waits, key=lambda each: each.query))
    state = LeaseState(stream, consumer, waiting=waiting)
    if message is None:
        return state
    try:
        record = LeaseRecord.from_bytes(message.data)
    except OffsetError as error:
        return replace(state, problems=(str(error),))
    who: Owner = record.owner
    waiting = tuple(each for each in waiting if each.query != who.query)
    state = replace(state, term=record.term, renewed=message.time, waiting=waiting)
    if token == SEVERAL and record.offset is not None:
        streams = tuple(sorted(record.offset.streams))
        state = replace(state, stream=f"{len(streams)} streams", streams=streams)
    until = parse_time(message.time) + timedelta(seconds=record.lease_s)
    left_s = (until - now).total_seconds()
    removes = f"{command(f'nats kv del {BUCKET} {token}.{consumer}')} removes the lease"
    if (record.released or left_s < 0) and not waiting and (consumer, who.query) in alone:
        note = f"query {who.name or who.query} reads without standby; {removes}"
        return replace(state, holder=who.query, name=who.name, notes=(note,))
    if record.released:
        ended = "given back: that query has ended, cleanly or by an error"
        return replace(state, notes=(ended,))
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    if left_s < 0:
        notes = ("ran out: its query is gone, or cut off",)
    elif not waiting:
        notes = (_alone(record, gone),)
    if left_s < 0 and not waiting:
        problems = (
            "nobody reads: the lease ran out, and nobody waits. If no query has standby=true any"
            f" more, {removes}",
        )
    return replace(
        state, holder=who.query, name=who.name, host=who.host, pid=who.pid,
        until=until.isoformat(), left_s=left_s, problems=problems, notes=notes,
    )  # fmt: skip

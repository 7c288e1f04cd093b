"""
What a look at a server and a checkpoint shows, and what of it is a problem.

Rule 1: what a query takes for granted is judged by the query's own list (`fetch.durable`,
`fetch.dataloss`), so there is a problem where a query would stop. A problem is what costs messages,
or will when the query starts again; a query that has ended is none, as somebody may have stopped
it. Each has the command that mends it, where there is one. A note is what may be nothing.
Rule 2: this module performs no I/O and reads no clock.

Each function makes the row that people and programs get, so the names in it count, and adds to the
problems and notes of a `Report`. Times are RFC 3339; what is not known, or not there, is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...client.info import ConsumerInfo, StreamInfo, consumer_info_of
from ...fetch import durable
from ...fetch.dataloss import Sign, loss_of
from ...fetch.durable import FILTER, Durable, Owner, consumer_config, misfit_of
from ...fetch.layout import SubjectPartition
from ...fetch.own import NAMES
from ...readstream.offsets import Offset
from ...readstream.shared.claims import ClaimedOffset
from ...write.exactlyonce.records import Committed

Row = dict[str, Any]

_NEAR: Final = 90
"""Per cent of a limit at which a stream that refuses what is too much is noted."""

_GO_ON: Final = "to go on with what is there, start the query with failOnDataLoss=false"
_OWN: Final = "the consumers: it is this checkpoint's query"
_OTHER: Final = "the consumers; this checkpoint's stands by, or has ended: then start it again"
_NEW_CHECKPOINT: Final = "give the query a new checkpointLocation, or the stream that it had"


@dataclass
class Report:
    """What one look has found; its fields are those of the JSON document."""

    time: str
    server: str
    checkpoint: Row | None = None
    streams: list[Row] = field(default_factory=list)
    consumers: list[Row] = field(default_factory=list)
    positions: list[Row] = field(default_factory=list)
    """Partitions of the checkpoint's sources."""
    writes: list[Row] = field(default_factory=list)
    """Last batches in the ledger, a row a target."""
    problems: list[str] = field(default_factory=list)
    """A line each, with its place."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the server has of the streams and consumers of a checkpoint."""

    streams: Mapping[str, StreamInfo]
    """By name, as far as they are there."""
    consumers: dict[tuple[str, str], ConsumerInfo | None]
    """By stream and name, as far as they are there; None where no leader answers."""
    replaced: Collection[str] = ()
    """Streams in which another message stands than when the checkpoint was written."""


# ── what the server says ─────────────────────────────────────────────────────────────────────


def add_stream(report: Report, info: StreamInfo, command: Callable[[str], str]) -> None:
    """A stream, with how near it is to its limits."""
    where, mean = f"stream {info.name}", info.bytes / max(1, info.messages)
    counts = [("msgs", "messages", info.messages, 1), ("bytes", "bytes", info.bytes, mean)]
    limits = [
        (limit, *count)
        for count in counts
        if (limit := info.config.get(f"max_{count[0]}") or 0) > 0
    ]
    percent = max((100 * used // limit for limit, _, _, used, _ in limits), default=None)
    report.streams.append({
        "stream": info.name, "retention": info.retention, "messages": info.messages,
        "bytes": info.bytes, "used_percent": percent,
        "discard": info.config.get("discard") if limits else None,
        "first": info.first_seq, "last": info.last_seq,
        "subjects": list(info.config.get("subjects") or ()),
    })  # fmt: skip
    if percent is None or info.config.get("discard") != "new":
        return
    flags = " ".join(f"--max-{flag}=…" for _, flag, *_ in limits)
    has = " and ".join(f"{limit:,} {of}" for limit, _, of, *_ in limits)
    room = f"its limit is {has}: make room, or raise it"
    mend = f"{room} ({command(f'nats stream edit {info.name} {flags} --force')})"
    if any(used + one > limit for limit, _, _, used, one in limits):
        refuses = "is full, and refuses what is published (discard new)"
        report.problems.append(f"{where}: {refuses}; {mend}")
    elif percent >= _NEAR:
        report.notes.append(f"{where}: {percent}% of a limit is used; {mend}")


def consumer_row(stream: str, answer: Mapping[str, Any]) -> Row:
    """
    A consumer of a CONSUMER.LIST answer: whose it is, who sits there, and how far it is. One that
    queries share names none of them, and is known by how it is dealt out.
    """
    config, name = answer.get("config") or {}, str(answer.get("name"))
    owner, policy = Owner.of(config), config.get("priority_policy")
    (group, *_) = answer.get("priority_groups") or [{}]
    pinned, acks = group.get("pinned_client_id") or None, config.get("ack_policy", "none") != "none"
    is_shared = policy in ("overflow", "prioritized") and config.get("ack_policy") == "explicit"
    query = (owner.name or owner.query) if owner else name.rpartition("-")[0] if is_shared else ""
    is_seat, waits = owner is not None and policy == "pinned_client", answer.get("num_waiting")
    filters = config.get("filter_subjects") or [config.get("filter_subject")]
    return {
        "consumer": name, "stream": stream, "lag": int(answer.get("num_pending") or 0),
        "query": query or (name if owner or is_shared else None),
        "host": owner.host if owner else None,
        "runs": bool(pinned or waits) if is_seat else None, "policy": policy,
        "pinned": pinned, "pinned_since": group.get("pinned_ts") if pinned else None,
        "filters": [each for each in filters if each],
        "ack_pending": int(answer.get("num_ack_pending") or 0) if acks else None,
        "redelivered": int(answer.get("num_redelivered") or 0) if acks else None,
        "paused_until": config.get("pause_until") if answer.get("paused") else None,
    }  # fmt: skip


def add_consumer(
    report: Report, stream: str, answer: Mapping[str, Any], command: Callable[[str], str],
    retention: str = "limits",
) -> None:  # fmt: skip
    """A consumer, and what somebody has done to it."""
    report.consumers.append(row := consumer_row(stream, answer))
    config, name = answer.get("config") or {}, row["consumer"]
    if Owner.of(config) is None or name.startswith(NAMES):
        return
    info = consumer_info_of(dict(answer))
    is_shared = config.get("description") != durable.DESCRIPTION  # and made otherwise
    made = Durable(
        partition=0, stream=stream, name=name, group=(config.get("priority_groups") or [""])[0],
        filter=(config.get("metadata") or {}).get(FILTER, config.get("filter_subject")) or None,
        retention=retention,
    )  # fmt: skip
    of_query = name if is_shared else re.sub(r"-\d+$", "", name)  # one command for all partitions
    if not is_shared and (edit := misfit_of(consumer_config(made), info)):
        mend = durable.way_back(stream, name, retention == "limits", command)
        report.problems.append(f"consumer {stream}/{name}: {edit}; {mend}")
    if pause := durable.pause_of(info):
        mend = durable.resumed_by(command, stream, of_query)
        report.problems.append(f"consumer {stream}/{name}: {pause} ({mend})")


def add_silent(report: Report, stream: str, consumer: str) -> None:
    """A consumer of which no leader answers."""
    report.consumers.append({"consumer": consumer, "stream": stream})
    report.problems.append(
        f"consumer {stream}/{consumer}: no leader answers: start the servers that have it"
    )


def add_idle(report: Report) -> None:
    """Notes the queries that do not run, or are amid a batch, while messages wait for them."""
    waiting: dict[tuple[str, str], list[Row]] = {}
    for row in report.consumers:
        if row.get("runs") is False:
            waiting.setdefault((row["query"], row["host"]), []).append(row)
    for (query, host), its in waiting.items():
        if not (lag := sum(row["lag"] for row in its)):
            continue
        report.notes.append(
            f"query {query} does not run, or is amid a batch, and {lag:,} messages wait for it. If"
            f" nobody stopped it, look at the end of its log on host {host}, and start it again"
            " over its checkpoint"
        )


def add_write(
    report: Report, write: str, last: Committed, streams: Mapping[str, StreamInfo],
    forget: str, is_asked: bool,
) -> None:  # fmt: skip
    """
    The last batch that a query has written, and its targets.

    Args:
        forget: the command that makes the ledger forget the query.
        is_asked: whether the query itself is looked at; the ledger also has those that are no more.
    """
    for target in last.streams.values():
        row = {"write": write, "batch": last.batch, "stream": target.name, "up_to": target.end}
        report.writes.append(row)
        if (why := target.loss(streams.get(target.name))) is not None:
            (report.problems if is_asked else report.notes).append(
                f"write {write}, stream {target.name}: {why}. If that is meant, {forget} makes the"
                " ledger forget the query, and it may write on"
            )


# ── what the checkpoint says ─────────────────────────────────────────────────────────────────


def add_position(
    report: Report, source: str, partition: SubjectPartition, ends: tuple[Offset, Offset],
    seen: Seen,
) -> None:  # fmt: skip
    """
    A partition of a checkpoint beside what the server holds.

    Args:
        ends: of the last batch that is done, in the layout of the second one: of the last planned.
    """
    committed, planned = ends
    index, stream = partition.index, partition.stream
    info, key = seen.streams.get(stream), (stream, f"{planned.consumer}-{index}")
    created, upto = planned.streams.get(stream, ""), planned.sequences[index]
    # Of a stream that was made anew the batch that is done says nothing.
    is_same = committed.streams.get(stream) == created
    done = (committed.sequences if is_same else planned.resumed or planned.base)[index]
    report.positions.append({
        "source": source, "partition": index, "stream": stream, "filter": partition.filter,
        "committed": done, "planned": upto,
        "first": info.first_seq if info else None, "last": info.last_seq if info else None,
    })  # fmt: skip
    where, problems = f"source {source}, partition {index} of {stream}", []
    if info is None:
        problems.append(f"stream is gone; {_NEW_CHECKPOINT}")
    else:
        loss = loss_of(info, created, upto, stream in seen.replaced) or loss_of(info, created, done)
        if loss is not None:
            mend = _NEW_CHECKPOINT if loss.sign is Sign.ANEW else _GO_ON
            problems.append(f"{loss.text}; {mend}")
        # On limits streams nothing is lost with a consumer, and an idle one goes away by itself.
        consumer = seen.consumers.get(key)
        if info.retention != "limits" and key not in seen.consumers:
            problems.append(f"consumer is gone; {_GO_ON}")
        made = planned.consumers.get(index) if info.retention == "interest" else None
        if made is not None and consumer is not None and consumer.created != made:
            problems.append(f"consumer was made anew; {_GO_ON}")
        owner = Owner.of(consumer.config) if consumer is not None else None
        if owner is not None and planned.query:
            if owner.standby and index == 0:  # the first seat says whose they are
                who = f"source {source}: process {owner.pid} on host {owner.host} has"
                report.notes.append(f"{who} {_OWN if owner.query == planned.query else _OTHER}")
            elif owner.query != planned.query and not owner.standby:
                mend = "give one of the two queries another consumer"
                problems.append(f"consumer '{key[1]}' is that of {owner}: {mend}")
    report.problems += [f"{where}: {problem}" for problem in problems]


def add_shared(report: Report, source: str, planned: ClaimedOffset, seen: Seen) -> None:
    """A source that shares its consumers, whose rows are among the consumers."""
    for stream, created in planned.streams.items():
        info, where = seen.streams.get(stream), f"source {source}, stream {stream}"
        if info is None:
            report.problems.append(f"{where}: stream is gone; {_NEW_CHECKPOINT}")
        elif info.created != created:
            report.problems.append(f"{where}: {Sign.ANEW.value}; {_NEW_CHECKPOINT}")
    there = {name for _, name in seen.consumers}
    for name in (f"{planned.consumer}-{index}" for index in range(planned.partitions)):
        if name not in there:
            gone = f"consumer '{name}': consumer is gone"
            report.problems.append(f"source {source}, {gone}; {_GO_ON}")

"""
What a look at a server and a checkpoint shows, and what of it is a problem.

Rule 1: what a query takes for granted is judged by the query's own list (`fetch.assumptions`,
`fetch.dataloss`), so there is a problem where a query would stop. A problem is what costs messages,
or will when the query starts again; a query that has ended is none, as somebody may have stopped
it. Each has the command that mends it, where there is one. A note is what may be nothing: a
consumer beyond the checkpoint belongs to one that was set back, or to two queries.
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
from ...fetch.assumptions import Assumption, consumer_changes, resumed_by
from ...fetch.dataloss import Loss, Sign, loss_of
from ...fetch.durable import DESCRIPTION, Durable, consumer_config, way_back
from ...fetch.layout import SubjectPartition
from ...fetch.own import NAMES
from ...fetch.owner import FILTER, Owner
from ...readstream.offsets import Offset
from ...readstream.shared.claims import ClaimedOffset, length
from ...write.exactlyonce.records import Committed

Row = dict[str, Any]

_NEAR: Final = 90
"""Per cent of a limit at which a stream that refuses what is too much is noted."""

_NAMED: Final = 4
"""Consumers that one line names."""

_NEVER: Final = "0001-01-01T00:00:00Z"
"""The server's word for a time that has not been."""


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
    claims: list[Row] = field(default_factory=list)
    """Those of sources that share their consumers."""
    writes: list[Row] = field(default_factory=list)
    """Last batches in the ledger, a row a target."""
    problems: list[str] = field(default_factory=list)
    """A line each, with its place."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the server has of the streams and consumers of a checkpoint."""

    command: Callable[[str], str]
    """A command line in quotes, as it reaches the server that was asked (`ConnectionOptions`)."""
    streams: Mapping[str, StreamInfo]
    """By name, as far as they are there."""
    consumers: Mapping[tuple[str, str], ConsumerInfo | None]
    """By stream and name, as far as they are there; None where no leader answers."""
    outgrown: Collection[str] = ()
    """Streams in which another message stands than when the checkpoint was written."""


# ── what the server says ─────────────────────────────────────────────────────────────────────


def add_stream(report: Report, info: StreamInfo, command: Callable[[str], str]) -> None:
    """A stream, with how near it is to its limits."""
    config, cluster, where = info.config, info.cluster, f"stream {info.name}"

    def limit(key: str) -> int | None:
        value = int(config.get(key) or 0)
        return value if value > 0 else None

    most, room, refuses = limit("max_msgs"), limit("max_bytes"), config.get("discard") == "new"
    parts = [100 * n // of for n, of in ((info.messages, most), (info.bytes, room)) if of]
    mean = info.bytes / max(1, info.messages)
    is_full = (most and info.messages >= most) or (room and info.bytes + mean > room)
    age = limit("max_age")
    report.streams.append({
        "stream": info.name, "retention": info.retention,
        "messages": info.messages, "bytes": info.bytes, "used_percent": max(parts, default=None),
        "max_messages": most, "max_bytes": room, "max_age_s": age / 1e9 if age else None,
        "max_per_subject": limit("max_msgs_per_subject"),
        "discard": config.get("discard") if most or room else None,
        "first": info.first_seq, "last": info.last_seq,
        "subjects": list(config.get("subjects") or ()),
        "replicas": info.replicas, "leader": cluster.get("leader") or None, "created": info.created,
    })  # fmt: skip
    report.problems += [
        f"{where}: replica {each.get('name')} is offline: start that server again"
        for each in cluster.get("replicas") or ()
        if each.get("offline")
    ]
    if refuses and is_full:
        report.problems.append(
            f"{where}: is full, and refuses what is published (discard new); {_room(info, command)}"
        )
    elif refuses and max(parts, default=0) >= _NEAR:
        report.notes.append(f"{where}: {max(parts)}% of a limit is used; {_room(info, command)}")


def _room(info: StreamInfo, command: Callable[[str], str]) -> str:
    """The limits of a stream that is full, and what raises them."""
    given, flags = [], ""
    for key, flag, of in (("max_msgs", "msgs", "messages"), ("max_bytes", "bytes", "bytes")):
        if (limit := int(info.config.get(key) or 0)) > 0:
            given.append(f"{limit:,} {of}")
            flags += f" --max-{flag}=…"
    how = f"raise it ({command(f'nats stream edit {info.name}{flags}')})"
    return f"its limit is {' and '.join(given)}: make room, or {how}"


def add_consumer(
    report: Report, stream: str, answer: Mapping[str, Any], command: Callable[[str], str],
    retention: str = "limits",
) -> None:  # fmt: skip
    """A consumer of a CONSUMER.LIST answer: whose it is, who sits there, and how far it is."""
    config, delivered = answer.get("config") or {}, answer.get("delivered") or {}
    owner, name = Owner.of(config) or Owner("", "", 0), str(answer.get("name"))
    group = (answer.get("priority_groups") or [{}])[0]
    groups, one = config.get("priority_groups") or [""], config.get("filter_subject")
    pinned = group.get("pinned_client_id") or None
    since, waiting = str(group.get("pinned_ts") or _NEVER), int(answer.get("num_waiting") or 0)
    is_pinned = config.get("priority_policy") == "pinned_client"
    report.consumers.append({
        "consumer": name, "stream": stream, "lag": int(answer.get("num_pending") or 0),
        "query": owner.name or owner.query or None, "host": owner.host or None,
        "runs": bool(pinned or waiting) if owner.query and is_pinned else None,
        "policy": config.get("priority_policy") if groups[0] else None, "group": groups[0] or None,
        "pinned": pinned, "pinned_since": since if pinned and since != _NEVER else None,
        "waiting": waiting,
        "filters": config.get("filter_subjects") or [one] * bool(one),
        "delivered": int(delivered.get("stream_seq") or 0),
        "last_active": delivered.get("last_active") or None,
        "ack_floor": int((answer.get("ack_floor") or {}).get("stream_seq") or 0),
        "ack_pending": int(answer.get("num_ack_pending") or 0),
        "redelivered": int(answer.get("num_redelivered") or 0),
        "paused_until": config.get("pause_until") if answer.get("paused") else None,
    })  # fmt: skip
    if not owner.query or name.startswith(NAMES):
        return
    where, info = f"consumer {stream}/{name}", consumer_info_of(dict(answer))
    is_shared = config.get("description") != DESCRIPTION  # and made otherwise
    made = Durable(
        partition=0, stream=stream, name=name, group=groups[0], retention=retention,
        filter=(config.get("metadata") or {}).get(FILTER, config.get("filter_subject")) or None,
    )  # fmt: skip
    of_query = name if is_shared else re.sub(r"-\d+$", "", name)  # one command for all partitions
    for change in consumer_changes(consumer_config(made), info):
        if change.of is Assumption.NOT_PAUSED:
            mend = f" ({resumed_by(command, stream, of_query)})"
        elif is_shared:
            continue
        else:
            mend = f"; {way_back(stream, name, retention == 'limits', command)}"
        report.problems.append(f"{where}: {change.text}{mend}")


def add_silent(report: Report, stream: str, consumer: str) -> None:
    """A consumer of which no leader answers."""
    report.consumers.append({"consumer": consumer, "stream": stream})
    report.problems.append(
        f"consumer {stream}/{consumer}: no leader answers: start the servers that have it"
    )


def add_idle(report: Report, command: Callable[[str], str]) -> None:
    """Notes the queries that do not run, or are amid a batch, while messages wait for them."""
    waiting: dict[tuple[str, str], list[Row]] = {}
    for row in report.consumers:
        if row.get("runs") is False:
            waiting.setdefault((row["query"], row["host"]), []).append(row)
    for (query, host), its in waiting.items():
        if not (lag := sum(row["lag"] for row in its)):
            continue
        remove = [command(f"nats consumer rm {e['stream']} {e['consumer']}") for e in its[:_NAMED]]
        report.notes.append(
            f"query {query} does not run, or is amid a batch, and {lag:,} messages wait for it. If"
            f" nobody stopped it, look at the end of its log on host {host}, and start it again"
            " over its checkpoint. If the checkpoint is gone, remove its consumers:"
            f" {', '.join(remove)}{', …' if len(its) > _NAMED else ''}"
        )


def add_write(
    report: Report, write: str, last: Committed, seen: Seen, forget: str, is_asked: bool
) -> None:
    """
    The last batch that a query has written, and its targets.

    Args:
        forget: the command that makes the ledger forget the query.
        is_asked: whether the query itself is looked at; the ledger also has those that are no more.
    """
    for target in last.streams.values():
        row = {"write": write, "batch": last.batch, "stream": target.name, "up_to": target.end}
        report.writes.append(row)
        if (why := target.loss(seen.streams.get(target.name))) is not None:
            (report.problems if is_asked else report.notes).append(
                f"write {write}, stream {target.name}: {why}. If that is meant, {forget} makes the"
                " ledger forget the query, and it may write on"
            )


# ── what the checkpoint says ─────────────────────────────────────────────────────────────────


def is_ours(value: Any) -> bool:
    """Whether a JSON value in a checkpoint is an offset of this package, of whatever version."""
    if not isinstance(value, Mapping) or "version" not in value:
        return False
    return "initial" in value or {"consumer", "streams"} <= value.keys()


def read_up_to(committed: Offset | None, planned: Offset, index: int, stream: str) -> int:
    """The last sequence of partition `index` that is in a batch that is done."""
    if committed is not None and committed.streams.get(stream) == planned.streams.get(stream):
        return committed.sequences[index]
    # Of a stream that was made anew, or gone over to, or before the first batch.
    return (planned.resumed or planned.base)[index]


def add_position(
    report: Report, source: str, partition: SubjectPartition, committed: Offset | None,
    planned: Offset, seen: Seen, behind: int | None,
) -> None:  # fmt: skip
    """
    A partition of a checkpoint beside what the server holds.

    Args:
        planned: what the last batch that was planned ends with; `committed` the last done.
        behind: messages that are in no batch that is done, where the server can tell.
    """
    index, stream = partition.index, partition.stream
    info, key = seen.streams.get(stream), (stream, f"{planned.consumer}-{partition.index}")
    consumer = seen.consumers.get(key)
    done, upto = read_up_to(committed, planned, index, stream), planned.sequences[index]
    where = f"source {source}, partition {index} of {stream}"
    loss: Loss | None = None
    if info is None:
        report.problems.append(f"{where}: stream is gone; {_NEW_CHECKPOINT}")
    else:
        created = planned.streams.get(stream, "")
        loss = loss_of(info, created, upto, stream in seen.outgrown)
        loss = loss or loss_of(info, created, done)
        if loss is not None:
            report.problems.append(f"{where}: {_in_short(loss, info, done, upto, partition)}")
        # On limits streams nothing is lost with a consumer, and an idle one goes away by itself.
        if committed is not None and info.retention != "limits" and key not in seen.consumers:
            report.problems.append(f"{where}: {Assumption.CONSUMER_THERE.value}; {_GO_ON}")
        made = planned.consumers.get(index) if info.retention == "interest" else None
        if made is not None and consumer is not None and consumer.created != made.created:
            report.problems.append(f"{where}: {Assumption.SAME_CONSUMER.value}; {_GO_ON}")
    if loss is None and consumer is not None and consumer.stream_seq > upto:
        report.notes.append(f"{where}: consumer beyond the checkpoint, mostly until the next batch")
    is_other = info is None or (loss is not None and loss.sign is Sign.ANEW)
    report.positions.append({
        "source": source, "consumers": planned.consumer,
        "partition": index, "stream": stream, "filter": partition.filter,
        "committed": done, "planned": upto,
        "first": info.first_seq if info else None, "last": info.last_seq if info else None,
        "at_consumer": consumer.stream_seq if consumer is not None else None,
        "uncommitted": None if is_other else behind,
    })  # fmt: skip


_GO_ON: Final = "to go on with what is there, start the query with failOnDataLoss=false"
_NEW_CHECKPOINT: Final = "give the query a new checkpointLocation, or the stream that it had"


def _in_short(loss: Loss, info: StreamInfo, done: int, upto: int, of: SubjectPartition) -> str:
    """A stream's problem with its numbers, and what there is to do."""
    if loss.sign is Sign.SHORTER:
        what = f"{loss.sign.value}: it ends at {info.last_seq:,}, the checkpoint is at {upto:,}"
    elif loss.sign is Sign.REMOVED:
        bound = "up to " if of.filter is not None else ""
        what = f"{bound}{info.first_seq - 1 - done:,} {loss.sign.value}"
    else:
        what = str(loss.sign.value)
    return f"{what}; {_NEW_CHECKPOINT if loss.sign is Sign.ANEW else _GO_ON}"


def add_claims(
    report: Report, source: str, partition: SubjectPartition, claims: ClaimedOffset,
    committed: bool, seen: Seen,
) -> None:  # fmt: skip
    """Claims of a batch on a partition that is read with others."""
    called, stream = str(partition.index), partition.stream
    by_count = claims.claims.get(called, {})
    ranges = [span for ranges in by_count.values() for span in ranges]
    state, key = seen.streams.get(stream), (stream, f"{claims.consumer}-{called}")
    consumer = seen.consumers.get(key)
    where = f"source {source}, partition {called} of {stream}"
    if state is None:
        report.problems.append(f"{where}: stream is gone; {_NEW_CHECKPOINT}")
    elif state.created != claims.streams.get(stream):
        report.problems.append(f"{where}: {Sign.ANEW.value}; {_NEW_CHECKPOINT}")
    else:
        gone = sum(max(0, min(high + 1, state.first_seq) - low) for low, high in ranges)
        if gone and not committed:
            report.problems.append(f"{where}: {gone:,} claimed messages left the stream; {_GO_ON}")
        if key not in seen.consumers:
            report.problems.append(f"{where}: {Assumption.CONSUMER_THERE.value}; {_GO_ON}")
    report.claims.append({
        "source": source, "consumers": claims.consumer, "policy": claims.policy,
        "partition": partition.index, "stream": stream, "claimed": claims.count(called),
        "first": min(ranges)[0] if ranges else None, "last": max(ranges)[1] if ranges else None,
        "redelivered": sum(length(ranges) for count, ranges in by_count.items() if count > 1),
        "ack_pending": consumer.num_ack_pending if consumer is not None else None,
    })  # fmt: skip

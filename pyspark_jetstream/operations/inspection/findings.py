"""
Findings of an inspection, and the problems among them.

Rule 1: every judgement is made here, of what `inspection` was told by the server and the
checkpoint; what a query takes for granted is judged by the query's own list (`fetch.assumptions`),
so there is a problem where a query would stop. A problem is what costs messages, or will when the
query starts again; a consumer that went away where nothing depends on it, or a batch that is not
committed yet, is none. A note is what may be nothing: a consumer that stands beyond the checkpoint
belongs to a checkpoint that was set back, or to two queries, or to one whose open pulls had asked
for more than the batch (seen in each of three runs of a real query); the next batch puts it right
in any case. Rule 2: this module performs no I/O and reads no clock.

`dataclasses.asdict` of an `Inspection` is what programs get as JSON, so names of fields count.
Rates are messages a second, and None where one look does not tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from ...client.info import ConsumerInfo, StreamInfo, consumer_info_of
from ...fetch.assumptions import (
    Assumption,
    consumer_changes,
    resumed_by,
)
from ...fetch.dataloss import Loss, Sign, loss_of
from ...fetch.durable import DESCRIPTION, Durable, consumer_config, way_back
from ...fetch.layout import SubjectPartition
from ...fetch.own import NAMES
from ...fetch.owner import FILTER, Owner
from ...readstream.offsets import Offset
from ...readstream.shared.claims import ClaimedOffset, length
from .leases import LeaseState

Command = Callable[[str], str]
"""A command line in quotes, as it reaches the server that was asked (`ConnectionOptions`)."""

Expected = Literal["", "running", "standby"]
"""Queries whose absence is a problem: none, each, or each with its standby."""

_BEYOND: Final = "consumer beyond the checkpoint, mostly until the next batch"

_NAMED: Final = 4
"""Consumers that one line names."""

_NEVER: Final = "0001-01-01T00:00:00Z"
"""The server's word for a time that has not been."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """The limits of a stream, None for none, and how much of them it has used."""

    messages: int | None
    bytes: int | None
    age_s: float | None
    messages_per_subject: int | None
    discard: str
    """`old`: the oldest messages make room; `new`: what is published is refused."""
    used: float | None
    """The larger part of messages and bytes, 1.0 where one is full; None without both limits."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream; times are RFC 3339, durations seconds."""

    name: str
    created: str
    retention: str
    limits: LimitState
    messages: int
    bytes: int
    first: int
    last: int
    subjects: tuple[str, ...]
    replicas: int
    leader: str
    duplicate_window_s: float
    problems: tuple[str, ...] = ()
    stored_rate: float | None = None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition of the layout."""

    index: int
    stream: str
    filter: str | None
    messages: int | None
    """By the server's own count; None where it cannot tell (no direct get)."""
    last: int
    """The last sequence of the filter, 0 where it has none."""


@dataclass(frozen=True, slots=True)
class PinState:
    """The priority group of a consumer, and who is pinned in it."""

    policy: str = ""
    """"" without a group."""
    group: str = ""
    client: str = ""
    """The pinned client's id, "" where nobody is pinned."""
    since: str = ""


@dataclass(frozen=True, slots=True)
class ProgressState:
    """Progress of a consumer."""

    delivered: int = 0
    """The last stream sequence delivered."""
    deliveries: int = 0
    """Number of deliveries since it was made or reset."""
    ack_floor: int = 0
    """The stream sequence up to which all is acknowledged."""
    lag: int = 0
    """Messages not yet delivered (`num_pending`)."""
    ack_pending: int = 0
    """Messages delivered and not acknowledged: a shared consumer's claims."""
    awaiting: int | None = None
    """Messages of `ack_pending` in no open batch; None where these are not known."""
    redelivered: int = 0
    waiting: int = 0
    """Pulls that wait."""
    last_active: str = ""
    """Time of the last delivery, "" for never."""


@dataclass(frozen=True, slots=True)
class OwnerState:
    """The query that prepared a consumer last; "" for what is not known."""

    query: str = ""
    """Its id."""
    name: str = ""
    host: str = ""
    standby: bool = False
    """Whether others may wait to take its place."""
    runs: bool | None = None
    """Whether its driver holds the consumer, or waits at it; None of one that is shared."""

    @property
    def called(self) -> str:
        """The user's name for the query, else its id."""
        return self.name or self.query


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A consumer, as its leader describes it."""

    stream: str
    name: str
    ack_policy: str = ""
    filters: tuple[str, ...] = ()
    own: bool = False
    """Whether one attempt of a task reads by it, which deletes it."""
    pin: PinState = PinState()
    owner: OwnerState = OwnerState()
    progress: ProgressState = ProgressState()
    paused_until: str = ""
    """End of its pause (`nats consumer pause`), "" where it is not paused."""
    problems: tuple[str, ...] = ()
    read_rate: float | None = None
    lag_rate: float | None = None
    """Growth of the lag."""

    @property
    def policy(self) -> str:
        """Its owner: the policy of its priority group, or one attempt's own."""
        return "one attempt's own" if self.own else self.pin.policy

    @property
    def is_sparks(self) -> bool:
        """Whether a query, or an attempt of one, has made it."""
        return self.own or bool(self.owner.query or self.owner.host)


@dataclass(frozen=True, slots=True)
class PositionState:
    """A partition of a source of a checkpoint, beside what the server holds."""

    index: int
    stream: str
    filter: str | None
    committed: int
    """All messages up to this sequence are in batches that are done."""
    planned: int
    """All messages up to this one are in a batch that was planned."""
    first: int | None
    last: int | None
    """The last sequence of the stream; None where it is gone."""
    consumer: int | None
    """The last sequence its consumer delivered; None where no such consumer answers."""
    lag: int | None
    """Messages behind `committed`; None where that cannot be told."""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    read_rate: float | None = None
    lag_rate: float | None = None


@dataclass(frozen=True, slots=True)
class ClaimState:
    """Claims of the last planned batch, on a partition that is read with others."""

    index: int
    stream: str
    claimed: int
    first: int
    last: int
    redelivered: int
    """Number of these messages that had been delivered before."""
    ack_pending: int | None
    """Number of messages without an ack; None where there is no consumer."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceState:
    """One of our sources of a checkpoint."""

    source: str
    """Its number, or the name the query gave it."""
    consumer: str
    """Prefix of its consumers' names."""
    policy: str = ""
    """`overflow` or `prioritized`, where the partitions are read with others."""
    serial: int | None = None
    positions: tuple[PositionState, ...] = ()
    claims: tuple[ClaimState, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A streaming query's checkpoint."""

    path: str
    query: str
    planned: int | None
    committed: int | None
    sources: tuple[SourceState, ...]
    others: int
    """Sources that are none of ours."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Findings of one moment."""

    time: str
    server: str
    streams: tuple[StreamState, ...]
    partitions: tuple[PartitionState, ...]
    consumers: tuple[ConsumerState, ...]
    checkpoint: CheckpointState | None
    leases: tuple[LeaseState, ...] = ()
    notes: tuple[str, ...] = ()
    """Parts that could not be inspected, and changes of partitions that are under way."""
    missing: tuple[str, ...] = ()
    """Queries and standbys that are not there, where somebody expects them."""

    def problems(self) -> list[str]:
        """Every problem with its place, one line each."""
        places: list[tuple[str, Any]] = [(f"stream {each.name}", each) for each in self.streams]
        places += [(f"consumer {each.stream}/{each.name}", each) for each in self.consumers]
        places += [(f"standby {each.stream}/{each.consumer}", each) for each in self.leases]
        for source in self.checkpoint.sources if self.checkpoint else ():
            where = f"source {source.source}"
            places.append((where, source))
            of: tuple[PositionState | ClaimState, ...] = (*source.positions, *source.claims)
            places += [(f"{where}, partition {at.index} of {at.stream}", at) for at in of]
        problems = [f"{where}: {problem}" for where, each in places for problem in each.problems]
        return [*problems, *self.missing]


# ── what the server says ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ServerState:
    """The server's state of the streams and consumers of a checkpoint."""

    streams: Mapping[str, StreamInfo]
    """By name, as far as they are there."""
    consumers: Mapping[tuple[str, str], ConsumerInfo | None]
    """By stream and name, as far as they are there; None where no leader answers."""
    outgrown: Collection[str] = ()
    """Streams in which another message stands than when the checkpoint was written."""


def stream_state(info: StreamInfo, command: Command) -> StreamState:
    """A `StreamInfo` as a person wants it."""
    config, cluster = info.config, info.cluster
    replicas = cluster.get("replicas") or []
    problems = [f"replica {r.get('name')} is offline" for r in replicas if r.get("offline")]
    if config.get("discard") == "new" and _is_full(info):
        problems.append(
            f"is full, and refuses what is published (discard new); {_room(info, command)}"
        )
    return StreamState(
        name=info.name,
        created=info.created,
        retention=info.retention,
        limits=_limits(info),
        messages=info.messages,
        bytes=info.bytes,
        first=info.first_seq,
        last=info.last_seq,
        subjects=tuple(config.get("subjects") or ()),
        replicas=int(config.get("num_replicas") or 1),
        leader=str(cluster.get("leader") or ""),
        duplicate_window_s=int(config.get("duplicate_window") or 0) / 1e9,
        problems=tuple(problems),
    )


def _is_full(info: StreamInfo) -> bool:
    """Whether a limit has no room for one more message of the mean size."""
    held, most = info.messages, int(info.config.get("max_msgs") or 0)
    size, room = info.bytes, int(info.config.get("max_bytes") or 0)
    return 0 < most <= held or (room > 0 and size + size / max(1, held) > room)


def _room(info: StreamInfo, command: Command) -> str:
    """The limits of a stream that is full, and what raises them."""
    given, flags = [], ""
    for key, flag, of in (("max_msgs", "msgs", "messages"), ("max_bytes", "bytes", "bytes")):
        if (limit := int(info.config.get(key) or 0)) > 0:
            given.append(f"{limit:,} {of}")
            flags += f" --max-{flag}=…"
    how = f"raise it ({command(f'nats stream edit {info.name}{flags}')})"
    if info.config.get("allow_batched"):
        how = (
            "raise it from Python: `nats stream edit` would take allow_batched away (page"
            " Prepare a stream, section Change a stream from Python)"
        )
    return f"its limit is {' and '.join(given)}: make room, or {how}"


def _limits(info: StreamInfo) -> LimitState:
    def limit(key: str) -> int | None:
        value = int(info.config.get(key) or 0)
        return value if value > 0 else None

    messages, size, age = limit("max_msgs"), limit("max_bytes"), limit("max_age")
    parts = [held / most for held, most in ((info.messages, messages), (info.bytes, size)) if most]
    return LimitState(
        messages=messages,
        bytes=size,
        age_s=age / 1e9 if age is not None else None,
        messages_per_subject=limit("max_msgs_per_subject"),
        discard=str(info.config.get("discard") or "old"),
        used=max(parts, default=None),
    )


def consumer_state(
    stream: str, answer: Mapping[str, Any], command: Command, retention: str = "limits"
) -> ConsumerState:
    """One consumer of a CONSUMER.LIST or CONSUMER.INFO answer, and what is wrong with it."""
    config, delivered = answer.get("config") or {}, answer.get("delivered") or {}
    owner = Owner.of(config)
    groups = answer.get("priority_groups") or [{}]
    names = config.get("priority_groups") or [""]
    one = config.get("filter_subject")
    since = str(groups[0].get("pinned_ts") or "")
    client = str(groups[0].get("pinned_client_id") or "")
    is_pinned = config.get("priority_policy") == "pinned_client"
    return ConsumerState(
        stream=stream,
        name=str(answer.get("name")),
        ack_policy=str(config.get("ack_policy") or ""),
        filters=(one,) if one else tuple(config.get("filter_subjects") or ()),
        own=str(answer.get("name")).startswith(NAMES),
        pin=PinState(
            policy=str(config.get("priority_policy") or "") if names[0] else "",
            group=str(names[0]),
            client=client,
            since=since if client and since != _NEVER else "",
        ),
        owner=OwnerState(
            owner.query,
            owner.name,
            owner.host,
            owner.standby,
            bool(client or answer.get("num_waiting")) if is_pinned else None,
        )
        if owner
        else OwnerState(),
        progress=ProgressState(
            delivered=int(delivered.get("stream_seq") or 0),
            deliveries=int(delivered.get("consumer_seq") or 0),
            ack_floor=int((answer.get("ack_floor") or {}).get("stream_seq") or 0),
            lag=int(answer.get("num_pending") or 0),
            ack_pending=int(answer.get("num_ack_pending") or 0),
            redelivered=int(answer.get("num_redelivered") or 0),
            waiting=int(answer.get("num_waiting") or 0),
            last_active=str(delivered.get("last_active") or ""),
        ),
        paused_until=str(config.get("pause_until") or "") if answer.get("paused") else "",
        problems=_edited(stream, answer, command, retention) if owner is not None else (),
    )


def _edited(
    stream: str, answer: Mapping[str, Any], command: Command, retention: str
) -> tuple[str, ...]:
    """Settings of a query's own consumer that somebody else has changed."""
    info = consumer_info_of(dict(answer))
    if info.name.startswith(NAMES):
        return ()  # an attempt's, which ends with it
    is_shared = info.config.get("description") != DESCRIPTION  # and made otherwise
    (group, *_) = info.config.get("priority_groups") or ("",)
    made_with = (info.config.get("metadata") or {}).get(FILTER)  # 0.1.0 noted none
    made = Durable(
        partition=0,
        stream=stream,
        filter=info.config.get("filter_subject") if made_with is None else made_with or None,
        name=info.name,
        group=group,
        retention=retention,
    )
    set_back = way_back(stream, info.name, retention == "limits", command)
    # One command for all partitions of a query.
    of_query = info.name if is_shared else re.sub(r"-\d+$", "", info.name)
    return tuple(
        f"{change.text} ({resumed_by(command, stream, of_query)})"
        if change.of is Assumption.NOT_PAUSED
        else f"{change.text}; {set_back}"
        for change in consumer_changes(consumer_config(made), info)
        if not is_shared or change.of is Assumption.NOT_PAUSED
    )


def missing(
    consumers: Sequence[ConsumerState], leases: Sequence[LeaseState], expected: Expected
) -> list[str]:
    """A line for each query that does not run, and for each standby that nobody is."""
    lines = unread(consumers, leases, least=0)
    is_pair = expected == "standby"
    for lease in leases:
        where = f"standby {lease.stream}/{lease.consumer}"
        if not lease.holder:
            lines.append(f"{where}: nobody reads")
        elif is_pair and not lease.waiting:
            lines.append(f"{where}: {', '.join(lease.notes)}")
    if is_pair and not leases:
        lines.append("no query with a standby is here")
    if not leases and not any(consumer.is_sparks for consumer in consumers):
        lines.append("no query is here: none has a consumer, or a lease")
    return lines


def unread(
    consumers: Sequence[ConsumerState], leases: Sequence[LeaseState], least: int = 1
) -> list[str]:
    """A line for each query that does not wait, while `least` messages wait for it, or more."""
    holds = {lease.consumer for lease in leases if lease.is_read}
    followed = {lease.consumer for lease in leases if lease.waiting}
    waiting: dict[OwnerState, list[ConsumerState]] = {}
    for each in consumers:
        if each.owner.runs is False and each.name.rpartition("-")[0] not in holds:
            waiting.setdefault(each.owner, []).append(each)
    lines = []
    for owner, its in waiting.items():
        lag = sum(each.progress.lag for each in its)
        names = ", ".join(f"{each.stream}/{each.name}" for each in its[:_NAMED])
        if lag >= least:
            what = (
                f"query {owner.called} does not run, or is amid a batch, and {lag:,} messages wait"
                " for it."
            )
            if its[0].name.rpartition("-")[0] in followed:
                lines.append(
                    f"{what} Its standby takes its place when the lease has run out: look again in"
                    " a minute"
                )
                continue
            lines.append(
                f"{what} If nobody stopped it, look at the end of its log on host {owner.host}, and"
                " start it again over its checkpoint. If the checkpoint is gone, delete its"
                f" consumers: {names}{', …' if len(its) > _NAMED else ''}"
            )
    return lines


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


def position_state(
    partition: SubjectPartition,
    committed: Offset | None,
    planned: Offset,
    server: ServerState,
    lag: int | None,
) -> PositionState:
    """
    A partition of a checkpoint and what is wrong with it.

    Args:
        planned: what the last batch that was planned ends with; `committed` the last done.
    """
    index, stream = partition.index, partition.stream
    info = server.streams.get(stream)
    name = f"{planned.consumer}-{index}"
    consumer = server.consumers.get((stream, name))
    done, upto = read_up_to(committed, planned, index, stream), planned.sequences[index]
    problems: list[str] = []
    if info is None:
        problems.append("stream is gone")
    else:
        created = planned.streams.get(stream, "")
        loss = loss_of(info, created, upto, stream in server.outgrown)
        loss = loss or loss_of(info, created, done)
        if loss is not None:
            problems.append(_in_short(loss, info, done, upto, partition.filter))
        # On limits streams nothing is lost with a consumer, and an idle one goes away by itself.
        is_known = (stream, name) in server.consumers
        if committed is not None and info.retention != "limits" and not is_known:
            problems.append(Assumption.CONSUMER_THERE.value)
        made = planned.consumers.get(index) if info.retention == "interest" else None
        if made is not None and consumer is not None and consumer.created != made.created:
            problems.append(Assumption.SAME_CONSUMER.value)
    beyond = consumer is not None and consumer.stream_seq > upto
    return PositionState(
        index=index,
        stream=stream,
        filter=partition.filter,
        committed=done,
        planned=upto,
        first=info.first_seq if info is not None else None,
        last=info.last_seq if info is not None else None,
        consumer=consumer.stream_seq if consumer is not None else None,
        lag=None if info is None or problems[:1] == [Sign.ANEW.value] else lag,
        problems=tuple(problems),
        notes=(_BEYOND,) if beyond and not problems else (),
    )


def met_by(lease: LeaseState, record: Offset | None, server: ServerState) -> LeaseState:
    """
    A lease with what a query meets that takes it.

    Args:
        record: up to where the lease says that all is read, as far as that is known. While a query
            reads, its own looks tell more.
    """
    if record is None or record.layout is None or lease.is_read:
        return lease
    pattern = re.escape(lease.stream).replace(r"\{partition\}", "[0-9]+")
    is_its = lease.streams or any(re.fullmatch(pattern, stream) for stream in record.streams)
    if not is_its:
        return lease
    found = [
        f"partition {partition.index} of {partition.stream}: {problem}"
        for partition in record.layout
        if partition.stream in server.streams
        for problem in position_state(partition, record, record, server, None).problems
    ]
    return replace(lease, problems=(*lease.problems, *found))


def _in_short(loss: Loss, info: StreamInfo, done: int, upto: int, filter: str | None) -> str:
    """A stream's problem with its numbers."""
    if loss.sign is Sign.SHORTER:
        return f"{loss.sign.value}: it ends at {info.last_seq:,}, the checkpoint is at {upto:,}"
    if loss.sign is Sign.REMOVED:
        bound = "up to " if filter is not None else ""
        return f"{bound}{info.first_seq - 1 - done:,} {loss.sign.value}"
    return str(loss.sign.value)


def claim_state(
    index: int, stream: str, claims: ClaimedOffset, committed: bool, server: ServerState
) -> ClaimState:
    """Claims of a batch on a partition, and what is wrong with them."""
    called = str(index)
    by_count = claims.claims.get(called, {})
    ranges = [span for ranges in by_count.values() for span in ranges]
    state = server.streams.get(stream)
    name = f"{claims.consumer}-{called}"
    consumer = server.consumers.get((stream, name))
    problems = []
    if state is None:
        problems.append("stream is gone")
    elif state.created != claims.streams.get(stream):
        problems.append(Sign.ANEW.value)
    else:
        gone = sum(max(0, min(high + 1, state.first_seq) - low) for low, high in ranges)
        if gone and not committed:
            problems.append(f"{gone:,} claimed messages left the stream")
        if (stream, name) not in server.consumers:
            problems.append(Assumption.CONSUMER_THERE.value)
    return ClaimState(
        index=index,
        stream=stream,
        claimed=claims.count(called),
        first=min((low for low, _ in ranges), default=0),
        last=max((high for _, high in ranges), default=0),
        redelivered=sum(length(ranges) for count, ranges in by_count.items() if count > 1),
        ack_pending=consumer.num_ack_pending if consumer is not None else None,
        problems=tuple(problems),
    )


# ── two looks ────────────────────────────────────────────────────────────────────────────────


def since(
    now: Inspection, before: Inspection, elapsed_s: float, read: Mapping[tuple[str, int], int]
) -> Inspection:
    """
    `now` with its rates since `before`.

    Args:
        read: messages between the two committed positions, by source and partition.
    """

    def rate(count: int | None, was: int | None) -> float | None:
        return None if count is None or was is None else (count - was) / elapsed_s

    ends = {(each.name, each.created): each.last for each in before.streams}
    progress = {(each.stream, each.name): each.progress for each in before.consumers}
    sources = before.checkpoint.sources if before.checkpoint is not None else ()
    lags = {(each.source, at.index): at.lag for each in sources for at in each.positions}

    def of_stream(stream: StreamState) -> StreamState:
        return replace(
            stream, stored_rate=rate(stream.last, ends.get((stream.name, stream.created)))
        )

    def of_consumer(consumer: ConsumerState) -> ConsumerState:
        ours, was = consumer.progress, progress.get((consumer.stream, consumer.name))
        if was is None:
            return consumer
        is_reset = ours.deliveries < was.deliveries  # it counts anew
        read_rate = None if is_reset else rate(ours.deliveries, was.deliveries)
        return replace(consumer, read_rate=read_rate, lag_rate=rate(ours.lag, was.lag))

    def of_position(source: str, position: PositionState) -> PositionState:
        key = (source, position.index)
        lag_rate = rate(position.lag, lags.get(key))
        return replace(position, read_rate=rate(read.get(key), 0), lag_rate=lag_rate)

    def of_source(source: SourceState) -> SourceState:
        positions = tuple(of_position(source.source, each) for each in source.positions)
        return replace(source, positions=positions)

    checkpoint = now.checkpoint
    if checkpoint is not None:
        checkpoint = replace(checkpoint, sources=tuple(map(of_source, checkpoint.sources)))
    return replace(
        now,
        streams=tuple(map(of_stream, now.streams)),
        consumers=tuple(map(of_consumer, now.consumers)),
        checkpoint=checkpoint,
    )

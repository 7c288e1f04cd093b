"""
Makes subject partitions of a stream that exists, on the server: no data passes through Spark.

Owns: making the streams of a `PartitionPlan`, waiting until they hold what the origin holds, and
comparing; that a stream which exists is never changed: where it is the copy that is planned the
server goes on where it stood, else it is refused.
Must not know: Spark.

What holds: each partition has the origin's order, hence the order of each subject; what is
published later is copied too, for as long as the streams exist.

Limits: a copy has its own sequences and timestamps (that of its arrival: the server notes the
origin's nowhere) and one more header, `Nats-Stream-Source`. Of the origin's limits, copies have
those that mean the same for a part (`max_age`, `max_msgs_per_subject`); set the others by hand,
afterwards and on all of them.
All subjects and their counts are held in memory while the counts are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from ... import subjects
from ...client.info import StreamInfo
from ...client.jetstream import JetStream
from ...errors import CopyMismatchError, PartitioningError
from .copies import STALL_S, Progress, settle
from .plan import PartitionPlan, differences


class Partitioned(NamedTuple):
    """The partitions that were made and compared with the origin."""

    streams: dict[str, int]
    """The messages of the partitions' streams, or of the numbered stream alone."""
    messages: int
    subjects: int
    left_out: int
    """Messages of the origin that the filter does not select."""
    cut: int
    """Sequence of the origin up to which the copies hold all."""


def partition_stream(
    js: JetStream,
    plan: PartitionPlan,
    *,
    progress: Progress = lambda *_: None,
    stall_timeout_s: float = STALL_S,
) -> Partitioned:
    """
    Makes the streams of `plan`, waits until they hold what the origin held, and compares.

    Interrupted at any point, it may simply be called again: the server goes on copying meanwhile.

    Args:
        stall_timeout_s: how long nothing may be copied before it is given up.

    Raises:
        OptionError: The plan contradicts the origin.
        PartitioningError: A stream exists, configured otherwise; nothing was made.
        CopyStalledError: The server stopped copying.
        CopyMismatchError: A copy does not hold as many messages of a subject as the origin.
    """
    origin = _checked_origin(js, plan)
    held = expected_counts(js, plan)
    for config in _missing(js, plan, origin):
        js.create_stream(config)
    settle(js, plan.links, progress, stall_timeout_s)
    copies = {name: Counter(js.subject_counts(name, [subjects.REST])[1]) for name in plan.names}
    there = js.stream_info(plan.origin).messages  # ahead of those that come while it is counted
    now = expected_counts(js, plan)
    _compare(plan, origin.config, held, copies, now)
    final = {name: copies[name] for name in plan.stream_names or plan.names}
    counts = {name: of.total() for name, of in final.items()}
    left_out = max(0, there - now.total())
    return Partitioned(
        counts, sum(counts.values()), sum(map(len, final.values())), left_out, origin.last_seq
    )


def missing_names(js: JetStream, plan: PartitionPlan) -> set[str]:
    """
    The streams that `partition_stream` would make; makes none.

    Raises:
        As `partition_stream`, before it makes anything.
    """
    origin = _checked_origin(js, plan)
    expected_counts(js, plan)
    return {config["name"] for config in _missing(js, plan, origin)}


def expected_counts(js: JetStream, plan: PartitionPlan) -> Counter[str]:
    """
    Messages that the origin holds now, by the subjects of the copies.

    Raises:
        PartitioningError: A subject belongs to no partition.
    """
    counts = Counter(js.subject_counts(plan.origin, [plan.filter])[1])
    rule = plan.rule
    if rule is not None:
        mapped: Counter[str] = Counter()
        for subject, count in counts.items():
            mapped[rule.apply(subject)] += count
        counts = mapped
    outside = sorted(s for s in counts if plan.partition_of(s) is None)
    if outside:
        raise PartitioningError(
            plan.origin,
            f"{sum(counts[s] for s in outside)} messages belong to none of the partitions 0 to"
            f" {plan.partitions - 1} of '{plan.template}', such as '{outside[0]}';"
            " check partitions and where the number stands",
        )
    return counts


def _checked_origin(js: JetStream, plan: PartitionPlan) -> StreamInfo:
    origin = js.stream_info(plan.origin)
    if origin.retention != "limits":
        raise PartitioningError(
            origin.name,
            f"retention is {origin.retention}: copying would take its messages from their"
            " consumers; partition a stream with retention limits",
        )
    return origin


# ── streams ──────────────────────────────────────────────────────────────────────────────────


def _missing(js: JetStream, plan: PartitionPlan, origin: StreamInfo) -> list[dict[str, Any]]:
    """
    Configurations of the streams that are not there yet.

    Raises:
        PartitioningError: One is there, and is not the copy that is planned.
    """
    configs, missing = plan.configs(origin.config), []
    found = js.stream_infos_there([config["name"] for config in configs])
    for config, there in zip(configs, found, strict=True):
        if there is None:
            missing.append(config)
        elif wrong := differences(config, there.config):
            raise PartitioningError(
                there.name,
                f"exists with another configuration ({'; '.join(wrong)}) and was left as it is;"
                " choose other names; delete it only if nobody needs what it holds",
            )
    return missing


# ── counts ───────────────────────────────────────────────────────────────────────────────────


def _compare(
    plan: PartitionPlan, config: Mapping[str, Any], before: Counter[str],
    copies: Mapping[str, Counter[str]], after: Counter[str],
) -> None:  # fmt: skip
    """
    Every subject of every copy, between what the origin held before and after.

    For an origin that nobody writes to, that is the very same count. One with limits on its
    whole lets go of messages that the copies keep: only there a copy may have more.

    Args:
        config: the origin's.
    """
    limits = ("max_age", "max_msgs", "max_bytes", "allow_msg_ttl")
    sheds = any(int(config.get(key) or 0) > 0 for key in limits)
    held = before.keys() | after.keys()
    for stream, counts in copies.items():
        number = plan.stream_names.index(stream) if stream in plan.stream_names else None
        its = {s for s in held if number is None or plan.partition_of(s) == number}
        for subject in its | counts.keys():
            expected = (before[subject], after[subject]) if subject in its else (0, 0)
            minimum, maximum = sorted(expected)
            if counts[subject] < minimum or (counts[subject] > maximum and not sheds):
                span = f"{minimum:,}" if minimum == maximum else f"{minimum:,} to {maximum:,}"
                raise CopyMismatchError(
                    stream,
                    f"has {counts[subject]:,} messages of '{subject}' where"
                    f" '{plan.origin}' has {span}; delete the copies (--undo) and begin anew",
                )

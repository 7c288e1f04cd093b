"""
Changes of the target streams while rows were written: the commit looks for them.

A PubAck says that a row was stored, not that it still is. A stream that is deleted and made anew,
purged, or turned to `interest` under a running write acknowledges every row, and lacks some. Each
task notes its streams as it found them, before its first publish there, and where its first row is,
as PubAcks say; the commit compares. Streams of dead letters are noted when the task ends.

Rule 1: only what is certain. A stream's creation time and retention do not change by themselves,
nor does its first sequence where nothing ever leaves it. Where messages leave as they should
(limits, TTLs, roll-ups, readers of a work queue) a row that is gone says nothing.
Rule 2: one request a stream and commit; more only where rows seem to be gone.

A stream that is taken back amid a batch, by a power cut or to an older copy, goes on from there.
Then all targets together have fewer new sequences than rows were stored.

Messages may also be removed from between others: purged by subject, deleted, or by a limit that was
set and lifted. The count of a stream says that some were, and a list of them where. Whose they were
nobody knows. Where fewer are left than rows were stored, rows are among them; else it is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ...client.info import StreamInfo
from ...client.jetstream import JetStream
from ...client.patience import Patience
from ...errors import JetStreamError, StreamNotFoundError, TargetChangedError
from ...sanitize import get_logger

logger = get_logger(__name__)

SETTLES_S: Final = 3.0
"""Time for which a loss must show: a leader that was just elected may not know all that it has."""

_LISTED: Final = 1_000_000
"""Upper bound of the removed messages whose list is requested, at a few bytes each."""


class Before(NamedTuple):
    """A stream before any attempt of a task published into it."""

    end: int
    """Its last sequence."""
    created: str = ""
    """Creation time of the stream; "" in records of older versions, which did not note it."""
    per_subject: int = 0
    """The fewest messages that it kept of a subject, as attempts found it; 0 for all."""

    def holds(self, created: str, last: int) -> bool:
        """Whether the stream that is there now is the one of then; its sequences go on then."""
        return self.created in ("", created) and last >= self.end


def fewest(*limits: int) -> int:
    """The lowest of these limits; 0 for none."""
    return min((limit for limit in limits if limit), default=0)


@dataclass(frozen=True, slots=True)
class FoundStream:
    """A target stream as a task found it."""

    name: str
    created: str
    end: int
    """Its last sequence then: whatever the task stored lies behind."""
    retention: str
    keeps: bool
    """Whether no message leaves it unless somebody removes it."""
    time: str = ""
    """Time when its last message was stored."""
    first: int = 0
    """A sequence at which, or before which, a row of the task is; 0 where none is known."""
    is_target: bool = True
    """Whether rows went there; else dead letters, in what nobody looked up before."""
    per_subject: int = 0
    """Messages that it keeps of a subject; 0 for all."""
    at: str = ""
    """Time of the look, by the clock of its server."""
    removed: int = 0
    """Messages that had left it by then."""

    @classmethod
    def of(cls, info: StreamInfo) -> FoundStream:
        """The stream as STREAM.INFO shows it now."""
        rolls_up = info.config.get("allow_rollup_hdrs")
        return cls(
            info.name,
            info.created,
            info.last_seq,
            info.retention,
            info.keeps_history and not info.is_bounded and not rolls_up,
            info.last_time,
            per_subject=max(0, int(info.config.get("max_msgs_per_subject") or 0)),
            at=info.now.isoformat(),
            removed=info.removed,
        )

    @property
    def before(self) -> Before:
        """The state that the ledger notes of the stream."""
        return Before(self.end, self.created, self.per_subject)

    def since(self, before: Before) -> FoundStream:
        """The same, if an earlier attempt that found it like this may have stored rows."""
        end = before.end if before.holds(self.created, self.end) else 0
        return replace(self, end=end, removed=0)  # rows may have been removed by now

    def holding(self, first: int) -> FoundStream:
        """The same, when the first row of the task is known to be at this sequence, or before."""
        return replace(self, first=max(first, self.end + 1) if first else 0)

    def fault(self, info: StreamInfo) -> str | None:
        """The proof that rows are gone, by the stream as it is now; None if there is none."""
        now = FoundStream.of(info)
        if self.created and now.created != self.created:
            return self.made_anew(now)
        if now.end < self.end:
            return f"it ended at sequence {self.end}, and ends at {now.end} now: it was set back"
        if self.retention == "limits" and now.retention != self.retention:
            return (
                f"it was turned from limits to {now.retention} retention while rows were written:"
                " those that no consumer waited for are gone"
            )
        if self.keeps and 0 < self.first < info.first_seq:
            how = "purged?" if now.keeps else "purged, or by limits that were set?"
            start = min(self.end + 1, self.first)
            return (
                f"sequences {start} to {info.first_seq - 1} were removed ({how}) while rows were"
                " written, and rows with them"
            )
        return None

    def made_anew(self, now: FoundStream) -> str:
        """Why rows are gone, where the stream of this name is another one now."""
        return (
            f"it was made anew at {now.created} while rows were written; those stored in the one of"
            f" {self.created} are gone"
        )


def check_targets(js: JetStream, seen: Iterable[FoundStream], rows: int = 0) -> list[FoundStream]:
    """
    Compares the streams with what all tasks of a write saw of them.

    Args:
        rows: how many have a sequence of their own behind the ends that tasks saw.

    Returns:
        The streams of rows as they are now, but for those that could not be looked at.

    Raises:
        TargetChangedError: Rows that were acknowledged are gone.
    """
    by_name: dict[str, list[FoundStream]] = {}
    for stream in seen:
        by_name.setdefault(stream.name, []).append(stream)
    patience = Patience(SETTLES_S, pause_s=0.1)
    while True:
        infos = _look(js, by_name)
        targets = {
            name: [one for one in by_name[name] if one.is_target]
            for name in infos
            if any(one.is_target for one in by_name[name])
        }
        stored = sum(
            max(0, infos[name].last_seq - min(one.end for one in those))
            for name, those in targets.items()
        )
        is_short = len(infos) == len(by_name) and stored < rows
        if not is_short or all(map(_is_alone, infos.values())) or patience.over:
            break
        patience.pause()
    if is_short:
        raise TargetChangedError(
            ", ".join(targets),
            f"{rows} rows were stored after its noted end, and now it ends {stored} messages after"
            " that: a server lost what it had acknowledged, or an older copy was put back",
        )
    gone = {name: _removed(js, infos[name], those) for name, those in targets.items()}
    for name, count in gone.items():
        if count and len(infos) == len(by_name) and stored - sum(gone.values()) < rows:
            raise TargetChangedError(
                name,
                f"{count} messages that were stored while rows were written were removed (purged by"
                " subject, deleted, or by limits that were set and lifted?), and rows with them",
            )
        if count:
            logger.warning(
                "stream=%s: %d messages that were stored during this batch were removed. The commit"
                " cannot find out whether rows of the batch are among them", name, count,
            )  # fmt: skip
    return [FoundStream.of(infos[name]) for name in targets]


def _look(js: JetStream, by_name: Mapping[str, list[FoundStream]]) -> dict[str, StreamInfo]:
    """
    The streams as they are now, but for those that could not be looked at.

    Raises:
        TargetChangedError: Rows are gone.
    """
    infos = {}
    for name, those in by_name.items():
        try:
            infos[name] = _settled(js, name, those)
        except TargetChangedError:
            raise
        except JetStreamError as error:
            logger.warning(
                "stream=%s: the commit goes on without the check whether the stream still has the"
                " rows of this batch: %s", name, error,
            )  # fmt: skip
    return infos


def _is_alone(info: StreamInfo) -> bool:
    """
    Whether the stream has one replica, which says all that it has. One that is placed elsewhere has
    others meanwhile, of which the one that leads may yet lack something.
    """
    return info.replicas == 1 and not info.cluster.get("replicas")


def _removed(js: JetStream, info: StreamInfo, seen: list[FoundStream]) -> int:
    """Number of messages that a stream lacks behind its noted end, though it keeps its messages."""
    end = min(one.end for one in seen)
    keeping = [one.removed for one in seen if one.keeps]
    if not keeping or info.removed <= min(keeping):
        return 0
    ahead = max(0, info.first_seq - 1 - end)
    if info.num_deleted > _LISTED:
        logger.warning(
            "stream=%s: %d messages were removed. They are too many to check whether rows of this"
            " batch are among them. The commit goes on without this check",
            info.name, info.num_deleted,
        )  # fmt: skip
        return ahead
    try:
        return ahead + sum(sequence > end for sequence in js.deleted(info.name))
    except JetStreamError as error:
        logger.warning(
            "stream=%s: the commit goes on without the check whether rows of this batch were"
            " removed: %s", info.name, error,
        )  # fmt: skip
        return ahead


def _settled(js: JetStream, name: str, seen: list[FoundStream]) -> StreamInfo:
    """
    The stream as it is now. One replica alone says all that it has.

    Raises:
        TargetChangedError: Rows are gone, as each look says.
    """
    patience = Patience(SETTLES_S, pause_s=0.1)
    faults: list[str] = []
    while True:
        is_alone = False
        try:
            info = js.stream_info(name)
            faults = [fault for one in seen if (fault := one.fault(info)) is not None]
            if not faults:
                return info
            is_alone = _is_alone(info)
        except StreamNotFoundError:
            faults = ["it was deleted while rows were written"]
        except JetStreamError:
            if not faults:
                raise
            # Nobody takes back what an earlier look said.
        if is_alone or patience.over:
            raise TargetChangedError(name, faults[0])
        patience.pause()

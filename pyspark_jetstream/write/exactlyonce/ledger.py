"""
The ledger: the written batches, and the tasks of a batch that have begun.

It is a Key-Value bucket, `SPARK_LEDGER` (stream `KV_SPARK_LEDGER`), so that `nats kv` shows it:

    <write>.<batch>.<task>    {"attempt": "5be1…", "streams": {"ORDERS": 81234},
                               "created": {"ORDERS": "2026-…"}, "per_subject": {"ORDERS": 5},
                               "begun": "2026-…", "mapping": "9f…", "ids": "4c…-0"}
    <write>.<batch>.mapping   the subject mapping of the batch (`batchmapping`), if it has one
    <write>.committed         {"batch": 41, "rows": 1000, …, "streams": {…}}
    <write>.ids               {"secrets": [[0, "7d…"]]}, of which ids are made (`ids`)

`<write>` is a streaming query's id, or the id of one `df.write`. A task's record is there from
before its first publish, and says for every stream it publishes into where that stream ended
before. So what an attempt may have stored lies behind these sequences, however long ago that was:
the attempt that comes next looks there (`recovery`) and not only to the duplicate window. It says,
too, when each stream was created: in one that was made anew since, the sequence means nothing; how
many messages of a subject it kept, which others may change before the next attempt; when the first
attempt began, for streams that took subjects over amid the batch, which no attempt has noted. And
how the ids begin that are made for its rows: another attempt goes on with these, whatever has
become of the query's secrets.

A task never notes that it is done. When its input fails, Spark ends the Arrow stream our worker
reads like a complete one, so a task cannot know; only the driver's commit does.

A record is changed by compare-and-set only (`keyvalue`), so of two attempts one knows that it is
not the latest, and a driver that was thought dead takes no batch back.

A commit removes the records of the batch; one small `committed` record a query stays, which also
says where target streams ended (`committed`): before a task of a later batch begins, they must not
end before that, nor the ledger before the batch ahead. So does the record of its secrets. To forget
a query: `nats kv purge SPARK_LEDGER <query id>.committed`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from ...client.info import StoredMessage, StreamInfo, parse_time
from ...client.jetstream import JetStream
from ...client.keyvalue import ROOM, Bucket
from ...client.patience import Patience
from ...errors import (
    ApiError,
    JetStreamError,
    LedgerError,
    PermissionsError,
    WriterFencedError,
)
from ...outbox.targets import Target
from ...sanitize import get_logger
from .changes import SETTLES_S, Before, FoundStream, fewest
from .committed import Committed
from .ids import SECRET_BYTES, Ids, Secrets
from .records import (
    MAPPING,
    LedgerLook,
    TaskName,
    TaskRecord,
    begun_of,
    committed_of,
    mapping_key,
    secrets_key,
    secrets_of,
    streams_of,
)

logger = get_logger(__name__)

BUCKET: Final = "SPARK_LEDGER"
STREAM: Final = f"KV_{BUCKET}"
_PREFIX: Final = f"$KV.{BUCKET}."

_MAX_TAKEOVERS: Final = 20

_NOTHING: Final = StoredMessage(0, "", [], b"")
"""A record that was not asked for."""

_UNAVAILABLE: Final = 503
"""The code of an error of JetStream itself: it is off, or nobody answers under this prefix."""

_TASK: Final = re.compile(r"[0-9]{1,10}")
"""The number of a task in a key; what else stands there is a stranger's, and says nothing."""

_CLOCKS: Final = timedelta(minutes=2)
"""Upper bound of the difference between the clocks of a stream's servers."""


class Ledger:
    """Reads and writes the records."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._bucket = Bucket(js, BUCKET, "which batches are written")

    def ensure(self) -> None:
        """
        Creates the bucket if there is none, and refuses one that cannot keep a ledger.

        Raises:
            LedgerError: There is none and it cannot be made, or the stream of its name is something
                else.
        """
        try:
            unfit = self._bucket.ensure()
        except JetStreamError as error:
            if error.retryable or (isinstance(error, ApiError) and error.code == _UNAVAILABLE):
                raise  # says of JetStream what an administrator or exactlyOnce cannot mend
            adds = self._js.client.options.command(f"nats kv add {BUCKET}")
            raise LedgerError(
                BUCKET,
                f"the bucket cannot be used: {error}. If this user may not make buckets, let"
                f" another user run {adds}, or set exactlyOnce=false",
            ) from None
        if unfit is not None:
            raise LedgerError(BUCKET, unfit)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────

    def look(self, name: TaskName, secrets: bool = False, mapping: bool = False) -> LedgerLook:
        """
        Records in the ledger for a task that is about to begin, in one round trip.

        Args:
            secrets: whether those of its query are asked for, too.
            mapping: likewise the mapping of its batch.

        Raises:
            LedgerError: A record is none.
            RecordError: One was stored by somebody else.
        """
        keys = [f"{name.write}.committed", str(name)]
        keys += [secrets_key(name.write)] * secrets + [mapping_key(name)] * mapping
        found = dict(zip(keys, self._bucket.last(*keys), strict=True))
        committed, last = (found[key] for key in keys[:2])
        return LedgerLook(
            committed_of(committed),
            last,
            any(each.sequence and not each.data for each in (committed, last)),
            found.get(secrets_key(name.write), _NOTHING),
            found.get(mapping_key(name), _NOTHING),
            time.monotonic(),
        )

    def id_prefix(self, name: TaskName, ids: Ids, look: LedgerLook) -> str:
        """
        Beginning of the ids that are made for the task's rows, in all of its attempts.

        Raises:
            LedgerError: Others keep changing the query's secrets, or a record is none.
        """
        begun = begun_of(look.last)
        if begun is not None and "ids" in begun:
            return str(begun["ids"])
        prefix = None
        if begun is None and ids.keyed:
            prefix = self._secrets(name, look.secrets).prefix(name.write, name.batch)
        return f"{prefix or ids.prefix}-{name.task}"

    def _secrets(self, name: TaskName, message: StoredMessage) -> Secrets:
        """Secrets of the query; the first task that finds none makes them."""
        for _ in range(_MAX_TAKEOVERS):
            if message.data:
                return secrets_of(message)
            made = Secrets().renewed(name.batch, os.urandom(SECRET_BYTES))
            if self._put_secrets(name.write, made, message):
                return made
            (message,) = self._bucket.last(secrets_key(name.write))
        raise LedgerError(name.write, "others keep changing the secrets of its ids")

    def _put_secrets(self, write: str, secrets: Secrets, last: StoredMessage) -> bool:
        return self._replace(secrets_key(write), secrets.content(), last) is not None

    def agree(self, name: TaskName, note: bytes, look: LedgerLook) -> bytes:
        """
        The mapping by which the task's batch goes: what its first task has noted, now or earlier.

        Args:
            note: of this task, should it be the first.

        Raises:
            LedgerError: The note is too large for the server, or others keep changing it.
        """
        maximum = self._js.client.connection.max_payload - ROOM
        if len(note) > maximum:
            raise LedgerError(
                str(name),
                f"the subjectMapping makes a record of {len(note)} bytes, and the server takes"
                f" {maximum}: give fewer rules, or set exactlyOnce=false",
            )
        for _ in range(_MAX_TAKEOVERS):
            noted = look.mapping
            if noted.data:
                return noted.data
            if look.committed.batch >= name.batch:
                return note  # `begin_attempt` says what that means
            if self._bucket.replace(mapping_key(name), note, noted.sequence) is not None:
                return note
            look = self.look(name, mapping=True)
        raise LedgerError(str(name), "other attempts keep changing the mapping of the batch")

    def begin_attempt(
        self,
        name: TaskName,
        targets: Iterable[FoundStream],
        mapping: str = "",
        ids: str = "",
        look: LedgerLook | None = None,
    ) -> TaskRecord | None:
        """
        Takes the task's record over for a new attempt; None if its batch is committed.

        Args:
            targets: those that the attempt is about to publish into, as they are now.
            mapping: digest of the mapping that its rows go by; "" without one.
            ids: how the ids begin that are made for its rows; "" where none are.
            look: at the ledger, a moment ago.

        Raises:
            TakenBackError: The ledger, or one of the streams, holds less than was committed.
            TargetChangedError: One of them was made anew since.
            LedgerError: A later batch is committed, earlier attempts went by another mapping or
                made other ids, other attempts keep doing the same, or a record is none.
            RecordError: One was stored by somebody else.
        """
        targets = list(targets)
        for _ in range(_MAX_TAKEOVERS):
            look = self._checked(name, targets, look if look is None or look.is_fresh else None)
            committed, last = look.committed, look.last
            done = committed.batch
            if done == name.batch:
                return None
            if done > name.batch:
                raise LedgerError(
                    str(name),
                    f"batch {done} of this query is written already: its checkpoint was rewound or"
                    f" copied. Start it with a new checkpoint, or let it write again with `nats kv"
                    f" purge {BUCKET} {name.write}.committed`",
                )
            if done < 0 and name.batch > 0:
                logger.warning(
                    "task=%s: the ledger has no earlier batch of this query: bucket %s is new, or"
                    " exactlyOnce was false. If an earlier attempt of this batch has stored rows,"
                    " they may be stored twice. From the next batch on the ledger is complete",
                    name, BUCKET,
                )  # fmt: skip
            begun = begun_of(last)
            if begun is not None and begun.get("mapping", mapping) != mapping:
                raise _mapped_otherwise(name)
            if begun is not None and begun.get("ids", ids) != ids:
                raise LedgerError(
                    str(name),
                    "another attempt has begun the task at this moment, and makes other ids; the"
                    " next attempt goes on with these",
                )
            before = streams_of(begun) if begun is not None else {}
            if committed.rewound:
                noted = committed.streams.items()
                before = {stream: each.before for stream, each in noted} | before
            since = str(begun.get("begun", "")) if begun is not None else ""
            record = TaskRecord(
                name,
                os.urandom(6).hex(),
                last.sequence,
                self._with_targets(before, targets, since),
                again=begun is not None or committed.rewound,
                mapping=mapping,
                committed=committed,
                ids=ids,
                forgotten=look.forgotten,
                begun=since if begun is not None else min((t.at for t in targets), default=""),
            )
            look = None  # whatever comes, it has changed
            try:
                self._put(record)
                return record
            except WriterFencedError:
                continue  # another attempt came in between: it is the earlier one now
        raise LedgerError(str(name), "other attempts keep taking the task over")

    def extend(
        self, record: TaskRecord, targets: Iterable[FoundStream], late: bool = False
    ) -> None:
        """
        Notes further streams before the attempt publishes into them.

        Args:
            late: whether they have rows of this attempt already.

        Raises:
            WriterFencedError: Another attempt has taken the record over since.
            TakenBackError: One of them holds less than was committed.
            TargetChangedError: One of them was made anew since.
        """
        targets = list(targets)
        if record.committed.loss(record.name.write, record.name.batch, targets) is not None:
            self._checked(record.name, targets, None)
        since = record.begun if record.again or late else ""
        record.streams = self._with_targets(record.streams, targets, since)
        self._put(record)

    def _with_targets(
        self, noted: Mapping[str, Before], targets: Iterable[FoundStream], since: str
    ) -> dict[str, Before]:
        """
        These streams, and the targets among them.

        Args:
            since: when an earlier attempt began; it may have stored rows in streams that it has not
                noted, which took subjects over amid the batch.
        """
        streams = dict(noted)
        for target in targets:
            known = streams.get(target.name)
            if known is None:
                streams[target.name] = self._as_of(target, since) if since else target.before
            else:
                kept = fewest(known.per_subject, target.per_subject)
                streams[target.name] = known._replace(per_subject=kept)
        return streams

    def _as_of(self, target: FoundStream, since: str) -> Before:
        """A stream as it was at a time; clocks of servers may differ a little."""
        at = parse_time(since) - _CLOCKS
        if parse_time(target.created) >= at:
            return target.before._replace(end=0)
        if not target.time or parse_time(target.time) < at:
            return target.before
        first = self._js.message_get(target.name, start_time=at.isoformat())
        if first is None:
            return target.before
        return target.before._replace(end=min(first.sequence - 1, target.end))

    def _checked(
        self, name: TaskName, targets: Iterable[FoundStream], look: LedgerLook | None
    ) -> LedgerLook:
        """
        A look at the ledger, once it is sure that all that was committed is still there.

        Args:
            look: a moment ago; None for none.

        Raises:
            TakenBackError: It is not.
            TargetChangedError: A target stream was made anew.
        """
        patience = Patience(SETTLES_S, pause_s=0.1)
        while True:
            look = look or self.look(name)
            loss = look.committed.loss(name.write, name.batch, targets)
            if loss is None:
                return look
            if patience.over:
                raise loss
            look = None
            patience.pause()
            targets = [FoundStream.of(self._js.stream_info(target.name)) for target in targets]

    def check(self, record: TaskRecord) -> None:
        """
        Raises:
            WriterFencedError: Another attempt has taken the record over since.
        """
        (last,) = self._bucket.last(str(record.name))
        if last.sequence != record.sequence:
            raise self._fenced(record)

    def commit(
        self,
        write: str,
        batch: int,
        tasks: int,
        counts: Mapping[str, int],
        targets: Iterable[FoundStream] = (),
    ) -> None:
        """
        Marks the batch as written, and drops the records of its tasks.

        Args:
            targets: its streams as they are now, for batches that come later.

        Raises:
            LedgerError: An earlier attempt of the batch had more tasks.
            TakenBackError: A stream has other messages than at the commit before, or the query was
                rewound while the batch was written.
            WriterFencedError: Another driver has committed a later batch, or is about to.
        """
        key = f"{write}.committed"
        targets = list(targets)
        (last,) = self._bucket.last(key)
        committed = committed_of(last)
        done = committed.batch
        if done > batch:
            raise _overtaken(write, batch)
        begun = self._js.subject_counts(STREAM, [f"{_PREFIX}{write}.{batch}.*"])[1]
        names = {key.rpartition(".")[2]: key for key in begun}
        names.pop(MAPPING, None)
        for name in [name for name in names if not _TASK.fullmatch(name)]:
            logger.warning(
                "the key %r in bucket %s was not written by this package. It is not changed; find"
                " out which client writes there", names.pop(name), BUCKET,
            )  # fmt: skip
        beyond = self._noted(key for task, key in names.items() if int(task) >= tasks)
        if beyond:
            raise LedgerError(
                f"{write}.{batch}",
                f"the batch has {tasks} tasks, but an earlier attempt of it had task"
                f" {beyond[0].rpartition('.')[2]} as well: rows have other ids now and may be"
                " stored twice. Give rows a msg_id where the plan does not keep its tasks;"
                f" `nats kv del {BUCKET} {beyond[0]}` lets this one commit",
            )
        if done < batch:
            rewound = committed.loss(write, batch, ()) if committed.rewound else None
            if rewound is not None:
                raise rewound
            self._check_ends(write, committed, targets)
            content = self._fitting(committed.followed_by(batch, targets), counts)
            if self._bucket.replace(key, content, last.sequence) is None:
                raise _overtaken(write, batch)
        self.forget(write, batch)

    def _check_ends(self, write: str, committed: Committed, targets: Iterable[FoundStream]) -> None:
        """
        Raises:
            TakenBackError: Where a stream ended at the commit before another message stands now.
        """
        for target in targets:
            noted = committed.streams.get(target.name)
            if noted is None or not (noted.end and noted.time) or target.end <= noted.end:
                continue
            try:
                (message,) = self._js.messages_of([(target.name, {"seq": noted.end})])
            except PermissionsError as error:
                logger.warning(
                    "stream=%s: at each start the query goes on without the check whether the"
                    " stream was taken back to an older copy, because the user may not read it: %s",
                    target.name, error,
                )  # fmt: skip
                continue
            if message is not None and message.time != noted.time:
                raise committed.replaced(write, target)

    def _fitting(self, committed: Committed, counts: Mapping[str, int]) -> bytes:
        """The record of a commit, with as many notes as a message has room for."""
        while True:
            data = json.dumps({**committed.content(), **counts}).encode()
            if len(data) <= self._js.client.connection.max_payload - ROOM or not committed.streams:
                return data
            committed = committed.shortened()

    def accept(self, write: str, batch: int) -> None:
        """
        Lets a query go on behind this batch, the last that its checkpoint has committed, or behind
        the one that the ledger has: nothing is known any more of where streams ended.

        Raises:
            WriterFencedError: The query runs.
        """
        (last,) = self._bucket.last(f"{write}.committed")
        committed = committed_of(last)
        done = max(batch, committed.batch)
        self._put_committed(write, Committed(done, rewound=done < 0), last)

    def rewind(self, write: str, batch: int, force: bool = False) -> bool:
        """
        Lets a query write this batch and those behind it again, and drops the records of tasks of
        those behind it. These are planned anew, so their rows get other ids.

        Args:
            force: though streams may still know the ids of what was there.

        Returns:
            Whether the ledger knew of the query.

        Raises:
            LedgerError: Batches before this one are missing in the ledger, too; or a stream was
                written to within its duplicate window.
            ApiError: It cannot be told now how a stream is.
            WriterFencedError: The query runs.
        """
        (last,) = self._bucket.last(f"{write}.committed")
        committed = committed_of(last)
        if not last.data:
            return False
        if committed.batch < batch - 1:
            raise LedgerError(
                write,
                f"the ledger ends with batch {committed.batch}: write again from batch"
                f" {committed.batch + 1} on",
            )
        infos = self._js.stream_infos_there(list(committed.streams)) if committed.streams else []
        there = [info for info in infos if info is not None]
        if not force:
            for info in there:
                _check_forgotten(write, info)
        self._renew(write, batch + 1)
        self._put_committed(write, committed.rewound_to(batch, map(FoundStream.of, there)), last)
        begun = self._js.subject_counts(STREAM, [f"{_PREFIX}{write}.*.*"])[1]
        batches = {name.split(".")[-2] for name in begun}
        for number in {int(name) for name in batches if _TASK.fullmatch(name)}:
            if number != batch:
                self.forget(write, number)
        return True

    def _renew(self, write: str, batch: int) -> None:
        """Lets the ids of batches from this one on be others than those that were seen."""
        (last,) = self._bucket.last(secrets_key(write))
        renewed = secrets_of(last).renewed(batch, os.urandom(SECRET_BYTES))
        if not self._put_secrets(write, renewed, last):
            raise _runs(write)

    def _put_committed(self, write: str, committed: Committed, last: StoredMessage) -> None:
        if self._replace(f"{write}.committed", committed.content(), last) is None:
            raise _runs(write)

    def forget(self, write: str, batch: int) -> None:
        """Drops the records of the batch."""
        self._js.purge(STREAM, f"{_PREFIX}{write}.{batch}.*", None)

    # ── records ──────────────────────────────────────────────────────────────────────────────

    def _replace(self, key: str, content: Mapping[str, Any], last: StoredMessage) -> int | None:
        return self._bucket.replace(key, json.dumps(content).encode(), last.sequence)

    def _noted(self, subjects: Iterable[str]) -> list[str]:
        """Subjects with a record; of one that was deleted a marker stays."""
        keys = [subject.removeprefix(_PREFIX) for subject in subjects]
        return [key for key, last in zip(keys, self._bucket.last(*keys), strict=True) if last.data]

    def _put(self, record: TaskRecord) -> None:
        streams = record.streams.items()
        data = json.dumps({
            "attempt": record.attempt,
            "streams": {name: before.end for name, before in streams},
            "created": {name: before.created for name, before in streams if before.created},
            "per_subject": {name: before.per_subject for name, before in streams if before[2]},
            **({"begun": record.begun} if record.begun else {}),
            "mapping": record.mapping,
            **({"ids": record.ids} if record.ids else {}),
        }).encode()  # fmt: skip
        sequence = self._bucket.replace(str(record.name), data, record.sequence)
        if sequence is None:
            raise self._fenced(record)
        record.sequence = sequence

    def _fenced(self, record: TaskRecord) -> WriterFencedError:
        return WriterFencedError(
            "*",
            f"attempt {record.attempt} of task {record.name} is not the latest one in the ledger;"
            " the newer attempt writes its rows",
        )


def _runs(write: str) -> WriterFencedError:
    return WriterFencedError("*", f"query {write} runs: stop it first")


def _overtaken(write: str, batch: int) -> WriterFencedError:
    return WriterFencedError(
        "*", f"another driver runs query {write} and is beyond batch {batch}; stop one of them"
    )


def _mapped_otherwise(name: TaskName) -> LedgerError:
    return LedgerError(
        str(name),
        "an earlier attempt of the task went by another subjectMapping, or by none, so its rows may"
        " be stored where this one would not look. Give the options as they were until the batch is"
        f" committed; `nats kv del {BUCKET} {name}` lets the task write all of its rows anew",
    )


def _check_forgotten(write: str, stream: StreamInfo) -> None:
    """
    Raises:
        LedgerError: The stream may still know ids of rows that are gone: it would drop these as
            stored.
    """
    window_s = Target.parse(stream.config).duplicate_window_s
    if not stream.last_time:
        return
    ago_s = (stream.now - parse_time(stream.last_time)).total_seconds()
    if ago_s < window_s:
        raise LedgerError(
            write,
            f"stream '{stream.name}' was written to {max(0.0, ago_s):.0f}s ago, and knows message"
            f" ids for {window_s:g}s: rows of the batch that are gone would be dropped as stored."
            f" Stop the query, and run this again in {window_s - ago_s:.0f}s; with --force if it is"
            " others that write there, and the query has been stopped for so long",
        )

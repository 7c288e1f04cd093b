"""
The ledger: which batches are written, and which tasks of a batch have begun.

It is a Key-Value bucket, `SPARK_LEDGER` (stream `KV_SPARK_LEDGER`), so that `nats kv` shows it:

    <write>.<batch>.<task>    {"attempt": "5be1…", "streams": {"ORDERS": ["2026-…", 81234]}}
    <write>.<batch>.mapping   {"mapping": "9f…"}, a digest, where the rows of a batch are mapped
    <write>.committed         {"batch": 41, "streams": {"ORDERS": ["2026-…", 92811]}, "rows": 99, …}
    <write>.secret            {"secret": "7d…"}, of which ids are made (`ids`)

`<write>` is a streaming query's id, or the id of one `df.write`. A task's note is there from before
its first publish, and says for every stream it publishes into when that was created and where it
ended before. So what an attempt may have stored lies behind these sequences, however long ago that
was: the attempt that comes next looks there (`recovery`) and not only to the duplicate window.

A task never notes that it is done. When its input fails, Spark ends the Arrow stream our worker
reads like a complete one, so a task cannot know; only the driver's commit does.

The fence: a note is changed by compare-and-set only (`keyvalue`), so of two attempts one knows that
it is not the latest, and a driver that was thought dead takes no batch back. An attempt that notes
itself behind the commit, which has dropped the notes before, finds the commit when it looks again.

A commit removes the notes of the batch; two small ones a query stay. `committed` says where target
streams ended: when a later batch begins they must be the same, and not end before that. To forget a
query: `nats stream purge KV_SPARK_LEDGER --subject '$KV.SPARK_LEDGER.<query id>.>'`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Final

from ...client.info import StoredMessage
from ...client.jetstream import JetStream
from ...client.keyvalue import ROOM, Bucket
from ...errors import ApiError, JetStreamError, LedgerError, WriterFencedError
from ...sanitize import get_logger
from ..streams import FoundStream, check_unchanged
from .ids import SECRET_BYTES, Ids, TaskName, secret_prefix
from .records import (
    Committed,
    LedgerLook,
    TaskRecord,
    attempt_of,
    begun_of,
    committed_of,
    mapping_of,
    secret_of,
)

logger = get_logger(__name__)

BUCKET: Final = "SPARK_LEDGER"
STREAM: Final = f"KV_{BUCKET}"
_PREFIX: Final = f"$KV.{BUCKET}."

_MAX_TAKEOVERS: Final = 20

_UNAVAILABLE: Final = 503
"""The code of an error of JetStream itself: it is off, or nobody answers under this prefix."""

_MAPPING: Final = "mapping"

_TASK: Final = re.compile(r"[0-9]{1,10}")
"""The number of a task in a key; what else stands there is a stranger's, and says nothing."""


class Ledger:
    """Reads and writes the notes."""

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
            adds = self._js.client.options.command(f"nats kv add {BUCKET} --max-bucket-size=64MB")
            way = "Mend that" if isinstance(error, ApiError) else f"Let another user run {adds}"
            raise LedgerError(
                BUCKET, f"the bucket cannot be used: {error}. {way}, or set exactlyOnce=false"
            ) from None
        if unfit is not None:
            raise LedgerError(BUCKET, unfit)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────

    def look(self, name: TaskName) -> LedgerLook:
        """
        Notes for a task that is about to begin, in one round trip.

        Raises:
            LedgerError: A note is none.
            RecordError: One was stored by somebody else.
        """
        keys = f"{name.write}.committed", str(name), _mapping_key(name), _secret_key(name.write)
        committed, last, mapping, secret = self._bucket.last(*keys)
        return LedgerLook(committed_of(committed), last, mapping, secret, time.monotonic())

    def id_prefix(self, name: TaskName, ids: Ids, look: LedgerLook) -> str:
        """
        Beginning of the ids that are made for the rows of the task's batch. The first task of a
        query draws its secret.

        Raises:
            LedgerError: Others keep changing the query's secret, or the note is none.
        """
        if not ids.keyed:
            return ids.prefix
        note = look.secret
        for _ in range(_MAX_TAKEOVERS):
            secret = secret_of(note)
            if secret:
                return secret_prefix(secret, name.write, name.batch)
            drawn = json.dumps({"secret": os.urandom(SECRET_BYTES).hex()}).encode()
            key = _secret_key(name.write)
            self._bucket.replace(key, drawn, note.sequence)
            (note,) = self._bucket.last(key)
        raise LedgerError(name.write, "others keep changing the secret of its ids")

    def begin_attempt(
        self,
        name: TaskName,
        targets: Iterable[FoundStream],
        mapping: str = "",
        look: LedgerLook | None = None,
    ) -> TaskRecord | None:
        """
        Takes the task's note over for a new attempt; None if its batch is committed.

        Args:
            targets: those that the attempt is about to publish into, as they are now.
            mapping: digest of the mapping that its rows go by; "" without one.
            look: at the ledger, a moment ago.

        Raises:
            TargetChangedError: One of them has lost rows since the last commit.
            LedgerError: A later batch is committed, or the ones before are not; earlier attempts
                went by another mapping; other attempts keep doing the same; or a note is none.
            RecordError: One was stored by somebody else.
        """
        targets = list(targets)
        for _ in range(_MAX_TAKEOVERS):
            if look is None or not look.is_fresh:
                look = self.look(name)
            committed, last = look.committed, look.last
            if committed.batch == name.batch:
                return None
            self._check_order(name, committed.batch)
            self._check_whole(name.write, committed, targets)
            self._note_mapping(name, mapping, look.mapping)
            record = TaskRecord(
                name,
                os.urandom(6).hex(),
                last.sequence,
                {target.name: target for target in targets} | begun_of(last),
                again=bool(last.data),
                committed=committed,
            )
            look = None  # whatever comes, it has changed
            try:
                self._put(record)
                return record
            except WriterFencedError:
                continue  # another attempt came in between: it is the earlier one now
        raise LedgerError(str(name), "other attempts keep taking the task over")

    def _note_mapping(self, name: TaskName, mapping: str, noted: StoredMessage) -> None:
        """
        Notes by which mapping a batch goes, before its first task begins.

        Raises:
            LedgerError: It has begun by another.
        """
        if mapping and not noted.data:
            key = _mapping_key(name)
            if not self._begun(name.write, name.batch):
                data = json.dumps({"mapping": mapping}).encode()
                self._bucket.replace(key, data, noted.sequence)
            (noted,) = self._bucket.last(key)
        if mapping_of(noted) != mapping:
            raise _mapped_otherwise(name)

    def extend(self, record: TaskRecord, targets: Iterable[FoundStream]) -> None:
        """
        Notes further streams before the attempt publishes into them.

        Raises:
            WriterFencedError: Another attempt has taken the note over since.
            TargetChangedError: One of them has lost rows since the last commit.
        """
        targets = list(targets)
        self._check_whole(record.name.write, record.committed, targets)
        record.streams = {target.name: target for target in targets} | record.streams
        self._put(record)

    def check(self, record: TaskRecord) -> None:
        """
        Raises:
            WriterFencedError: Another attempt has taken the note over since, or the batch was
                committed before this one noted itself.
        """
        name = record.name
        committed, last = self._bucket.last(f"{name.write}.committed", str(name))
        is_over = committed_of(committed).batch >= name.batch
        if is_over or attempt_of(last) != record.attempt:
            raise self._fenced(record)

    def remedy(self, write: str) -> str:
        """What to do when a target stream has lost rows of a query."""
        forget = f"nats stream purge {STREAM} --subject '{_PREFIX}{write}.>'"
        return (
            "To go on without them, let the ledger forget the query by"
            f" {self._js.client.options.command(forget)}: the batch under way is then written"
            " whole, with rows of it that other streams have already"
        )

    def _check_order(self, name: TaskName, done: int) -> None:
        """
        Raises:
            LedgerError: The last batch of the ledger is not the one before.
        """
        forget = f"`nats kv del {BUCKET} {name.write}.committed`"
        if done > name.batch:
            raise LedgerError(
                str(name),
                f"batch {done} of this query is written already: its checkpoint was rewound or"
                f" copied. Start it with a new checkpoint, or let it write again with {forget}",
            )
        if 0 <= done < name.batch - 1:
            raise LedgerError(
                str(name),
                f"the ledger ends with batch {done}, and batch {name.batch} begins: its server lost"
                " what it had acknowledged, or an older copy of its store was put back, and rows of"
                " target streams may be gone as well (or exactlyOnce was false meanwhile). To go on"
                f" all the same: {forget}",
            )
        if done < 0 and name.batch > 0:
            logger.warning(
                "task=%s: the ledger has no earlier batch of this query: bucket %s is new, or"
                " exactlyOnce was false. If an earlier attempt of this batch has stored rows,"
                " they may be stored twice. From the next batch on the ledger is complete",
                name, BUCKET,
            )  # fmt: skip

    def _check_whole(
        self, write: str, committed: Committed, targets: Iterable[FoundStream]
    ) -> None:
        """
        Raises:
            TargetChangedError: One of these has lost rows since the last commit.
        """
        noted = [committed.streams.get(target.name, target) for target in targets]
        before = [
            then
            for then, now in zip(noted, targets, strict=True)
            if then.created != now.created or then.end > now.end
        ]
        if before:  # so it seemed a moment ago
            check_unchanged(self._js, before, self.remedy(write))

    # ── batches ──────────────────────────────────────────────────────────────────────────────

    def commit(
        self,
        write: str,
        batch: int,
        tasks: int,
        counts: Mapping[str, int],
        targets: Iterable[FoundStream] = (),
    ) -> None:
        """
        Marks the batch as written, and drops the notes of its tasks.

        Args:
            targets: its streams as they are now, for batches that come later.

        Raises:
            LedgerError: An earlier attempt of the batch had more tasks.
            WriterFencedError: Another driver has committed a later batch, or is about to.
        """
        key = f"{write}.committed"
        (last,) = self._bucket.last(key)
        committed = committed_of(last)
        if committed.batch > batch:
            raise _overtaken(write, batch)
        self._check_tasks(write, batch, tasks)
        if committed.batch < batch:
            streams = dict(committed.streams)
            for target in targets:
                streams.pop(target.name, None)  # behind those that were not written to
                streams[target.name] = target
            room = self._js.client.connection.max_payload - ROOM
            content = Committed(batch, streams).content(room, counts)
            if self._bucket.replace(key, content, last.sequence) is None:
                raise _overtaken(write, batch)
        self.forget(write, batch)

    def forget(self, write: str, batch: int) -> None:
        """Drops the notes of the batch's tasks."""
        self._js.purge(STREAM, f"{_PREFIX}{write}.{batch}.*", None)

    def _check_tasks(self, write: str, batch: int, tasks: int) -> None:
        """
        Raises:
            LedgerError: An earlier attempt of the batch had more tasks.
        """
        names = self._begun(write, batch)
        beyond = self._noted(key for task, key in names.items() if int(task) >= tasks)
        if beyond:
            raise LedgerError(
                f"{write}.{batch}",
                f"the batch has {tasks} tasks, but an earlier attempt of it had task"
                f" {beyond[0].rpartition('.')[2]} as well: rows have other ids now and may be"
                " stored twice. Give rows a msg_id where the plan does not keep its tasks;"
                f" `nats kv del {BUCKET} {beyond[0]}` lets this one commit",
            )

    def _begun(self, write: str, batch: int) -> dict[str, str]:
        """The subjects of the notes of a batch's tasks, by the numbers of the tasks."""
        found = self._js.subject_counts(STREAM, [f"{_PREFIX}{write}.{batch}.*"])[1]
        names = {subject.rpartition(".")[2]: subject for subject in found}
        return {name: subject for name, subject in names.items() if _TASK.fullmatch(name)}

    def _noted(self, subjects: Iterable[str]) -> list[str]:
        """Subjects with a note; of one that was deleted a marker stays."""
        keys = [subject.removeprefix(_PREFIX) for subject in subjects]
        return [key for key, last in zip(keys, self._bucket.last(*keys), strict=True) if last.data]

    def _put(self, record: TaskRecord) -> None:
        sequence = self._bucket.replace(str(record.name), record.content(), record.sequence)
        if sequence is None:
            raise self._fenced(record)
        record.sequence = sequence

    def _fenced(self, record: TaskRecord) -> WriterFencedError:
        return WriterFencedError(
            "*",
            f"attempt {record.attempt} of task {record.name} is not the latest one in the ledger;"
            " the newer attempt writes its rows",
        )


def _mapping_key(name: TaskName) -> str:
    return f"{name.write}.{name.batch}.{_MAPPING}"


def _secret_key(write: str) -> str:
    return f"{write}.secret"


def _overtaken(write: str, batch: int) -> WriterFencedError:
    return WriterFencedError(
        "*", f"another driver runs query {write} and is beyond batch {batch}; stop one of them"
    )


def _mapped_otherwise(name: TaskName) -> LedgerError:
    return LedgerError(
        str(name),
        "subjectMapping or mappingKey has changed since the batch began, so rows that are stored"
        " may be where this attempt would not look. Give both as they were for this one batch, and"
        f" change them when it is committed; or `nats stream purge {STREAM} --subject"
        f" '{_PREFIX}{name.write}.{name.batch}.*'` lets the batch write all of its rows anew, those"
        " that are stored as well",
    )

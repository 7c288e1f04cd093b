"""
The journal of a backfill: a record of its progress beside its output.

    <output>/_progress/plan.json         written first: what is read, pinned, and its chunks
    <output>/_progress/chunk-00017.json  written when chunk 17 is done, never changed
    <output>/_progress/owner.json        which run is at work
    <output>/_progress/run-1f2e3d4c/     what a run keeps to itself, and what its plan points to
    <output>/_manifest.json              written when all are done; `_progress` goes then

Rule 1: no row is written before the plan is, and a plan is never changed. So every run of a
backfill reads the same chunks of the same sequences.
Rule 2: a chunk is done when its entry is there. What a run leaves behind without one (it was
killed) is not part of the backfill, whatever its name.
Rule 3: one run at a time. Whatever a run records is written aside, then it looks whether another
run has begun since, and stops if so; else the file gets its name. Between that look and the name
there is no lock, since Hadoop's file systems have none in common. But no name is given twice, and a
run that ends removes what others have written aside: of two runs that meet there, one fails.

Names that begin with `_` are invisible to Spark's file sources, so `spark.read.parquet(<output>)`
reads the data alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ...foreign import read_json
from .faults import BackfillError, StorageError, UsageError
from .storage import Storage

MANIFEST: Final = "_manifest.json"
PROGRESS: Final = "_progress"
_PLAN: Final = f"{PROGRESS}/plan.json"
_OWNER: Final = f"{PROGRESS}/owner.json"
_FORMAT: Final = 1
_ENTRY: Final = re.compile(r"chunk-(\d{5,})\.json")

Plan = dict[str, Any]
"""JSON: `job`, `settings`, `id`, `streams`, `chunks`, and what else source and target put in."""

Entry = dict[str, Any]
"""JSON of a chunk that is done: `rows`, and what else the target puts in."""

Manifest = dict[str, Any]
"""JSON: the plan without its chunks, `rows`, `missing`, and what else the target puts in."""


class Journal:
    """The journal of one backfill."""

    plan: Plan
    """Empty before there is one."""
    done: dict[int, Entry]
    """The entries, by chunk."""
    manifest: Manifest | None
    """The result, once all is done."""

    def __init__(self, storage: Storage, job: str, settings: Mapping[str, str]) -> None:
        """
        Args:
            settings: what the rows depend on; the same in every run.

        Raises:
            UsageError: The directory holds something else, or a backfill with other settings.
        """
        self.storage = storage
        self.run: Final = os.urandom(4).hex()
        """Names this run."""
        self._job = job
        self._settings = dict(settings)
        self._load()
        if not self.plan:
            self._check_empty()

    def __repr__(self) -> str:
        return f"<Journal {self.storage.root}, {len(self.done)} chunks done>"

    def claim(self) -> Manifest | None:
        """Makes this run the one at work; the manifest if another one has just ended."""
        draft = self.scratch("owner.json")
        self.storage.write(draft, _encoded({"run": self.run}))
        self.storage.delete(_OWNER)
        self.storage.move(draft, _OWNER)
        self._load()
        return self.manifest

    def keep_plan(self, plan: Plan) -> Plan:
        """
        Keeps the plan.

        Raises:
            BackfillError: Another run has taken over.
        """
        plan = {
            "format": _FORMAT,
            "job": self._job,
            "id": os.urandom(4).hex(),
            "settings": self._settings,
            "planned_at": _now(),
            **plan,
        }
        self._write(_PLAN, plan)
        self.plan = plan
        return plan

    def note(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Keeps what a target must know of a chunk that is not done; what is kept already stays."""
        before = self._read(f"{PROGRESS}/{name}.json")
        if before is None:
            before = dict(content)
            self._write(f"{PROGRESS}/{name}.json", before)
        return before

    def record(self, number: int, entry: Entry) -> None:
        """
        Makes a chunk done.

        Raises:
            StorageError: It may be done now, or not.
            BackfillError: It is not: another run has taken over.
        """
        name = f"{PROGRESS}/chunk-{number:05d}.json"
        try:
            self._write(name, entry)
        except StorageError:
            if self._read(name) != entry:
                raise self._taken_over() from None
        self.done[number] = entry

    def check_owner(self) -> None:
        """
        Raises:
            BackfillError: Another run has begun since this one did.
        """
        owner = self._read(_OWNER)
        if owner is None or owner.get("run") != self.run:
            raise self._taken_over()

    def finish(self, result: Mapping[str, Any]) -> Manifest:
        """Writes the manifest; the plan is part of it."""
        plan = {name: value for name, value in self.plan.items() if name != "chunks"}
        manifest = {**plan, "finished_at": _now(), "chunks": len(self.done), **result}
        self._write(MANIFEST, manifest)
        self.manifest = manifest
        return manifest

    def tidy(self) -> None:
        """Removes what is only needed until all is done."""
        self.storage.delete(PROGRESS)

    def scratch(self, name: str) -> str:
        """A place for what has no entry yet, of this run only."""
        return f"{PROGRESS}/run-{self.run}/{name}"

    def _load(self) -> None:
        self.plan = self._read(_PLAN) or {}
        self.done = {}
        for name in self.storage.names(PROGRESS):
            match = _ENTRY.fullmatch(name)
            entry = self._read(f"{PROGRESS}/{name}") if match else None
            if match and entry is not None:
                self.done[int(match[1])] = entry
        # Last: a run that ends meanwhile writes it first and then removes what was read above.
        self.manifest = self._read(MANIFEST)
        self.plan = self.manifest or self.plan
        if self.plan:
            self._check_same(self.plan)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        """
        Raises:
            BackfillError: Another run has taken over.
        """
        draft = self.scratch(name.rpartition("/")[2])
        self.storage.write(draft, _encoded(content))
        self.check_owner()
        self.storage.move(draft, name)

    def _taken_over(self) -> BackfillError:
        return BackfillError(
            f"{self.storage.root}: another run of this backfill has taken over; this one stops"
        )

    def _read(self, name: str) -> dict[str, Any] | None:
        content = self.storage.read(name)
        if content is None:
            return None
        try:
            document = read_json(content)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise StorageError(f"{self.storage.path(name)}: this is no journal of a backfill")
        return document

    def _check_empty(self) -> None:
        others = [name for name in self.storage.names() if name != PROGRESS]
        if others:
            raise UsageError(
                f"{self.storage.root} holds '{others[0]}' but no backfill; give a new directory"
            )

    def _check_same(self, plan: Plan) -> None:
        if plan.get("format") != _FORMAT or plan.get("job") != self._job:
            raise UsageError(
                f"{self.storage.root} holds a {plan.get('job')}, format {plan.get('format')},"
                f" and this is {self._job}, format {_FORMAT}; give a new directory"
            )
        before: dict[str, str] = plan.get("settings", {})
        for name in sorted(before.keys() | self._settings.keys()):
            was, now = before.get(name), self._settings.get(name)
            if was != now:
                raise UsageError(
                    f"{self.storage.root} holds a backfill {_with(name, was)}, now"
                    f" {_with(name, now)}; give the same, or a new directory"
                )


def _with(name: str, value: str | None) -> str:
    return f"without {name}" if value is None else f"with {name} '{value}'"


def _encoded(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

"""
What is the same in every attempt of a task: its name, and so the ids made for its rows.

A made id is `<prefix>-<task>-<row>`. Whoever stores a message with the id of a row to come has the
stream drop the row as a duplicate, and a `Nats-Msg-Id` that is copied from another stream is
enough. So nobody must know the ids of rows to come:

* The prefix of a `df.write` is random. It shows when the first row is stored, and then the input of
  the write is planned.
* A streaming query with a ledger has a secret there, drawn once, and makes the prefix of each
  batch of it by a keyed hash: the ids of batches that were seen say nothing of others. All tasks,
  attempts and restarts have the same.

Rule 1: no I/O; who draws a secret brings its random bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

import xxhash

SECRET_BYTES: Final = 32
_PREFIX_BYTES: Final = 8
SECRET: Final = re.compile(f"[0-9a-f]{{{2 * SECRET_BYTES}}}")


@dataclass(frozen=True, slots=True)
class TaskName:
    """Task, batch and write; the same in every attempt."""

    write: str
    batch: int
    task: int

    def __str__(self) -> str:
        return f"{self.write}.{self.batch}.{self.task}"


class Ids(NamedTuple):
    """How the ids of a write begin."""

    prefix: str
    keyed: bool = False
    """Whether the secret of the query in the ledger decides instead, where there is a ledger."""


def of_query(query: str, batch: int) -> Ids:
    """Ids of a micro-batch; without a ledger they are made of what everybody may know."""
    return Ids(xxhash.xxh3_64_hexdigest(f"{query}/{batch}".encode()), keyed=True)


def secret_prefix(secret: str, query: str, batch: int) -> str:
    """The prefix of a batch's ids, by the secret of its query (in hexadecimal digits)."""
    key = bytes.fromhex(secret)
    return blake2b(f"{query}/{batch}".encode(), key=key, digest_size=_PREFIX_BYTES).hexdigest()

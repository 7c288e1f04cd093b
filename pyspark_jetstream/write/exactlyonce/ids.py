"""
Message ids that are made for rows without one, and who can know them before the rows are stored.

A made id is `<prefix>-<task>-<row>`. Whoever stores a message with the id of a row to come has the
stream drop the row as a duplicate, and a `Nats-Msg-Id` that is copied from another stream is
enough. So nobody must know the ids of rows to come:

* The prefix of a `df.write` is random. It shows when the first row is stored, and then the input of
  the write is planned.
* A streaming query has secrets in the ledger, and makes the prefix of each batch of one by a keyed
  hash: the ids of batches that were seen say nothing of others. All tasks, attempts and restarts
  have the same.

Rule 1: no I/O; who makes a secret brings its random bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import xxhash

SECRET_BYTES: Final = 32
_PREFIX_BYTES: Final = 8
_SECRET: Final = re.compile(f"[0-9a-f]{{{2 * SECRET_BYTES}}}")

_KEPT: Final = 16
"""
Number of secrets that are kept, the latest ones: those of batches to which a query may be rewound.
"""


class Ids(NamedTuple):
    """Parts of the ids of a write."""

    prefix: str
    """
    Prefix of a `df.write`; of a query for batches that an older version of this package has begun.
    """
    keyed: bool = False
    """Whether a secret of the ledger decides, where there is one."""


def of_query(query: str, batch: int) -> Ids:
    """Ids of a micro-batch. Older versions made the prefix of what everybody may know."""
    return Ids(xxhash.xxh3_64_hexdigest(f"{query}/{batch}".encode()), keyed=True)


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets of a query."""

    since: tuple[tuple[int, str], ...] = ()
    """Each with the batch from which on it is used, in that order."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Secrets:
        """
        Secrets in their record.

        Raises:
            ValueError: It is none.
        """
        entries = content.get("secrets")
        if not isinstance(entries, list) or not entries:
            raise ValueError("no secrets")
        return cls(tuple(map(_entry, entries)))

    def content(self) -> dict[str, Any]:
        """Content of their record."""
        return {"secrets": self.since}

    def renewed(self, batch: int, secret: bytes) -> Secrets:
        """The same with a new one from this batch on."""
        before = [entry for entry in self.since if entry[0] < batch]
        return Secrets((*before, (batch, secret.hex()))[-_KEPT:])

    def prefix(self, query: str, batch: int) -> str | None:
        """The prefix of a batch's ids; None for one that is older than the secrets."""
        secrets = [secret for first, secret in self.since if first <= batch]
        if not secrets:
            return None
        key = bytes.fromhex(secrets[-1])
        return blake2b(f"{query}/{batch}".encode(), key=key, digest_size=_PREFIX_BYTES).hexdigest()


def _entry(entry: Any) -> tuple[int, str]:
    batch, secret = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
    if type(batch) is not int or batch < 0:
        raise ValueError("no batch")
    if not isinstance(secret, str) or not _SECRET.fullmatch(secret):
        raise ValueError("no secret")
    return batch, secret

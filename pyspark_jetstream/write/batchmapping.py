"""
The mapping of a batch: the one that its first task has noted.

What `subjectMapping` says may change while a batch is under way: Spark asks for a writer before
each micro-batch, which reads the option's file; and a query may start again with other options.
Another mapping sends a row elsewhere, perhaps to another stream, where nobody has seen its id: what
an earlier attempt has stored would be stored twice.

So the first task of a batch notes the mapping in the ledger, and all of its tasks go by that, in
every attempt. What has changed holds from the next batch on.

No I/O.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import OptionError
from ..foreign import read_json, unpacked

if TYPE_CHECKING:
    from ..mapping.subjectmapping import SubjectMapping


@dataclass(frozen=True, slots=True)
class BatchMapping:
    """The inputs that decide a row's subject, beside its own subject and identity."""

    mapping: SubjectMapping | None
    key: str | None = None
    """`mappingKey`."""

    @classmethod
    def of(cls, note: bytes) -> BatchMapping:
        """
        The mapping that was noted.

        Raises:
            ValueError: This is no note, or of rules that are none here.
        """
        try:
            fields = read_json(unpacked(note))
            key = fields["key"]
            if key is not None and not isinstance(key, str):
                raise TypeError("words that are none")
            from ..mapping.subjectmapping import SubjectMapping

            return cls(SubjectMapping.parse(fields["mapping"]), key)
        except (KeyError, TypeError, OptionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def note(self) -> bytes:
        """
        Text that `of` reads: the rules alone, and small. A server's configuration, which they may
        have been read from, has secrets.
        """
        fields = {
            "mapping": self.mapping.text if self.mapping is not None else "{}",
            "key": self.key,
        }
        return zlib.compress(json.dumps(fields).encode())


def digest(note: bytes) -> str:
    """The digest of a batch's note, for a task's record; "" for none."""
    return hashlib.sha256(note).hexdigest()[:16] if note else ""

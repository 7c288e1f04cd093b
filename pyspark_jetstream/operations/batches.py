"""
A streaming query's last batches, as its checkpoint has them.

Owns: where Spark keeps which batch was planned and committed (`offsets/<batch>`, `commits/<batch>`)
and how it writes a source's offset there. Must not know: what an offset means, the server.

Spark's OffsetSeqLog: a line with the version, one with the batch's settings as JSON, then one a
source; in version 1 by its number, `-` for none, in version 2 as `name:offset` in any order.
Spark renames whole files into place, so what is there is complete; it removes old ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import JetStreamError, OffsetError, OptionError
from ..foreign import read_json
from .files import Files

_TRIES: Final = 3
"""A query that runs may remove the file that was just listed."""

_NAMED: Final = re.compile(r"(\w+):(.*)")


@dataclass(frozen=True, slots=True)
class Batches:
    """The last batches of a query; None where there is none yet."""

    query: str
    """The query's id."""
    planned: int | None
    """The last batch whose offsets were written: it may be running."""
    committed: int | None
    """The last batch that is done."""
    planned_offsets: Mapping[str, Any]
    """Planned end of each source's batch, by the source's number or name; JSON values."""
    committed_offsets: Mapping[str, Any]


def read_batches(files: Files) -> Batches:
    """
    State of the checkpoint now, also while the query runs.

    Raises:
        OffsetError: Its files are none that Spark writes.
        OptionError: They cannot be read.
        CheckpointError: Nor can the file system that they are on.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _read(files)
        except (OSError, UnicodeDecodeError) as error:
            if isinstance(error, FileNotFoundError) and left:
                continue
            if isinstance(error, JetStreamError):
                raise
            raise OptionError("checkpoint", f"cannot read '{files.location}': {error}") from None
    raise AssertionError


def _read(files: Files) -> Batches:
    query = _query(files.read("metadata").decode())
    # In this order a batch that is just planned and committed is not seen as committed alone.
    commits, offsets = _numbers(files, "commits"), _numbers(files, "offsets")
    planned = max(offsets, default=None)
    committed = max((batch for batch in commits if batch in offsets), default=None)

    def of(batch: int | None) -> dict[str, Any]:
        if batch is None:
            return {}
        try:
            return offsets_of(files.read(f"offsets/{batch}").decode())
        except ValueError as error:
            raise OffsetError(f"{files.location}/offsets/{batch}: {error}") from None

    return Batches(query, planned, committed, of(planned), of(committed))


def _query(metadata: str) -> str:
    try:
        return str(read_json(metadata)["id"])
    except (ValueError, TypeError, KeyError):
        raise OffsetError(f"no streaming query's metadata: {metadata[:80]!r}") from None


def _numbers(files: Files, directory: str) -> set[int]:
    """The numbers of the batches with a file; temporary ones and checksums have other names."""
    return {int(name) for name in files.names(directory) if name.isdecimal()}


def offsets_of(text: str) -> dict[str, Any]:
    """
    The sources' offsets in a file of `offsets/`, as JSON values, by number or name.

    What is no JSON stays text: it is another source's.

    Raises:
        ValueError: The file is of a version that is not known.
    """
    version, *lines = text.split("\n")
    if version == "v1":
        named = [(str(number), line) for number, line in enumerate(lines[1:]) if line]
    elif version == "v2":
        matches = [_NAMED.fullmatch(line) for line in lines[1:]]
        named = [(match[1], match[2]) for match in matches if match is not None]
    else:
        raise ValueError(f"expected Spark's offsets of version v1 or v2, got '{version[:20]}'")
    named.sort(key=lambda pair: (len(pair[0]), pair[0]))  # 2 before 10
    return {name: _value(line) for name, line in named if line.strip() != "-"}


def with_offset(text: str, source: str, offset: str) -> str:
    """A file of `offsets/` with another offset of one source, by number or name."""
    version, *lines = text.split("\n")
    if version == "v1":
        lines[1 + int(source)] = offset
    else:
        lines = [f"{source}:{offset}" if e.startswith(f"{source}:") else e for e in lines]
    return "\n".join([version, *lines])


def _value(line: str) -> Any:
    try:
        return read_json(line)
    except ValueError:
        return line

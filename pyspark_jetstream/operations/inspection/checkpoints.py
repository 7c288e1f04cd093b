"""
What a streaming query's checkpoint says, read off its files.

Owns: where Spark keeps which batch was planned and committed (`offsets/<batch>`, `commits/<batch>`)
and how it writes a source's offset there. Must not know: what an offset means, the server, Spark
itself; nothing is written.

Spark's OffsetSeqLog: a line with the version, one with the batch's settings as JSON, then one a
source; in version 1 by its number, `-` for none, in version 2 as `name:offset` in any order.
Spark renames whole files into place, so what is there is complete; it removes old ones.

Limits: local paths only. Other file systems need Spark's own Hadoop client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ...errors import OffsetError, OptionError
from ...foreign import read_json

__all__ = ["Checkpoint", "checkpoint_path", "parse_offsets", "read_checkpoint"]

_TRIES: Final = 3
"""A query that runs may remove the file that was just listed."""

_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]+):")
_NAMED: Final = re.compile(r"(\w+):(.*)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last batches of a query; None where there is none yet."""

    path: str
    query: str
    """The query's id."""
    planned: int | None
    """The last batch whose offsets were written: it may be running."""
    committed: int | None
    """The last batch that is done."""
    planned_offsets: Mapping[str, Any]
    """What each source's batch ends with, by the source's number or name; JSON values."""
    committed_offsets: Mapping[str, Any]


def checkpoint_path(text: str) -> Path:
    """
    The directory that a `checkpointLocation` names.

    Raises:
        OptionError: It is on no local file system, or no streaming query's.
    """
    rest, scheme = text, _SCHEME.match(text)
    if scheme is not None:
        if scheme[1].lower() != "file" or urlsplit(text).netloc not in ("", "localhost"):
            raise OptionError(
                "checkpoint",
                f"only local paths and file:// can be read, not '{text}'; copy its offsets and"
                " commits here",
            )
        rest = unquote(urlsplit(text).path)
    path = Path(rest)
    if not rest or not path.is_dir():
        raise OptionError("checkpoint", f"no such directory: '{text}'")
    if not (path / "metadata").is_file():
        raise OptionError(
            "checkpoint", f"no streaming query's checkpoint: '{text}' has no file metadata"
        )
    return path


def read_checkpoint(path: Path) -> Checkpoint:
    """
    What it says now, also while the query runs.

    Raises:
        OffsetError: Its files are none that Spark writes.
        OptionError: They cannot be read.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _read(path)
        except FileNotFoundError as error:
            if not left:
                raise OptionError("checkpoint", f"{error.filename} is gone") from None
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError("checkpoint", f"cannot read '{path}': {error}") from None
    raise AssertionError


def _read(path: Path) -> Checkpoint:
    query = _query((path / "metadata").read_text("utf-8"))
    # In this order a batch that is just planned and committed is not seen as committed alone.
    commits, offsets = _batches(path / "commits"), _batches(path / "offsets")
    planned = max(offsets, default=None)
    committed = max((batch for batch in commits if batch in offsets), default=None)

    def of(batch: int | None) -> dict[str, Any]:
        if batch is None:
            return {}
        file = path / "offsets" / str(batch)
        try:
            return parse_offsets(file.read_text("utf-8"))
        except ValueError as error:
            raise OffsetError(f"{file}: {error}") from None

    return Checkpoint(str(path), query, planned, committed, of(planned), of(committed))


def _query(metadata: str) -> str:
    try:
        return str(read_json(metadata)["id"])
    except (ValueError, TypeError, KeyError):
        raise OffsetError(f"no streaming query's metadata: {metadata[:80]!r}") from None


def _batches(directory: Path) -> set[int]:
    """The numbers of the batches with a file; temporary ones and checksums have other names."""
    if not directory.is_dir():
        return set()
    return {int(file.name) for file in directory.iterdir() if file.name.isdecimal()}


def parse_offsets(text: str) -> dict[str, Any]:
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


def _value(line: str) -> Any:
    try:
        return read_json(line)
    except ValueError:
        return line

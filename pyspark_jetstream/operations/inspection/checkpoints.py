"""
A streaming query's checkpoint, read off its files.

Owns: where Spark keeps which batch was planned and committed (`offsets/<batch>`, `commits/<batch>`)
and how it writes a source's offset there. Must not know: what an offset means, the server, Spark
itself; nothing is written.

Spark's OffsetSeqLog: a line with the version, one with the batch's settings as JSON, then one a
source; in version 1 by its number, `-` for none, in version 2 as `name:offset` in any order.
Spark renames whole files into place, so what is there is complete; it removes old ones.

Where the files are is the business of a `Directory`: `LocalDirectory` here, any other file system
in `hadoop`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from ...errors import JetStreamError, OffsetError, OptionError
from ...foreign import read_json

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
    """Planned end of each source's batch, by the source's number or name; JSON values."""
    committed_offsets: Mapping[str, Any]


class Directory(Protocol):
    """A checkpoint's files, by their paths below its own directory."""

    @property
    def location(self) -> str:
        """Place of the checkpoint."""

    def names(self, directory: str) -> list[str]:
        """Names in a directory; none where there is no directory."""

    def read(self, name: str) -> bytes:
        """
        A file's content.

        Raises:
            FileNotFoundError: There is none.
        """


class LocalDirectory:
    """A directory of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.location = str(path)

    def names(self, directory: str) -> list[str]:
        """See `Directory`."""
        below = self._path / directory
        return [file.name for file in below.iterdir()] if below.is_dir() else []

    def read(self, name: str) -> bytes:
        """See `Directory`."""
        return (self._path / name).read_bytes()


def is_local(location: str) -> bool:
    """Whether a `checkpointLocation` is a path of this machine, or a file URI of one."""
    scheme = _SCHEME.match(location)
    if scheme is None:
        return True
    return scheme[1].lower() == "file" and urlsplit(location).netloc in ("", "localhost")


def checkpoint_path(text: str) -> Path:
    """
    The directory that a local `checkpointLocation` names.

    Raises:
        OptionError: It is on no local file system, or no streaming query's.
    """
    if not is_local(text):
        raise OptionError("checkpoint", f"expected a local path or file://, not '{text}'")
    rest = unquote(urlsplit(text).path) if _SCHEME.match(text) else text
    path = Path(rest)
    if not rest or not path.is_dir():
        raise OptionError("checkpoint", f"no such directory: '{text}'")
    if not (path / "metadata").is_file():
        raise OptionError(
            "checkpoint", f"no streaming query's checkpoint: '{text}' has no file metadata"
        )
    return path


def read_checkpoint(files: Directory) -> Checkpoint:
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
        except FileNotFoundError as error:
            if not left:
                raise OptionError("checkpoint", f"{error.filename} is gone") from None
        except (OSError, UnicodeDecodeError) as error:
            if isinstance(error, JetStreamError):
                raise
            raise OptionError("checkpoint", f"cannot read '{files.location}': {error}") from None
    raise AssertionError


def _read(files: Directory) -> Checkpoint:
    query = _query(files.read("metadata").decode())
    # In this order a batch that is just planned and committed is not seen as committed alone.
    commits, offsets = _batches(files, "commits"), _batches(files, "offsets")
    planned = max(offsets, default=None)
    committed = max((batch for batch in commits if batch in offsets), default=None)

    def of(batch: int | None) -> dict[str, Any]:
        if batch is None:
            return {}
        file = f"offsets/{batch}"
        try:
            return parse_offsets(files.read(file).decode())
        except ValueError as error:
            raise OffsetError(f"{files.location}/{file}: {error}") from None

    return Checkpoint(files.location, query, planned, committed, of(planned), of(committed))


def _query(metadata: str) -> str:
    try:
        return str(read_json(metadata)["id"])
    except (ValueError, TypeError, KeyError):
        raise OffsetError(f"no streaming query's metadata: {metadata[:80]!r}") from None


def _batches(files: Directory, directory: str) -> set[int]:
    """The numbers of the batches with a file; temporary ones and checksums have other names."""
    return {int(name) for name in files.names(directory) if name.isdecimal()}


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

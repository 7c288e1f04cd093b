"""The command `pyspark-jetstream` in this process."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_jetstream.operations.commands import programs


def main(words: Sequence[str]) -> int:
    """The exit status of the command with these words."""
    try:
        programs(list(words), prog_name="pyspark-jetstream")
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError("a command ends by its exit status")

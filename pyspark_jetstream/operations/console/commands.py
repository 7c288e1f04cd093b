"""
The command `pyspark-jetstream`: the programs for operators by their names.

A program's module is imported when it is called, so that the list of them is there at once and
needs neither Spark nor the packages of extras.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Final, NamedTuple

from pyspark_jetstream import __version__
from pyspark_jetstream.operations.terminal import complain, say

__all__ = ["COMMANDS", "main"]

PROGRAM: Final = "pyspark-jetstream"

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


class Command(NamedTuple):
    """A program."""

    module: str
    """The module beside this one that has its `main`."""

    does: str
    """The first sentence of its help."""


COMMANDS: Final = {
    "inspect": Command(
        "overview",
        "Shows streams, partitions, consumers, pins, lag, claims, leases of standbys, and a"
        " checkpoint beside what the server holds.",
    ),
    "unpin": Command(
        "unpinning",
        "Takes the pin from whoever holds it at consumers of a priority group, and says from whom.",
    ),
    "rewind": Command(
        "rewinding",
        "Lets a stopped streaming query write a batch, and all behind it, again: checkpoint and"
        " ledger.",
    ),
    "partition": Command(
        "partitions",
        "Makes N partitions of a stream that exists, on the server itself, and compares them with"
        " it.",
    ),
    "throttle": Command(
        "throttle",
        "Pauses what Spark publishes on some subjects, or holds it to a rate; says who"
        " acknowledged.",
    ),
    "metrics": Command(
        "exporter",
        "Serves the metrics that reads and writes publish (option metricsSubject) to Prometheus.",
    ),
    "explain-mapping": Command(
        "explanation",
        "Shows where a mapping sends subjects: by which rule, on which subject, with which share.",
    ),
    "backfill range": Command(
        "rangebackfill",
        "Copies a range of a stream into Parquet files, or into another stream.",
    ),
    "backfill snapshot": Command(
        "snapshotbackfill",
        "Copies a snapshot into Parquet files: the last message of every subject, or the latest"
        " value of every key of a bucket, all as of one sequence.",
    ),
    "replay": Command(
        "replay",
        "Publishes dead letters as the rows they were, on their original subjects.",
    ),
}

_EXTRAS: Final = {"rich": "cli", "prometheus_client": "metrics"}
"""Packages that an installation may lack, and the extra that brings each."""


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """The exit status of the command; 1: an extra is missing; 2: no such command; 130: Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words, program)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        complain(f"{program}: needs {package}: pip install '{PROGRAM}[{_EXTRAS[package]}]'")
        return FAILED


def _run(words: list[str], program: str) -> int:
    for name, length in ((" ".join(words[:2]), 2), (" ".join(words[:1]), 1)):
        if name in COMMANDS:
            module = import_module(f"{__package__}.{COMMANDS[name].module}")
            status: int = module.main(words[length:], program=f"{program} {name}")
            return status
    if words[:1] == ["--version"]:
        say(f"{PROGRAM} {__version__}")
        return 0
    group = [name for name in COMMANDS if words and name.startswith(f"{words[0]} ")]
    if {"-h", "--help"} & set(words[1:2] if group else words[:1]):
        say(*_help(group or COMMANDS, program))
        return 0
    complain(f"{program}: {_mistake(words, group)} See {program} --help")
    return USAGE


def _mistake(words: list[str], group: list[str]) -> str:
    """What is wrong with words that name no command; what follows the first is not repeated."""
    if not words:
        return "expected a command."
    near = get_close_matches(" ".join(words[:2]), COMMANDS, 1, cutoff=0.8)
    if group and not near:
        return f"expected {' or '.join(group)}."
    word = words[0].partition("=")[0]
    near = near or get_close_matches(word, {name.partition(" ")[0] for name in COMMANDS}, 1)
    return f"unknown command '{word}'" + (f": did you mean '{near[0]}'?" if near else ".")


def _help(names: Iterable[str], program: str) -> list[str]:
    width = shutil.get_terminal_size().columns - 2
    lines = [
        line
        for name in names
        for line in textwrap.wrap(
            COMMANDS[name].does, width, initial_indent=f"  {name:<19}", subsequent_indent=" " * 21
        )
    ]
    return [
        f"usage: {program} COMMAND ...",
        "",
        "What an operator runs beside queries of Spark on NATS JetStream.",
        "",
        *lines,
        "",
        f"{program} COMMAND --help says more of one; {program} --version, which version this is.",
    ]  # fmt: skip

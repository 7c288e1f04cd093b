"""How operators' programs take arguments, the connection and a checkpoint; secrets from outside."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pyspark_jetstream.client.options import CONNECTION_OPTIONS
from pyspark_jetstream.operations.inspection.checkpoints import (
    Directory,
    LocalDirectory,
    checkpoint_path,
    is_local,
)
from pyspark_jetstream.values import duration

__all__ = [
    "add_checkpoint",
    "add_connection",
    "argument",
    "connection_words",
    "described",
    "opened_checkpoint",
    "parsed",
]

T = TypeVar("T")

_VARIABLE: Final = "JETSTREAM_"
"""Before the name of a secret option, in capitals."""


def described(
    document: str | None, command: str, program: str, **more: Any
) -> argparse.ArgumentParser:
    """
    A parser whose help is a module's docstring.

    Args:
        command: what the docstring calls the program.
        program: what it is called now.
        more: of `ArgumentParser`.
    """
    return argparse.ArgumentParser(
        prog=program,
        description=(document or "").replace(command, program),
        **{"formatter_class": argparse.RawDescriptionHelpFormatter, **more},
    )


def add_connection(parser: argparse.ArgumentParser) -> None:
    """A flag for every option of the connection that is no secret."""
    group = parser.add_argument_group("connection (as for the data source)")
    for option in CONNECTION_OPTIONS:
        if not option.secret:
            flag = "--" + re.sub("[A-Z]", lambda m: "-" + m[0].lower(), option.name)
            group.add_argument(flag, dest=f"connection {option.name}", metavar="…", help=option.doc)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """The checkpoint that is read, and how long that may take."""
    parser.add_argument(
        "--checkpoint", metavar="DIR",
        help="a query's checkpointLocation: a path, or a URI that Spark reaches (needs Java)",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint-timeout", dest="checkpointTimeout", type=argument(duration), default=60.0,
        metavar="TIME", help="for each answer of another file system than this machine's (60s)",
    )  # fmt: skip


@contextmanager
def opened_checkpoint(given: argparse.Namespace) -> Iterator[Directory | None]:
    """
    The checkpoint that was named, wherever it is.

    Raises:
        OptionError: There is none.
        CheckpointError: Where it is kept cannot be reached.
    """
    if given.checkpoint is None:
        yield None
    elif is_local(given.checkpoint):
        yield LocalDirectory(checkpoint_path(given.checkpoint))
    else:
        # Not above: who has local checkpoints alone, or none, needs neither pyspark nor Java.
        from pyspark_jetstream.operations.inspection.hadoop import HadoopDirectory

        directory = HadoopDirectory(given.checkpoint, given.checkpointTimeout)
        try:
            yield directory
        finally:
            directory.close()


def connection_words(given: Mapping[str, Any]) -> dict[str, str]:
    """The options that were given: secrets in the environment, the others as flags."""
    words = {}
    for option in CONNECTION_OPTIONS:
        if option.secret:
            text = os.environ.get(_VARIABLE + option.name.upper())
        else:
            text = given[f"connection {option.name}"]
        if text is not None:
            words[option.name] = text
    return words


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; an unknown one is named without its value, which might be a secret."""
    given, rest = parser.parse_known_args(arguments)
    if rest:
        flags = (re.sub("=.*", "", word) for word in rest if word.startswith("-"))
        parser.error(f"unrecognized arguments: {' '.join(flags)} …")
    return given


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A type of argument of which argparse shows what is wrong."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked

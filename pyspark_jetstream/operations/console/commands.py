"""
Programs that read their command line themselves, by their names, until they are made with click.

A module is imported when its program is called.
"""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pkgutil import get_data
from typing import Final, NamedTuple

from pyspark_jetstream.operations.terminal import complain

PROGRAM: Final = "pyspark-jetstream"

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


class Command(NamedTuple):
    """A program."""

    module: str
    """The module beside this one that is the program, as `program` has it."""

    words: tuple[str, ...] = ()
    """Arguments that the name stands for, before those that are given."""


COMMANDS: Final = {
    "inspect": Command("overview"),
}

_OPTIONAL: Final = {"rich": "rich", "prometheus_client": "prometheus-client"}
"""Modules that an installation may lack, and the package of each, as pip knows it."""


def main(arguments: Sequence[str]) -> int:
    """The exit status of a command; 1: a package is missing; 130: Ctrl-C."""
    name, *words = arguments
    return _run(name, f"{PROGRAM} {name}", words)


def _run(name: str, called: str, words: Sequence[str]) -> int:
    program = import_module(".program", __package__)
    try:
        module = import_module(f".{COMMANDS[name].module}", __package__)
        said = [*COMMANDS[name].words, *words]
        status: int = program.run(module, called, f"{PROGRAM} {name}", said)
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _OPTIONAL:
            raise
        pip = shlex.join([sys.executable, "-m", "pip", "install", _OPTIONAL[package]])
        complain(f"{called}: needs {_OPTIONAL[package]}: {pip}")
        return FAILED


def does(name: str) -> str:
    """
    The first sentence of a program's help; of a name that stands for arguments, what the help says
    of it. It is read off the file: to import a program may need Spark.
    """
    module, words = COMMANDS[name]
    source = get_data(str(__package__), f"{module.replace('.', '/')}.py") or b""
    text = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    return text.partition(f"`{name}`: ")[2 if words else 0].partition(".")[0] + "."

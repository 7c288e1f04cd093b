"""
The command `pyspark-jetstream`: the programs for operators by their names.

A program's module is imported when it is called, so the list of them comes at once, and without
Spark or the packages of extras.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pkgutil import get_data
from typing import Final, NamedTuple

from pyspark_jetstream import __version__
from pyspark_jetstream.operations.terminal import complain, say

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
    "partition": Command("partitions"),
    "throttle": Command("throttle"),
}

_OPTIONAL: Final = {"rich": "rich", "prometheus_client": "prometheus-client"}
"""Modules that an installation may lack, and the package of each, as pip knows it."""


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """The exit status of the command; 1: a package is missing; 2: no such command; 130: Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return _run(name, f"{program} {name}", words[length:])
    if words[:1] == ["--version"]:
        say(f"{PROGRAM} {__version__}")
        return 0
    group = [name for name in COMMANDS if words and name.startswith(f"{words[0]} ")]
    if {"-h", "--help"} & set(words[1:2] if group else words[:1]):
        say(*_help(group or COMMANDS, program))
        return 0
    if words[:1] == ["completion"]:
        return _completion(words[1:], program)
    complain(f"{program}: {_mistake(words, group)} See {program} --help")
    return USAGE


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


def _completion(words: Sequence[str], program: str) -> int:
    if list(words) not in (["bash"], ["zsh"]):
        complain(f"{program} completion: expected bash or zsh. See {program} --help")
        return USAGE
    say(*_script(words[0]))
    return 0


def _script(shell: str) -> list[str]:
    """The lines of a script that bash sources; zsh takes it by its emulation of `complete`."""
    function = "_" + re.sub(r"\W", "_", PROGRAM)
    return [
        *(["autoload -U +X bashcompinit && bashcompinit"] * (shell == "zsh")),
        f"{function}() {{",
        '  local said="${COMP_WORDS[*]:1:COMP_CWORD-1}" word="${COMP_WORDS[COMP_CWORD]}" words=""',
        '  case "$said " in',
        *(
            f"    {shlex.quote(f'{command} ') if command else ''}*) words={shlex.quote(known)} ;;"
            for command, known in _followers().items()
        ),
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        f"complete -o default -F {function} {PROGRAM}",
    ]


def _followers() -> dict[str, str]:
    """
    Words that may follow a command: its own commands, and flags; the longest commands come first.
    """
    program = import_module(".program", __package__)
    found = {"": ["completion", "--help", "--version"], "completion": ["bash", "zsh"]}
    for name, made in COMMANDS.items():
        parser = program.Parser(prog=name)
        import_module(f".{made.module}", __package__).arguments(parser)
        *group, last = name.split()
        for known in ("", *group):
            first = (group or [last])[0] if not known else last
            found.setdefault(known, ["--help"] if known else [])
            if first not in found[known]:
                found[known].append(first)
        for command, each in {"": parser, **parser.commands()}.items():
            flags = [flag for flag, _ in each.flags() if flag.startswith("--")]
            found[f"{name} {command}".strip()] = [*each.commands(), *flags]
    return {name: " ".join(found[name]) for name in sorted(found, key=lambda each: -len(each))}


def _mistake(words: list[str], group: list[str]) -> str:
    """The error in words that name no command; values, which may be secrets, stay out."""
    if not words:
        return "expected a command."
    expected = f"expected {' or '.join(group)}."
    if group and len(words) == 1:
        return expected
    word = words[1 if group else 0].partition("=")[0]
    known = group or [*COMMANDS, *(name.partition(" ")[0] for name in COMMANDS), "completion"]
    whole = " ".join(words[:2])
    near = get_close_matches(whole, known, 1, cutoff=0.8) or get_close_matches(word, known, 1)
    if near:
        return f"unknown command '{word}': did you mean '{near[0]}'?"
    return f"unknown command '{word}'" + (f": {expected}" if group else ".")


def does(name: str) -> str:
    """
    The first sentence of a program's help; of a name that stands for arguments, what the help says
    of it. It is read off the file: to import a program may need Spark.
    """
    module, words = COMMANDS[name]
    source = get_data(str(__package__), f"{module.replace('.', '/')}.py") or b""
    text = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    return text.partition(f"`{name}`: ")[2 if words else 0].partition(".")[0] + "."


def _help(names: Iterable[str], program: str) -> list[str]:
    width = shutil.get_terminal_size().columns - 2
    lines = [
        line
        for name in names
        for line in textwrap.wrap(
            does(name), width, initial_indent=f"  {name:<19}", subsequent_indent=" " * 21
        )
    ]
    return [
        f"usage: {program} COMMAND ...",
        "",
        "Commands for operators of Spark's queries on NATS JetStream.",
        "",
        *lines,
        "",
        f"{program} COMMAND --help explains a command.",
        f"{program} --version says which version this is.",
        f"{program} completion bash (or zsh) prints a script",
        "that completes commands and flags.",
    ]

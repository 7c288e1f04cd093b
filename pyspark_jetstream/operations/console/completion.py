"""Completion for shells: a script of the commands and their flags, as their parsers have them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from importlib import import_module

from .program import Parser


def script(shell: str, program: str, modules: Mapping[str, str]) -> list[str]:
    """
    The lines of a script that a shell sources.

    Args:
        shell: `bash` or `zsh`, which takes the same script by its emulation of bash's completion.
        modules: of the programs, by the names of their commands.
    """
    function = "_" + re.sub(r"\W", "_", program)
    words = dict(_words(modules))
    return [
        *(["autoload -U +X bashcompinit && bashcompinit"] * (shell == "zsh")),
        f"{function}() {{",
        '  local said="${COMP_WORDS[*]:1:COMP_CWORD-1}" word="${COMP_WORDS[COMP_CWORD]}" words=""',
        '  case "$said " in',
        *(
            f"    {shlex.quote(f'{command} ') if command else ''}*) words={shlex.quote(known)} ;;"
            for command, known in words.items()
        ),
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        f"complete -o default -F {function} {program}",
    ]


def _words(modules: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What may follow a command: its own commands, and flags; the longest commands come first."""
    found: dict[str, list[str]] = {"": ["completion", "--help", "--version"], "completion": []}
    found["completion"] = ["bash", "zsh"]
    for name, module in modules.items():
        parser = Parser(prog=name)
        import_module(f".{module}", __package__).arguments(parser)
        *group, last = name.split()
        for known in ("", *group):
            first = (group or [last])[0] if not known else last
            found.setdefault(known, ["--help"] if known else [])
            if first not in found[known]:
                found[known].append(first)
        for command, each in {"": parser, **parser.commands()}.items():
            flags = [flag for flag, _ in each.flags() if flag.startswith("--")]
            found[f"{name} {command}".strip()] = [*each.commands(), *flags]
    for command in sorted(found, key=lambda each: -len(each)):
        yield command, " ".join(found[command])

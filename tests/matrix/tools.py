"""Interpreters and JDKs that are there: named by arguments, or on PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tool:
    """An interpreter, or the home of a JDK."""

    path: Path
    version: str


def pythons(named: Iterable[Path], wanted: Iterable[str]) -> dict[str, Tool]:
    """`3.12` → an interpreter; those named go before those on PATH."""
    on_path = [Path(each) for v in wanted if (each := shutil.which(f"python{v}"))]
    said = {path: _output([path, "--version"]) for path in [*named, *on_path]}
    return _found(said, r"Python ((\d+\.\d+)\S*)")


def javas(named: Iterable[Path]) -> dict[str, Tool]:
    """`17` → a JAVA_HOME; then `$JAVA_HOME`, and that of `java` on PATH."""
    homes = list(named)
    if "JAVA_HOME" in os.environ:
        homes.append(Path(os.environ["JAVA_HOME"]))
    if on_path := shutil.which("java"):
        homes.append(Path(on_path).resolve().parents[1])
    said = {home: _output([home / "bin" / "java", "-version"]) for home in homes}
    return _found(said, r'version "((\d+)[^"]*)"')


def _found(said: dict[Path, str], pattern: str) -> dict[str, Tool]:
    """The first of each version, by the pattern's second group."""
    found: dict[str, Tool] = {}
    for path, words in said.items():
        if match := re.search(pattern, words):
            found.setdefault(match[2], Tool(path, match[1]))
    return found


def _output(words: list[str | Path]) -> str:
    """All that it prints; nothing if it fails."""
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout

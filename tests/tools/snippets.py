"""
The examples of README and docs: what a page shows as code, in its order.

A fenced block is run by its language (`RUN`) or only shown (`text`); `output` is what the block
before it prints. Comments that readers do not see say the rest:

    <!-- not run: why -->            before a block that cannot be
    <!-- saved as: job.py -->        before a block that is a file, which a command runs
    <!-- needs: pandas, grpc -->     modules without which the section cannot be run
    <!-- first, bash: … -->          what must be there before the next block
    <!-- then, python: … -->         what must hold after the last one
    <!-- anew -->                    what follows needs nothing of what stands before it
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..kits.places import ROOT

RUN = ("bash", "conf", "json", "python")
"""Languages that are run, or checked by who reads them."""

OUTPUT = "output"
"""The language of what an example prints."""

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HIDDEN = re.compile(r"^<!-- (?:first|then), (\w+):\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
_REASON = re.compile(r"<!-- not run: ([^>]+) -->\n+\Z")
_FILE = re.compile(r"<!-- saved as: (\S+) -->\n+\Z")
_NEEDS = re.compile(r"^<!-- needs: (.+) -->$", re.MULTILINE)
_ANEW = re.compile(r"^<!-- anew -->$", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """One example, or what goes before or behind it unseen."""

    page: Path
    line: int
    language: str
    text: str
    reason: str = ""
    """Why it is not run; "" where it is."""
    file: str = ""
    """What it is saved as, instead of being run; "" where it is run."""
    hidden: bool = False

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def snippets(page: Path) -> list[Snippet]:
    """The page's, in its order; directives of the site ({toctree}) are none."""
    return sorted(_found(page, page.read_text()), key=lambda each: each.line)


@dataclass(frozen=True)
class Section:
    """A part of a page that is run by itself: a server without streams, a session of its own."""

    name: str
    snippets: list[Snippet]
    needs: list[str]
    """Modules that its examples need, and that the package does not."""


def sections(page: Path) -> Iterator[Section]:
    """The page's; one, where nothing begins anew."""
    text = page.read_text()
    starts = [0, *(match.start() for match in _ANEW.finditer(text)), len(text)]
    for at, end in pairwise(starts):
        part = text[at:end]
        heading = _HEADING.search(part)
        name = (
            f"{page.relative_to(ROOT)}#{heading[1]}"
            if at and heading
            else str(page.relative_to(ROOT))
        )
        needs = _NEEDS.search(part)
        lines = range(_line(text, at), _line(text, end) + 1)
        found = [snippet for snippet in snippets(page) if snippet.line in lines]
        yield Section(name, found, needs[1].split(", ") if needs else [])


def _found(page: Path, text: str) -> Iterator[Snippet]:
    for match in _FENCE.finditer(text):
        if not match[1].startswith("{"):
            reason = _REASON.search(text, 0, match.start())
            why = reason[1] if reason else ""
            file = _FILE.search(text, 0, match.start())
            name = file[1] if file else ""
            yield Snippet(page, _line(text, match.start(2)), match[1], match[2], why, name)
    for match in _HIDDEN.finditer(text):
        yield Snippet(page, _line(text, match.start(2)), match[1], match[2], hidden=True)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1

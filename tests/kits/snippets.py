"""
The examples of README and docs: what a page shows as code, in its order.

A fenced block is run by its language (`RUN`) or only shown (`text`). Comments that readers do not
see say the rest:

    <!-- not run: why -->            before a block that cannot be
    <!-- first, bash: … -->          what must be there before the next block
    <!-- then, python: … -->         what must hold after the last one
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .places import ROOT

__all__ = ["PAGES", "RUN", "Snippet", "snippets"]

RUN = ("bash", "conf", "json", "python")
"""Languages that are run, or checked by who reads them."""

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HIDDEN = re.compile(r"^<!-- (?:first|then), (\w+):\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
_REASON = re.compile(r"<!-- not run: ([^>]+) -->\n+\Z")


@dataclass(frozen=True)
class Snippet:
    """One example, or what goes before or behind it unseen."""

    page: Path
    line: int
    language: str
    text: str
    reason: str = ""
    """Why it is not run; "" where it is."""
    hidden: bool = False

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def snippets(page: Path) -> list[Snippet]:
    """The page's, in its order; directives of the site ({toctree}) are none."""
    return sorted(_found(page, page.read_text()), key=lambda each: each.line)


def _found(page: Path, text: str) -> Iterator[Snippet]:
    for match in _FENCE.finditer(text):
        if not match[1].startswith("{"):
            reason = _REASON.search(text[: match.start()])
            why = reason[1] if reason else ""
            yield Snippet(page, _line(text, match.start(2)), match[1], match[2], why)
    for match in _HIDDEN.finditer(text):
        yield Snippet(page, _line(text, match.start(2)), match[1], match[2], hidden=True)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1

"""Prose of a Markdown page, sentence by sentence, and what of it has to be read twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

LONGEST: Final = 32
"""Words of the longest sentence."""

_ASIDE: Final = 14
"""Words of the longest bracket."""

_UNREAD: Final = re.compile(r"<!--.*?-->|^(```+|~~~+|:::+).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE)
"""Comments, blocks of code and directives."""

_RULES: Final = (
    (re.compile(r"(Who|Whoever|Whose|What|Which|Where) (?!.*\?$)"), "begins with a clause"),
    (re.compile(r".*, too\b"), "has ', too': say 'also'"),
    (re.compile(r"[^(]*(?:\([^()]*\)[^(]*)*\([^()]*\("), "has a bracket within a bracket"),
    (re.compile(r"(Likewise|So (is|it is|does|do) (?!that))"), "says 'likewise' for a rule"),
)


def pieces(page: str) -> Iterator[str]:
    """
    Paragraphs, items and lines of cells as text on one line, without headings. Code is the word
    `x`, a link its text, an image nothing.
    """
    text = _UNREAD.sub("\n\n", page)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"`[^`]+`", "x", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}", "", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)|\n(?=[|#])", text):
        line = " ".join(block.split())
        if line.startswith("|"):
            cells = re.split(r"\||<br>", line.strip("|"))
            yield from (cell.strip() for cell in cells if cell.strip(" -:"))
        elif line and not line.startswith("#"):
            yield re.sub(r"^([-*]|\d+\.) ", "", line)


def sentences(piece: str) -> list[str]:
    """The sentences of a piece; one ends where a capital letter, or code, follows."""
    return re.split(r"(?<=[.?!])\)? (?=[A-Zx(\"*])", piece)


def faults(page: str) -> list[str]:
    """Each sentence that breaks a rule, with the rule."""
    found: list[str] = []
    for piece in pieces(page):
        if re.match(r"(It|They|That|Those|Such|Both)\b(?! (which|who|is why))", piece):
            found.append(f"begins a paragraph with a pronoun: {piece}")
        for sentence in sentences(piece):
            words = len(re.findall(r"[\w'’.,/-]*\w", sentence))
            if words > LONGEST:
                found.append(f"has {words} words: {sentence}")
            found += [f"{why}: {sentence}" for rule, why in _RULES if rule.match(sentence)]
            for aside in re.findall(r"\(([^()]*)\)", sentence):
                if len(aside.split()) > _ASIDE:
                    found.append(f"has a rule in brackets: {sentence}")
    return found

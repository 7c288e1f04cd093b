"""
The rules of a write under pressure (docs/overload.md): each has a test that names it, each number
that somebody cites is on that page, and so is each page that somebody cites.
"""

from __future__ import annotations

import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

from ..kits.places import ROOT

TESTS = ROOT / "tests"
PAGE = (ROOT / "docs" / "overload.md").read_text()
ITEMS = [
    *(f"A{number}" for number in range(1, 29)),  # request prioritisation
    *(f"B{number}" for number in range(1, 28)),  # throttling of producers, after PIP-385
    *(f"I{number}" for number in range(1, 11)),  # what may never be broken
    *(f"§12.{number}" for number in range(1, 10)),  # what is to be shown on a real server
]
STANDING = re.findall(r"^(?:#+ |- \*\*)(§[\d.]*\d|[A-Z]\d+)\b", PAGE, re.MULTILINE)
"""The numbers of the page's sections and rules."""

NAMED = re.compile(r"(?:\b([ABI]\d+)|(§12\.\d))\b|(?:def test_|_)([abi]\d+)(?=_)")
CITED = re.compile(r"(?<![\w`/:-])([ABI]\d{1,2}|§\d+(?:\.\d+)*)\b")
PAGES = re.compile(r"(?<![\w*./])[\w./-]+\.md\b")


@cache
def sources() -> list[tuple[Path, str]]:
    """Each file's comments and docstrings; of a page of docs all of it."""
    found = []
    for folder in ("pyspark_jetstream", "jobs", "bench", "tests"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
            words = (
                each.string
                for each in tokens
                if each.type == tokenize.COMMENT or each.string.startswith('"""')
            )
            found.append((file, "\n".join(words)))
    return found + [(file, file.read_text()) for file in sorted((ROOT / "docs").glob("*.md"))]


def test_every_item_is_named():
    """
    By the docstring of a test, or in its name.
    """
    named = set()
    for file in TESTS.rglob("test_*.py"):
        if file != Path(__file__):
            for groups in NAMED.findall(file.read_text()):
                named |= {each.upper() for each in groups if each}

    assert [item for item in ITEMS if item not in named] == []


def test_every_item_is_on_the_page():
    """
    Once, and its rules in the order of their numbers.
    """
    for letter in "ABI":
        of_page = [each for each in STANDING if each.startswith(letter)]
        assert of_page == [item for item in ITEMS if item.startswith(letter)]
    assert set(ITEMS) <= set(STANDING)
    assert len(STANDING) == len(set(STANDING))


def test_every_number_that_is_cited_is_on_the_page():
    """
    In comments and docstrings of the package, the programs, the benchmarks and the tests, and in
    other pages.
    """
    lost = [
        f"{file.relative_to(ROOT)}: {number}"
        for file, text in sources()
        for number in CITED.findall(text)
        if number not in STANDING
    ]

    assert lost == []


def test_every_page_that_is_cited_is_there():
    """
    By its path from the root, or by its name alone where it is in docs/.
    """
    lost = [
        f"{file.relative_to(ROOT)}: {name}"
        for file, text in sources()
        for name in PAGES.findall(text)
        if not any((folder / name).is_file() for folder in (ROOT, ROOT / "docs", file.parent))
    ]

    assert lost == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(overload.md B12)", ["B12"]),
        ("A13, A14: what", ["A13", "A14"]),
        ("rules of §7.1 to §7.3.", ["§7.1", "§7.3"]),
        ("`B3`, `X-B3-…`, ADR-50, 1A2, /A1", []),
    ],
)
def test_what_a_citation_is(text, found):
    """
    A number of its own, not a part of another name.
    """
    assert CITED.findall(text) == found

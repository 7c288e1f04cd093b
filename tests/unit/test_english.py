"""Pages in plain English: what has to be read twice, and words of others."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from pyspark_jetstream.operations.console import program
from pyspark_jetstream.operations.console.commands import COMMANDS, does

from ..kits.places import ROOT
from ..kits.prose import LONGEST, faults, pieces
from ..kits.snippets import PAGES

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))

HELD = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "SECURITY.md", *PAGES))

WORDS = "docs/reference/words.md"
OTHERS = (
    "guides/from-kafka", "guides/from-nats-spark-connector", "throttle-protocol", "documents",
    "overload",
)  # fmt: skip
"""Pages that speak of others' things by others' names."""

HOUSE = ("bench", "house")
"""Pages for those who work on the package."""

NAMES_OF_OTHERS = {
    "topic": {"index", "troubleshooting", "runbook", "design", "guides/throttle"},
}
"""Where Kafka's and PIP-385's own words are meant."""


def read(page: str) -> str:
    return (ROOT / page).read_text()


def entries() -> list[tuple[str, list[str]]]:
    """The words, each with words of others."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|([^|]*)\|$", read(WORDS), re.MULTILINE)
    return [(word, [each.strip() for each in others.split(",") if each.strip()])
            for word, others in rows if word not in ("word", "---")]  # fmt: skip


def pages() -> dict[str, Path]:
    """The user's pages, by name, those outside of `docs` included."""
    found = {str(path.relative_to(ROOT / "docs").with_suffix("")): path
             for path in (ROOT / "docs").rglob("*.md")}  # fmt: skip
    found |= {name: ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")}
    return {name: path for name, path in found.items()
            if name not in (*OTHERS, *HOUSE, "reference/words")}  # fmt: skip


def test_nothing_has_to_be_read_twice():
    """No sentence is long, begins with a clause, or has a rule in its brackets."""
    assert {page: found for page in HELD if (found := faults(read(page)))} == {}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_is_understood_at_once(name):
    """The help of each program, of its commands and of each flag, is held like a page."""
    parser = program.Parser(prog=name)
    module = import_module(f".{COMMANDS[name].module}", program.__package__)
    module.arguments(parser)
    parsers = [parser, *parser.commands().values()]
    said = [does(name), re.sub(r"(?m)^ {4}.*$", "", module.__doc__ or "")]
    said += [text for each in parsers for text in (each.description, each.epilog) if text]
    said += [action.help for each in parsers for _, action in each.flags() if action.help]

    assert faults("\n\n".join(said).replace("%(default)s", "x").replace("%(choices)s", "x")) == []


def test_a_guide_is_short():
    """A guide has 400 words at least, and without its tables 900 at most."""
    for guide in GUIDES:
        page = guide.read_text()
        all_words, prose = (
            sum(len(piece.split()) for piece in pieces(text))
            for text in (page, re.sub(r"(?m)^\|.*$", "", page))
        )

        assert 400 <= all_words and prose <= 900, guide


def test_each_word_has_one_meaning():
    """The page of words is short, and no page for users has a word of others for one of them."""
    known = entries()
    texts = {page: "\n".join(pieces(path.read_text())) for page, path in pages().items()}
    used = [
        (page, other)
        for page, text in texts.items()
        for _, others in known
        for other in others
        if page not in NAMES_OF_OTHERS.get(other, ())
        if re.search(rf"\b{re.escape(other)}s?\b", text, re.IGNORECASE)
    ]

    assert 20 <= len(known) <= 30
    assert used == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The server stores the row.", None),
        ("What was sent may be stored.", "begins with a clause"),
        ("The row waits. Who shares, waits.", "begins with a clause"),
        ("Who may publish?", None),
        ("It waits.", "pronoun"),
        ("- They wait.", "pronoun"),
        ("| a | It waits. |", "pronoun"),
        ("The row waits (a pause (of an hour)).", "bracket within a bracket"),
        ("The row waits, too.", "', too'"),
        ("The row waits (" + "as the subject is paused " * 3 + ").", "rule in brackets"),
        ("The row " + "waits and " * LONGEST + "waits.", "words"),
        ("```text\nWhat is code.\n```\n\n# What follows\n\n<!-- Who -->\n", None),
        ("The `a (b (c))` of [Who](who.md) waits.", None),
    ],
)
def test_faults_are_found(text, found):
    """Each rule finds its fault; code, headings, comments and addresses are no prose."""
    assert (faults(text) == []) if found is None else (found in faults(text)[0])

"""Pages, helps and warnings in plain English: what has to be read twice, and words of others."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from pyspark_jetstream.operations.console import program
from pyspark_jetstream.operations.console.commands import COMMANDS, does
from pyspark_jetstream.options import all_options

from ..kits.places import ROOT
from ..kits.prose import LONGEST, faults, pieces
from ..kits.snippets import PAGES
from ..kits.told import told

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


def others_in(text: str) -> set[str]:
    """The words of others that a text has."""
    others = {other for _, others in entries() for other in others}
    return {each for each in others if re.search(rf"\b{re.escape(each)}s?\b", text, re.IGNORECASE)}


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

    text = "\n\n".join(said).replace("%(default)s", "x").replace("%(choices)s", "x")
    assert faults(text) == []
    assert others_in(text) == set()


def test_a_warning_is_understood_at_once():
    """
    Warnings, and what programs answer, are held like a page. Each name in them that is written like
    an option's is one.
    """
    options = {option.name for option in all_options()}
    texts = [
        (f"{path.relative_to(ROOT)}:{line}", text)
        for path in sorted((ROOT / "pyspark_jetstream").rglob("*.py"))
        for line, text in told(path.read_text())
    ]
    found = [
        (place, mistakes)
        for place, text in texts
        if (mistakes := faults(text) + sorted(others_in(text) | unknown(text, options)))
    ]

    assert len(texts) > 100
    assert found == []


def unknown(text: str, options: set[str]) -> set[str]:
    """Words written like options that are none of them."""
    return set(re.findall(r"\b[a-z]+[A-Z]\w*\b", text)) - options


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
    used = [
        (name, other)
        for name, path in pages().items()
        for other in others_in("\n".join(pieces(path.read_text())))
        if name not in NAMES_OF_OTHERS.get(other, ())
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


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ('logger.warning("stream=%s: %d rows wait", name, 3)', ["stream=x: x rows wait"]),
        ('self.logger.error("it " "failed: %r", error)', ["it failed: x"]),
        ('logger.log(level, "of 100%% %.1f%s", 1, 2)', ["of 100%% xx"]),
        ('logger.info("nothing is wrong")', []),
        ('say("one", f"{two} of {3}", *lines)', ["one", "x of x"]),
        ('complain("yes" if done else f"no: {why}")', ["yes", "no: x"]),
        ('say(*(f"  {name}" for name in names))', ["  x"]),
        ('given.parser.error("expected --for")', ["expected --for"]),
        ('raise ValueError("is told by whoever catches it")', []),
    ],
)
def test_what_is_told(source, texts):
    """The texts of a call, with the word x for each value."""
    assert [text for _, text in told(source)] == texts


def test_an_option_that_is_none():
    """A word in the form of an option's name is known by it; names of errors and flags are none."""
    assert unknown("raise ackWait, priorityRules; OptionError, --ack-wait", {"ackWait"}) == {
        "priorityRules"
    }

"""Pages that are typed one after the other, on one server and in one folder, go together."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

from pyspark_jetstream.subjects import overlaps

from ..kits.places import ROOT
from ..kits.snippets import PAGES, snippets

SITE = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
GUIDES = [page for page in SITE if page.parent.name in ("start", "guides")]

_MADE = re.compile(r'stream="([^"]+)", streamSubjects="([^"]+)"')


def made(page) -> Iterator[tuple[str, str]]:
    """The streams that what a page shows makes, and what they take."""
    for snippet in snippets(page):
        if snippet.hidden:
            continue
        if snippet.language == "bash":
            for line in snippet.text.replace("\\\n", " ").splitlines():
                if line.startswith("nats stream add ") and "--mirror" not in line:
                    words = shlex.split(line, comments=True)
                    yield words[3], words[words.index("--subjects") + 1]
        else:
            for name, subjects in _MADE.findall(snippet.text):
                yield name, subjects.replace("{partition}", "*")


def test_a_stream_has_a_name_and_subjects_of_its_own():
    """
    Who types what the guides show can type the next page, too: a name stands for the same subjects
    everywhere, and no two streams take the same subject.
    """
    streams = defaultdict(set)
    for page in GUIDES:
        for name, subjects in made(page):
            streams[name].add(subjects)

    assert {"FLIGHTS", "RAW", "NUMBERED", "ORDERS", "TAXIS"} <= streams.keys()
    assert {name: takes for name, takes in streams.items() if len(takes) != 1} == {}
    for (one, [a]), (other, [b]) in combinations(streams.items(), 2):
        assert not overlaps(a, b), f"{one} takes {a}, {other} takes {b}"


def test_a_checkpoint_belongs_to_one_page():
    """
    A second query over it would read nothing, or end with an error.
    """
    pages = defaultdict(set)
    for page in SITE:
        for place in re.findall(r'"checkpointLocation", "([^"]+)"', page.read_text()):
            pages[place].add(page.stem)

    assert len(pages) > 8
    assert {place: names for place, names in pages.items() if len(names) > 1} == {}

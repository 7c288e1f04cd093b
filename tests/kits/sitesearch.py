"""
What the search of the site finds first: Sphinx's own ranking (`searchtools.js`), of the same index.

A page that is the main entry of the index for a word has up to 100, by how much of the entry the
query is. A page with a word in its text has 5, with the word in a heading 15; a heading that is
little more than the query has up to 15, a title one more. Of pages with the same the first by
title is first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_ENTRY = 100
_TERM, _TITLE, _PART_OF_TERM, _PART_OF_TITLE = 5, 15, 2, 7


def first_hit(index: Mapping[str, Any], query: str, stem: Callable[[str], str]) -> str:
    """
    The page that a reader of the results sees first; "" where nothing is found.

    Args:
        index: as Sphinx writes it to searchindex.js.
        stem: of a word, what the index has in its place.
    """
    words = query.lower().strip()
    found = [*_entries(index, words), *_headings(index, words), *_texts(index, query, stem)]
    ranked = sorted(found, key=lambda each: (-each[0], each[1].lower()))
    return index["docnames"][ranked[0][2]] if ranked else ""


def _entries(index: Mapping[str, Any], query: str) -> list[tuple[int, str, int]]:
    """Score, title and page of main entries of the index that are little more than the query."""
    return [
        (round(_ENTRY * len(query) / len(entry)), index["titles"][page], page)
        for entry, places in index["indexentries"].items()
        if query in entry and len(query) >= len(entry) / 2
        for page, _, main in places
        if main
    ]


def _headings(index: Mapping[str, Any], query: str) -> list[tuple[int, str, int]]:
    """Score, shown title and page of headings that are little more than the query."""
    found = []
    for heading, places in index["alltitles"].items():
        if query in heading.lower() and len(query) >= len(heading) / 2:
            for page, _ in places:
                title = index["titles"][page]
                score = round(_TITLE * len(query) / len(heading)) + (title == heading)
                found.append((score, title if title == heading else f"{title} > {heading}", page))
    return found


def _texts(
    index: Mapping[str, Any], query: str, stem: Callable[[str], str]
) -> list[tuple[int, str, int]]:
    """Of pages that have all words: the score of the best of them."""
    scores: dict[int, dict[str, int]] = {}
    words = {stem(word) for word in re.findall(r"\w+", query.lower())}
    for word in words:
        for terms, whole, part in (
            (index["terms"], _TERM, _PART_OF_TERM),
            (index["titleterms"], _TITLE, _PART_OF_TITLE),
        ):
            exact = {word: whole} if word in terms else {}
            near = {each: part for each in terms if word in each and len(word) > 2}
            for term, score in (exact or near).items():
                for page in _pages(terms[term]):
                    scores.setdefault(page, {})[word] = score
    return [
        (max(of.values()), index["titles"][page], page)
        for page, of in scores.items()
        if of.keys() == words
    ]


def _pages(value: int | list[int]) -> list[int]:
    return value if isinstance(value, list) else [value]

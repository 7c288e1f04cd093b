"""What a reader of the site types into its search box leads to the page that answers."""

from __future__ import annotations

import pytest

from ..kits.sitesearch import first_hit

INDEX = {
    "docnames": ["a", "b", "c"],
    "titles": ["Alpha", "Beta of lag", "Lag"],
    "alltitles": {"Alpha": [[0, None]], "Beta of lag": [[1, None]], "Lag": [[2, None]],
                  "TLS": [[0, "tls"]]},
    "indexentries": {"delay": [[1, "index-0", True], [2, "index-1", False]],
                     "lags": [[0, "x", False]]},
    "terms": {"lag": [0, 1, 2], "word": 0, "other": [0, 1], "wording": 2},
    "titleterms": {"lag": [1, 2], "tls": 0, "alpha": 0, "beta": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("lag", "c"),  # a title that is the query, before a title that has it
        ("delay", "b"),  # the main entry of the index
        ("dela", "b"),  # the larger part of it
        ("TLS", "a"),  # a heading of a page
        ("word", "a"),  # the whole word, before a part of one
        ("wordi", "c"),  # a part of a word, where none is whole
        ("beta lag", "b"),  # all words
        ("beta word", ""),  # no page has both
        ("other", "a"),  # the same score: by title
        ("nothing", ""),
    ],
)
def test_what_is_found_first(query, page):
    """
    As Sphinx's own search ranks it.
    """
    assert first_hit(INDEX, query, str) == page

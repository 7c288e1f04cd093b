"""The pictures of the docs are what their texts say."""

from __future__ import annotations

import re
import runpy

import pytest

from ..kits.places import ROOT

DRAW = runpy.run_path(str(ROOT / "docs" / "drawings" / "draw.py"))


def test_every_picture_is_drawn_from_its_text():
    """
    `python docs/drawings/draw.py` writes them; each is shown by a page.
    """
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    pictures = DRAW["pictures"]()

    assert pictures
    for file, picture in pictures.items():
        assert file.read_text() == picture, file.name
        assert f"_static/drawings/{file.name}" in pages
    assert {file.name for file in DRAW["PICTURES"].iterdir()} == {file.name for file in pictures}


def test_a_picture_is_for_light_and_dark():
    """
    It has both schemes, and all text of its boxes lies in them.
    """
    picture = DRAW["drawn"]("box a 0,0 one | two & three\nbox b 1,1 b\narrow a b goes", "A title")

    assert "prefers-color-scheme: dark" in picture
    assert "<title>A title</title>" in picture
    assert re.findall(r">([^<>]+)</text>", picture) == ["goes", "one", "two &amp; three", "b"]


def test_a_line_that_is_none_is_refused():
    """
    A word misspelt does not leave a box out.
    """
    with pytest.raises(ValueError, match="expected box, store, arrow or note, got 'bx a 0,0'"):
        DRAW["drawn"]("bx a 0,0", "")

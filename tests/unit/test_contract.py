"""The list of what a write under pressure has to do: each item has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

from ..kits.places import ROOT

TESTS = ROOT / "tests"
ITEMS = [
    *(f"A{number}" for number in range(1, 29)),  # request prioritisation
    *(f"B{number}" for number in range(1, 26)),  # throttling of producers, after PIP-385
    *(f"I{number}" for number in range(1, 11)),  # what may never be broken
    *(f"§12.{number}" for number in range(1, 10)),  # what is to be shown on a real server
]
NAMED = re.compile(r"(?:\b([ABI]\d+)|(§12\.\d))\b|(?:def test_|_)([abi]\d+)(?=_)")


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

"""
The fuzzer in small: what once broke, a short run of each kind, and that it sees what is broken.

`make fuzz` runs it for long; docs/security.md says what came of it.
"""

from __future__ import annotations

import ast
import re

import pytest

from pyspark_jetstream.client import answers as members
from pyspark_jetstream.client import wire
from pyspark_jetstream.errors import ProtocolError
from pyspark_jetstream.fetch.decoding import cuts, rows
from pyspark_jetstream.fetch.gets import Gets
from pyspark_jetstream.publish.lanes import answers

from ..fuzz import KINDS, __main__, reference, referenceacks
from ..fuzz.cases import Case, shrunk
from ..fuzz.corpus import CASES
from ..kits.places import ROOT
from ..kits.seeds import fresh


def test_what_once_broke():
    """The package makes of each case what the reference makes of it."""
    for name, case in CASES.items():
        try:
            KINDS[case.kind].check(case)
        except AssertionError as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, *fresh(__name__)])
def test_a_short_run(kind, seed, tmp_path, capsys):
    """Long sound streams and short broken ones of a kind: no row, no error and no place differs."""
    arguments = ["--short", "--seed", str(seed), "--kinds", kind, "--out", str(tmp_path)]

    assert __main__.main(arguments) == 0, capsys.readouterr().out


@pytest.mark.parametrize("module", [reference, referenceacks])
def test_the_reference_shares_no_code(module):
    """It imports the standard library and itself, nothing of the package."""
    source = ROOT / "tests" / "fuzz" / f"{module.__name__.rpartition('.')[2]}.py"
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom):
            own = node.level == 1 and node.module == "reference"
            assert own or node.module in {"__future__", "datetime", "typing"}
        elif isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= {"json", "re"}


BREAKS = {
    "any size is one": ("frames", lambda patch: patch.setattr(wire, "_SIZE_DIGITS", 5000)),
    "what was stored has the pin": (
        "deliveries",
        lambda patch: patch.setattr(cuts, "_stored", lambda blocks, _: blocks),
    ),
    "any headers are clean": (
        "deliveries",
        lambda patch: patch.setattr(rows, "_CLEAN", re.compile(b"(?s:.*)")),
    ),
    "bytes of no frame are dropped": (
        "replies",
        lambda patch: patch.setattr(Gets, "_sorted_out", lambda self, frames, ours: b""),
    ),
    "fractions count": ("acks", lambda patch: patch.setattr(answers, "_count", int)),
    "any headers are Base64": (
        "api",
        lambda patch: patch.setitem(members._SCALARS, "hdrs", lambda any: any),
    ),
}
"""Each breaks a decoder of one kind."""


@pytest.mark.parametrize("name", BREAKS)
def test_a_decoder_that_is_broken_shows(name, monkeypatch, tmp_path, capsys):
    """
    A short run finds it, writes the case, and the case fails when it is run again and is sound
    when the decoder is.
    """
    kind, breaks = BREAKS[name]
    arguments = ["--short", "--seed", "1", "--kinds", kind, "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        breaks(patch)
        try:
            assert __main__.main(arguments) == 1
        except SystemExit as many:
            assert many.code == 1
        assert re.search(r"FAULT in round 1 \w+ [12]: ", capsys.readouterr().out)
        paths = sorted(tmp_path.glob("*.json"))
        with pytest.raises(Exception):  # noqa: B017 - whatever it was
            for path in paths:
                __main__.main(["--case", str(path)])

    assert __main__.main(["--case", *map(str, paths)]) == 0


def test_a_case_is_made_small(tmp_path):
    """Pieces that do not matter are left out; what is written is read again."""
    case = Case("frames", b"PING\r\n" * 50 + b"HELLO\r\n" + b"PONG\r\n" * 50, 7)

    def fails(other: Case) -> bool:
        try:
            KINDS["frames"].check(other)
            return b"HELLO\r\n" in other.stream
        except ProtocolError:
            return False

    small = shrunk(case, fails)
    path = tmp_path / "case.json"
    small.write(path, "why")

    assert (small.stream, small.cut) == (b"HELLO\r\n", 0)
    assert Case.load(path) == small

"""What `make matrix` runs, and what the page and the package say was run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from ..kits.places import ROOT
from ..matrix import results, tools
from ..matrix.cells import CELLS, PYTHONS
from ..matrix.deployments import RUN
from ..matrix.results import Outcome

OUTCOME = Outcome(CELLS[0].name, "ok", "4.3.0", "3.11.7", "17.0.15", "", "2.15.1", "2026-01-31")


def rows(page: str) -> list[list[str]]:
    """The cells of the table's lines."""
    lines = page.partition(7 * "|---" + "|\n")[2].splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]


def test_each_cell_is_once_there_and_can_be_run():
    """Names tell cells apart, and each deployment has who runs it."""
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert {cell.deployment for cell in CELLS} == set(RUN)
    assert {cell.python for cell in CELLS} == set(PYTHONS)


def test_the_page_has_each_cell():
    """docs/deployments.md has a row a cell; `make matrix ARGS=--table` writes it."""
    found = [(row[0], row[1]) for row in rows(results.PAGE.read_text())]

    assert found == [(cell.words, cell.spark) for cell in CELLS]


def test_classifiers_are_of_pythons_that_were_run():
    """The package names each Python that a row of the page ran, and no other."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    ran = {
        ".".join(row[2].split(".")[:2]) for row in rows(results.PAGE.read_text()) if row[5] == "ok"
    }

    assert {found[1] for each in listed if (found := re.search(r":: (3\.\d+)$", each))} == ran


def test_what_was_not_run_says_so(tmp_path: Path):
    """The last outcome of a cell counts; a cell without one is not run."""
    path = tmp_path / "results.jsonl"
    other = replace(OUTCOME, name=CELLS[1].name, result="not run: no Python 3.12")
    for outcome in (replace(OUTCOME, result="failed"), OUTCOME, other):
        results.append(path, outcome)
    table = rows(results.written(results.PAGE.read_text(), results.latest(path)))

    assert table[0][1:] == ["4.3.0", "3.11.7", "17.0.15", "none", "ok", "2026-01-31"]
    assert [row[5] for row in table[1:3]] == ["not run: no Python 3.12", "not run"]
    assert len(table) == len(CELLS)


def test_an_interpreter_that_does_not_run_is_none(tmp_path: Path):
    """What only has the name of an interpreter, or of a JDK, is passed over."""
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho Python 3.12.1\nexit 127\n")
    shim.chmod(0o755)
    found = tools.pythons([shim, Path(sys.executable)], [])

    assert [tool.path for tool in found.values()] == [Path(sys.executable)]
    assert Path("/nowhere") not in [tool.path for tool in tools.javas([Path("/nowhere")]).values()]


@pytest.mark.parametrize(("words", "status"), [(["--only", "no-such"], 2), (["--list"], 0)])
def test_cells_are_chosen_by_words(words: list[str], status: int):
    """`--list` shows all; words that no cell has are an error."""
    command = [sys.executable, "-m", "tests.matrix", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == status, done.stderr
    if not status:
        assert done.stdout.splitlines() == [cell.name for cell in CELLS]

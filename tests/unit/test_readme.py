"""What README and pages say of options, headers and modules is what the code says."""

from __future__ import annotations

import re

from pyspark_jetstream.options import all_options
from pyspark_jetstream.publish.metrics import METRICS
from pyspark_jetstream.serverheaders import (
    EXPECTS,
    KEPT,
    MADE,
    NOT_READ,
    NOT_WRITTEN,
    ORDERS,
    PLACES,
)

from ..kits import house, optiontables
from ..kits.places import ROOT

README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"


def test_the_readme_is_short():
    """
    What it is, how to begin, where the rest is: at most 200 lines.
    """
    assert len(README.splitlines()) <= 200


def test_option_tables():
    """
    docs/reference/options.md has every option once for each place it applies to, with its default
    and its sentence; `python -m tests.kits.optiontables` writes it.
    """
    page = optiontables.PAGE.read_text()

    assert page == optiontables.written(page)
    shown = [option for options in optiontables.TABLES.values() for option in options]
    assert sorted((o.name, o.doc) for o in shown) == sorted((o.name, o.doc) for o in all_options())
    for option in shown:
        assert len(re.findall(rf"^\| `{option.name}` \| \S", page, re.MULTILINE)) == sum(
            other.name == option.name for other in shown
        )


def test_what_the_options_page_shows_may_be_given():
    """
    An option's parser reads its example, and each of its words; of an option that takes one of a
    few words each has its line.
    """
    for title, option in ((title, o) for title, all in optiontables.TABLES.items() for o in all):
        shown = optiontables.examples(title, option)

        assert shown, option.name
        assert set(optiontables.words(option)) <= set(shown), option.name
        for text in shown:
            try:
                option.parse(text)
            except ValueError as error:
                assert str(error).startswith(f"no such file: '{text}'"), option.name


def test_what_the_options_page_says_is_of_options_that_are_there():
    """
    docs/reference/options.toml speaks of no other option; the versions in it are the changelog's.
    """
    versions = re.findall(r"^## \[(.+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    names = {t: {o.name for o in options} for t, options in optiontables.TABLES.items()}

    assert {*optiontables.SAID} == {*names, "since"}
    assert {*optiontables.SAID["since"], optiontables.FIRST} <= {v.lower() for v in versions}
    for title, known in names.items():
        assert optiontables.SAID[title].keys() <= known
    for groups in optiontables.SAID["since"].values():
        for title, since in groups.items():
            assert set(since) <= names[title]


def test_few_options_are_for_everybody():
    """
    The first table of docs/reference/options.md has twenty-five at most, all of which are there.
    """
    assert len(optiontables.COMMON) <= 25
    assert {option.name for option in all_options()} >= optiontables.COMMON


def test_headers_of_the_server():
    """
    The table of headers names each of the list, in the row that it is of.
    """
    table = (DOCS / "reference" / "columns.md").read_text().partition("## Headers of the server")[2]
    row = r"^\| .*: (.*) \| (leaves them out|has them in the column) \| (.*) \|$"
    rows = re.findall(row, table, re.MULTILINE)

    tables = MADE, ORDERS, PLACES, EXPECTS, KEPT
    assert len(rows) == len(tables)
    for (names, read, written), listed in zip(rows, tables, strict=True):
        found = re.findall(r"`([\w*-]+)`", names)
        assert found == list(dict.fromkeys(re.sub("(Nats-Expected-).*", r"\1*", n) for n in listed))
        assert (read == "leaves them out") == (listed.keys() <= NOT_READ)
        assert (written == "does not send them") == (listed.keys() <= NOT_WRITTEN)


def test_the_house_is_as_its_page_says():
    """
    docs/house.md names every module of the package in its wing, with the sentence that stands first
    in the module, and who may import whom; `python -m tests.kits.house` writes it.
    """
    page = house.PAGE.read_text()

    assert page == house.written(page)


def test_a16_a17_what_priorities_cost():
    """
    A16, A17: low priorities wait longer, and never for ever; guide and runbook say so, and which
    metric shows it.
    """
    text = " ".join((DOCS / "guides" / "pressure.md").read_text().split())
    runbook = " ".join((DOCS / "runbook.md").read_text().split())
    metric = "jetstream_publish_queue_time_seconds"

    assert "Under overload rows of low priority wait longer, but never for ever" in text
    assert f"(`{metric}` shows the waits by priority)" in text
    assert "Under load rows of low priority wait longer: priorities are made for that" in runbook
    assert "priority" in METRICS[metric].labels


def test_what_security_promises_has_tests():
    """
    Each row of docs/security.md that says what holds names tests that are there.
    """
    page = (DOCS / "security.md").read_text()
    rows = re.findall(r"^\|.*\| ([^|]*) \|$", page.partition("## What holds")[2], re.MULTILINE)

    assert len(rows) > 20
    for named in rows[2:]:
        for test in re.findall("`([^`]+)`", named) or [named]:
            assert (ROOT / test).exists() or (ROOT / "tests" / "live" / test).is_file(), named


def test_the_test_command_is_ci_s():
    """
    CI runs the command that the README gives.
    """
    assert "make test" in README
    assert 'TEST_COMMAND="make test"' in (ROOT / ".ci" / "run").read_text()


def test_figures_of_the_first_pages_are_measured():
    """
    What README, the landing page and the guide to layouts say in figures stands in the pages that
    were measured.
    """
    first = (DOCS / "index.md").read_text()
    bench, reliability = (DOCS / "bench.md").read_text(), (DOCS / "reliability.md").read_text()
    (row,) = re.findall(r"^\| streams layout, auto, from the start \|(.*)$", bench, re.MULTILINE)
    cells = [cell.strip() for cell in row.split("|")]
    (faults,) = re.findall(r"26 November 2026: ([\d,]+) faults", reliability)

    for page in (first, README):
        assert f"{cells[0]} rows" in page
        assert f"{faults} random faults" in page
    figures = re.findall(r"([\d,]+) rows/s", (DOCS / "guides" / "layout.md").read_text())
    assert len(figures) > 5
    for figure in figures:
        assert f" {figure} |" in bench
    assert "ten times as fast as a loop of nats-py" in first
    assert 9.5 <= float(cells[cells.index(cells[6]) + 1]) < 10.5


def test_figures_of_backfills_beside_producers_are_measured():
    """The guide to backfills has the waits and the rates of the measured page, rounded."""
    guide = (DOCS / "guides" / "backfills.md").read_text()
    rows = re.findall(r"^\| (\d) \| (\d+) ms, ([\d,]+) \| (\d+) ms, ([\d,]+) \|$", guide, re.M)
    measured = {
        (tasks, bool(option)): [float(cell.replace(",", "")) for cell in cells.split("|")]
        for option, tasks, cells in re.findall(
            r"^\| own consumer(, maxPublishDelay=20ms)?, (\d) tasks? \| (.*) \|$",
            (DOCS / "bench.md").read_text().partition("of R3 beside")[0], re.M,
        )
    }  # fmt: skip

    assert [row[0] for row in rows] == ["1", "2", "4", "8"]
    for tasks, *said in rows:
        for option, (wait, rate) in enumerate((said[:2], said[2:])):
            rows_s, _, p99, *_ = measured[tasks, bool(option)]
            assert abs(p99 - int(wait)) <= 0.5
            assert abs(rows_s - int(rate.replace(",", ""))) <= 500

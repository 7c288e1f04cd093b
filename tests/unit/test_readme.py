"""What README and pages say of options, headers and modules is what the code says."""

import re

from pyspark_jetstream.options import all_options

from ..kits.places import ROOT
from ..tools import optiontables

README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"


def test_option_tables():
    """docs/reference/options.md is what `python -m tests.tools.optiontables` writes."""
    page = optiontables.PAGE.read_text()

    assert page == optiontables.written(page)
    shown = [option for options in optiontables.TABLES.values() for option in options]
    assert sorted((o.name, o.doc) for o in shown) == sorted((o.name, o.doc) for o in all_options())
    for option in shown:
        assert len(re.findall(rf"^\| `{option.name}` \| \S", page, re.MULTILINE)) == sum(
            other.name == option.name for other in shown
        )


def test_what_the_options_page_shows_may_be_given():
    """An option's parser reads its example and each of its words."""
    for title, option in ((title, o) for title, all in optiontables.TABLES.items() for o in all):
        shown = optiontables.examples(title, option)

        assert shown, option.name
        assert set(optiontables.words(option)) <= set(shown), option.name
        for text in shown:
            try:
                option.parse(text)
            except ValueError as error:
                assert str(error).startswith(f"no such file: '{text}'"), option.name


def test_what_security_promises_has_tests():
    """Each row of docs/security.md that says what holds names tests that are there."""
    page = (DOCS / "security.md").read_text()
    rows = re.findall(r"^\|.*\| ([^|]*) \|$", page.partition("## What holds")[2], re.MULTILINE)

    assert len(rows) > 20
    for named in rows[2:]:
        for test in re.findall("`([^`]+)`", named) or [named]:
            assert (ROOT / test).exists() or (ROOT / "tests" / "live" / test).is_file(), named

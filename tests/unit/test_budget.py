"""The project weighs no more than yesterday, and each module is one that a reader can hold."""

from ..kits.places import PACKAGE
from ..tools.budget import BUDGETS, NOW, weighed

MAX_LINES = 450
"""Of a module."""

LONGER = {
    "client.connection": 590,
    "client.jetstream": 695,
    "errors": 540,
    "fetch.directcalls": 540,
    "fetch.survey": 515,
    "values": 580,
}
"""Modules with more lines, and how many they may have today."""


def test_nothing_weighs_more_than_yesterday():
    """What goes lowers the numbers of `NOW`; what comes has to make room for itself."""
    assert {name: n for name, n in weighed().items() if n > max(NOW[name], BUDGETS[name])} == {}


def test_a_module_can_be_read_at_one_sitting():
    """No module has more than 450 lines, but for those that had more yesterday."""
    lines = {
        path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): len(
            path.read_text().splitlines()
        )
        for path in PACKAGE.rglob("*.py")
    }

    assert {name: n for name, n in lines.items() if n > LONGER.get(name, MAX_LINES)} == {}
    assert set(LONGER) <= set(lines)

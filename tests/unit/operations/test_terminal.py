"""The terminal of operators' programs: one way to it, on which nothing of others steers it."""

from __future__ import annotations

import json
import sys
from dataclasses import MISSING, fields, replace

import pytest

from pyspark_jetstream.operations import terminal
from pyspark_jetstream.operations.console import tables
from pyspark_jetstream.operations.inspection import findings
from pyspark_jetstream.sanitize import conceal

from ...kits.strangers import EVIL, assert_plain
from ..test_layers import HOUSE, calls, imports

SECRET = "unmistakable-of-the-terminal"


@pytest.fixture(params=[True, False], ids=["rich", "without rich"])
def either(request, monkeypatch):
    """With rich, and without."""
    if not request.param:
        for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "rich", None)


def test_lines_are_plain(capsys):
    """Each argument is one line, on either stream."""
    conceal(SECRET)
    terminal.say(EVIL, "two", ValueError(f"{EVIL} {SECRET}"))
    terminal.complain(EVIL, "two", 3)

    out, err = capsys.readouterr()
    assert (len(out.splitlines()), len(err.splitlines())) == (3, 3)
    assert_plain(out.rstrip("\n"), lines=True)
    assert_plain(err.rstrip("\n"), lines=True)
    assert SECRET not in out and "\ntwo\n" in out and "pwned" in out


def test_a_long_line_fits_the_terminal(capsys, monkeypatch):
    """
    It goes on below at a space, and a command in it stays whole, to be copied; JSON and what goes
    into a pipe stay as they are.
    """
    monkeypatch.setenv("COLUMNS", "40")
    command = "`pyspark-jetstream resume --stream FLIGHTS`"
    line = f"  the consumer 'alerts-0' is paused until 03:46:16 ({command} ends it)"
    terminal.say(line)
    assert capsys.readouterr().out == f"{line}\n"

    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
    terminal.say(line, "short")
    terminal.complain(line)
    terminal.say_json({"a": line})

    out, err = capsys.readouterr()
    said = [
        "  the consumer 'alerts-0' is paused",
        "    until 03:46:16",
        f"    ({command}",
        "    ends it)",
    ]
    assert out.splitlines()[:5] == [*said, "short"]
    assert err.splitlines() == said
    assert json.loads("\n".join(out.splitlines()[5:])) == {"a": line}


def test_json_stays_json(capsys):
    """Other programs read what was there."""
    terminal.say_json({"a": EVIL, "b": [1, {"c": "ä"}]}, indent=1)

    out = capsys.readouterr().out
    assert_plain(out.rstrip("\n"), lines=True)
    assert json.loads(out) == {"a": EVIL, "b": [1, {"c": "ä"}]}


def test_tables_are_plain(either, capsys):
    """Cells with markup of rich's stay as they are, too."""
    terminal.show([{"a": EVIL, "b": "[red]1[/red]"}, {"a": "x", "b": 2}])

    out = capsys.readouterr().out
    assert_plain(out.rstrip("\n").replace("\t", " "), lines=True)
    assert "[red]1[/red]" in out and "pwned" in out


ROWS = [
    {"name": "one-long-name", "stream": "FLIGHTS", "lag": 31_234, "problems": (), "notes": ("a",)},
    {"name": "two", "stream": "FLIGHTS", "lag": None, "problems": ("gone",), "notes": ("a",)},
]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (80, [
            "Consumers",
            "name           stream      lag  notes  problems",
            "-------------  -------  ------  -----  --------",
            "one-long-name  FLIGHTS  31,234  a",
            "two            FLIGHTS          a      gone",
        ]),
        (40, [
            "Consumers:  stream FLIGHTS  notes a",
            "name              lag  problems",
            "-------------  ------  --------",
            "one-long-name  31,234",
            "two                    gone",
        ]),
        (20, [
            "Consumers:",
            "stream FLIGHTS",
            "notes a",
            "name one-long-name",
            "  lag 31,234",
            "name two",
            "  problems gone",
        ]),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit(width, lines):
    """
    Columns that say the same in every row go to the title, then rows become lines; no value is cut.
    """
    assert terminal.drawn(ROWS, "Consumers", width) == lines


def test_an_inspection_is_plain(either, capsys):
    """Whatever of it a stranger has written."""

    def evil(kind):
        """A state of which each text is a stranger's."""
        texts = {
            "str": EVIL, "tuple[str, ...]": (EVIL,), "str | None": EVIL, "int": 1, "float": 1.0,
        }  # fmt: skip
        return kind(**{
            field.name: texts[field.type] for field in fields(kind)
            if field.type in texts
        } | {
            field.name: None for field in fields(kind)
            if field.type not in texts and field.default is MISSING
        })  # fmt: skip

    consumer = replace(
        evil(findings.ConsumerState), pin=evil(findings.PinState),
        owner=evil(findings.OwnerState), progress=evil(findings.ProgressState),
    )  # fmt: skip
    limits = findings.LimitState(1, 2, 3.0, 4, EVIL, 0.5)
    inspection = findings.Inspection(
        time="t", server=EVIL, streams=(replace(evil(findings.StreamState), limits=limits),),
        partitions=(evil(findings.PartitionState),),
        consumers=(consumer, replace(consumer, problems=())),
        leases=(), checkpoint=None, notes=(EVIL,),
    )  # fmt: skip
    terminal.say(*tables.lines(inspection))

    out = capsys.readouterr().out
    assert_plain(out.rstrip("\n"), lines=True)
    assert out.count("pwned") > 20


def test_on_a_low_terminal_the_problems_come_first():
    """
    Where not all lines fit, tables may be cut off, and the problems are not. Else they are the last
    lines.
    """
    names = [f"q-{number}" for number in range(30)]
    paused = findings.ConsumerState("S", "paused", problems=("is paused",))
    consumers = (paused, *(findings.ConsumerState("S", name) for name in names))
    found = findings.Inspection("t", "nats://h", (), (), consumers, None)
    high, low = tables.lines(found, 80), tables.lines(found, 80, 24)

    assert sorted(low) == sorted(high)
    assert tables.lines(found, 80, len(high)) == high
    assert high.index("1 problem:") == len(high) - 2
    assert low.index("1 problem:") < 4


def test_nobody_else_prints():
    """`print`, the standard streams and rich's console are for `operations.terminal`."""
    for module in HOUSE.keys() - {"testing"}:
        found = calls(HOUSE[module])
        drawing = {name for base, name in imports(HOUSE[module]) if base.startswith("rich.")}

        if module == "operations.screen":
            continue
        if module == "operations.terminal":
            assert "print" in found
            continue
        assert not {name for name in found if name == "print" or name.startswith("sys.std")} - {
            "sys.stdout.isatty", "sys.stderr.isatty", "sys.stdout.fileno", "sys.stdout.encode"
        }, module  # fmt: skip
        assert "Console" not in drawing, module

"""The program that shows where a mapping sends subjects."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pyspark_jetstream.operations.console import commands

from ...kits.tables import tables

PROGRAM = ["pyspark_jetstream", "explain-mapping"]

BLOCK = """
mappings {
  shop.orders: [{ destination: shop.orders.v1, weight: 98% }, { destination: shop.orders.v2, weight: 2% }]
  shop.>: [{ destination: shop.>, weight: 90% }]
  shop.*: [{ destination: "s.{{left(1,1)}}", weight: 40 }]
}
"""  # noqa: E501


def run(*arguments, without=()):
    """The job in a Python of its own, in which some packages cannot be imported."""
    script = (
        "import runpy, sys; sys.modules.update(dict.fromkeys(sys.argv[1].split()));"
        " sys.argv = sys.argv[2:]; runpy.run_module(sys.argv[0], run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", script, " ".join(without), *PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"COLUMNS": "200"},
    )


COLUMNS = (
    "subject", "rule", "also match, in order", "destination", "share", "is published on",
)  # fmt: skip
LINES = [
    ("shop.orders", "shop.orders", "shop.*, shop.>", "shop.orders.v1", "98 %", "shop.orders.v1"),
    ("", "", "", "shop.orders.v2", "2 %", "shop.orders.v2"),
    ("shop.x.y", "shop.>", "", "shop.>", "90 %", "shop.x.y"),
    ("", "", "", "lost", "10 %", ""),
    ("shop.x", "shop.*", "shop.>", "s.{{left(1,1)}}", "40 %", "s.x"),
    ("", "", "", "stays", "60 %", "shop.x"),
    ("other", "none matches", "", "stays", "100 %", "other"),
]  # fmt: skip
SUBJECTS = ("shop.orders", "shop.x.y", "shop.x", "other")


@pytest.mark.parametrize("form", ["text", "file"])
def test_table(tmp_path, form):
    """
    Rule, competitors and shares of each subject come out as a table, without Spark,
    without nats-py and without a server, of a text as of a file.
    """
    path = tmp_path / "server.conf"
    path.write_text(BLOCK)
    done = run(
        BLOCK if form == "text" else str(path), *SUBJECTS, without=("pyspark", "nats", "rich")
    )

    assert (done.returncode, done.stderr) == (0, "")
    (rows,) = tables(done.stdout).values()
    assert rows == [dict(zip(COLUMNS, line, strict=True)) for line in LINES]


@pytest.mark.parametrize(
    ("mapping", "subject", "problem"),
    [
        ('{"a": "b.$1"}', "a", "option 'subjectMapping': rule 'a' -> 'b.$1': wildcard index out"),
        ("mappings { a: b", "a", "option 'subjectMapping': line 1, at its end: expected a key"),
        ("/nowhere/mapping.conf", "a", "no such file: '/nowhere/mapping.conf'"),
        ('{"a": "b"}', "a..b", "invalid subject 'a..b': token 2 is empty"),
    ],
)
def test_what_is_not_valid(capsys, mapping, subject, problem):
    """
    A mistake ends it with status 2 and one line that says which.
    """
    with pytest.raises(SystemExit) as ended:
        commands.main(["explain-mapping", mapping, subject])
    out, said = capsys.readouterr()

    assert (ended.value.code, out) == (2, "")
    assert said.splitlines()[-1].startswith(f"pyspark-jetstream explain-mapping: {problem}")
    assert said.count("\n") == 2


def test_a_result_that_is_no_subject_is_shown(capsys):
    """
    Where a rule makes no subject, the table says why.
    """
    assert commands.main(["explain-mapping", '{"a.*": "{{left(1,1)}}"}', "a.é"]) == 0
    assert "the invalid subject b'\\xc3': a character is cut in two" in capsys.readouterr().out

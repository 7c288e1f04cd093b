"""The program that shows where a mapping sends subjects."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pyspark_jetstream.operations.console import explanation

from ...kits.places import ROOT

JOB = ROOT / "jobs" / "explain_mapping.py"

BLOCK = """
mappings {
  shop.orders: [{ destination: shop.orders.v1, weight: 98% }, { destination: shop.orders.v2, weight: 2% }]
  shop.>: [{ destination: shop.>, weight: 90% }]
  shop.*: [{ destination: "s.{{left(1,1)}}", weight: 40 }, { destination: e.$1, weight: 70, cluster: east }]
}
"""  # noqa: E501


def run(*arguments, without=()):
    """The job in a Python of its own, in which some packages cannot be imported."""
    script = (
        "import runpy, sys; sys.modules.update(dict.fromkeys(sys.argv[1].split()));"
        " sys.argv = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", script, " ".join(without), str(JOB), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def cells(output):
    """The cells of each line of the table's body."""
    lines = [line.strip("│").split("│") for line in output.splitlines() if line.startswith("│")]
    return [tuple(cell.strip() for cell in line) for line in lines]


LINES = [
    ("shop.orders", "shop.orders", "shop.*, shop.>", "",
     "shop.orders.v1", "98 %", "shop.orders.v1"),
    ("", "", "", "", "shop.orders.v2", "2 %", "shop.orders.v2"),
    ("shop.x.y", "shop.>", "", "", "shop.>", "90 %", "shop.x.y"),
    ("", "", "", "", "lost", "10 %", ""),
    ("shop.x", "shop.*", "shop.>", "", "s.{{left(1,1)}}", "40 %", "s.x"),
    ("", "", "", "", "stays", "60 %", "shop.x"),
    ("", "", "", "east", "e.$1", "70 %", "e.x"),
    ("", "", "", "east", "stays", "30 %", "shop.x"),
    ("other", "none matches", "", "", "stays", "100 %", "other"),
]  # fmt: skip
SUBJECTS = ("shop.orders", "shop.x.y", "shop.x", "other")


@pytest.mark.parametrize("form", ["text", "file"])
def test_table(tmp_path, form):
    """
    Rule, competitors, clusters and shares of each subject come out as a table, without Spark,
    without nats-py and without a server, of a text as of a file.
    """
    path = tmp_path / "server.conf"
    path.write_text(f"port: 4222\n{BLOCK}")
    done = run(BLOCK if form == "text" else str(path), *SUBJECTS, without=("pyspark", "nats"))

    assert (done.returncode, done.stderr) == (0, "")
    assert cells(done.stdout) == LINES


def test_without_rich():
    """
    Where rich is not installed, the same lines come without the frame.
    """
    done = run(BLOCK, *SUBJECTS, without=("rich",))

    assert (done.returncode, done.stderr) == (0, "")
    assert [tuple(line.split("\t")) for line in done.stdout.splitlines()] == LINES


@pytest.mark.parametrize(
    ("mapping", "subject", "problem"),
    [
        ('{"a": "b.$1"}', "a", "option 'subjectMapping': rule 'a' -> 'b.$1': wildcard index out"),
        ("mappings { a: b", "a", "option 'subjectMapping': line 1, at its end: expected '}'"),
        ("/nowhere/mapping.conf", "a", "no such file: '/nowhere/mapping.conf'"),
        ('{"a": "b"}', "a..b", "invalid subject 'a..b': token 2 is empty"),
    ],
)
def test_what_is_not_valid(capsys, mapping, subject, problem):
    """
    A mistake ends it with status 2 and one line that says which.
    """
    status = explanation.main([mapping, subject])
    out, said = capsys.readouterr()

    assert (status, out) == (2, "")
    assert said.startswith(problem)
    assert said.count("\n") == 1


def test_a_result_that_is_no_subject_is_shown(capsys):
    """
    Where a rule makes no subject, the table says why.
    """
    assert explanation.main(['{"a.*": "{{left(1,1)}}"}', "a.é"]) == 0
    assert "the invalid subject b'\\xc3': a character is cut in two" in capsys.readouterr().out

"""The program that shows where a mapping sends subjects."""

import json
import os
import subprocess
import sys

import pytest

from ...kits.programs import main

BLOCK = """
mappings {
  shop.orders: [{ destination: shop.orders.v1, weight: 98% }, { destination: shop.orders.v2, weight: 2% }]
  shop.>: [{ destination: shop.>, weight: 90% }]
  shop.*: "s.{{left(1,1)}}"
}
"""  # noqa: E501
SUBJECTS = ("shop.orders", "shop.x.y", "shop.x", "other")
EXPECTED = [
    ("shop.orders", "shop.orders",
     [("shop.orders.v1", 98, "shop.orders.v1"), ("shop.orders.v2", 2, "shop.orders.v2")]),
    ("shop.x.y", "shop.>", [("shop.>", 90, "shop.x.y"), ("lost", 10, None)]),
    ("shop.x", "shop.*", [("s.{{left(1,1)}}", 100, "s.x")]),
    ("other", None, [("other", 100, "other")]),
]  # fmt: skip


@pytest.mark.parametrize("form", ["text", "file"])
def test_what_becomes_of_subjects(capsys, tmp_path, form):
    """Rule and shares of each subject, of a text as of a file."""
    path = tmp_path / "mapping.conf"
    path.write_text(BLOCK)
    status = main(["explain-mapping", BLOCK if form == "text" else str(path), *SUBJECTS, "--json"])
    found = json.loads(capsys.readouterr().out)

    assert status == 0
    names = ("subject", "rule", "destination", "percent", "published_on")
    assert [tuple(each[name] for name in names) for each in found] == [
        (*of, *way) for *of, ways in EXPECTED for way in ways
    ]


@pytest.mark.parametrize("columns", ["40", "80", "140"])
def test_the_table_cuts_nothing(capsys, monkeypatch, columns):
    """However narrow the terminal is, each value is there, perhaps on several lines."""
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["explain-mapping", '{"a.*": "{{left(1,1)}}"}', "a.é", "a.longer"]) == 0
    out = capsys.readouterr().out

    assert max(map(len, out.splitlines())) <= int(columns)
    assert "…" not in out
    assert "error" in out


def test_it_needs_neither_spark_nor_nats_py():
    """Nor a server."""
    script = (
        "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'nats')));"
        " from pyspark_jetstream.operations.main import main; main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "explain-mapping", BLOCK, *SUBJECTS],
        capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[-1] for line in done.stdout.splitlines()][1:3] == [
        "shop.orders.v1", "shop.orders.v2"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("mapping", "subject", "problem"),
    [
        ('{"a": "b.$1"}', "a", "option 'subjectMapping': rule 'a' -> 'b.$1': wildcard index out"),
        ("mappings { a: b", "a", "option 'subjectMapping': line 1, at its end: expected a key"),
        ("/nowhere/mapping.conf", "a", "no such file: '/nowhere/mapping.conf'"),
        ('{"a": "b"}', "a..b", "invalid subject 'a..b': token 2 is empty"),
        ('{"a.>": "b.>"}', "a.\x1b[2Jx", "invalid subject"),
    ],
)
def test_what_is_not_valid(capsys, mapping, subject, problem):
    """A mistake ends it with status 2 and one line that says which, whatever is in it."""
    status = main(["explain-mapping", mapping, subject])
    out, said = capsys.readouterr()

    assert (status, out) == (2, "")
    assert said.splitlines()[-1].startswith(f"Error: {problem}")
    assert "\x1b" not in said

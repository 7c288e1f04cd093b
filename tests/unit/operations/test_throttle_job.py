"""The arguments of the job that pauses; what it does is tested in tests/live."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys

import pytest

from ...kits.places import ROOT

JOB = ROOT / "jobs" / "throttle.py"
NOWHERE = ("--servers", "nats://127.0.0.1:1", "--request-timeout", "100ms")


def run(*arguments):
    """The job, as it is called."""
    return subprocess.run(
        [sys.executable, str(JOB), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def job(monkeypatch):
    """The job as a module: `main` ends with a mistake before it touches anything."""
    monkeypatch.syspath_prepend(str(JOB.parent))
    spec = importlib.util.spec_from_file_location("throttle_job", JOB)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ended(job, capsys, arguments):
    """Status and what was said of a run that is a mistake."""
    try:
        status = job.main(arguments)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert said.out == ""
    return status, said.err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("pause --subject a..b --for 1s", "--subject: invalid subject filter 'a..b'"),
        ("pause --subject a", "the following arguments are required: --for"),
        ("pause --subject a --for 10", "--for: expected a duration with its unit"),
        ("pause --subject a --for 1s --reason Because", "--reason: invalid choice: 'Because'"),
        ("lift --subject a --receipt-wait 1s", "--receipt-wait: expected at most 400ms"),
        ("producers --throttle-subject a.>", "--throttle-subject: invalid subject 'a.>'"),
        ("producers --password pw1 --token=pw2", "unrecognized arguments: --password --token …"),
        ("producers --servers nats://u:pw@h", "option 'servers'"),
        ("quota", "quota: expected a --limit, or --config with [limits]"),
        ("quota --limit orders.>", "--limit: expected FILTER=RATE"),
        ("quota --limit a=1", "limit of 'a': expected messages per s, m or h"),
        ("quota --limit a.*=1/s --limit a.b=1/s", "they have subjects in common"),
        ("quota --config nowhere.toml", "--config nowhere.toml: No such file"),
    ],
)
def test_what_is_not_valid(job, capsys, arguments, says):
    """
    A mistake ends it with status 2 before a server is asked, and its last line says which.
    """
    status, said = ended(job, capsys, arguments.split())

    assert status == 2
    assert says in said[-1]
    assert "pw" not in said[-1]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("limits = 3", "expected [limits] and [options], got 'limits'"),
        ("[limit]\na = '1/s'", "expected [limits] and [options], got 'limit'"),
        ("[limits]\na = 5", "[limits] 'a': expected a text"),
        ("[limits", "--config job.toml: "),
        ("[limits]\na = '1/s'\n[options]\nservrs = 'x'", "'servrs'"),
        ("[options]\nuser = 'x'", "expected a --limit, or --config with [limits]"),
    ],
)
def test_a_mistake_in_the_file(job, capsys, tmp_path, monkeypatch, content, says):
    """
    So does a mistake in the file.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(content)
    status, said = ended(job, capsys, ["quota", "--config", "job.toml"])

    assert (status, len(said)) == (2, 1)
    assert says in said[0]


def test_no_server():
    """
    Where no server can be reached, the status is 1 and one line says so.
    """
    done = run("producers", *NOWHERE)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no connection to nats://127.0.0.1:1: ")


def test_the_examples_are_commands(job):
    """
    Every command of the help, and conf/throttle.toml, gets as far as the servers.
    """
    found = re.findall(r"^    python jobs/throttle\.py (.*)$", job.__doc__, re.MULTILINE)
    ended = [run(*shlex.split(each), *NOWHERE) for each in found]

    assert len(found) == 6
    assert [each.returncode for each in ended] == [1] * 6
    assert all("no connection to nats://127.0.0.1:1" in each.stderr for each in ended)


def test_the_help_names_the_statuses(job):
    """
    `--help` says what each exit status means.
    """
    text = " ".join(job.parser().format_help().split())

    assert re.findall(r"(\d): ", text[text.index("Exit status") :]) == ["0", "1", "2", "3", "4"]

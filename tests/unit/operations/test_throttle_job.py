"""The command lines of `throttle`; what it does is tested in tests/live."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys

import pytest

from pyspark_jetstream.operations.throttle import command

from ...kits.programs import main

NOWHERE = ("--servers", "nats://127.0.0.1:1", "--request-timeout", "100ms")


def ended(capsys, arguments):
    """Status and what was said of a run that is a mistake."""
    status = main(["throttle", *arguments])
    said = capsys.readouterr()
    assert said.out == ""
    return status, said.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("pause --subject a..b --for 1s", "invalid subject filter 'a..b'"),
        ("pause --subject a", "Missing option '--for'"),
        ("pause --subject a --for soon", "expected a duration"),
        ("pause --subject a --for 1s --reason Because", "'Because' is not one of"),
        ("producers --receipt-wait 1s", "expected 900ms at most, got '1s'"),
        ("producers --throttle-subject a.>", "invalid subject 'a.>'"),
        ("producers --password pw1", "use $JETSTREAM_PASSWORD"),
        ("pauze", "No such command 'pauze'"),
    ],
)
def test_what_is_not_valid(capsys, arguments, says):
    """A mistake ends it with status 2 before a server is asked, and says which it is."""
    status, said = ended(capsys, arguments.split())

    assert status == 2
    assert says in " ".join(said.split())
    assert "pw" not in said.splitlines()[-1]


def test_no_server_for_the_examples_of_the_help(capsys, monkeypatch):
    """Every command of the help is one: it gets as far as the servers, of which a line says so."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    commands = (command.producers, command.pause, command.lift)
    text = "\n".join(each.help or "" for each in commands).replace("\\\n", " ")
    found = re.findall(r"^ *pyspark-jetstream throttle (.*)$", text, re.MULTILINE)
    done = [ended(capsys, [*shlex.split(each), *NOWHERE]) for each in found]

    assert [status for status, _ in done] == [1] * 4
    assert all("no connection to nats://127.0.0.1:1" in said for _, said in done)


def test_a_pause_of_many_writers_stands_once():
    """Writers that are paused alike are one row, with what ends the pause, and who made it."""

    def member(number, *sources):
        one = {"reason": "Limit", "filter": "a.*", "until": "2026-11-26T12:34:56+00:00"}
        return {
            "paused": [
                one | {"subject": f"a.{number}", "source": each, "request_id": 7}
                for each in sources
            ]
        }

    rows = command._paused([member(1, "operator"), member(2, "operator", "server")])

    assert [(each["filter"], each["source"], each["request_id"]) for each in rows] == [
        ("a.*", "operator", 7), ("a.*", "server", 7),
    ]  # fmt: skip


def test_the_second_signal_ends_the_program():
    """Also where nobody looks whether the first has come."""
    program = "from pyspark_jetstream.operations.throttle.command import stopping\n"
    program += "import os, signal\nstopped = stopping()\nos.kill(os.getpid(), signal.SIGTERM)\n"
    program += "assert stopped()\nos.kill(os.getpid(), signal.SIGTERM)\nprint('late')"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (run.stdout, run.returncode) == ("", -signal.SIGTERM)

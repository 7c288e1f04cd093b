"""The command lines of `throttle`; what it does is tested in tests/live."""

from __future__ import annotations

import re
import shlex
import signal

import pytest

from pyspark_jetstream.operations.throttle import command
from pyspark_jetstream.outbox.throttling.throttle import PausedBy

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
        ("pause --subject a --for 10", "expected a duration with its unit"),
        ("pause --subject a --for 1s --reason Because", "'Because' is not one of"),
        ("lift --subject a --receipt-wait 1s", "expected at most 400ms"),
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
    text = "\n".join(each.help or "" for each in commands)
    found = re.findall(r"^ *pyspark-jetstream throttle (.*)$", text, re.MULTILINE)
    done = [ended(capsys, [*shlex.split(each), *NOWHERE]) for each in found]

    assert [status for status, _ in done] == [1] * 4
    assert all("no connection to nats://127.0.0.1:1" in said for _, said in done)


def test_subjects_that_are_paused_alike_stand_together():
    """
    All that a writer tells are named; it tells 32 at most, so there may be more.
    """

    def entry(subject, source="THROTTLE"):
        return {
            "subject": subject, "until": "2026-11-26T12:34:56.7+00:00", "reason": "Limit",
            "filter": "a.*", "source": source, "request_id": "7",
        }  # fmt: skip

    def rows(*entries):
        return command._paused({"producer": "1", "paused": entries})

    alike = {"producer": "1", "filter": "a.*", "reason": "Limit", "by": "THROTTLE"}
    few = rows(*(entry(f"a.{n}") for n in range(5)))
    assert few == [alike | {"subjects": "a.0, a.1, a.2, a.3, a.4", "until": "12:34:56Z"}]
    two = rows(entry("a.0"), entry("b", PausedBy.OPERATOR.value))
    assert [(each["subjects"], each["until"], each["by"]) for each in two] == [
        ("a.0", "12:34:56Z", "THROTTLE"),
        ("b", "12:34:56Z or longer", "operator, request 7"),
    ]
    (many,) = rows(*(entry(f"a.{n}") for n in range(32)))
    assert many["subjects"].endswith("a.31, maybe more")

"""The arguments of the program that pauses; what it does is tested in tests/live."""

from __future__ import annotations

import re
import shlex
import signal

import pytest

from pyspark_jetstream.operations.console import commands, throttle
from pyspark_jetstream.operations.pauses import Member, Pauses, Response
from pyspark_jetstream.outbox.throttling.throttle import PausedBy
from pyspark_jetstream.outbox.throttling.throttleprotocol import Producer

from ...kits.places import ROOT

NOWHERE = ("--servers", "nats://127.0.0.1:1", "--request-timeout", "100ms")


def ended(capsys, arguments):
    """Status and what was said of a run that is a mistake."""
    try:
        status = commands.main(["throttle", *arguments])
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
        (
            "producers --password pw1 --token=pw2",
            "unrecognized arguments: --password --token … (everybody on the machine can read a"
            " command line: use $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN)",
        ),
        ("producers --servers nats://u:pw@h", "throttle producers: --servers: "),
    ],
)
def test_what_is_not_valid(capsys, arguments, says):
    """A mistake ends it with status 2 before a server is asked, and its last line says which."""
    status, said = ended(capsys, arguments.split())

    assert status == 2
    assert says in said[-1]
    assert "pw" not in said[-1]


def test_no_server(capsys, monkeypatch):
    """Where no server can be reached, the status is 1 and one line says so."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    status, said = ended(capsys, ["producers", *NOWHERE])

    assert (status, len(said)) == (1, 1)
    assert said[0].startswith(
        "pyspark-jetstream throttle producers: no connection to nats://127.0.0.1:1: "
    )


def test_the_examples_are_commands(capsys, monkeypatch):
    """Every command of the help, gets as far as the servers."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.chdir(ROOT)
    found = re.findall(r"^    pyspark-jetstream throttle (.*)$", throttle.__doc__, re.MULTILINE)
    done = [ended(capsys, [*shlex.split(each), *NOWHERE]) for each in found]

    assert [status for status, _ in done] == [1] * 4
    assert all("no connection to nats://127.0.0.1:1" in said[-1] for _, said in done)


def test_the_help_names_the_statuses(capsys):
    """`--help` says what each exit status means."""
    with pytest.raises(SystemExit):
        commands.main(["throttle", "--help"])
    text = " ".join(capsys.readouterr().out.split())

    assert re.findall(r"(\d): ", text[text.index("Exit status") :]) == ["0", "1", "2", "3", "4"]


def test_queries_are_shown_once_however_many_writers_they_have():
    """
    A query's writers end with each batch. While a pause lasts there is a line for a query, and it
    changes by what a writer has answered alone.
    """
    pauses = Pauses()
    rows = throttle._of_queries(pauses)
    shown = []
    for number, response in enumerate([Response.TOLD, Response.ACKNOWLEDGED] * 3):
        producer = Producer(number, True, query="orders")
        pauses.members = {number: Member(producer, response, 0.0)}
        shown.append([row["state"] for row in rows()])
    pauses.members[9] = Member(Producer(9, True, query="orders"), Response.SILENT, 0.0)

    assert shown == [["told"]] + [["acknowledged"]] * 5
    assert rows() == [{"writers": "writers of orders", "state": "not acknowledged by 9"}]
    pauses.members[9].response = Response.ACKNOWLEDGED
    assert rows() == [{"writers": "writers of orders", "state": "acknowledged"}]


def test_subjects_that_are_paused_alike_stand_together():
    """
    The first three are named and the others counted; a writer tells 32 at most, so there may be
    more.
    """

    def entry(subject, source="THROTTLE"):
        return {
            "subject": subject, "until": "2026-11-26T12:34:56.7+00:00", "reason": "Limit",
            "filter": "a.*", "source": source, "request_id": "7",
        }  # fmt: skip

    few = [entry(f"a.{n}") for n in range(5)]
    assert (
        throttle.paused_words(few)
        == "a.0, a.1, a.2 and 2 more until 12:34:56Z: Limit of a.*, THROTTLE"
    )
    assert throttle.paused_words([entry("a.0"), entry("b", PausedBy.OPERATOR.value)]) == (
        "a.0 until 12:34:56Z: Limit of a.*, THROTTLE; b until 12:34:56Z or longer: Limit of a.*,"
        " operator's request 7"
    )
    assert "and at least 29 more" in throttle.paused_words([entry(f"a.{n}") for n in range(32)])

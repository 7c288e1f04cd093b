"""The command lines of `inspect`, `partition` and `throttle`: what they do is in tests/live."""

import re
import shlex
import signal
import subprocess
import sys

import pytest

from pyspark_jetstream.errors import CheckpointError, NotConnectedError
from pyspark_jetstream.operations import screen
from pyspark_jetstream.operations.inspect import command as inspection
from pyspark_jetstream.operations.inspect.findings import Report
from pyspark_jetstream.operations.partition import command as partitioning
from pyspark_jetstream.operations.partition.plan import PartitionPlan
from pyspark_jetstream.operations.throttle import command as throttling

from ...kits.checkpoints import offset, write_checkpoint
from ...kits.programs import main

NOWHERE = ("--servers", "nats://127.0.0.1:1", "--request-timeout", "100ms")


def ended(capsys, *words):
    """Status and what was said, on one line, of a run that fails."""
    status = main([*words, *NOWHERE])
    said = capsys.readouterr()
    assert said.out == ""
    return status, " ".join(said.err.split())


WHOLE = "partition --stream S --partitions 2 --subject a.*"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("inspect --stream F --tls-ca-file /nowhere", "--tls-ca-file: no such file"),
        ("inspect --stream F --tls-cert-file /etc/passwd", "--tls-cert-file: needs --tls-key-file"),
        ("inspect --stream F --watch 0", "'--watch': expected more than zero"),
        ("inspect --stream F --watch soon", "30s, 15m, or a number (of s), got 'soon'"),
        ("inspect --checkpoint nowhere", "'nowhere': there is no such directory"),
        ("partition --stream S --partitions 2", "--partition-subject: give either it"),
        ("partition --stream S --partitions 0 --subject a.*", "'--partitions': 0 is not in the"),
        (f"{WHOLE} --force", "--force: goes with --undo"),
        (
            "partition --stream S --partitions 2 --partition-subject a.{partition} --streams S-all",
            "--streams: expected one {partition}",
        ),
        (f"{WHOLE} --tokens one", "Invalid value for '--tokens'"),
        (f"{WHOLE} --password hidden", "use $JETSTREAM_PASSWORD"),
        (f"{WHOLE} --token=hidden", "use $JETSTREAM_TOKEN"),
        ("throttle pause --subject a..b --for 1s", "invalid subject filter 'a..b'"),
        ("throttle pause --subject a --for 1s --reason Because", "'Because' is not one of"),
        ("throttle producers --throttle-subject a.>", "invalid subject 'a.>'"),
    ],
)
def test_what_is_not_valid(capsys, words, says):
    """Status 2 before a server is asked; what might be a secret is not repeated."""
    status, said = ended(capsys, *shlex.split(words))

    assert status == 2
    assert says in said
    assert "hidden" not in said


@pytest.mark.parametrize(
    ("program", "commands", "count"),
    [
        ("inspect", [inspection.inspect], 4),
        ("partition", [partitioning.partition], 3),
        ("throttle", [throttling.producers, throttling.pause, throttling.lift], 4),
    ],
)
def test_the_examples_of_the_help_are_commands(
    capsys, monkeypatch, tmp_path, program, commands, count
):
    """Every one gets as far as the servers, of which a line says so, with status 1."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    path = write_checkpoint(tmp_path / "c", [[offset({"S": "t"}, [1])]])
    text = "\n".join(each.help or "" for each in commands).replace("\\\n", " ")
    text = re.sub(r"\S*/checkpoints/alerts", str(path), text)
    found = re.findall(rf"^ *pyspark-jetstream {program} ?(.*)$", text, re.MULTILINE)
    done = [ended(capsys, program, *shlex.split(each)) for each in found]

    assert [status for status, _ in done] == [1] * count
    assert all("no connection to nats://127.0.0.1:1" in said for _, said in done)


@pytest.mark.parametrize(
    "error", [CheckpointError("hdfs://h/c", "refused"), NotConnectedError("nats://h", "refused")]
)
def test_a_watch_outlives_what_it_looks_at(capsys, error):
    """What a file system or a server says once a watch has begun is told, and it looks again."""
    found = Report("t", "nats://h")
    looks = [found, error, found, KeyboardInterrupt()]

    class Inspector:
        def look(self):
            now = looks.pop(0)
            if isinstance(now, BaseException):
                raise now
            return now

    with pytest.raises(KeyboardInterrupt):
        inspection._watch(Inspector(), 0.001, as_json=True)
    said = capsys.readouterr()

    assert (said.out.count("\n"), said.err.count(str(error))) == (2, 1)
    looks[:] = [error, found]
    with pytest.raises(type(error)):
        inspection._watch(Inspector(), 0.001, as_json=True)


@pytest.mark.parametrize(
    ("streams", "how", "names"),
    [
        ("S-{partition}", {"subject": "a.*"}, ("S-all", "S-0", "S-1")),
        ("S-all", {"subject": "a.*"}, ("S-all",)),
        ("P{partition}", {"subject": "a.*"}, ("Pall", "P0", "P1")),
        ("S-{partition}", {"partition_subject": "a.{partition}"}, ("S-0", "S-1")),
    ],
)
def test_the_names_of_a_layout(streams, how, names):
    """One name makes either layout: with the place of a number, or without."""
    plan = PartitionPlan("S", 2, streams, **how)

    assert plan.names == names
    assert plan.reading == {"stream": streams, "partitions": "2"} | (
        {} if "{" in streams else {"partitionSubject": "a.{partition}.*"}
    )


def test_pauses_of_many_writers_are_a_row():
    """Of all writers and subjects that are paused for one reason, with the last end, in seconds."""

    def member(number, *sources):
        one = {"reason": "Limit", "filter": f"a.{number}"}
        one |= {"until": f"2026-11-26T12:34:0{number}.25+00:00"}
        return {"paused": [one | {"source": each} for each in sources]}

    rows = throttling._paused([member(1, "operator"), member(2, "operator", "server")])

    assert [(each["source"], screen._cell(each["until"]), each["filters"]) for each in rows] == [
        ("operator", "2026-11-26T12:34:02+00:00", ["a.1", "a.2"]),
        ("server", "2026-11-26T12:34:02+00:00", ["a.2"]),
    ]


def test_the_second_signal_ends_the_program():
    """Also where nobody looks whether the first has come."""
    program = "from pyspark_jetstream.operations.throttle.command import stopping\n"
    program += "import os, signal\nstopped = stopping()\nos.kill(os.getpid(), signal.SIGTERM)\n"
    program += "assert stopped()\nos.kill(os.getpid(), signal.SIGTERM)\nprint('late')"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (run.stdout, run.returncode) == ("", -signal.SIGTERM)

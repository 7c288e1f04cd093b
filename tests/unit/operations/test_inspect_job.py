"""The arguments of the program that inspects; what it shows is tested in tests/live."""

from __future__ import annotations

import re
import shlex
import signal
from contextlib import contextmanager

import pytest

from pyspark_jetstream.errors import CheckpointError, CheckpointTimeoutError
from pyspark_jetstream.operations.console import commands, overview
from pyspark_jetstream.operations.console.program import seconds
from pyspark_jetstream.operations.inspection.findings import Inspection
from pyspark_jetstream.operations.terminal import say

from ...kits.checkpoints import offset, write_checkpoint

NOWHERE = ("--servers", "nats://127.0.0.1:1", "--request-timeout", "100ms")


def ended(capsys, arguments):
    """Status and what was said of a run that is a mistake."""
    try:
        status = commands.main(["inspect", *arguments])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert said.out == ""
    return status, said.err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--stream a.b", "inspect: --stream: expected a stream name"),
        ("--stream F --partitions x", "inspect: --partitions: "),
        ("--stream F --partitions 2 --subject F.>", "inspect: --subject: contradicts partitions"),
        ("--stream F --tls-ca-file /nowhere", "inspect: --tls-ca-file: no such file"),
        ("--stream F --tls-cert-file /etc/passwd", "--tls-cert-file: needs --tls-key-file"),
        ("--stream F --consumer a.b", "--consumer: expected a durable name"),
        ("--stream F --watch 0", "--watch: expected more than zero"),
        ("--stream F --watch soon", "30s, 15m, or a number (of s), got 'soon'"),
        ("--checkpoint nowhere", "inspect: --checkpoint: no such directory: 'nowhere'"),
        ("--checkpoint c --checkpoint-timeout 0s", "--checkpoint-timeout: expected more than zero"),
        ("--checkpoint c --partitions 2", "inspect: --partitions: needs --stream"),
        ("--stream F --servers nats://u:pw@h", "inspect: --servers: "),
        (
            "--stream F --password pw1 --token=pw2",
            "unrecognized arguments: --password --token … (everybody on the machine can read a"
            " command line: use $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN)",
        ),
    ],
)
def test_what_is_not_valid(capsys, arguments, says):
    """
    A mistake ends it with status 2 before a server is asked, and its last line says which, in the
    spelling of the command; at most one line of usage comes before.
    """
    status, said = ended(capsys, arguments.split())

    assert status == 2
    assert says in said[-1]
    assert "pw" not in "".join(said)
    assert len(said) < 3


@pytest.mark.parametrize(
    ("text", "takes"), [("10", 10.0), ("0.5", 0.5), ("10m", 600.0), ("500ms", 0.5), (" 2 s", 2.0)]
)
def test_a_time_without_a_unit_is_one_of_seconds(text, takes):
    """As the help and the error of --watch say."""
    assert seconds(text) == takes


def test_no_server(capsys, monkeypatch):
    """
    Where no server can be reached, the status is 1 and one line says so, with --watch as well.
    """
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    status, said = ended(capsys, ["--stream", "F", "--watch", *NOWHERE])

    assert (status, len(said)) == (1, 1)
    assert said[0].startswith("pyspark-jetstream inspect: no connection to nats://127.0.0.1:1: ")


@pytest.mark.parametrize(
    "error",
    [CheckpointError("hdfs://h/c", "refused"), CheckpointTimeoutError("hdfs://h/c", "late")],
)
def test_a_watch_outlives_the_file_system_of_its_checkpoint(capsys, monkeypatch, error):
    """What a file system says once a watch has begun is told, and it looks again."""
    found = Inspection("t", "nats://h", (), (), (), None)
    handlers = []
    monkeypatch.setattr(signal, "signal", lambda _, handler: handlers.append(handler))
    looks = [found, error, found]

    @contextmanager
    def lines():
        yield lambda each: say(each.time)

    class Inspector:
        def look(self):
            if len(looks) == 1:
                handlers[0](2, None)
            now = looks.pop(0)
            if isinstance(now, Exception):
                raise now
            return now

    status = overview.watch(Inspector(), 0.001, lines)
    said = capsys.readouterr()

    assert (status, said.out.count("\n"), said.err) == (0, 2, f"{error}\n")
    looks[:] = [error, found]
    with pytest.raises(type(error)):
        overview.watch(Inspector(), 0.001, lines)


def test_no_checkpoint_of_sparks(tmp_path, capsys):
    """A checkpoint that Spark did not write is status 1, before the server is asked."""
    write_checkpoint(tmp_path, [[offset({"S": "t"}, [1])]])
    (tmp_path / "offsets" / "0").write_text("v0")
    status, said = ended(capsys, ["--checkpoint", str(tmp_path), *NOWHERE])

    assert (status, len(said)) == (1, 1)
    assert "expected Spark's offsets of version v1 or v2, got 'v0'" in said[0]


def test_the_examples_are_commands(tmp_path, capsys, monkeypatch):
    """Every command of the help gets as far as the servers."""
    path = write_checkpoint(tmp_path / "c", [[offset({"S": "t"}, [1])]])
    found = re.findall(r"^    pyspark-jetstream inspect ?(.*)$", overview.__doc__, re.MULTILINE)
    places = [re.sub(r"\S*/checkpoints/alerts", str(path), each) for each in found]
    commands = [shlex.split(each) for each in places]
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    done = [ended(capsys, [*each, *NOWHERE]) for each in commands]

    assert [status for status, _ in done] == [1] * 7
    assert all("no connection to nats://127.0.0.1:1" in said[0] for _, said in done)


def test_the_help_names_the_statuses(capsys):
    """`--help` says what each exit status means."""
    with pytest.raises(SystemExit):
        commands.main(["inspect", "--help"])
    text = " ".join(capsys.readouterr().out.split())

    assert re.findall(r"(\d): ", text[text.index("Exit status") :])[:4] == ["0", "1", "2", "3"]

"""The arguments of the program that inspects; what it shows is tested in tests/live."""

from __future__ import annotations

import re
import shlex

import pytest

from pyspark_jetstream.errors import CheckpointError, NotConnectedError
from pyspark_jetstream.operations.inspect import command
from pyspark_jetstream.operations.inspect.findings import Report

from ...kits.checkpoints import offset, write_checkpoint
from ...kits.programs import main

NOWHERE = ("--servers", "nats://127.0.0.1:1", "--request-timeout", "100ms")


def ended(capsys, arguments):
    """Status and what was said of a run that is a mistake."""
    status = main(["inspect", *arguments])
    said = capsys.readouterr()
    assert said.out == ""
    return status, said.err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--stream F --tls-ca-file /nowhere", "--tls-ca-file: no such file"),
        ("--stream F --tls-cert-file /etc/passwd", "--tls-cert-file: needs --tls-key-file"),
        ("--stream F --watch 0", "'--watch': expected more than zero"),
        ("--stream F --watch soon", "30s, 15m, or a number (of s), got 'soon'"),
        ("--checkpoint nowhere", "'nowhere': there is no such directory"),
        ("--stream F --expect running", "No such option '--expect'"),
    ],
)
def test_what_is_not_valid(capsys, arguments, says):
    """A mistake ends it with status 2 before a server is asked, and its last line says which."""
    status, said = ended(capsys, arguments.split())

    assert status == 2
    assert says in said[-1]


@pytest.mark.parametrize(
    "error",
    [
        CheckpointError("hdfs://h/c", "refused"),
        NotConnectedError("nats://h", "refused"),
    ],
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
        command._watch(Inspector(), 0.001, as_json=True)
    said = capsys.readouterr()

    assert (said.out.count("\n"), said.err.count(str(error))) == (2, 1)
    looks[:] = [error, found]
    with pytest.raises(type(error)):
        command._watch(Inspector(), 0.001, as_json=True)


def test_the_examples_are_commands(tmp_path, capsys):
    """Every command of the help gets as far as the servers."""
    path = write_checkpoint(tmp_path / "c", [[offset({"S": "t"}, [1])]])
    text = command.inspect.help or ""
    found = re.findall(r"^ *pyspark-jetstream inspect ?(.*)$", text, re.MULTILINE)
    places = [re.sub(r"\S*/checkpoints/alerts", str(path), each) for each in found]
    done = [ended(capsys, [*shlex.split(each), *NOWHERE]) for each in places]

    assert [status for status, _ in done] == [1] * 4
    assert all("no connection to nats://127.0.0.1:1" in said[0] for _, said in done)

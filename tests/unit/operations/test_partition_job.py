"""The arguments of the program that partitions; what it does is tested in tests/live."""

from __future__ import annotations

import re
import shlex
from typing import Any, cast

import pytest

from pyspark_jetstream.operations.partition import command
from pyspark_jetstream.operations.partition.plan import PartitionPlan

from ...kits.programs import main

NOWHERE = ["--servers", "nats://127.0.0.1:1", "--request-timeout", "100ms"]


def ended(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> tuple[int, str]:
    """Status, and what was said on one line."""
    status = main(["partition", *arguments, *NOWHERE])
    said = capsys.readouterr()
    assert said.out == ""
    return status, " ".join(said.err.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--partitions 2", "Missing option '--stream'"),
        ("--stream S --partitions 2", "--partition-subject: give either it"),
        ("--stream S --partitions 0 --subject a.*", "--partitions: expected a positive"),
        ("--stream S --partitions 2 --subject a.* --force", "--force: goes with --undo"),
        (
            "--stream S --partitions 2 --subject a.* --layout filtered --streams S-{partition}",
            "--streams: contradicts --layout filtered",
        ),
        (
            "--stream S --partitions 2 --partition-subject a.{partition} --layout filtered",
            "--layout: stream 'S' with --partition-subject is the filtered layout already",
        ),
        ("--stream S --partitions 2 --subject a.* --tokens one", "--tokens: expected numbers"),
        ("--stream S --partitions 2 --subject a.* --password hidden", "use $JETSTREAM_PASSWORD"),
        ("--stream S --partitions 2 --subject a.* --token=hidden", "use $JETSTREAM_TOKEN"),
    ],
)
def test_a_wrong_argument_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: str, says: str
) -> None:
    """A mistake is named before a server is asked; what might be a secret is not repeated."""
    status, said = ended(capsys, shlex.split(arguments))

    assert status == 2
    assert says in said
    assert "hidden" not in said


def test_without_a_server_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """No server is status 1, in one line."""
    status, said = ended(capsys, shlex.split("--stream S --partitions 2 --subject a.*"))

    assert status == 1
    assert "nats://127.0.0.1:1" in said


@pytest.mark.parametrize(
    ("arguments", "names", "layout"),
    [
        ("--subject a.*", ("S-all", "S-0", "S-1"), "S-{partition}"),
        ("--subject a.* --layout filtered", ("S-all",), "S-all"),
        ("--subject a.* --numbered N", ("N",), "N"),
        ("--subject a.* --numbered N --layout streams", ("N", "S-0", "S-1"), "S-{partition}"),
        ("--subject a.* --streams P{partition}", ("Pall", "P0", "P1"), "P{partition}"),
        ("--partition-subject a.{partition}", ("S-0", "S-1"), "S-{partition}"),
    ],
)
def test_names_where_none_are_given(arguments: str, names: tuple[str, ...], layout: str) -> None:
    """Either layout is one command, and has names after the origin's."""
    plan = planned(shlex.split(f"--stream S --partitions 2 {arguments}"))

    assert (plan.names, plan.layout) == (names, layout)


def planned(words: list[str]) -> PartitionPlan:
    """The plan of a command line."""
    given = command.partition.make_context("partition", words).params
    names = ("stream", "streams", "numbered", "layout", "tokens", "partitions",
             "partition_subject", "subject", "destination")  # fmt: skip
    return command.planned(**{name: cast(Any, given[name]) for name in names})


def test_the_examples_are_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command of the help gets as far as the servers."""
    text = (command.partition.help or "").replace("\\\n", " ")
    found = re.findall(r"^ *pyspark-jetstream partition (.*)$", text, re.MULTILINE)

    done = [ended(capsys, shlex.split(each)) for each in found]

    assert [status for status, _ in done] == [1] * 4
    assert all("nats://127.0.0.1:1" in said for _, said in done)

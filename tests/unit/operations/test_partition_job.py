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
        ("--stream S --partitions 0 --subject a.*", "'--partitions': 0 is not in the range"),
        ("--stream S --partitions 2 --subject a.* --force", "--force: goes with --undo"),
        (
            "--stream S --partitions 2 --partition-subject a.{partition} --streams S-all",
            "--streams: expected one {partition}",
        ),
        ("--stream S --partitions 2 --subject a.* --tokens one", "Invalid value for '--tokens'"),
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
    ("streams", "how", "names"),
    [
        ("S-{partition}", {"subject": "a.*"}, ("S-all", "S-0", "S-1")),
        ("S-all", {"subject": "a.*"}, ("S-all",)),
        ("P{partition}", {"subject": "a.*"}, ("Pall", "P0", "P1")),
        ("S-{partition}", {"partition_subject": "a.{partition}"}, ("S-0", "S-1")),
    ],
)
def test_the_names_of_a_layout(streams: str, how: dict[str, str], names: tuple[str, ...]) -> None:
    """One name makes either layout: with the place of a number, or without."""
    plan = PartitionPlan("S", 2, streams, **cast(Any, how))

    assert plan.names == names
    assert plan.reading == {"stream": streams, "partitions": "2"} | (
        {} if "{" in streams else {"partitionSubject": "a.{partition}.*"}
    )


def test_the_examples_are_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command of the help gets as far as the servers."""
    text = (command.partition.help or "").replace("\\\n", " ")
    found = re.findall(r"^ *pyspark-jetstream partition (.*)$", text, re.MULTILINE)

    done = [ended(capsys, shlex.split(each)) for each in found]

    assert [status for status, _ in done] == [1] * 3
    assert all("nats://127.0.0.1:1" in said for _, said in done)

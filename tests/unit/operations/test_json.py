"""JSON of programs: a schema each, and documents that are what it says."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest

from pyspark_jetstream.operations.console import (
    commands,
    overview,
    program,
)
from pyspark_jetstream.operations.inspection import findings, leases
from pyspark_jetstream.operations.inspection.findings import Inspection

from ...kits.schemas import FOLDER, mistakes, schema


def test_every_program_that_shows_something_has_a_schema():
    """
    The folder has a schema for each command, or group of commands, and nothing else; each of these
    takes `--json`.
    """
    assert {path.stem for path in Path(FOLDER).glob("*")} == set(commands.COMMANDS)
    for name, (module, *_) in commands.COMMANDS.items():
        parser = program.Parser(prog=name)
        import_module(f"{commands.__package__}.{module}").arguments(parser)
        for one in [*parser.commands().values()] or [parser]:
            assert "--json" in dict(one.flags()), name


@pytest.mark.parametrize("kind", [findings, leases])
def test_the_schema_of_inspect_has_every_field(kind):
    """Each state has a definition of just its fields, all of which are always there."""
    found = schema("inspect")
    parts = found["$defs"] | {"Inspection": found}
    states = [each for each in vars(kind).values() if dataclasses.is_dataclass(each)]
    states = [each for each in states if each.__module__ == kind.__name__]

    assert len(states) > 1
    for state in states:
        if state is findings.ServerState:
            continue
        fields = {field.name for field in dataclasses.fields(state)}
        more = {"problems"} if state is Inspection else set()
        part = parts[state.__name__]
        assert set(part["properties"]) == set(part["required"]) == fields | more
        assert part["additionalProperties"] is False


def test_what_inspect_shows():
    """A look with one of each is what the schema says; with a field too many it is not."""
    place = findings.PositionState(0, "S", None, 1, 2, 3, 4, None, None)
    claim = findings.ClaimState(0, "S", 1, 1, 1, 0, None)
    source = findings.SourceState("0", "q", positions=(place,), claims=(claim,))
    limits = findings.LimitState(None, 1, 2.0, None, "old", 0.5)
    stream = findings.StreamState("S", "t", "limits", limits, 1, 2, 3, 4, ("a",), 1, "n", 2.0)
    inspection = Inspection(
        "t", "nats://h", (stream,), (findings.PartitionState(0, "S", "a", None, 1),),
        (findings.ConsumerState("S", "c"),),
        findings.CheckpointState("p", "q", 1, None, (source,), 0),
        (leases.LeaseState("S", "q", waiting=(leases.WaitingState("q", "n", "h", 1, "t"),)),),
    )  # fmt: skip
    document = json.loads(json.dumps(overview.document(inspection)))

    assert mistakes(document, "inspect") == []
    assert mistakes(document | {"more": 1}, "inspect") == [".more is unknown"]
    assert mistakes(asdict(inspection) | {"streams": "S"}, "inspect")

"""Imports go down only: adapters, shell, pure core, vocabulary."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pyspark_jetstream"

TIERS = [
    {"errors", "subjects"},
    {
        "admission",
        "subjectlimits",
        "order",
        "calls",
        "claims",
        "sharing",
        "layout",
        "mapping",
        "transforms",
        "routes",
        "mappingfile",
        "mapcolumns",
        "reroutes",
        "rulecolumns",
        "fastlane",
        "findings",
        "columns",
        "deadletters",
        "backlog",
        "atomic",
        "lanes",
        "groups",
        "limits",
        "targets",
        "telemetry",
        "lanesets",
        "throttle",
        "throttlewire",
        "headerlines",
        "messages",
        "meters",
        "metrics",
        "markers",
        "narrowing",
        "offsets",
        "owners",
        "pins",
        "option",
        "options",
        "optiontable",
        "pauses",
        "partitionplan",
        "planning",
        "pressure",
        "priority",
        "publishes",
        "quota",
        "readoptions",
        "readrows",
        "replies",
        "reports",
        "rows",
        "snapshots",
        "standby",
        "values",
        "window",
        "pubacks",
        "batchacks",
        "wire",
    },
    {
        "advisories",
        "batches",
        "checkpoints",
        "client",
        "claimant",
        "claimedread",
        "heartbeats",
        "poison",
        "handshake",
        "consumer",
        "controller",
        "copies",
        "copychecks",
        "writes",
        "recovery",
        "ledger",
        "keyvalue",
        "lease",
        "creation",
        "devserver",
        "directcalls",
        "directget",
        "inspection",
        "loss",
        "lookups",
        "durables",
        "handover",
        "jetstream",
        "partitioning",
        "picks",
        "pointintime",
        "publisher",
        "removal",
        "serverbinary",
        "supply",
        "survey",
        "usage",
    },
    {
        "__init__",
        "buckets",
        "datasource",
        "gets",
        "pushdown",
        "ranges",
        "sink",
        "shared",
        "snapshot",
        "source",
    },
]
"""From the bottom up: vocabulary, pure core, shell, Spark adapters."""

DOES_IO = {
    "asyncio", "concurrent", "ctypes", "fcntl", "http", "io", "multiprocessing", "os", "pathlib",
    "queue", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile",
    "threading", "time", "urllib",
}  # fmt: skip
"""Modules of the standard library that touch the world, or wait, or read a clock."""

ALLOWED = {("values", "os")}
"""`values` looks for the files that options name, so that a missing one is found on the driver."""

TIER = {name: tier for tier, names in enumerate(TIERS) for name in names}
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))


def imports(module: str) -> Iterator[tuple[str, str]]:
    """(top-level package, module of ours or "") of every import, also those inside functions."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                top, _, rest = alias.name.partition(".")
                yield top, rest.partition(".")[0] if top == PACKAGE.name else ""
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                top, _, rest = str(node.module).partition(".")
                yield top, rest if top == PACKAGE.name else ""
            elif node.module:
                yield PACKAGE.name, node.module
            else:
                for alias in node.names:
                    yield PACKAGE.name, alias.name if alias.name in TIER else "__init__"


def test_every_module_has_a_tier():
    """
    A new module must be given its place here.
    """
    assert not set(MODULES) - TIER.keys()


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down_only(module):
    """
    A module imports modules of its own tier or below, and of ours only those that exist.
    """
    ours = {name for top, name in imports(module) if top == PACKAGE.name}

    assert ours <= set(MODULES)
    assert not {name for name in ours if TIER[name] > TIER[module]}


@pytest.mark.parametrize("module", MODULES)
def test_pyspark_is_for_adapters_and_nats_for_the_handshake(module):
    """
    Only adapters import pyspark; only `handshake` imports nats-py; prometheus-client is a job's.
    """
    tops = {top for top, _ in imports(module)}

    assert "pyspark" not in tops or TIER[module] == 3
    assert "nats" not in tops or module == "handshake"
    assert "prometheus_client" not in tops


@pytest.mark.parametrize("module", [name for name in MODULES if TIER[name] < 2])
def test_the_core_does_no_io(module):
    """
    The pure core imports nothing that does I/O, waits or reads a clock.
    """
    touched = {(module, top) for top, _ in imports(module) if top in DOES_IO}

    assert not touched - ALLOWED

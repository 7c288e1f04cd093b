"""
Who may import whom: the whole of the rules about imports (docs/design.md).

A wing imports the ground and the wings that its row of `MAY` names; inside the package a name is
imported from the module that defines it. `jobs/` and `bench/` stand on top.
"""

from __future__ import annotations

import ast
from functools import cache

import pytest

from ..kits.places import ROOT

PACKAGE = "pyspark_jetstream"

GROUND = [
    "sanitize", "errors", "foreign", "subjects", "serverheaders", "arrays", "values",
    "othernames", "option", "worker",
]  # fmt: skip
"""Each imports only those before it; every wing may import them all."""

MAY = {
    "mapping": "",
    "outbox": "",
    "client": "",
    "fetch": "client mapping",
    "publish": "client outbox mapping",
    "tasks": "client fetch",
    "write": "client fetch outbox mapping publish",
    "readstream": "client fetch tasks outbox",
    "read": "client fetch tasks",
    "options": "client fetch publish readstream read",
    "datasource": "options readstream read write",
    "testing": "",
    "operations": "mapping outbox client fetch publish tasks readstream read write options"
    " datasource __init__",
    "__main__": "operations",
    "__init__": "datasource fetch mapping write",
}
"""Wing, or module of the root → what it may import beside the ground."""

ONLY = {
    ("fetch", "mapping"): {"calls"},
    ("publish", "mapping"): {"subjectmapping"},
    ("write", "fetch"): {"decoding.rows", "layout", "pulling.alone"},
    ("readstream", "outbox"): {"deadletters", "lettersubjects"},
    ("__init__", "fetch"): {"directcalls"},
    ("__init__", "mapping"): {"subjectmapping"},
    ("__init__", "write"): {"restoring"},
}
"""Of these a wing may import only some modules."""

PURE = {
    "arrays", "errors", "foreign", "option", "othernames", "sanitize",
    "serverheaders", "subjects",
} | {  # fmt: skip
    f"publish.{module}"
    for module in "options laneset metrics telemetry lanes.answers lanes.flight"
    " lanes.lane lanes.retries settings".split()
} | {
    "client.blocks", "client.info", "client.options", "client.wire",
    "fetch.call", "fetch.durable", "fetch.layout", "fetch.options",
    "fetch.decoding.cuts", "fetch.decoding.deliveries", "fetch.decoding.markers",
    "fetch.decoding.replies", "fetch.decoding.rows",
    "operations.inspect.findings",
    "operations.metrics.reports",
    "operations.partition.plan", "operations.throttle.pauses",
    "options",
    "read.narrowing", "read.options",
    "readstream.offsets", "readstream.options",
    "readstream.shared.claims",
    "write.headerlines", "write.exactlyonce.ids", "write.reroutes",
    "write.rows",
}  # fmt: skip
"""These, and all of `mapping` and `outbox`, decide only: no I/O, no waiting, no clock."""

DOES_IO = {
    "asyncio", "concurrent", "ctypes", "fcntl", "http", "io", "multiprocessing", "os", "pathlib",
    "queue", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile",
    "threading", "time", "urllib",
}  # fmt: skip
"""Modules of the standard library that touch the world, or wait, or read a clock."""

SPARK = {
    "__init__", "datasource", "tasks.rows", "worker",
    "operations.files",
    "read.pushdown", "read.ranges", "read.singleget", "read.snapshot",
    "readstream.earlier", "readstream.reader", "readstream.refused",
    "write.preparation", "write.restoring", "write.sink",
}  # fmt: skip
"""Spark's adapters, and who starts its JVM."""

NATS = {"client.handshake"}
"""What imports nats-py."""

EXTRAS = {
    "prometheus_client": {"operations.metrics.exporter", "operations.metrics.readers"},
    "click": {
        "operations.commands", "operations.connecting", "operations.explain_mapping.command",
        "operations.inspect.command", "operations.metrics.command",
        "operations.pause.command", "operations.screen",
        "operations.partition.command", "operations.throttle.command",
    },
    "rich": {"operations.screen"},
}  # fmt: skip
"""Packages of extras, and who may import them."""

Import = tuple[str, str]
"""The module that is imported, dotted, and the name that is taken from it ("" for the module)."""


def modules(top):
    """Dotted names, below `top`, of all modules there; a package by its own name."""
    found = {}
    for path in sorted((ROOT / top).rglob("*.py")):
        parts = path.relative_to(ROOT / top).with_suffix("").parts
        if parts[-1] == "__init__" and len(parts) > 1:
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


HOUSE = modules(PACKAGE)
JOBS, BENCH = modules("jobs"), modules("bench")


@cache
def nodes(path):
    """A file's tree, without what is for type checkers alone."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        found.append(node)
        todo += ast.iter_child_nodes(node)
    return tuple(found)


@cache
def imports(path):
    """All imports of a file, also those inside functions."""
    package = path.relative_to(ROOT).parts[:-1]
    found: list[Import] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else [])))
            found += [(base, alias.name) for alias in node.names]
    return tuple(found)


@cache
def calls(path):
    """What a file calls, as it stands there."""
    return {ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)}


def ours(path):
    """Modules of the package that a file imports, by their names in `HOUSE`."""
    found = set()
    for base, name in imports(path):
        top, _, rest = base.partition(".")
        if top != PACKAGE:
            continue
        whole = f"{rest}.{name}" if rest else name
        found.add(whole if whole in HOUSE else rest or "__init__")
    return found


def wing(module):
    """Where a module lives: its wing, or itself at the root."""
    return module.partition(".")[0]


def is_pure(module):
    """Whether it may not do I/O."""
    return module in PURE or wing(module) in ("mapping", "outbox")


def test_imports_follow_the_table():
    """A module imports the ground, its own wing, what the wing's row names; only what exists."""
    for module in HOUSE:
        found = ours(HOUSE[module])
        home = wing(module)

        assert found <= HOUSE.keys(), module
        if home in GROUND:
            assert {wing(name) for name in found} <= set(GROUND[: GROUND.index(home)]), module
            continue
        allowed = {home, *GROUND, *MAY[home].split()}
        assert not {name for name in found if wing(name) not in allowed}, module
        for name in found:
            there, _, inside = name.partition(".")
            narrow = ONLY.get((home, there))
            assert narrow is None or inside in narrow, (module, name)


def test_nothing_in_the_house_is_a_circle():
    """Modules of the package, jobs and bench can be put in an order that imports follow."""
    for top, where in ((PACKAGE, HOUSE), ("jobs", JOBS), ("bench", BENCH)):
        graph: dict[str, set[str]] = {}
        for module, path in where.items():
            found = set()
            for base, name in imports(path):
                first, _, rest = base.partition(".")
                if first == top:
                    whole = f"{rest}.{name}" if rest else name
                    found.add(whole if whole in where else rest or "__init__")
            graph[module] = (found & where.keys()) - {module}
        while graph:
            free = [module for module, needs in graph.items() if not needs & graph.keys()]
            assert free, f"a circle among {sorted(graph)} of {top}"
            for module in free:
                del graph[module]


def test_packages_of_others_have_their_places():
    """Spark is for adapters, nats-py for the handshake, packages of extras for consoles."""
    for module in HOUSE:
        tops = {base.partition(".")[0] for base, _ in imports(HOUSE[module])}

        assert "pyspark" not in tops or module in SPARK, module
        assert "nats" not in tops or module in NATS, module
        for package, places in EXTRAS.items():
            assert package not in tops or module in places, module


def test_what_decides_does_no_io():
    """The pure core imports nothing that does I/O, waits or reads a clock."""
    for module in filter(is_pure, HOUSE):
        assert not {base.partition(".")[0] for base, _ in imports(HOUSE[module])} & DOES_IO, module


def test_every_name_of_the_tables_exists():
    """Tables that name what is gone would allow whatever takes the name next."""
    wings = {wing(module) for module in HOUSE}

    assert set(MAY) | set(GROUND) == wings
    assert {name for names in MAY.values() for name in names.split()} <= wings
    assert PURE <= HOUSE.keys()
    assert SPARK | NATS <= HOUSE.keys()
    assert set().union(*EXTRAS.values()) <= HOUSE.keys()
    assert {(home, there) for home, there in ONLY if there not in MAY[home].split()} == set()


@pytest.mark.parametrize("job", JOBS)
def test_jobs_use_public_names(job):
    """Scripts that people copy take from the package what has a public name."""
    names = [
        part
        for base, name in imports(JOBS[job])
        if base.partition(".")[0] == PACKAGE
        for part in (*base.split("."), name)
    ]

    assert ours(JOBS[job]) <= HOUSE.keys()
    assert [name for name in names if name.startswith("_")] == []

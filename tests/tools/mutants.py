"""
Mutants of the modules that need neither server nor Spark, and the tests that kill them.

`make mutants` takes a seeded sample of all small changes of these modules and runs the unit tests
near each. It writes a line a mutant: what was changed, and the first test that fails. Compare the
lists from before and after tests are deleted.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import os
import random
import re
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow  # noqa: F401 - what all mutants import is imported once
import pyspark.sql.datasource  # noqa: F401
import pytest

from ..kits.places import PACKAGE, ROOT
from ..kits.seeds import RUN

DEADLINE_S: Final = 120
"""A mutant whose tests take longer hangs, hence is killed."""

_OTHER: Final[dict[type, type]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip

Change = tuple[str, Any, str, Any]
"""What it is called; a node, its field, and the field's other value."""


def changes(tree: ast.AST) -> Iterator[Change]:
    """All small changes of a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=[one]) if type(one) in _OTHER:
                yield type(one).__name__, node, "ops", [_OTHER[type(one)]()]
            case ast.BoolOp(op=one) | ast.BinOp(op=one) if type(one) in _OTHER:
                yield type(one).__name__, node, "op", _OTHER[type(one)]()
            case ast.Constant(value=bool() as value):
                yield str(value), node, "value", not value
            case ast.Constant(value=int() as value):
                yield str(value), node, "value", value + 1
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield "condition", node, "test", ast.UnaryOp(ast.Not(), test)
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield "return", node, "value", ast.Constant(None)
            case ast.Expr(value=ast.Call(func=called)):
                yield f"call of {ast.unparse(called)}", node, "value", ast.Constant(None)


class _Mutated(importlib.machinery.SourceFileLoader):
    number = 0

    def get_code(self, fullname: str) -> Any:
        tree = ast.parse(self.get_data(self.path))
        setattr(*list(changes(tree))[self.number][1:])
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, number: int) -> None:
        self._module, self._number = f"{PACKAGE.name}.{module}", number

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        spec.loader = loader = _Mutated(fullname, spec.origin)
        loader.number = self._number
        return spec


@cache
def imports(path: Path) -> frozenset[Path]:
    """The files of this project that a file imports."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if node.level else ROOT
            base = base.joinpath(*(node.module or "").split("."))
            for each in (base, *(base / alias.name for alias in node.names)):
                found |= {each.with_suffix(".py"), each / "__init__.py"}
    return frozenset(each for each in found if each.is_file())


@cache
def reached(test: Path) -> frozenset[Path]:
    """What a test imports, also by way of what tests share."""
    found, todo = set(imports(test)), list(imports(test))
    while todo:
        each = todo.pop()
        if each.is_relative_to(ROOT / "tests"):
            todo += imports(each) - found
            found |= imports(each)
    return frozenset(found)


def tests_near(module: Path) -> list[str]:
    """The unit tests that import a module; if they are few, those that import who imports it."""
    tests = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))
    near = [path for path in tests if module in reached(path)]
    if len(near) < 5:
        further = [path for path in tests if any(module in imports(of) for of in reached(path))]
        near += [path for path in further if path not in near]
    return list(map(str, near))


class _First:
    """Says to a pipe which test fails."""

    def __init__(self, to: int) -> None:
        self._to = to

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            os.write(self._to, report.nodeid.encode())

    pytest_collectreport = pytest_runtest_logreport


def killer(module: str, number: int, test: str) -> str:
    """The test of a file that kills a mutant; empty if none does."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        signal.alarm(DEADLINE_S)
        sys.meta_path.insert(0, _Finder(module, number))
        os.environ[RUN] = "1"
        arguments = ["-xq", "-p", "no:cacheprovider", "--hypothesis-seed=1", test]
        os._exit(pytest.main(arguments, plugins=[_First(write)]))
    os.close(write)
    with os.fdopen(read) as said:
        first = said.read()
    _, status = os.waitpid(child, 0)
    if first or os.WIFSIGNALED(status):
        return first or f"{test} (hangs)"
    assert os.waitstatus_to_exitcode(status) in (0, pytest.ExitCode.NO_TESTS_COLLECTED), test
    return ""


def main(arguments: list[str]) -> None:
    """Writes a line a mutant, and the sum."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("modules", nargs="+", help="modules or wings, such as client.wire outbox")
    options = parser.parse_args(arguments)
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        if re.match("|".join(rf"{each}(\.|$)" for each in options.modules), module):
            for number, (what, node, *_) in enumerate(changes(ast.parse(path.read_text()))):
                found.append((module, node.lineno, what, number, path))
    sample = random.Random(options.seed).sample(found, min(options.count, len(found)))
    dead = 0
    for module, line, what, number, path in sorted(sample):
        killers = (killer(module, number, test) for test in tests_near(path))
        first = next(filter(None, killers), "")
        dead += bool(first)
        sys.stdout.write(f"{module}:{line} {what}: {first or 'SURVIVES'}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{dead} of {len(sample)} mutants die; {len(found)} can be made\n")


if __name__ == "__main__":
    main(sys.argv[1:])

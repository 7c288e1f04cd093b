"""
Mutants of the functions that need neither server nor Spark, and the tests that kill them.

`make mutants` takes a seeded sample of all small changes of these functions. It collects the unit
tests once, learns which functions each visits, and runs for each mutant, in a process of its own,
the tests that visit its function, the shortest first. It writes a line a mutant: what was changed,
and the first test that fails. Compare the lists from before and after tests are deleted.
"""

from __future__ import annotations

import argparse
import ast
import gc
import os
import pickle
import random
import resource
import select
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BufferedReader, FileIO
from itertools import accumulate, pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

import pytest

from ..kits.places import PACKAGE, ROOT

SPARE_S: Final = 10.0
"""A test that takes so much longer than ten times what it takes otherwise hangs, hence kills."""

LONG_S: Final = 5.0
"""Tests of a mutant end where they would take longer, in the time of the first pass."""

JOBS: Final = 4
"""Mutants at one time: some tests wait, and those that hang do nothing else."""

MEMORY: Final = 6 << 30
"""Bytes a mutant may take: one that grows without end fails."""

_FAILED: Final = "failed"
_SURVIVES: Final = "SURVIVES"

_OTHER: Final[dict[type, type]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip

Change = tuple[str, Any, str, Any]
"""What it is called; a node, its field, and the field's other value."""

Function = tuple[str, int, str]
"""A function of a module, or a method: its file, its first line, its name."""


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(str(PACKAGE))


def _function(code: CodeType) -> Function:
    return code.co_filename, code.co_firstlineno, code.co_name


def _nothing(value: ast.expr) -> ast.expr:
    """None in place of a value; its names stay, so that a closure's cells do."""
    return ast.IfExp(ast.Constant(False), value, ast.Constant(None))


def changes(tree: ast.AST) -> Iterator[Change]:
    """All small changes of a function."""
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
                yield "return", node, "value", _nothing(value)
            case ast.Expr(value=ast.Call(func=called) as value):
                yield f"call of {ast.unparse(called)}", node, "value", _nothing(value)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """The outermost functions of a module and the methods of its classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node
        else:
            yield from functions(node)


def _first_line(node: ast.FunctionDef) -> int:
    return min(each.lineno for each in (node, *node.decorator_list))


class Mutant(NamedTuple):
    """One change of a function: the number of the function in its file, and of the change in it."""

    function: Function
    place: int
    number: int
    line: int
    what: str

    def __str__(self) -> str:
        path, _, name = self.function
        module = Path(path).relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        return f"{module}:{self.line} {name} #{self.number} {self.what}"

    def code(self) -> CodeType:
        """The function's code with the change in it."""
        path, first, name = self.function
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
        node = list(functions(tree))[self.place]
        setattr(*list(changes(node))[self.number][1:])
        todo = [compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)]
        while todo:
            code = todo.pop()
            if (code.co_firstlineno, code.co_name) == (first, name):
                return code
            todo += [each for each in code.co_consts if isinstance(each, CodeType)]
        raise LookupError(self.function)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All mutants of a module's functions."""
    for place, node in enumerate(functions(ast.parse(path.read_text(encoding="utf-8")))):
        function = str(path), _first_line(node), node.name
        for number, (what, changed, *_) in enumerate(changes(node)):
            yield Mutant(function, place, number, getattr(changed, "lineno", node.lineno), what)


def forked(task: Callable[[FileIO], None]) -> tuple[int, FileIO]:
    """A process that does a task, silently: its id, and what it says."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        with FileIO(write, "wb") as said, suppress(BaseException):
            task(said)
        os._exit(0)
    os.close(write)
    return pid, FileIO(read, "rb")


class Matrix:
    """In place of a run of the tests: a run of the mutants."""

    def __init__(self, names: list[str], count: int, seed: int) -> None:
        self._names, self._count, self._seed = names, count, seed
        self._failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remembers what failed."""
        if report.failed:
            self._failed = report.nodeid

    def _ran(self, item: Any, then: Any) -> bool:
        self._failed = ""
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=then)
        return not self._failed

    def _look(self, items: list[Any], said: FileIO) -> None:
        """Says of each test that passes how long it takes, and the functions it visits."""
        seen: set[CodeType] = set()

        def profile(frame: Any, event: str, _: Any) -> None:
            if event == "call":
                seen.add(frame.f_code)

        for number, (item, then) in enumerate(pairwise([*items, None])):
            seen.clear()
            begin = time.monotonic()
            sys.setprofile(profile)
            threading.setprofile(profile)
            passed = self._ran(item, then)
            sys.setprofile(None)
            visited = {_function(code) for code in list(seen) if _is_ours(code)}
            if passed:
                pickle.dump((number, time.monotonic() - begin, visited), said)

    def _die(self, mutant: Mutant, alive: list[Any], items: list[Any], said: FileIO) -> None:
        """Runs tests on a mutant until one fails; names each before."""
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        code = mutant.code()
        for each in alive:
            each.__code__ = code
        for item, then in pairwise([*items, None]):
            said.write(item.nodeid.encode() + b"\n")
            if not self._ran(item, then):
                said.write(_FAILED.encode())
                return
        said.write(_SURVIVES.encode())

    def pytest_runtestloop(self, session: Any) -> bool:
        """Writes a line a mutant, and the sum."""
        items = session.items
        taken: dict[int, float] = {}
        near: dict[Function, list[int]] = defaultdict(list)
        pid, said = forked(lambda said: self._look(items, said))
        with BufferedReader(said) as whole, suppress(EOFError):
            while True:
                number, taken[number], visited = pickle.load(whole)
                for function in visited:
                    near[function].append(number)
        os.waitpid(pid, 0)
        gc.unfreeze()
        alive: dict[Function, list[FunctionType]] = defaultdict(list)
        for each in gc.get_objects():
            if isinstance(each, FunctionType) and _is_ours(each.__code__):
                alive[_function(each.__code__)].append(each)
        gc.freeze()

        made = [mutant for path in sorted(PACKAGE.rglob("*.py")) for mutant in mutants_of(path)]
        named = tuple(f"{name}{end}" for name in self._names for end in ".:")
        made = [each for each in made if not named or str(each).startswith(named)]
        known = [each for each in made if near[each.function] and alive[each.function]]
        sample = self._sample(known)
        say = sys.stdout.write
        say(f"{len(taken)} tests visit functions of {len(known)} of {len(made)} mutants\n")

        def killer(mutant: Mutant) -> str:
            tests = sorted(near[mutant.function], key=taken.__getitem__)
            ends = accumulate(taken[each] for each in tests)
            tests = [each for each, end in zip(tests, ends, strict=True) if end < LONG_S] or tests[
                :1
            ]
            waits = {items[each].nodeid: 10 * taken[each] + SPARE_S for each in tests}
            found = self._killer(mutant, alive[mutant.function], [items[n] for n in tests], waits)
            return found or f"{_SURVIVES} {len(tests)} of {len(near[mutant.function])} tests"

        dead = 0
        with ThreadPoolExecutor(JOBS) as pool:
            for mutant, found in zip(sample, pool.map(killer, sample), strict=True):
                dead += not found.startswith(_SURVIVES)
                say(f"{mutant}: {found}\n")
                sys.stdout.flush()
        say(f"{dead} of {len(sample)} mutants die\n")
        return True

    def _sample(self, known: list[Mutant]) -> list[Mutant]:
        return random.Random(self._seed).sample(known, min(self._count, len(known)))

    def _killer(
        self, mutant: Mutant, alive: list[Any], items: list[Any], waits: dict[str, float]
    ) -> str:
        """The first test that fails on a mutant; empty if none does."""
        pid, said = forked(lambda said: self._die(mutant, alive, items, said))
        test, wait, end = "", SPARE_S, "does not end"
        with said:
            while select.select([said], [], [], wait)[0]:
                line = said.readline().decode().strip()
                if line not in waits:
                    end = line
                    break
                test, wait = line, waits[line]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return {_SURVIVES: "", _FAILED: test}.get(
            end, f"{test} ({end or 'takes the process away'})"
        )


def main(arguments: list[str]) -> None:
    """Runs pytest with the matrix in it."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("modules", nargs="*", help="modules or wings, such as client.wire outbox")
    options = parser.parse_args(arguments)
    matrix = Matrix(options.modules, options.count, options.seed)
    quiet = ["-q", "-s", "-p", "no:cacheprovider"]
    sys.exit(pytest.main([*quiet, str(ROOT / "tests" / "unit")], plugins=[matrix]))


if __name__ == "__main__":
    main(sys.argv[1:])

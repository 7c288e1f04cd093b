"""`python -m tests.matrix`: runs the cells, one after the other, and writes what they came to."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.testing import find_server

from ..kits.options import connection_of
from ..kits.places import ROOT
from ..kits.servers import DevServer
from . import results, tools
from .cells import CELLS, PYTHONS, Cell
from .deployments import RUN
from .environments import Environments, build_wheel, pandas_of
from .results import Outcome
from .room import COPIED, Room, WrongError


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make matrix",
        description=sys.modules[__package__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--list", action="store_true", help="the cells")
    add(
        "--only",
        action="append",
        default=[],
        metavar="WORDS",
        help="cells whose name has all these words (a,b); again for more",
    )
    add(
        "--python",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="an interpreter, beside those on PATH",
    )
    add(
        "--java",
        action="append",
        default=[],
        type=Path,
        metavar="HOME",
        help="a JDK, beside $JAVA_HOME and that of PATH",
    )
    add("--folder", type=Path, help="keeps the environments; else a temporary one")
    add("--results", type=Path, default=ROOT / "matrix-results.jsonl")
    add("--table", action="store_true", help="only print the table of the results")
    return parser.parse_args()  # fmt: skip


def main() -> int:
    """0: all that was run is right; 1: a cell failed; 2: no such cell."""
    arguments = _arguments()
    if arguments.table:
        sys.stdout.write(results.table(results.latest(arguments.results)))
        return 0
    words = [each.split(",") for each in arguments.only] or [[""]]
    chosen = [c for c in CELLS if any(all(w in c.name for w in each) for each in words)]
    if not chosen:
        sys.stderr.write("no such cell: see --list\n")
        return 2
    if arguments.list:
        sys.stdout.writelines(f"{cell.name}\n" for cell in chosen)
        return 0
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        return _run(arguments, chosen, arguments.folder.resolve())
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        return _run(arguments, chosen, Path(folder))


def _run(arguments: argparse.Namespace, chosen: list[Cell], folder: Path) -> int:
    pythons = tools.pythons(arguments.python, PYTHONS)
    javas = tools.javas(arguments.java)
    failed = 0
    with tempfile.TemporaryDirectory(dir=folder, prefix="run-") as temporary, DevServer() as server:
        environments = Environments(folder, build_wheel(Path(temporary)), pythons)
        for at, cell in enumerate(chosen):
            began = time.monotonic()
            python, java = pythons.get(cell.python), javas.get(cell.java)
            said, pandas, problem = "ok", "", ""
            if python is None or java is None:
                said = f"not run: no {f'Python {cell.python}' if java else f'Java {cell.java}'}"
            else:
                room = Room(cell, Path(temporary) / str(at), environments, java.path, server,
                            f"SOURCE{at}", f"TARGET{at}")  # fmt: skip
                try:
                    pandas = pandas_of(_cell(room))
                except (WrongError, RuntimeError, OSError, subprocess.SubprocessError):
                    said, problem = "failed", traceback.format_exc()
                    failed += 1
            outcome = Outcome(
                name=cell.name, result=said, spark=cell.spark,
                python=python.version if python else cell.python,
                java=java.version if java else cell.java, pandas=pandas, server=_version(),
                date=datetime.now(UTC).date().isoformat(),
                seconds=round(time.monotonic() - began, 1),
            )  # fmt: skip
            results.append(arguments.results, outcome)
            sys.stdout.write(f"{said:8} {outcome.seconds:6.1f} s  {cell.name}\n{problem}")
            sys.stdout.flush()
    return 1 if failed else 0


def _cell(room: Room) -> Path:
    """Runs it, and then the server itself says what the copy holds; the interpreter."""
    room.folder.mkdir()
    client = Client(connection_of(room.server.url))
    try:
        js = JetStream(client)
        for name in (room.source, room.target):
            js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        python = RUN[room.cell.deployment](room)
        stored = js.stream_info(room.target).messages
    finally:
        client.close()
    wanted = 0 if room.cell.deployment == "py-files-wheel" else COPIED
    if stored != wanted:
        raise WrongError(f"the server stored {stored} messages, not {wanted}")
    return python


def _version() -> str:
    said = subprocess.run([find_server(), "--version"], capture_output=True, text=True, timeout=20)
    return said.stdout.split("v")[-1].strip()


if __name__ == "__main__":
    sys.exit(main())

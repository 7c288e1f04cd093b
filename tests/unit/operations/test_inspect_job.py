"""
The arguments of the job that inspects, and that its name, which is a module's of the standard
library, harms no program; what it shows is tested in tests/live.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ...kits.checkpoints import offset, write_checkpoint
from ...kits.places import ROOT

JOBS = ROOT / "jobs"
JOB = JOBS / "inspect.py"
NOWHERE = ("--servers", "nats://127.0.0.1:1", "--request-timeout", "100ms")

PROGRAMS = sorted(
    path.name for path in JOBS.glob("*.py") if '__name__ == "__main__"' in path.read_text()
)
MODULES = sorted(path.stem for path in JOBS.glob("*.py") if path.name not in PROGRAMS)


def python(*arguments, cwd=ROOT, **env):
    """A Python of its own that has the package."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT)} | env,
    )


def run(*arguments):
    """The job, as it is called."""
    return python(JOB, *arguments)


@pytest.fixture
def job(monkeypatch):
    """The program behind it, as a module."""
    monkeypatch.syspath_prepend(str(JOBS))
    spec = importlib.util.spec_from_file_location("overview_job", JOBS / "overview.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("tables", None)


def ended(job, capsys, arguments):
    """Status and what was said of a run that is a mistake."""
    try:
        status = job.main("help", arguments)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert said.out == ""
    return status, said.err.splitlines()


# ── arguments ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "expected --stream, --checkpoint or both"),
        ("--stream a.b", "option 'stream': expected a stream name"),
        ("--stream F-{partition}", "option 'stream': needs option 'partitions' too"),
        ("--stream F --partitions x", "option 'partitions': "),
        ("--stream F --partitions 2 --subject F.>", "option 'subject': contradicts partitions"),
        ("--stream F --consumer a.b", "--consumer: expected a durable name"),
        ("--stream F --watch 0", "--watch: expected more than zero"),
        ("--stream F --watch soon", "--watch: expected a duration"),
        ("--checkpoint nowhere", "option 'checkpoint': no such directory: 'nowhere'"),
        ("--checkpoint hdfs://h/c", "only local paths and file://"),
        ("--checkpoint c --partitions 2", "option 'partitions': needs --stream"),
        ("--stream F --servers nats://u:pw@h", "option 'servers'"),
        ("--stream F --password pw1 --token=pw2", "unrecognized arguments: --password --token …"),
    ],
)
def test_what_is_not_valid(job, capsys, arguments, says):
    """
    A mistake ends it with status 2 before a server is asked, and its last line says which.
    """
    status, said = ended(job, capsys, arguments.split())

    assert status == 2
    assert says in said[-1]
    assert "pw" not in said[-1]


def test_no_server():
    """
    Where no server can be reached, the status is 1 and one line says so, with --watch as well.
    """
    done = run("--stream", "F", "--watch", *NOWHERE)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no connection to nats://127.0.0.1:1: ")
    assert done.stderr.count("\n") == 1


def test_no_checkpoint_of_sparks(tmp_path, job, capsys):
    """
    A checkpoint that Spark did not write is status 1, before the server is asked.
    """
    write_checkpoint(tmp_path, [[offset({"S": "t"}, [1])]])
    (tmp_path / "offsets" / "0").write_text("v0")
    status, said = ended(job, capsys, ["--checkpoint", str(tmp_path), *NOWHERE])

    assert (status, len(said)) == (1, 1)
    assert "expected Spark's offsets of version v1 or v2, got 'v0'" in said[0]


def test_the_examples_are_commands(tmp_path, job, capsys, monkeypatch):
    """
    Every command of the help gets as far as the servers.
    """
    path = write_checkpoint(tmp_path / "c", [[offset({"S": "t"}, [1])]])
    found = re.findall(r"^    python jobs/inspect\.py (.*)$", JOB.read_text(), re.MULTILINE)
    commands = [shlex.split(each.replace("/checkpoints/alerts", str(path))) for each in found]
    monkeypatch.setattr(job.signal, "signal", lambda *_: None)
    done = [ended(job, capsys, [*each, *NOWHERE]) for each in commands]

    assert [status for status, _ in done] == [1] * 4
    assert all("no connection to nats://127.0.0.1:1" in said[0] for _, said in done)


def test_the_help_names_the_statuses():
    """
    `--help` says what each exit status means.
    """
    done = run("--help")
    text = " ".join(done.stdout.split())

    assert done.returncode == 0
    assert re.findall(r"(\d): ", text[text.index("Exit status") :])[:4] == ["0", "1", "2", "3"]


# ── its name ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_runs_beside_it(program):
    """
    `python jobs/X.py` works for each program, though Python looks for `inspect` in jobs/ first.
    """
    done = python(JOBS / program, "--help", cwd="/")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {program.removesuffix('.py')}")


PROBE = """
import pickle, sys, threading

sys.setswitchinterval(1e-6)
seen, ready = [], threading.Barrier(8)

def look():
    ready.wait()
    import inspect
    seen.append(inspect.signature(lambda a: 0).parameters["a"].name)

threads = [threading.Thread(target=look) for _ in range(8)]
[each.start() for each in threads]
[each.join() for each in threads]
import importlib, inspect, json, os
import dataclasses, rich.table, pyarrow, pyspark.sql.datasource
again = importlib.reload(inspect)
std = os.path.join(os.path.dirname(os.__file__), "inspect.py")
spec = importlib.util.spec_from_file_location("inspect", std)
fresh = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fresh)
print(json.dumps({
    "threads": seen,
    "same": again is inspect is sys.modules["inspect"],
    "file": inspect.__file__ == inspect.__spec__.origin == std,
    "names": sorted(set(vars(inspect)) ^ set(vars(fresh))),
    "pickled": pickle.loads(pickle.dumps(inspect.Signature)) is inspect.Signature,
    "module": inspect.Signature.__module__,
    "source": inspect.getsource(inspect.signature).startswith("def signature"),
}))
"""


@pytest.mark.parametrize("way", ["beside it", "-m", "PYTHONPATH", "in front of a copy"])
def test_it_becomes_the_librarys(tmp_path, way):
    """
    Whatever finds it where it looks for `inspect` has the standard library's: the same names, also
    for threads that import it at the same time, reloads, pickles and source lines.
    """
    for each in ("one", "two"):
        (tmp_path / each).mkdir()
        shutil.copy(JOB, tmp_path / each)
    (tmp_path / "one" / "probe.py").write_text(PROBE)
    paths = f"{tmp_path / 'one'}:{tmp_path / 'two'}:{ROOT}"
    arguments, env = {
        "beside it": ([tmp_path / "one" / "probe.py"], {}),
        "-m": (["-m", "probe"], {}),
        "PYTHONPATH": (["-c", PROBE], {"PYTHONPATH": paths}),
        "in front of a copy": ([tmp_path / "one" / "probe.py"], {"PYTHONPATH": paths}),
    }[way]
    done = python(*arguments, cwd=tmp_path / "one" if way == "-m" else "/", **env)

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "threads": ["a"] * 8, "same": True, "file": True, "names": [], "pickled": True,
        "module": "inspect", "source": True,
    }  # fmt: skip


def test_the_modules_beside_it():
    """
    What programs in jobs/ import from there is what is there; so is `inspect`.
    """
    names = ", ".join(MODULES)
    script = (
        f"import {names}, backfill, inspect, json\n"
        f"print(json.dumps([m.__file__ for m in ({names})]), inspect.__file__, sep='\\n')"
    )
    done = python("-c", script, cwd=JOBS)
    files, librarys = done.stdout.splitlines()

    assert {"progress", "screen", "overview", "tables"} <= set(MODULES)
    assert json.loads(files) == [str(JOBS / f"{name}.py") for name in MODULES]
    assert Path(librarys).parent != JOBS

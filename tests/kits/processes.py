"""
What the processes of a query cost before their first row: CPU seconds, with and without bytecode.

Needs no Spark session. Spark forks each Python process of a query from a daemon that has imported
PySpark's part. So a process here has imported PySpark and pyarrow, and forks: each fork does the
work of one process of Spark, with one message or row. What it imports on the way is ours, and what
comes with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).parents[2]
_PACKAGE: Final = "pyspark_jetstream"
_NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"

_TIMEOUT_S: Final = 600.0

_FORKS: Final = """
import importlib.util, json, os, pickle, resource, sys, traceback
times, module, program, *arguments = sys.argv[1:]
importlib.import_module(module)
sys.modules["__main__"].__spec__ = importlib.util.find_spec(module)  # as Spark runs it, by -m
import pyarrow as pa
compiled = compile(program, "program", "exec")
for _ in range(int(times)):
    sys.stdout.flush()
    if not os.fork():
        status = 1
        try:
            exec(compiled)
            used = resource.getrusage(resource.RUSAGE_SELF)
            names = [name for name in sys.modules if sys.modules[name] is not None]
            print(json.dumps([used.ru_utime + used.ru_stime, names]), flush=True)
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    if os.wait()[1]:
        sys.exit(1)
"""
"""What forks: so many times, from which of PySpark's modules, to do what, with which arguments."""

_SOURCE: Final = """
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark.sql.types import StructType
url, stream, path = arguments
"""

_WORKERS: Final = "pyspark.sql.worker."


class Process(NamedTuple):
    """A process of Spark: what its daemon has imported, and what it does."""

    module: str
    program: str


PROCESSES: Final = {
    "schema of a read": Process(
        _WORKERS + "create_data_source",
        _SOURCE
        + """
source = JetStreamDataSource(CaseInsensitiveDict({"servers": url, "stream": stream}))
pickle.dump((source, source.schema()), open(path, "wb"))
""",
    ),
    "streaming read: plan": Process(
        _WORKERS + "plan_data_source_read",
        """
path = arguments[2]
source, schema = pickle.load(open(path, "rb"))
pickle.dump((source, source.streamReader(schema)), open(path + ".reader", "wb"))
""",
    ),
    "streaming read: source": Process(
        "pyspark.sql.streaming.python_streaming_source_runner",
        """
from pyspark.sql.streaming.datasource import ReadAllAvailable
path = arguments[2]
source, schema = pickle.load(open(path, "rb"))
reader = source.streamReader(schema)
start = reader.initialOffset()
task = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))[0]
reader.stop()
pickle.dump(task, open(path + ".task", "wb"))
""",
    ),
    "streaming read: task": Process(
        "pyspark.worker",
        """
path = arguments[2]
source, reader = pickle.load(open(path + ".reader", "rb"))
task = pickle.load(open(path + ".task", "rb"))
assert sum(batch.num_rows for batch in reader.read(task)) == 1
""",
    ),
    "batch read: plan": Process(
        _WORKERS + "plan_data_source_read",
        """
path = arguments[2]
source, schema = pickle.load(open(path, "rb"))
reader = source.reader(schema)
pickle.dump((source, reader, reader.partitions()[0]), open(path + ".batch", "wb"))
""",
    ),
    "batch read: task": Process(
        "pyspark.worker",
        """
path = arguments[2]
_, reader, task = pickle.load(open(path + ".batch", "rb"))
assert sum(batch.num_rows for batch in reader.read(task)) == 1
""",
    ),
    "write: plan": Process(
        _WORKERS + "write_into_data_source",
        _SOURCE
        + """
schema = StructType().add("subject", "string").add("data", "binary")
writer = JetStreamDataSource(CaseInsensitiveDict({"servers": url})).writer(schema, False)
pickle.dump(writer, open(path + ".writer", "wb"))
""",
    ),
    "write: task": Process(
        "pyspark.worker",
        """
path = arguments[2]
writer = pickle.load(open(path + ".writer", "rb"))
row = pa.record_batch({"subject": [arguments[1] + ".a"], "data": [b"row"]})
pickle.dump(writer.write(iter([row])), open(path + ".written", "wb"))
""",
    ),
    "write: commit": Process(
        _WORKERS + "commit_data_source_write",
        """
path = arguments[2]
writer = pickle.load(open(path + ".writer", "rb"))
writer.commit([pickle.load(open(path + ".written", "rb"))])
""",
    ),
}
"""The processes of a read and of a write, in the order in which each leaves the next its input."""


class Start(NamedTuple):
    """One fork of a process."""

    cpu_s: float
    modules: frozenset[str]
    """What it has imported, PySpark's part too."""


def started(
    process: Process, arguments: Sequence[str], times: int = 1, bytecode: bool = True
) -> list[Start]:
    """
    What this process costs, so many times.

    Args:
        arguments: the server's URL, a stream with one message at least, a path for what is pickled.
        bytecode: whether there is compiled code of ours to import.
    """
    with tempfile.TemporaryDirectory() as home:
        shutil.copytree(
            _ROOT / _PACKAGE, Path(home, _PACKAGE), ignore=shutil.ignore_patterns("__pycache__")
        )
        environment = {**os.environ, "PYTHONPATH": home}
        environment.pop(_NO_BYTECODE, None)
        if not bytecode:
            environment[_NO_BYTECODE] = "1"
        done = subprocess.run(
            [sys.executable, "-c", _FORKS, str(times), process.module, process.program, *arguments],
            cwd=home,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    found = (json.loads(line) for line in done.stdout.splitlines())
    return [Start(cpu_s, frozenset(names)) for cpu_s, names in found]

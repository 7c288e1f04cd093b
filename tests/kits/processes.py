"""
What the processes of a query import before their first row.

Needs no Spark session. Spark forks each Python process of a query from a daemon that has imported
PySpark's part. So does a process here: it does the work of one process of Spark, with one row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from .places import ROOT

_BEGIN: Final = """
import importlib.util, json, pickle, sys
module, program, *arguments = sys.argv[1:]
importlib.import_module(module)
sys.modules["__main__"].__spec__ = importlib.util.find_spec(module)  # as Spark runs it, by -m
import pyarrow as pa
exec(compile(program, "program", "exec"))
print(json.dumps([name for name in sys.modules if sys.modules[name] is not None]))
"""

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


def imported(process: Process, arguments: Sequence[str]) -> set[str]:
    """
    What this process has imported, PySpark's part too.

    Args:
        arguments: the server's URL, a stream with one message at least, a path for what is pickled.
    """
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN, process.module, process.program, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
        timeout=600, check=True,
    )  # fmt: skip
    return set(json.loads(done.stdout))

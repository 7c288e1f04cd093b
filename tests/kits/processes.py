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
module, program, url, stream, path = sys.argv[1:]
importlib.import_module(module)
sys.modules["__main__"].__spec__ = importlib.util.find_spec(module)  # as Spark runs it, by -m
import pyarrow as pa
def kept(what): return pickle.load(open(path + what, "rb"))
def keep(value, what): pickle.dump(value, open(path + what, "wb"))
exec(compile(program, "program", "exec"))
print(json.dumps([name for name in sys.modules if sys.modules[name] is not None]))
"""

_SOURCE: Final = """
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark.sql.types import StructType
"""


class Process(NamedTuple):
    """A process of Spark: what its daemon has imported, and what it does."""

    module: str
    program: str


PROCESSES: Final = {
    "schema of a read": Process("pyspark.sql.worker.create_data_source", _SOURCE + """
source = JetStreamDataSource(CaseInsensitiveDict({"servers": url, "stream": stream}))
keep((source, source.schema()), "")
"""),
    "streaming read: plan": Process("pyspark.sql.worker.plan_data_source_read", """
source, schema = kept("")
keep((source, source.streamReader(schema)), ".reader")
"""),
    "streaming read: source": Process("pyspark.sql.streaming.python_streaming_source_runner", """
from pyspark.sql.streaming.datasource import ReadAllAvailable
source, schema = kept("")
reader = source.streamReader(schema)
start = reader.initialOffset()
task = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))[0]
reader.stop()
keep(task, ".task")
"""),
    "streaming read: task": Process("pyspark.worker", """
source, reader = kept(".reader")
task = kept(".task")
assert sum(batch.num_rows for batch in reader.read(task)) == 1
"""),
    "batch read: plan": Process("pyspark.sql.worker.plan_data_source_read", """
source, schema = kept("")
reader = source.reader(schema)
keep((source, reader, reader.partitions()[0]), ".batch")
"""),
    "batch read: task": Process("pyspark.worker", """
_, reader, task = kept(".batch")
assert sum(batch.num_rows for batch in reader.read(task)) == 1
"""),
    "write: plan": Process("pyspark.sql.worker.write_into_data_source", _SOURCE + """
schema = StructType().add("subject", "string").add("data", "binary")
keep(JetStreamDataSource(CaseInsensitiveDict({"servers": url})).writer(schema, False), ".writer")
"""),
    "write: task": Process("pyspark.worker", """
row = pa.record_batch({"subject": [stream + ".a"], "data": [b"row"]})
keep(kept(".writer").write(iter([row])), ".written")
"""),
    "write: commit": Process("pyspark.sql.worker.commit_data_source_write", """
kept(".writer").commit([kept(".written")])
"""),
}  # fmt: skip
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

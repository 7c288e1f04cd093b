"""
What the processes of a query import, and how many modules a row visits.

Each process starts anew, and pays for its imports before its first row. Who follows a row opens the
modules that it visits: those of which it calls a function.

Spark forks each Python process of a query from a daemon that has imported PySpark's part. So does
a process here: it does the work of one process of Spark, with one row.
"""

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from ..kits.places import PACKAGE, ROOT

SLOW = {"asyncio", "concurrent", "email", "http", "nats", "nkeys", "ssl"}
"""What is for TLS and signatures, and what comes with that."""

OURS = "pyspark_jetstream."


_BEGIN = """
import importlib.util, inspect, json, pickle, sys, threading
module, program, package, url, stream, path = sys.argv[1:]
importlib.import_module(module)
sys.modules["__main__"].__spec__ = importlib.util.find_spec(module)  # as Spark runs it, by -m
import pyarrow as pa
def kept(what): return pickle.load(open(path + what, "rb"))
def keep(value, what): pickle.dump(value, open(path + what, "wb"))
visited = set()
def is_ours(code): return code.co_filename.startswith(package)
def visit(frame, event, _):
    code, at = frame.f_code, frame
    if event != "call" or not is_ours(code) or code.co_filename in visited: return
    while at and (not is_ours(at.f_code) or at.f_code.co_flags & inspect.CO_OPTIMIZED):
        at = at.f_back
    if not at: visited.add(code.co_filename)  # else the body of a module calls it, on import
sys.setprofile(visit), threading.setprofile(visit)
exec(compile(program, "program", "exec"))
sys.setprofile(None)
print(json.dumps([[name for name, it in sys.modules.items() if it is not None], list(visited)]))
"""

_SOURCE = """
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark.sql.types import StructType
"""


class Process(NamedTuple):
    """A process of Spark: what its daemon has imported, and what it does."""

    module: str
    program: str


PROCESSES = {
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


def of_process(process, arguments):
    """
    What it has imported, PySpark's part too, and our files that its row visits; `arguments` are a
    URL, a stream and a path.
    """
    begin = _BEGIN, process.module, process.program, f"{PACKAGE}{os.sep}"
    done = subprocess.run(
        [sys.executable, "-c", *begin, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
        timeout=600, check=True,
    )  # fmt: skip
    return map(set, json.loads(done.stdout))


@pytest.fixture
def given(nats_server, new_stream, publish, tmp_path):
    stream = new_stream()
    publish([(f"{stream}.x", b"x")])
    return nats_server.url, stream, str(tmp_path / "pickled")


def imported(names, given, visits, tries=2):
    """
    Our own modules in each of these processes, none of which has what is slow to import, and all
    of which together visit no more than so many. A PING beside a PubAck leads a row through one
    more; it hardly comes twice.
    """
    found, all_visited = [], set()
    for name in names:
        modules, visited = of_process(PROCESSES[name], given)
        all_visited |= visited
        assert not SLOW & {module.partition(".")[0] for module in modules}
        plans = not name.endswith(("task", "commit")) and not name.startswith(("write", "batch"))
        assert not (plans and "pyarrow.compute" in modules)
        ours = {each.removeprefix(OURS) for each in modules if each.startswith(OURS)}
        assert not {"write", "operations", "testing"} & ours or name.startswith("write")
        assert not {"operations", "testing"} & ours
        found.append(ours)
    if len(all_visited) > visits and tries > 1:
        return imported(names, given, visits, tries - 1)
    assert len(all_visited) <= visits, sorted(all_visited)
    return found


def of(wing, modules):
    """Those of a wing."""
    return {each.removeprefix(f"{wing}.") for each in modules if each.startswith(f"{wing}.")}


def test_what_a_streaming_read_imports(given):
    """Neither plan, source process nor task imports nats-py, asyncio, ssl, or what others need."""
    schema, plan, source, task = imported(
        ["schema of a read", *(f"streaming read: {each}" for each in ("plan", "source", "task"))],
        given, visits=43,
    )  # fmt: skip

    assert not {"readstream.reader", "tasks"} & schema
    assert of("outbox", schema) == {"lettersubjects"}
    for modules in (plan, source):
        assert of("outbox", modules) == {"lettersubjects"}
        assert not {"read", "mapping", "publish", "arrays"} & modules
    assert of("readstream", plan) == {"options", "reader", "earlier"}
    assert of("fetch", plan) == {"options"} and of("client", plan) == {"options"}
    unused = {"counts", "reporting", "copies", "shared"}
    assert not unused & of("readstream", source)
    assert not {"directget", "gets", "pulling", "decoding"} & of("fetch", source)
    assert {"tasks.rows", "tasks.shape", "tasks.ranges"} & (source | plan) == {
        "tasks.rows", "tasks.ranges",
    }  # fmt: skip
    assert "tasks.shape" in task
    planning = {"options", "readstream", "read", "outbox", "publish", "mapping"}
    assert not (planning | {"fetch.survey"}) & task


def test_what_a_batch_read_imports(given):
    """Likewise of a batch read."""
    names = ["schema of a read", "batch read: plan", "batch read: task"]
    _, plan, task = imported(names, given, visits=35)

    assert not {"readstream.reader", "publish", "mapping"} & plan
    assert "tasks.shape" in task
    planning = {"options", "readstream", "read", "outbox", "publish", "mapping"}
    assert not (planning | {"fetch.survey"}) & task


def test_what_a_write_imports(given):
    """Plan and commit of a write load nothing that publishes, nor maps, nor reads."""
    names = [f"write: {each}" for each in ("plan", "task", "commit")]
    plan, task, commit = imported(names, given, visits=40)

    sending = {"publish.publisher", "publish.lanes", "write.task"}
    for modules in (plan, commit):
        assert not (sending | {"mapping"}) & modules
    assert not {"write.preparation", "write.exactlyonce.ledger"} & commit
    assert not {"write.creation", "write.exactlyonce.ledger", "client.keyvalue"} & plan
    for modules in (task, commit):
        assert not {"readstream", "read", "fetch", "options", "datasource", "tasks"} & modules
    assert sending <= task
    assert not {"mapping", "write.preparation", "write.attempt", "write.exactlyonce.tail"} & task

"""What the processes of a query import: each starts anew, and pays for it before its first row."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ..kits.places import ROOT

PLAN = """
options = {"servers": sys.argv[1], "stream": sys.argv[2]}
source = JetStreamDataSource(CaseInsensitiveDict(options))
open(sys.argv[3], "wb").write(pickle.dumps((source, source.schema())))
"""

DRIVE = """
source, schema = pickle.load(open(sys.argv[3], "rb"))
reader = source.streamReader(schema)
start = reader.initialOffset()
task = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))[0]
reader.stop()
open(sys.argv[3], "wb").write(pickle.dumps((source, source.streamReader(schema), task)))
"""

READ = """
_, reader, task = pickle.load(open(sys.argv[3], "rb"))
assert sum(batch.num_rows for batch in reader.read(task)) == 1
"""

PLAN_WRITE = """
options = CaseInsensitiveDict({"servers": sys.argv[1]})
schema = StructType().add("subject", "string").add("data", "binary")
writer = JetStreamDataSource(options).writer(schema, False)
open(sys.argv[3], "wb").write(pickle.dumps(writer))
"""

WRITE = """
writer = pickle.load(open(sys.argv[3], "rb"))
row = pa.record_batch({"subject": [sys.argv[2] + ".a"], "data": [b"row"]})
writer.write(iter([row]))
"""

FIRST = {
    PLAN: "from pyspark.sql.datasource import CaseInsensitiveDict\n"
    "from pyspark_jetstream.datasource import JetStreamDataSource\n",
    DRIVE: "from pyspark.sql.streaming.datasource import ReadAllAvailable\n",
    PLAN_WRITE: "from pyspark.sql.datasource import CaseInsensitiveDict\n"
    "from pyspark.sql.types import StructType\n"
    "from pyspark_jetstream.datasource import JetStreamDataSource\n",
    WRITE: "import pyarrow as pa\n",
}
"""What a program needs to be itself."""

LAST = """
import json
print(json.dumps([name for name in sys.modules if sys.modules[name] is not None]))
"""

SLOW = {"asyncio", "concurrent", "email", "http", "nats", "nkeys", "ssl"}
"""What is for TLS and signatures, and what comes with that."""

OURS = "pyspark_jetstream."


def loaded(program: str, *arguments: str) -> set[str]:
    """What a process that runs this has imported."""
    done = subprocess.run(
        [sys.executable, "-c", f"import pickle, sys\n{FIRST.get(program, '')}{program}{LAST}",
         *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    return set(json.loads(done.stdout))


@pytest.fixture
def given(nats_server, new_stream, publish, tmp_path):
    stream = new_stream()
    publish([(f"{stream}.x", b"x")])
    return nats_server.url, stream, str(tmp_path / "pickled")


def wings(names: set[str]) -> dict[str, set[str]]:
    """Our own modules, by wing."""
    found: dict[str, set[str]] = {}
    for name in names:
        if name.startswith(OURS):
            wing, _, module = name.removeprefix(OURS).partition(".")
            found.setdefault(wing, set()).add(module)
    return found


def test_what_a_streaming_read_imports(given):
    """
    Neither planning, nor the source process, nor a task on a plain connection imports nats-py,
    asyncio or ssl; none of them loads anything of writes but the names of metrics, nor of batch
    reads. Spark sends the data source itself to each.
    """
    plan, drive, read = (loaded(program, *given) for program in (PLAN, DRIVE, READ))

    for names in (plan, drive, read):
        assert not SLOW & {name.partition(".")[0] for name in names}
        assert not {"write", "operations", "devserver"} & wings(names).keys()
    for names in (drive, read):
        assert wings(names)["publish"] == {"", "metrics"}
        assert wings(names)["mapping"] == {"", "rule"}
        assert "read" not in wings(names)


def test_what_a_write_imports(given):
    """
    Likewise of a write: its tasks load nothing of reads but what an option's table names.
    """
    plan, write = loaded(PLAN_WRITE, *given), loaded(WRITE, *given)

    for names in (plan, write):
        assert not SLOW & {name.partition(".")[0] for name in names}
        assert not {"operations", "devserver", "tasks"} & wings(names).keys()
    assert not {"readstream", "read", "fetch", "options", "datasource"} & wings(write).keys()

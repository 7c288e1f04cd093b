"""What Spark's worker processes do beside their rows: they settle."""

import os
import subprocess
import sys

import pytest

from ..kits.places import ROOT

READS = """
import gc, sys
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.tasks.rows import ReadTask, read_task

class Nothing:
    def batches(self, client):
        return iter(())

task = ReadTask(parse_connection({"servers": sys.argv[1]}), Nothing())
before = gc.get_freeze_count()
list(read_task(task))
print(before, gc.get_freeze_count())
"""

WRITES = """
import gc, sys
import pyarrow as pa
from pyspark.sql.types import StructType
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.write.sink import JetStreamBatchWriter

schema = StructType().add("subject", "string").add("data", "binary")
options = parse_sink({"servers": sys.argv[1]})
writer = JetStreamBatchWriter(options, schema)
rows = pa.record_batch({"subject": [sys.argv[2]], "data": [b"row"]})
before = gc.get_freeze_count()
writer.write(iter([rows]))
print(before, gc.get_freeze_count())
"""


def ran(program, *arguments):
    """What a process says that runs this."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    ).stdout


@pytest.mark.parametrize("program", [READS, WRITES], ids=["reads", "writes"])
def test_a_worker_settles_after_its_first_task(nats_server, new_stream, program):
    """After a task nothing that was imported is looked at again by `gc.collect()`."""
    stream = new_stream()

    before, after = map(int, ran(program, nats_server.url, f"{stream}.a").split())
    assert after > before + 10_000

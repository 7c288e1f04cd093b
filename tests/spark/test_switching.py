"""A stateful query that goes on in another layout, over the checkpoint that was switched."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pyspark.sql import functions as F

from pyspark_jetstream.operations.files import checkpoint_files

from ..kits.programs import main

KEYS = 12


def test_state_is_kept_and_each_message_is_read_once(
    stream_df, nats_server, new_stream, publish, tmp_path, capsys
):
    """Counts by key go on, over files that Spark has written and over Spark's file system."""
    origin, sent = new_stream(), Counter[str]()
    counts: dict[str, int] = {}

    def send(n):
        keys = [f"K{i % KEYS}" for i in range(n)]
        sent.update(keys)
        publish([(f"{origin}.{key}.x", key.encode()) for key in keys])

    def keep(batch, batch_id):
        counts.update({row["key"]: row["count"] for row in batch.collect()})

    def read(**options):
        key = F.col("data").cast("string").alias("key")
        frame = stream_df(**options, maxRecordsPerTrigger=50).groupBy(key).count()
        query = (
            frame.writeStream.outputMode("update").foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(120)

    words = ["partition", "--stream", origin, "--subject", f"{origin}.*.*", "--tokens", "1",
             "--partitions", "3", "--servers", nats_server.url]  # fmt: skip
    streams = {"stream": f"{origin}-{{partition}}", "partitions": 3}

    def switched(*more):
        assert main([*words, "--switch", str(tmp_path / "c"), *more]) == 0, capsys.readouterr()

    send(120)
    read(stream=origin)
    assert main(words) == 0
    switched()
    send(60)
    read(**streams)

    assert counts == sent
    send(30)
    read(**streams)
    assert counts == sent

    last = max(int(p.name) for p in (tmp_path / "c" / "offsets").iterdir() if p.name.isdecimal())
    name, before = f"offsets/{last}", (tmp_path / "c" / "offsets" / str(last)).read_text()
    configured: Any = stream_df(stream=origin).sparkSession.sparkContext._jsc
    configured.hadoopConfiguration().set("fs.viewfs.mounttable.there.link./q", f"file:{tmp_path}")
    files = checkpoint_files("viewfs://there/q/c")
    files.write(name, b"something else")
    changed = files.read(name)
    files.write(name, before.encode())
    restored = files.read(name).decode()
    send(30)
    read(**streams)

    assert (changed, restored) == (b"something else", before)
    assert json.loads(before.splitlines()[2])["layout"]["places"][0] == [f"{origin}-0"]
    assert counts == sent

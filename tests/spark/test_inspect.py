"""`inspect` beside a real query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..kits.places import ROOT
from ..kits.servers import DevServer
from .conftest import numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def inspected(nats_server: DevServer, checkpoint: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Status and document of the program."""
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_jetstream", "inspect", "--checkpoint", str(checkpoint),
         "--json", "--servers", nats_server.url, *more],
        capture_output=True, text=True, timeout=600, cwd="/",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("version", [1, 2])
def test_a_query_while_it_runs_and_afterwards(
    stream_df: Callable[..., DataFrame], nats_server: DevServer, new_stream: Callable[..., str],
    publish: Callable[..., None], tmp_path: Path, version: int,
) -> None:  # fmt: skip
    """The checkpoint shows what is planned and committed; at no time is there a problem."""
    name = new_stream()
    publish(numbered(name, 100, 2))
    options = {"stream": name, "partitions": 2, "partitionSubject": f"{name}.{{partition}}.x"}
    reached, go_on = threading.Event(), threading.Event()

    def keep(batch: DataFrame, batch_id: int) -> None:
        batch.collect()
        if batch_id == 1:
            reached.set()
            assert go_on.wait(120)

    frame = stream_df(**options, maxRecordsPerTrigger=40, queryName=f"alerts {version}")
    frame.sparkSession.conf.set("spark.sql.streaming.offsetLog.formatVersion", str(version))
    checkpoint = tmp_path / "checkpoint"
    try:
        query = (
            frame.writeStream.foreachBatch(keep)
            .queryName(f"alerts {version}")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
    finally:
        frame.sparkSession.conf.unset("spark.sql.streaming.offsetLog.formatVersion")
    try:
        assert reached.wait(120)
        status, running = inspected(nats_server, checkpoint)
        go_on.set()
        assert query.awaitTermination(120)
    finally:
        go_on.set()
        query.stop()
    first_line = (checkpoint / "offsets" / "0").read_text().splitlines()[0]

    assert (status, running["problems"], first_line) == (0, [], f"v{version}")
    assert running["checkpoint"]["query"] == query.id
    assert (running["checkpoint"]["planned"], running["checkpoint"]["committed"]) == (1, 0)
    assert [p["filter"] for p in running["positions"]] == [f"{name}.0.x", f"{name}.1.x"]
    assert all(p["committed"] < p["planned"] < p["last"] for p in running["positions"])

    status, done = inspected(nats_server, checkpoint, "--stream", name)

    assert (status, done["problems"]) == (0, [])
    assert (done["checkpoint"]["planned"], done["checkpoint"]["committed"]) == (2, 2)
    assert [p["committed"] == p["planned"] for p in done["positions"]] == [True, True]
    assert [c["query"] for c in done["consumers"]] == [f"alerts {version}"] * 2

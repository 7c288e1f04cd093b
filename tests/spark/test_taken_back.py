"""A server that loses the end of its streams under a streaming query, and what makes it whole."""

from __future__ import annotations

import shutil

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.operations.console.commands import main
from pyspark_jetstream.write.exactlyonce.ledger import STREAM

from ..kits.options import connection_of
from ..kits.servers import DevServer

pytestmark = [pytest.mark.spark, pytest.mark.live]


@pytest.mark.parametrize("lost", [["OUT"], ["OUT", STREAM]], ids=["target", "both"])
def test_a_query_goes_on_whole(spark, tmp_path, lost):
    """
    Batches that Spark's checkpoint calls written are gone: the query fails before another row goes
    out, the command of the error sets it back, and in the end each row is there once. A batch
    without rows is no gap in the ledger.
    """
    store, older = tmp_path / "store", tmp_path / "older"
    with DevServer(store_dir=store) as server:
        client = Client(connection_of(server.url))
        js = JetStream(client)
        for name in ("IN", "OUT"):
            js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})

        def run() -> None:
            rows = (
                spark.readStream.format("jetstream")
                .options(servers=server.url, stream="IN", maxRecordsPerTrigger=10)
                .load()
            )
            query = (
                rows.selectExpr("'OUT.a' AS subject", "data")
                .writeStream.format("jetstream")
                .options(servers=server.url, checkpointLocation=str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)

        def publish(numbers) -> None:
            for number in numbers:
                js.publish("IN.a", str(number).encode(), [])

        run()  # the first batch has no partitions, and no rows
        publish(range(20))
        run()
        server.stop()
        shutil.copytree(store, older)
        server.restart()
        publish(range(20, 40))
        run()
        server.stop()
        for name in lost:
            (there,), (kept,) = (each.glob(f"**/streams/{name}") for each in (store, older))
            shutil.rmtree(there)
            shutil.copytree(kept, there)
        server.restart()
        publish(range(40, 60))
        with pytest.raises(Exception, match=r"TakenBackError.* --batch 3`"):
            run()
        assert js.stream_info("OUT").last_seq == 20

        words = ["rewind", "--checkpoint", str(tmp_path / "checkpoint"), "--batch", "3"]
        assert main([*words, "--force", "--servers", server.url]) == 0
        run()
        stored = js.messages("OUT", [{"seq": number} for number in range(1, 61)])
        assert [int(message.data) for message in stored if message is not None] == list(range(60))
        assert js.stream_info("OUT").last_seq == 60
        client.close()

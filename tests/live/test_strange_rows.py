"""
Rows that are made of what a stranger wrote: what they cannot make the writer do.

SQL may make a row's subject or headers of a message whose author may not publish where the writer
may.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.write.ledger import Ledger, TaskName
from pyspark_jetstream.write.task import Report, write_task

from ..kits.encoder import LISTS
from ..kits.options import connection_of, sink_of


def rows(*subjects, **columns) -> pa.RecordBatch:
    """A row a subject; its data is its number."""
    data = [str(number) for number in range(len(subjects))]
    headers = {"headers": pa.array(columns.pop("headers"), LISTS)} if "headers" in columns else {}
    others = {name: pa.array(values) for name, values in columns.items()}
    return pa.record_batch(
        {"subject": pa.array(subjects), "data": pa.array(data)} | others | headers
    )


@pytest.fixture
def write(nats_server, js):
    """Writes batches as one task, on a connection of its own; its counts."""
    Ledger(js).ensure()
    tasks = iter(range(1_000))

    def run(*batches, ledger=False, report=None, **changes):
        connection = connection_of(nats_server.url)
        options = sink_of(connection, ledger=ledger, publish_timeout_s=10.0, **changes)
        client = Client(connection)
        name = TaskName(f"strange-{js.client.connection.new_inbox()[-6:]}", next(tasks), 0)
        try:
            return write_task(client, options, batches, name, f"{name}", 0, report or Report())
        finally:
            client.close()

    return run


# ── headers ──────────────────────────────────────────────────────────────────────────────────


ROLLS_UP = [("Nats-Rollup", ["sub"]), ("K", ["v"])]


@pytest.mark.parametrize("ledger", [True, False], ids=["ledger", "once"])
def test_a_copied_rollup_purges_nothing(js, new_stream, write, ledger):
    """
    Where SQL makes the subject, a roll-up that its author gave a message on a subject of his own
    would purge the rows of others; without the option it does not go out.
    """
    name = new_stream(allow_rollup_hdrs=True)
    write(rows(*[f"{name}.a"] * 10), ledger=ledger)
    counts = write(rows(f"{name}.a", headers=[ROLLS_UP]), ledger=ledger)
    (last,) = js.last_messages(name, [f"{name}.a"])

    assert counts.acked == 1
    assert js.stream_info(name).messages == 11
    assert ("K", "v") in last.headers


@pytest.mark.parametrize(("value", "left"), [("sub", 2), ("all", 12)])
def test_a_rollup_that_is_asked_for_goes_out(js, new_stream, write, value, left):
    """
    With `allowRollup` it replaces what its subject had, and nothing of others; with `all` never.
    """
    name = new_stream(allow_rollup_hdrs=True)
    write(rows(*[f"{name}.a"] * 10, f"{name}.b"))
    write(rows(f"{name}.a", headers=[[("Nats-Rollup", [value])]]), allow_rollup=True)

    assert js.stream_info(name).messages == left

"""What the processes of a query import: each starts anew, and pays for it before its first row."""

import pytest

from ..kits import processes
from ..kits.processes import PROCESSES

SLOW = {"asyncio", "concurrent", "email", "http", "nats", "nkeys", "ssl"}
"""What is for TLS and signatures, and what comes with that."""

OURS = "pyspark_jetstream."


@pytest.fixture
def given(nats_server, new_stream, publish, tmp_path):
    stream = new_stream()
    publish([(f"{stream}.x", b"x")])
    return nats_server.url, stream, str(tmp_path / "pickled")


def imported(names, given):
    """Our own modules in each of these processes, none of which has what is slow to import."""
    found = []
    for name in names:
        modules = processes.imported(PROCESSES[name], given)
        assert not SLOW & {module.partition(".")[0] for module in modules}
        plans = not name.endswith(("task", "commit")) and not name.startswith(("write", "batch"))
        assert not (plans and "pyarrow.compute" in modules)
        ours = {each.removeprefix(OURS) for each in modules if each.startswith(OURS)}
        assert not {"write", "operations", "testing"} & ours or name.startswith("write")
        assert not {"operations", "testing"} & ours
        found.append(ours)
    return found


def of(wing, modules):
    """Those of a wing."""
    return {each.removeprefix(f"{wing}.") for each in modules if each.startswith(f"{wing}.")}


def test_what_a_streaming_read_imports(given):
    """Neither plan, source process nor task imports nats-py, asyncio, ssl, or what others need."""
    schema, plan, source, task = imported(
        ["schema of a read", *(f"streaming read: {each}" for each in ("plan", "source", "task"))],
        given,
    )

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
    _, plan, task = imported(names, given)

    assert not {"readstream.reader", "publish", "mapping"} & plan
    assert "tasks.shape" in task
    planning = {"options", "readstream", "read", "outbox", "publish", "mapping"}
    assert not (planning | {"fetch.survey"}) & task


def test_what_a_write_imports(given):
    """Plan and commit of a write load nothing that publishes, nor maps, nor reads."""
    plan, task, commit = imported([f"write: {each}" for each in ("plan", "task", "commit")], given)

    sending = {"publish.publisher", "publish.lanes", "write.task"}
    for modules in (plan, commit):
        assert not (sending | {"mapping"}) & modules
    assert not {"write.preparation", "write.exactlyonce.ledger"} & commit
    for modules in (task, commit):
        assert not {"readstream", "read", "fetch", "options", "datasource", "tasks"} & modules
    assert sending <= task
    assert not {"mapping", "write.preparation", "write.attempt", "write.exactlyonce.tail"} & task
    assert len([each for each in task if each.startswith(("write", "publish", "outbox"))]) <= 46

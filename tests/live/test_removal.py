"""Undo: exactly the streams that were made, with a real server."""

from collections.abc import Callable
from typing import Any

import pytest

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import PartitioningError
from pyspark_jetstream.operations.partition.making import partition_stream
from pyspark_jetstream.operations.partition.plan import PartitionPlan
from pyspark_jetstream.operations.partition.removal import undo_partitions

from ..kits.streams import update_stream
from .conftest import N


@pytest.fixture
def made(js: JetStream, raw: Callable[..., str]) -> PartitionPlan:
    """Both hops of a layout of raw subjects."""
    origin = raw()
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", subject=f"{origin}.*.*", tokens=(1,))
    partition_stream(js, plan)
    return plan


def refusal(js: JetStream, plan: PartitionPlan, **how: Any) -> str:
    """Why it is not undone; nothing was removed."""
    before = js.stream_names()
    with pytest.raises(PartitioningError) as caught:
        undo_partitions(js, plan, **how)
    assert js.stream_names() == before
    return str(caught.value)


def test_undo_removes_what_was_made(
    js: JetStream, made: PartitionPlan, new_stream: Callable[..., str]
) -> None:
    """All streams of the plan go, also with some missing; the origin and others stay."""
    new_stream(f"{made.origin}-{N}")
    shown = undo_partitions(js, made, dry_run=True)
    js.client.request(f"{js.prefix}.STREAM.DELETE.{made.origin}-2")

    removed = undo_partitions(js, made)

    left = [name for name in js.stream_names() if name.startswith(f"{made.origin}-")]
    assert [each["stream"] for each in shown] == list(reversed(made.names))
    assert [each["stream"] for each in removed] == [
        f"{made.origin}-{each}" for each in (3, 1, 0, "all")
    ]
    assert sum(each["messages"] for each in shown) == 2 * 240
    assert left == [f"{made.origin}-{N}"]
    assert js.stream_info(made.origin).messages == 240
    assert undo_partitions(js, made) == []


def test_a_stream_that_was_not_made_stays(
    js: JetStream, made: PartitionPlan, new_stream: Callable[..., str]
) -> None:
    """A stream of a planned name that is no copy, or of another plan, is left, even with force."""
    config = js.stream_info(f"{made.origin}-1").config
    js.client.request(f"{js.prefix}.STREAM.DELETE.{made.origin}-1")
    new_stream(f"{made.origin}-1", subjects=[], sources=config["sources"])
    other = PartitionPlan(made.origin, 3, made.streams, subject=f"{made.origin}.*.*", tokens=(1,))

    assert "-1': was not made by this plan (its metadata are" in refusal(js, made, force=True)
    assert "was not made by this plan" in refusal(js, other, force=True)


def test_a_stream_that_takes_messages_of_its_own_stays(js: JetStream, made: PartitionPlan) -> None:
    """Somebody gave a copy subjects: what is published there is nowhere else, so it stays."""
    update_stream(js, f"{made.origin}-1", subjects=["elsewhere"])

    assert "its subjects are ['elsewhere']" in refusal(js, made, force=True)


def test_a_stream_with_consumers_stays(js: JetStream, made: PartitionPlan) -> None:
    """It is removed only by force."""
    js.create_consumer(f"{made.origin}-1", {"durable_name": "reader", "ack_policy": "none"})

    assert "it has the consumers reader; --force removes it" in refusal(js, made)
    assert len(undo_partitions(js, made, force=True)) == N + 1

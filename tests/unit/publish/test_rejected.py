"""Rows that the server will never store: the task fails, or they become dead letters (onReject)."""

import math
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.errors import PublishRejectedError, PublishTimeoutError

from ...kits.model import ModelStream, error
from ...kits.world import SUBJECTS, World, block

LETTERS = {"dead_letter_subject": "dlq", "rejects": True}
TOO_LARGE = error(400, 10054, "message size\r\nexceeds maximum allowed")


def picky(
    monkeypatch: pytest.MonkeyPatch,
    rng: random.Random,
    total: int,
    never: dict[int, dict[str, object] | None],
    **options: object,
) -> tuple[World, ModelStream]:
    """Rows of which the server never stores some, and where dead letters go."""
    blocks, first = [], 0
    while first < total:
        count = min(rng.choice([1, 30, 100, 400]), total - first)
        rows = range(first, first + count)
        data, ids = [b"%d." % row for row in rows], [b"t-%d" % row for row in rows]
        found = block("".join(rng.choices(SUBJECTS, k=count)), first, data)
        faults = ["why" if never.get(row, "") is None else None for row in rows]
        found = replace(found, ids=pa.array(ids, pa.binary()))
        if any(faults):
            found = replace(found, faults=pa.array(faults, pa.string()))
        blocks.append(found)
        first += count
    world = World(monkeypatch, blocks, rng, **options)
    for stream in world.net.streams:
        stream.refuse = {b"%d." % row: each for row, each in never.items() if each is not None}
    return world, world.elsewhere


def test_a_dead_letter_says_what_the_server_said(monkeypatch):
    world, dead = picky(monkeypatch, random.Random(1), 20, {3: TOO_LARGE}, **LETTERS)
    world.run()
    (letter,) = dead.messages

    reason = "Rejected: message size exceeds maximum allowed (err_code 10054)"
    assert letter.headers["Jetstream-Sink-Reason"] == reason
    assert letter.headers["Jetstream-Sink-Ordinal"] == "3"
    assert letter.headers["Nats-Msg-Id"] == "t-3.dlq"


def test_without_it_the_task_fails(monkeypatch):
    world, dead = picky(monkeypatch, random.Random(1), 20, {3: TOO_LARGE})

    with pytest.raises(PublishRejectedError, match="err_code 10054"):
        world.run()
    assert not dead.messages


def test_what_is_no_rows_fault_fails_the_task(monkeypatch):
    """An answer without an err_code: no row is to blame."""
    fault = error(400, 0, "no stream says this")
    never = dict.fromkeys(range(20), fault)
    world, dead = picky(monkeypatch, random.Random(1), 20, never, **LETTERS)

    with pytest.raises(PublishRejectedError):
        world.run()
    assert not dead.messages


def test_a_rejected_dead_letter_fails_the_task(monkeypatch):
    """It has nowhere else to go."""
    world, dead = picky(monkeypatch, random.Random(1), 20, {3: TOO_LARGE}, **LETTERS)
    dead.refuse[b"3."] = TOO_LARGE

    with pytest.raises(PublishRejectedError, match="dlq"):
        world.run()


def test_dead_letters_keep_their_order(monkeypatch):
    """Whatever the server said of each: restored, they are to follow each other as they did."""
    met = {row: error(400, 10071, f"wrong last sequence: {row % 2}") for row in range(6)}
    world, dead = picky(monkeypatch, random.Random(1), 6, met, **LETTERS)
    world.run()
    reasons = [each.headers["Jetstream-Sink-Reason"] for each in dead.messages]

    assert [each.data for each in dead.messages] == [b"%d." % row for row in range(6)]
    assert [each.split()[4] for each in reasons] == ["0", "1"] * 3


def test_dead_letters_that_wait_let_nothing_more_come(monkeypatch):
    """A22: Spark's iterator waits for the window of the dead letters."""
    never = dict.fromkeys(range(5_000), TOO_LARGE)
    options = LETTERS | {"publish_timeout_s": 20.0}
    world, dead = picky(monkeypatch, random.Random(1), 5_000, never, **options)
    dead.full_until = math.inf

    with pytest.raises(PublishTimeoutError, match="dlq"):
        world.run()
    assert world.publisher.admission.offered < 1_000


def test_a_rejected_row_outlives_its_connection(monkeypatch):
    """The last row's rejection is read, and the connection breaks before it is a dead letter."""
    world, dead = picky(monkeypatch, random.Random(1), 1, {0: TOO_LARGE}, **LETTERS)
    net, poll, cuts = world.net, world.net.poll, []

    def cut() -> bool:
        if not world.supply.ended:
            return False
        if not cuts and world.publisher.lanes.rows.tally.rejected:
            cuts.append(net)
            net.is_cut = True
        return poll()

    monkeypatch.setattr(net, "poll", cut)
    world.run()

    assert cuts and len(dead.messages) == 1

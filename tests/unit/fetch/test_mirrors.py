"""What a stream holds, as answers of its mirrors are measured by it."""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.client.info import StreamInfo, stream_info_of
from pyspark_jetstream.fetch.mirrors import OriginState, _is_plain, _is_whole

from ...kits.seeds import fresh


@pytest.mark.parametrize("seed", [1, 2, *fresh(__name__)])
def test_runs_and_messages_by_brute_force(seed):
    """
    A run counts exactly where its messages are all that the stream holds between its ends, and a
    message exactly where it is there.
    """
    rng = random.Random(seed)
    first, last = rng.randint(1, 30), rng.randint(31, 60)
    between = range(first + 1, last)
    deleted = sorted(rng.sample(between, rng.randint(0, min(3, len(between)))))
    held = OriginState(first, last, tuple(deleted), False)
    there = set(range(first, last + 1)) - set(deleted)

    assert [held.holds(seq) for seq in range(70)] == [seq in there for seq in range(70)]
    for _ in range(2000):
        after = rng.randint(0, 65)
        run = sorted(rng.sample(range(after + 1, 72), rng.randint(1, 6)))
        if rng.random() < 0.5:
            run = list(range(run[0], run[0] + len(run)))
        whole = run == sorted(seq for seq in there if after < seq <= run[-1])
        counts = held.is_run(after, run[0], run[-1], len(run)) and not held.lacks(run)

        assert counts == whole, (after, run)


def test_only_whole_mirrors_have_parts():
    """
    An answer of a whole mirror counts between the first and the last message of the stream.
    """
    whole, other = OriginState(10, 20, (), True), OriginState(10, 20, (), False)

    assert whole.is_part(10, 20) and whole.is_part(12, 15)
    assert not whole.is_part(9, 20) and not whole.is_part(10, 21)
    assert not other.is_part(12, 15)


def stream(created: str = "2026-01-02T00:00:00Z", **config: object) -> StreamInfo:
    """A mirror of O, made after it."""
    return stream_info_of({
        "config": {"name": "M", "mirror": {"name": "O"}} | config,
        "created": created, "ts": created,
        "state": {"first_seq": 1, "last_seq": 9, "messages": 9, "bytes": 9},
    })  # fmt: skip


ORIGIN = stream("2026-01-01T00:00:00Z", name="O", mirror=None)


@pytest.mark.parametrize(
    ("config", "is_plain", "is_whole"),
    [
        ({}, True, True),
        ({"max_age": 10**9}, True, False),
        ({"allow_msg_ttl": True}, True, False),
        ({"mirror": {"name": "O", "external": {"api": "$JS.x.API"}}}, False, True),
        ({"mirror": {"name": "O", "subject_transforms": [{"src": ">"}]}}, False, True),
        ({"subject_transform": {"src": ">", "dest": "a.>"}}, False, True),
        ({"mirror": {"name": "P"}}, False, True),
        ({"mirror": None}, False, True),
    ],
    ids=str,
)
def test_which_mirrors_count(config, is_plain, is_whole):
    """
    Plain ones, younger than their origin; and as a whole those that drop nothing by age.
    """
    assert _is_plain(stream(**config), ORIGIN) is is_plain
    assert _is_whole(stream(**config), ORIGIN) is is_whole
    assert not _is_plain(stream("2025-12-31T00:00:00Z", **config), ORIGIN)

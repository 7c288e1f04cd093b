"""What a reader walks who follows a read from its call to its rows."""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.fetch.directget import read_direct

from ...kits.walk import Walk, followed
from . import test_directget, test_pulls


def direct(messages):
    return read_direct(test_directget.Server(messages), test_directget.reading(9))


def own(messages):
    return test_pulls.own(test_pulls.Server(messages, random.Random(1)), 0, 9).batches()


def pinned(messages):
    server = test_pulls.Server(messages, random.Random(1), pinned=True)
    return test_pulls.reading(9).batches(server)


@pytest.mark.parametrize(("read", "floors"), [(direct, 3), (own, 3), (pinned, 3)])
def test_a_read_is_followed_over_few_floors(read, floors):
    """
    No more modules of `fetch` are under way at one time than are noted here.
    """
    messages = [test_pulls.Message(sequence) for sequence in range(1, 10)]
    with followed(Walk("fetch")) as walk:
        found = [each for batch in read(messages) for each in batch["sequence"].to_pylist()]

    assert found == list(range(1, 10))
    assert len(walk.floors) <= floors, walk.floors

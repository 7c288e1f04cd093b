"""Claims: ranges of sequences, the offset that names them, how they are cut and read."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.errors import OffsetError
from pyspark_jetstream.fetch.layout import Layout
from pyspark_jetstream.readstream.shared.claimedread import ClaimedRead
from pyspark_jetstream.readstream.shared.claims import (
    Claim,
    ClaimedOffset,
    gathered,
    length,
    pieces,
    runs,
    shares,
)

OFFSET = ClaimedOffset(
    policy="overflow",
    consumer="jobs",
    partitions=2,
    streams={"B": "later", "A": "earlier"},
    serial=7,
    claims={"1": {2: ((10, 10),), 1: ((5, 9), (11, 11), (13, 13))}},
)


def flat(claims):
    """Every claim by itself."""
    return sorted(
        Claim(sequence, count)
        for count, ranges in claims.items()
        for first, last in ranges
        for sequence in range(first, last + 1)
    )


def test_an_offset_survives_the_checkpoint():
    """An offset read back from its text is the same, and its text has one order of keys."""
    text = json.dumps(OFFSET.to_json())

    assert ClaimedOffset.from_json(json.loads(text)) == OFFSET
    assert json.dumps(ClaimedOffset.from_json(json.loads(text)).to_json()) == text
    assert text.endswith('"serial": 7, "claims": {"1": {"1": "5-9,11,13", "2": "10"}}}')
    assert '"streams": {"A": "earlier", "B": "later"}' in text
    assert OFFSET.count("1") == 8
    assert OFFSET.count("0") == 0
    assert OFFSET.sequences("1") == [5, 6, 7, 8, 9, 10, 11, 13]


def test_partitions_stand_in_the_order_of_their_numbers():
    """Tasks are made in that order, and Spark compares the text."""
    claims = {"10": {1: ((1, 1),)}, "2": {1: ((2, 2),)}}
    names = ["2", "10"]
    offset = replace(OFFSET, partitions=11, claims=claims)

    assert list(offset.to_json()["claims"]) == names


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sequences": [1]}, "priorityPolicy=pinned_client"),
        ({"version": 3}, "version"),
        ({"claims": None}, "no offset of a shared consumer"),
        ({"claims": {"0": {"1": "9-5"}}}, "no ascending range"),
        ({"claims": {"0": {"1": "5,6"}}}, "no ascending range"),
        ({"claims": {"0": {"1": "0"}}}, "no ascending range"),
        ({"claims": {"0": {"1": "5,4"}}}, "no ascending range"),
        ({"serial": "x"}, "no offset of a shared consumer"),
    ],
)
def test_what_is_no_offset_is_refused(change, says):
    """A checkpoint of another kind of query is refused, and the error says which."""
    with pytest.raises(OffsetError, match=says):
        ClaimedOffset.from_json(OFFSET.to_json() | change)


def test_a_message_claimed_twice_counts_once():
    """Of a message that was delivered to us again the last count of deliveries holds."""
    claims = [Claim(5, 1), Claim(6, 1), Claim(5, 2)]

    assert gathered(claims) == gathered(reversed(claims)) == {1: ((6, 6),), 2: ((5, 5),)}


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (0, ((1, 3), (6, 6), (20, 21))),
        (1, ((1, 3), (6, 6), (20, 21))),
        (2, ((1, 6), (20, 21))),
        (12, ((1, 6), (20, 21))),
        (13, ((1, 21),)),
    ],
)
def test_runs_join_what_lies_close(gap, expected):
    """Ranges that lie close are read at one go, whatever their deliveries."""
    assert runs({1: ((1, 2), (6, 6), (20, 21)), 3: ((3, 3),)}, gap) == expected


@pytest.mark.parametrize(
    ("tasks", "maximum", "sizes"),
    [
        (0, None, [10]),
        (1, None, [10]),
        (3, None, [3, 3, 4]),
        (0, 4, [3, 3, 4]),
        (0, 10, [10]),
        (0, 9, [5, 5]),
        (50, None, [1] * 10),
        (2, 3, [2, 3, 2, 3]),
    ],
)
def test_pieces_have_all_claims_once(tasks, maximum, sizes):
    """Claims are cut by sequence into the parts asked for, each claim in one."""
    claims = {1: ((1, 4), (100, 104)), 2: ((50, 50),)}
    parts = pieces(claims, tasks, maximum)

    assert [sum(map(length, part.values())) for part in parts] == sizes
    assert [claim for part in parts for claim in flat(part)] == flat(claims)


def test_what_is_read_of_claims():
    """The range from the first to the last, and how many of its messages are expected."""
    whole = ClaimedRead(0, "S", None, 0, 0, None, False, True, layout=Layout(()), claims={})
    read = whole.of({2: ((10, 10),), 1: ((5, 9), (12, 12))})

    assert (read.start, read.end, read.expected) == (4, 12, 7)


@pytest.mark.parametrize(
    ("limit", "open_", "expected"),
    [
        (10, [True, True], [5, 5]),
        (5, [True, True], [3, 2]),
        (10, [True, False], [10, 0]),
        (10, [False, False], [0, 0]),
        (1, [True, True, True], [1, 0, 0]),
        (5, [False, True, False, True], [0, 3, 0, 2]),
        (0, [True], [0]),
    ],
)
def test_shares_of_a_batch(limit, open_, expected):
    """Consumers are asked for the same; those that had less than asked for are not asked again."""
    assert shares(limit, open_) == expected


@given(
    st.lists(st.sampled_from((0, 1, 3, 50, 1000)), min_size=1, max_size=6),
    st.integers(0, 800),
    st.sampled_from((1, 7, 10_000)),
)
def test_shares_come_to_an_end_and_to_the_limit(holds, limit, maximum):
    """Whatever the consumers hold, asking by shares takes as much as there is up to the limit."""
    held, open_, left, rounds = list(holds), [True] * len(holds), limit, 0
    while any(wanted := shares(left, open_)):
        rounds += 1
        for index, count in enumerate(wanted):
            asked = min(count, maximum)
            got = min(asked, held[index])
            held[index] -= got
            left -= got
            open_[index] = open_[index] and (got == asked)

    assert limit - left == min(limit, sum(holds))
    assert rounds <= limit + 1


@given(
    st.lists(st.builds(Claim, st.integers(1, 40), st.sampled_from((1, 2, 5))), min_size=1),
    st.integers(0, 40),
    st.integers(0, 5),
    st.sampled_from((None, 1, 4, 1000)),
)
def test_any_claims_survive_every_form(some, gap, tasks, maximum):
    """Claims are the same after the checkpoint, after being cut, and within what is read."""
    claims = gathered(some)
    offset = ClaimedOffset("prioritized", "c", 1, {"S": "t"}, 7, {"0": claims})
    covered = {s for first, last in runs(claims, gap) for s in range(first, last + 1)}

    assert ClaimedOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert {claim.sequence for claim in flat(claims)} <= covered
    cut = pieces(claims, tasks, maximum)
    assert [claim for part in cut for claim in flat(part)] == flat(claims)

"""How a limit is dealt to writers: to those who use it, and to all of those alike."""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.operations.quota import QuotaLimit, plan
from pyspark_jetstream.operations.shares import Use, differ, shares
from pyspark_jetstream.outbox.throttling.throttleprotocol import Kept, Rates, Reason

from ...kits.seeds import SEED

QUOTA, GROUP = Reason.TopicProduceQuotaExceeded, Reason.ResourceGroupProduceQuotaExceeded
INF = float("inf")


def use(waiting_for="", msgs=0.0, nbytes=0.0, told=None) -> Use:
    return Use(told=told, waiting_for=waiting_for, msgs=msgs, nbytes=nbytes)


def limit(filters, room, **rest) -> tuple[QuotaLimit, float]:
    """A limit, and the rate that there is to share."""
    return QuotaLimit(filters, room, room, **rest), room


@pytest.mark.parametrize(
    ("wanted", "dealt"),
    [
        ([], []),
        ([INF], [120]),
        ([INF, INF, INF], [40, 40, 40]),
        ([INF, 0, INF], [60, 0, 60]),
        ([INF, 20, INF], [50, 20, 50]),
        ([90, 20, 100], [50, 20, 50]),
        ([30, 20, 10], [30, 20, 10]),
        ([0, 0], [0, 0]),
    ],
)
def test_b26_shares(wanted, dealt):
    """
    B26: each what it wants, or as much as all others that want more; nobody more than it wants.
    """
    assert shares(120, dict(enumerate(wanted))) == dict(enumerate(dealt))


@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
def test_b26_the_sum_of_shares_is_no_more_than_the_limit(seed):
    """
    B26: and all of it, if that much is wanted.
    """
    rng = random.Random(seed)
    total = rng.choice([0.0, 0.01, 10.0, 1e6])
    wanted = {
        n: rng.choice([0.0, INF, rng.uniform(0, total)]) for n in range(rng.randrange(1, 200))
    }
    dealt = shares(total, wanted)

    assert min(dealt.values()) >= 0
    assert all(dealt[n] <= wanted[n] for n in wanted)
    assert sum(dealt.values()) == pytest.approx(min(total, sum(wanted.values())))
    assert sum(dealt.values()) <= total * (1 + 1e-9)


def test_b26_who_gets_what():
    """
    B26: whose rows wait, what there is; whose do not, twice what it publishes; who publishes
    nothing, nothing.
    """
    key = "a", QUOTA
    uses = {
        1: {key: use("msg")},
        2: {key: use("msg", msgs=70.0)},
        3: {key: use(msgs=10.0)},
        4: {key: use()},
        5: {},
    }
    found = plan([limit(("a",), 100.0)], uses)

    assert found == {
        key: {1: Rates(40.0), 2: Rates(40.0), 3: Rates(20.0), 4: Rates(0.0), 5: Rates(0.0)}
    }


def test_b26_messages_and_bytes_of_a_filter():
    """
    B26: one command has both. Who waits for bytes wants no more messages than it can use; who was
    told nothing yet may need both.
    """
    key = "a", QUOTA
    uses = {
        1: {key: use("byte", msgs=10.0, told=Rates(50.0, 500.0))},
        2: {key: use("msg", nbytes=100.0, told=Rates(50.0, 500.0))},
        3: {key: use("msg", told=Rates(0.0, 0.0))},
    }
    limits = [limit(("a",), 100.0), limit(("a",), 1000.0, of_bytes=True)]

    assert plan(limits, uses) == {
        key: {1: Rates(20.0, 400.0), 2: Rates(40.0, 200.0), 3: Rates(40.0, 400.0)}
    }


def test_b26_the_filters_of_a_group_share():
    """
    B26: whichever of them rows wait for.
    """
    a, b = ("a", GROUP), ("b", GROUP)
    uses = {1: {a: use("msg"), b: use()}, 2: {a: use("msg"), b: use("msg")}}

    assert plan([limit(("a", "b"), 90.0, reason=GROUP)], uses) == {
        a: {1: Rates(30.0), 2: Rates(30.0)},
        b: {1: Rates(0.0), 2: Rates(30.0)},
    }


def test_b26_what_a_writer_publishes_is_known_by_its_words():
    """
    B26: over half a second at least; a word in between says only whether rows wait.
    """
    one = Use()
    for now, count, waiting in ((0.0, 0, "msg"), (0.1, 50, ""), (1.0, 80, "msg"), (3.0, 80, "")):
        one.update(Kept("a", QUOTA, Rates(9.0), count, 10 * count, waiting), now)
        if now == 1.0:
            busy = one.msgs, one.nbytes, one.waiting_for, one.total
    idle = one.msgs, one.waiting_for
    one.update(None, 4.0)

    assert busy == (80.0, 800.0, "msg", (80, 800))
    assert idle == (0.0, "")
    assert one.total == (80, 800)


@pytest.mark.parametrize(
    ("a", "b", "is_other"),
    [
        (None, Rates(0.0), True),
        (Rates(100.0), Rates(100.0), False),
        (Rates(100.0), Rates(95.0), False),
        (Rates(100.0), Rates(89.0), True),
        (Rates(100.0), Rates(112.0), True),
        (Rates(0.0), Rates(0.1), True),
        (Rates(0.0), Rates(0.0), False),
        (Rates(1.0), Rates(1.0, 1.0), True),
        (Rates(1.0, 100.0), Rates(1.0, 50.0), True),
    ],
)
def test_b26_rates_that_are_about_the_same_are_not_told(a, b, is_other):
    """
    B26: within a tenth.
    """
    assert differ(a, b) is is_other

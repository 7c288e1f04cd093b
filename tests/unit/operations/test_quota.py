"""Token buckets and limits: what is too much, and how long is to be rested."""

from __future__ import annotations

import random

import pytest

from pyspark_jetstream.operations.quota import (
    Quota,
    QuotaLimit,
    check_limits,
    limits_of,
)
from pyspark_jetstream.operations.usage import Came
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason

from ...kits.seeds import SEED

TOPIC, GROUP, _, _, BROKER = Reason
MIB = 1 << 20


def limit(filter, text, reason=TOPIC):
    """The only one."""
    (found,) = limits_of(filter, text, reason)
    return found


@pytest.mark.parametrize(
    ("text", "rate", "burst"),
    [
        ("1000/s", 1000, 1000),
        ("600/m", 10, 10),
        ("36/h", 0.01, 1),
        ("0.5/s", 0.5, 1),
        (" 1000 / s , burst = 50 ", 1000, 50),
        ("1/s,burst=5000", 1, 5000),
    ],
)
def test_limits(text, rate, burst):
    """
    Messages in a second, minute or hour; the burst is what comes in a second, at least one.
    """
    assert limit("a.>", text) == (("a.>",), rate, burst, False, TOPIC)


@pytest.mark.parametrize(
    ("text", "rate", "burst"),
    [
        ("1MiB/s", MIB, MIB),
        ("1MB/s", 1e6, 1e6),
        ("60KiB/m", 1024, 1024),
        ("1.5 GiB / h", 1.5 * 1024 * MIB / 3600, 1.5 * 1024 * MIB / 3600),
        ("100B/s", 100, 100),
        ("1MiB/s,burst=8MiB", MIB, 8 * MIB),
        ("1MiB/s, burst = 5000", MIB, 5000),
    ],
)
def test_limits_of_bytes(text, rate, burst):
    """
    With a unit of size it is bytes, and so is its burst.
    """
    assert limit("a.>", text) == (("a.>",), rate, burst, True, TOPIC)


def test_a_limit_of_both():
    """
    PIP-385: "in bytes and/or messages per second".
    """
    found = limits_of("a.>", "1000/s,burst=50 and 1MiB/s")

    assert [(each.rate, each.burst, each.of_bytes) for each in found] == [
        (1000, 50, False),
        (MIB, MIB, True),
    ]
    check_limits(found)


def test_whose_limit_it_is():
    """
    A topic's is of one filter, a resource group's of several that share it, the broker's of all.
    """
    group = limit("a.>, b.*", "1/s", GROUP)
    broker = limit("rate", "1MiB/s", BROKER)

    assert (group.filters, group.reason, group.name) == (("a.>", "b.*"), GROUP, "a.>, b.*")
    assert (broker.filters, broker.reason, broker.name) == ((">",), BROKER, "broker")
    with pytest.raises(ValueError, match=r"group 'a\.>, a\.b': 'a\.b' has subjects in common"):
        limit("a.>, a.b", "1/s", GROUP)
    with pytest.raises(ValueError, match="invalid subject filter 'a, b'"):
        limit("a, b", "1/s")


@pytest.mark.parametrize(
    "text",
    [
        "", "1000", "1000/d", "-1/s", "0/s", "1/s,burst=0", "1e3/s", "1 PiB/s", "0MiB/s",
        "1/s,burst=1MiB", "1MiB/s,burst=0B", "1/s and", "1/s and 2",
    ],
)  # fmt: skip
def test_what_is_no_limit(text):
    """
    The error shows what was expected and what came.
    """
    with pytest.raises(ValueError, match=r"^limit of 'a': expected .*, got '"):
        limits_of("a", text)


def test_what_is_no_filter():
    """
    The filter is checked, too.
    """
    with pytest.raises(ValueError, match=r"invalid subject filter 'a\.\.b'"):
        limits_of("a..b", "1/s")


def test_filters_have_no_subject_in_common():
    """
    Pauses of one filter would end those of the other, so both are named. Those of other reasons do
    not, and of the same filter messages and bytes may be limited.
    """
    check_limits([limit(each, "1/s") for each in ("a.*", "a.*.x", "b")])
    check_limits([limit("a.*", "1/s"), limit("a.*", "1B/s"), limit("a.>", "1/s", GROUP)])
    check_limits([limit("a.*", "1/s"), limit("", "1/s", BROKER)])
    for wrong in (("c", "a.>", "a.b"), ("a.>", "a.b"), ("a.b", "a.>"), ("a.b", "a.b")):
        with pytest.raises(ValueError, match=r"limits of '.*' and '.*': they have subjects"):
            check_limits([limit(each, "1/s") for each in wrong])
    with pytest.raises(ValueError, match=r"limits of 'a\.>, b' and 'c, a\.x': they have"):
        check_limits([limit("a.>, b", "1/s", GROUP), limit("c, a.x", "1B/s", GROUP)])


def test_what_comes_on_the_filters_of_a_quota():
    """
    Messages or bytes, of all its filters together.
    """
    came = {"a": Came(2, 300), "b": Came(1, 50), "c": Came(9, 9)}
    group, bytes_ = Quota(limit("a, b, d", "1/s", GROUP), 0.0), Quota(limit("a", "100B/s"), 0.0)

    for quota in (group, bytes_):
        quota.count(came, 0.0)

        assert quota.rest(0.0) == pytest.approx(2.1)
    assert (group.total, bytes_.total) == (3, 300)


@pytest.mark.parametrize(
    ("count", "after_s", "rest_s"),
    [
        (0, 0.0, 0.0),
        (199, 0.0, 0.0),
        (200, 0.0, 0.1),  # up to the target: ten tokens
        (250, 0.0, 0.6),
        (250, 0.4, 0.2),
        (250, 0.51, 0.0),
        (1200, 0.0, 10.1),
        (10**9, 0.0, 60.0),
    ],
)
def test_the_rest(count, after_s, rest_s):
    """
    (target - tokens) / rate seconds, a minute at the most; none while there are tokens.
    """
    quota = Quota(QuotaLimit(("a",), rate=100, burst=200), now=5.0)
    quota.add(count, 5.0)
    now = 5.0 + after_s
    until = quota.rest(now)

    assert (until or now) - now == pytest.approx(rest_s)
    assert quota.rest_until == (5.0 if until is None else until)


def test_a_bucket_holds_no_more_than_its_burst():
    """
    Who was quiet for an hour may publish the burst, not the hour.
    """
    quota = Quota(QuotaLimit(("a",), rate=100, burst=200), now=0.0)
    quota.add(150, 0.0)
    quota.add(0, 3600.0)
    room = quota.wanted(3600.0)
    quota.add(201, 3600.0)

    assert room == 300
    assert quota.rest(3600.0) > 3600.0


def test_a_quota_says_until_when():
    """
    Nothing while there are tokens; then the end of the rest, which stays where nothing comes.
    """
    quota = Quota(QuotaLimit(("a",), 100, 100), 0.0)
    said = []
    for count, now in ((50, 0.0), (60, 0.0), (0, 0.05), (0, 0.3)):
        quota.add(count, now)
        said.append(quota.rest(now))

    assert said == [None, pytest.approx(0.2), pytest.approx(0.2), None]
    assert quota.total == 110


@pytest.mark.parametrize(
    ("count", "room"), [(0, 200.0), (100, 100.0), (130, 70.0), (200, 0.0), (10**6, 0.0)]
)
def test_what_writers_that_keep_rates_share(count, room):
    """
    The limit, and what the bucket holds in a second more, or less; nothing when it is that empty.
    """
    quota = Quota(QuotaLimit(("a", "b"), 100, 100, reason=GROUP), 0.0)
    quota.add(count, 0.0)

    assert (quota.limit.keys, quota.wanted(0.0)) == ([("a", GROUP), ("b", GROUP)], room)
    quota.fill_bucket(0.0)
    assert quota.wanted(0.0) == 200.0


def test_those_who_keep_no_rate_have_their_part():
    """
    Where others keep rates and want all of the limit, the bucket is empty by the part of those who
    do not: so far they need not rest, and what is left to the others is theirs.
    """
    quota = Quota(QuotaLimit(("a",), 100, 100), 0.0)
    quota.add(124, 0.0)
    free, room = quota.rest(0.0, 0.25), quota.wanted(0.0)
    quota.add(6, 0.0)

    assert (free, room) == (None, 76.0)
    assert quota.rest(0.0, 0.25) == pytest.approx(0.15)


def test_the_rate_is_that_of_late():
    """
    It follows the last seconds, not the beginning.
    """
    quota = Quota(QuotaLimit(("a",), 1, 1), 0.0)
    at_first = quota.rate
    for second in range(1, 21):
        quota.add(1000 if second <= 10 else 10, float(second))

    assert at_first == 0.0
    assert quota.rate == pytest.approx(10)


@pytest.mark.parametrize("seed", range(SEED, SEED + 30))
def test_the_long_run_is_at_the_limit(seed):
    """
    Publishers that are faster than the limit and heed pauses reach it, and exceed it by the burst
    and by what comes between two counts, whatever their speed.
    """
    rng = random.Random(seed)
    rate, speed = rng.choice([5, 100, 2000]), rng.choice([1.5, 4, 20])
    burst, every_s = rng.choice([rate / 2, rate, rate * 5]), rng.choice([0.1, 0.25, 1.0])
    quota = Quota(QuotaLimit(("a",), rate, max(1.0, burst)), 0.0)
    now, rest_until, came, credit, counted = 0.0, 0.0, 0, 0.0, 0.0
    while now < 300.0:
        now += 0.01
        credit += speed * rate * 0.01 if now >= rest_until else 0.0
        came += int(credit)
        credit -= int(credit)
        if now - counted >= every_s:
            quota.add(came - quota.total, now)
            rest_until = quota.rest(now) or rest_until
            counted = now
    slack = max(1.0, burst) + speed * rate * (every_s + 0.02) + 1

    assert rate * 300 - rate <= came <= rate * 300 + slack, (seed, came)


def test_repr_shows_the_state():
    """
    A quota says what it has counted, and what its bucket holds.
    """
    quota = Quota(QuotaLimit(("a.>",), 10, 20), 0.0)
    quota.add(5, 0.0)

    assert repr(quota) == "<Quota a.>: 5 messages, <TokenBucket 15.0 of 20, 10/s>>"

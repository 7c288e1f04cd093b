"""What a query's filters leave of a read: never too little."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream import subjects
from pyspark_jetstream.read import narrowing
from pyspark_jetstream.read.narrowing import Interval, Narrowing, shifted

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


HOLDS = {
    "=": lambda x, v: x == v[0], "in": lambda x, v: x in v, "<": lambda x, v: x < v[0],
    "<=": lambda x, v: x <= v[0], ">": lambda x, v: x > v[0], ">=": lambda x, v: x >= v[0],
}  # fmt: skip
VALUES = st.lists(st.integers(0, 19), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.sampled_from([*HOLDS]), VALUES), max_size=3))
def test_integers_against_brute_force(conditions):
    """Whatever conditions are combined, an interval holds a number exactly when all of them do."""
    interval = Interval()
    for op, values in conditions:
        interval = interval.cut(op, values if op == "in" else values[:1])

    assert [x for x in range(20) if x in interval] == [
        x for x in range(20) if all(HOLDS[op](x, values) for op, values in conditions)
    ]
    assert all(interval.low <= x <= interval.high for x in range(20) if x in interval)


@pytest.mark.parametrize(
    ("conditions", "filters"),
    [
        ([], None),
        ([("=", ["a.b"])], ("a.b",)),
        ([("in", ["a.b", "c", "a.b"])], ("a.b", "c")),
        ([("in", ["a.b", "c"]), ("=", ["c"])], ("c",)),
        ([("in", ["a.b", "c"]), ("prefix", ["a."])], ("a.b",)),
        ([("=", ["a"]), ("=", ["b"])], ()),
        ([("in", [])], ()),
        ([("prefix", ["flights.0.A"])], ("flights.0.>",)),
        ([("prefix", ["flights.0."])], ("flights.0.>",)),
        ([("prefix", ["flights.0"])], ("flights.>",)),
        ([("prefix", ["a."]), ("prefix", ["a.b.c"])], ("a.b.>",)),
        ([("prefix", ["fli"])], None),
        ([("prefix", [""])], None),
        ([("prefix", ["a.*.b"])], None),
        ([("=", ["not a subject"])], None),
        ([("=", ["a.\ufffd"])], None),
        ([("in", ["a.b", "a.\ufffd"])], None),
        ([("in", ["a.\ufffd"]), ("prefix", ["a.b."])], ("a.b.>",)),
        ([("prefix", ["a.b.\ufffd.c."])], ("a.b.>",)),
        ([("in", [f"s{i}" for i in range(narrowing.MAX_SUBJECTS + 1)])], None),
    ],
)
def test_subjects(conditions, filters):
    """Names become filters, prefixes those of whole tokens; too many, or U+FFFD, leave all."""
    narrowed = Narrowing()
    for operation, values in conditions:
        narrowed = narrowed.by("subject", operation, values)

    assert narrowed.filters() == filters


def test_filters_within_filters():
    """A read's own filters are cut to what the query's leave of them."""
    narrowed = Narrowing().by("subject", "prefix", ["a.b."])

    assert narrowed.within(["a.>", "*.b.c", "x.>", None]) == ["a.b.>", "a.b.c"]
    assert Narrowing().within(["a", None]) == ["a", None]
    assert Narrowing().by("subject", "in", ["a.1", "b.1"]).within(["a.*", "a.>"]) == ["a.1"]


@given(st.lists(st.sampled_from(["a", "bb", "ccc"]), min_size=1, max_size=5), st.integers(0, 19))
def test_a_prefix_leaves_nothing_out(tokens, length):
    """Every subject that begins with the prefix matches the filter that it becomes."""
    subject = ".".join(tokens)
    filters = Narrowing().by("subject", "prefix", [subject[:length]]).filters()

    assert filters is None or any(subjects.matches(each, subject) for each in filters)


@pytest.mark.parametrize(
    ("operation", "since", "until"),
    [
        ("=", NOON, NOON),
        (">=", NOON, None),
        (">", NOON + MICROSECOND, None),
        ("<=", None, NOON),
        ("<", None, NOON - MICROSECOND),
    ],
)
def test_times(operation, since, until):
    """Bounds of time are kept to the microsecond of the column."""
    narrowed = Narrowing().by("timestamp", operation, [NOON])

    assert (narrowed.since, narrowed.until) == (since, until)


@pytest.mark.parametrize("moment", [datetime.min, datetime.max], ids=["first", "last"])
@pytest.mark.parametrize("operation", ["=", "<", "<=", ">", ">="])
def test_ends_of_the_calendar(operation, moment):
    """The first and the last moment there are, which queries use for "any time", are moments."""
    at = moment.replace(tzinfo=UTC)
    narrowed = Narrowing().by("timestamp", operation, [at])

    assert {narrowed.since, narrowed.until} - {None}
    for bound in (narrowed.since or at, narrowed.until or at):
        assert abs(shifted(bound, timedelta(seconds=1)) - at) <= timedelta(seconds=2)
        assert abs(shifted(bound, -timedelta(seconds=1)) - at) <= timedelta(seconds=2)


@pytest.mark.parametrize(
    ("column", "operation", "values"),
    [
        ("data", "=", [b"x"]),
        ("stream", "=", ["S"]),
        ("sequence", "=", ["7"]),
        ("sequence", ">", [1.5]),
        ("subject", "<", ["a"]),
        ("subject", "=", [7]),
        ("timestamp", "=", [NOON.replace(tzinfo=None)]),
        ("timestamp", "prefix", [NOON]),
    ],
)
def test_what_it_cannot_use(column, operation, values):
    """A condition on another column, or of another type, leaves everything."""
    assert Narrowing().by(column, operation, values).everything


@pytest.mark.parametrize(
    ("a", "b", "both"),
    [
        (">", "a.b", "a.b"),
        ("a.>", "a.b.c", "a.b.c"),
        ("a.*.c", "*.b.c", "a.b.c"),
        ("a.>", "*.b.>", "a.b.>"),
        ("a.>", "a", None),
        ("a.*", "a.b.c", None),
        ("a", "b", None),
        ("a.*.>", "a.b", None),
        ("*.>", "a.b", "a.b"),
    ],
)
def test_intersections(a, b, both):
    """The intersection of two filters is the filter of what both match."""
    assert subjects.intersection(a, b) == both
    assert subjects.intersection(b, a) == both
    assert subjects.overlaps(a, b) is (both is not None)

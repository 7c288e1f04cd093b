"""The table of pauses beside a model of it: the rules as they stand there, and random commands."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.outbox.throttling.pausetable import (
    MAX_FILTERS,
    Matcher,
    PauseTable,
)
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    Reason,
    ThrottleProducer,
    TooManyFiltersError,
)
from pyspark_jetstream.subjects import covers, matches

from ...kits.seeds import examples

SUBJECTS = ["a.x", "a.y", "b.x", "b.y.z"]
FILTERS = [">", "a.*", "a.x", "*.x", "b.>", "b.y.z"]
QUOTA, GROUP, _, BUFFER, SERVER = Reason


def say(table, filter, pause_s, now, reason=QUOTA, number=1):
    table.command(ThrottleProducer(number, reason, pause_s, filter), now)


class Model:
    """The rules: which windows are open is looked for in the history of all commands."""

    def __init__(self):
        self.open: dict[tuple[Reason, str], tuple[float, float, int]] = {}
        self.informed: dict[Reason, int] = {}
        self.ms: dict[tuple[Reason, str], int] = {}

    def command(self, said, now):
        """It takes the place of one alike; a pause of 0 ends all that its filter covers."""
        self.pass_by(now)
        key = said.reason, said.subject if said.reason.is_quota else ">"
        ended = [
            (reason, filter)
            for reason, filter in self.open
            if reason is said.reason and covers(key[1], filter)
        ]
        if said.pause_s:
            since = self.open.get(key, (now, 0.0, 0))[0]
            self.open[key] = since, now + said.pause_s, said.request_id
        elif not ended and not said.reason.is_quota:
            self.informed[said.reason] = said.request_id
        for each in ended if not said.pause_s else ():
            del self.open[each]

    def pass_by(self, now):
        """Windows whose time is over are closed."""
        self.open = {key: window for key, window in self.open.items() if window[1] > now}

    def count(self, before, now):
        """Time passes."""
        for key, (_, until, _) in self.open.items():
            self.ms[key] = self.ms.get(key, 0) + round((min(until, now) - before) * 1000)


COMMANDS = st.tuples(
    st.sampled_from(Reason), st.sampled_from([0.0, 0.5, 2.0, 8.0]), st.sampled_from(FILTERS)
)
STEPS = st.tuples(st.sampled_from([0.0, 0.25, 1.0, 4.0]), st.booleans(), COMMANDS | st.none())


@examples(50)
@given(st.lists(STEPS, min_size=25))
def test_any_commands(steps):
    """B5 to B9, B11, B12, B15: whatever is said in whatever order."""
    now, table, model = 0.0, PauseTable(), Model()
    counted: dict[tuple[Reason, str], int] = {}
    for number, (wait_s, is_counted, command) in enumerate(steps):
        later = now + wait_s
        model.count(now, later)
        now = later
        model.pass_by(now)
        turn, was = table.version, [name for name in SUBJECTS if table.matcher(now)(name)]
        if command is None:
            table.acked()
            model.informed.clear()
        else:
            said = ThrottleProducer(number, *command)
            table.command(said, now)
            model.command(said, now)
        if is_counted:
            for reason, filter, ms, _ in table.times.counted(now):
                counted[reason, filter] = counted.get((reason, filter), 0) + ms

        paused = {
            name: [w for (_, filter), w in model.open.items() if matches(filter, name)]
            for name in SUBJECTS
        }
        mask = table.mask(pa.array(SUBJECTS), now)
        found = [False] * 4 if mask is None else mask.to_pylist()
        assert found == [bool(paused[name]) for name in SUBJECTS]
        assert found == [table.matcher(now)(name) for name in SUBJECTS]
        assert table.version > turn or was == [n for n, f in zip(SUBJECTS, found, strict=True) if f]
        ends = [until for _, until, _ in model.open.values()]
        assert table.next_end(now) == min(ends, default=math.inf)
        assert table.informed == model.informed
        since = table.since(pa.array(SUBJECTS), now)
        for name, begun in zip(SUBJECTS, since.to_pylist(), strict=True):
            assert begun == min((w[0] for w in paused[name]), default=None)
    for reason, filter, ms, _ in table.times.counted(now):
        counted[reason, filter] = counted.get((reason, filter), 0) + ms
    assert {k: v for k, v in counted.items() if v} == {k: v for k, v in model.ms.items() if v}


def test_filters_are_bounded():
    """I7: of one filter too many nothing changes; `>` is always taken."""
    table = PauseTable()
    for number in range(MAX_FILTERS):
        say(table, f"a.{number}", 10.0, 0.0, (QUOTA, GROUP)[number % 2])
    turn = table.version
    with pytest.raises(TooManyFiltersError, match="one wider filter"):
        say(table, "b", 10.0, 1.0)
    say(table, "a.8", 20.0, 1.0, GROUP)  # a filter that is paused for another reason, too
    say(table, ">", 5.0, 1.0)
    say(table, "x", 5.0, 1.0, SERVER)  # of the whole writer
    assert table.version == turn + 3
    say(table, "b", 10.0, 10.0)

    assert table.matcher(10.0)("b") and table.matcher(10.0)("a.8")
    assert not table.matcher(10.0)("a.7")
    for number in range(10_000):
        say(table, f"c.{number}", 0.5, 20.0 + number)
    assert len(table._windows) <= 3 * MAX_FILTERS


def test_a_pause_is_met_once_however_often_it_is_renewed():
    """The time counts as it passes; what is lifted counts what there was of it."""
    table = PauseTable()
    for second in range(60):
        say(table, "a", 1.5, float(second))
    say(table, "a", 0.0, 60.0)
    (count,) = table.times.counted(100.0)

    assert count == (QUOTA, "a", 60_000, 1)
    assert table.times.counted(200.0) == []


def test_long_filters_are_matched():
    """More than one regular expression may hold."""
    filters = [f"{'t' * 400}{number}.*" for number in range(100)]
    matcher = Matcher(filters)
    subjects = [f"{'t' * 400}{number}.x" for number in range(0, 120, 7)]

    assert len(matcher._regexes) > 1
    assert matcher.mask(pa.array(subjects)).to_pylist() == [n < 100 for n in range(0, 120, 7)]

"""The streams a write may reach: which takes a subject, and what it allows."""

import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.outbox import targets as targets_module
from pyspark_jetstream.outbox.targets import Target, Targets
from pyspark_jetstream.subjects import FAULTY, matches, subject_fault
from pyspark_jetstream.write.streams import check_target

from ...kits.options import connection_of, sink_of, targets_of
from ...kits.seeds import examples

STREAMS = [
    {"name": "ORDERS", "subjects": ["orders.*.eu", "orders.us.>"]},
    {"name": "ALL", "subjects": ["all.>"], "allow_msg_ttl": True},
    {"name": "EXACT", "subjects": ["a.b", "a+b.c", "*.x.>"], "allow_rollup_hdrs": True},
    {"name": "MIRROR", "mirror": {"name": "ORDERS"}},
]


def all_of(streams) -> Targets:
    """Targets that are found among these configurations, as a server finds them."""
    known = [Target.parse(each) for each in streams]

    def find(subject):
        return next((t for t in known if any(matches(f, subject) for f in t.subjects)), None)

    return targets_of(find)


def names(targets: Targets, subjects: list[str]) -> list[str | None]:
    """The stream of each subject, asked one by one."""
    places = [targets.of(pa.array([each], pa.string()))[0].as_py() for each in subjects]
    return [None if place is None else targets[place].name for place in places]


def test_each_subject_has_its_stream_or_none():
    """Filters select as the server does; a mirror takes none."""
    targets = all_of(STREAMS)

    assert names(
        targets,
        ["orders.1.eu", "orders.us.1.2", "orders.us", "all.x", "all", "a.b", "a.b.c", "a+b.c",
         "aab.c", "k.x.1", "orders.1.2.eu", ""],
    ) == [
        "ORDERS", "ORDERS", None, "ALL", None, "EXACT", None, "EXACT",
        None, "EXACT", None, None,
    ]  # fmt: skip


def texts(*words, longest):
    """Subjects, or what is like one, of these words."""
    return st.lists(st.sampled_from(words), min_size=1, max_size=longest).map(".".join)


DEPTHS = ["{}.>", "a.{}.>", "a.b-é.{}.>", "b.{}", "c.{}.*.>", "d.*.{}"]
BEGINNINGS = ["", "a.", "a.b-é.", "b.", "c.", "d.", "d.x."]
ENDS = texts(*"0123456789", "a", "b", "d", "b-é", longest=3)


@examples(40)
@given(
    st.lists(st.sampled_from(DEPTHS), min_size=1, max_size=12),
    st.lists(st.builds(str.__add__, st.sampled_from(BEGINNINGS), ENDS), min_size=40),
)
def test_many_streams_take_what_few_do(depths, asked):
    """Subjects get the stream whose filter matches, however deep its beginning is."""
    configs = [{"name": f"S{n}", "subjects": [depth.format(n)]} for n, depth in enumerate(depths)]
    asked += ["", "1", "a.1", "a.b-é.1"]
    targets = all_of(configs)
    names(targets, [each["subjects"][0].replace(">", "x").replace("*", "x") for each in configs])
    assert len(targets.streams) == len(configs)

    expected = [
        next((c["name"] for c in configs if matches(c["subjects"][0], subject)), None)
        for subject in asked
    ]
    found = targets.known(pa.array(asked, pa.string())).to_pylist()
    assert [None if place is None else targets[place].name for place in found] == expected


def between_lines(work: Callable[[], object], other: Callable[[], object]) -> int:
    """Does work, and before each line of it in the module of targets all of another thread's."""
    lines = 0

    def on_line(frame, event, _argument):
        nonlocal lines
        if event == "line":
            lines += 1
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return on_line

    def on_call(frame, event, argument):
        return on_line if frame.f_code.co_filename == targets_module.__file__ else None

    sys.settrace(on_call)
    try:
        work()
    finally:
        sys.settrace(None)
    return lines


@pytest.mark.parametrize("streams", [2, 9])
def test_two_threads_may_look_at_once(streams):
    """Wherever one thread stands, the other knows each stream that is known."""
    targets = all_of([{"name": f"S{n}", "subjects": [f"s{n}.>", f"t{n}"]} for n in range(40)])
    subjects = [f"s{n}.x" for n in range(streams)]
    expected = [f"S{n}" for n in range(streams)]
    names(targets, subjects)
    more = iter(range(streams, 40))
    seen: list[object] = []

    def look():
        seen.append(targets.names(subjects[::-1])[::-1])

    def make():
        seen.append(names(targets, [f"s{next(more, 0)}.y", *subjects])[1:])

    lines = between_lines(make, look) + between_lines(look, make)

    assert lines > 50
    assert seen == [expected] * len(seen)
    assert len(seen) == lines + 2


WORDS = ["a", "b+", "é", "c-1", "*x", "{d}", "$e"]
FILTERS = st.builds(str.__add__, texts(*"***", *WORDS, longest=3), st.sampled_from(["", ".>"]))


@examples(50)
@given(st.lists(FILTERS, min_size=1, max_size=4), st.lists(texts(*WORDS, longest=4), min_size=20))
def test_a_target_takes_what_its_filters_match(filters, asked):
    """Arrow's kernels select as `subjects.matches` does, for any filters and subjects."""
    targets = all_of([{"name": "S", "subjects": filters}])

    assert [name == "S" for name in names(targets, asked)] == [
        any(matches(each, one) for each in filters) for one in asked
    ]


PIECES = st.sampled_from("a..*> \x00\x7f\né\u00a0b")


@examples(50)
@given(st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=40))
def test_faulty_finds_what_is_no_subject(texts):
    """The pattern for Arrow's kernels and the function that explains a fault agree."""
    found = pc.match_substring_regex(pa.array(texts), FAULTY).to_pylist()

    assert found == [subject_fault(text) is not None for text in texts]


def test_the_names_of_streams_as_far_as_they_were_found():
    """Nothing is looked up for them."""
    targets = all_of(STREAMS)
    names(targets, ["orders.us.1", "all.x"])

    assert targets.names(["orders.us.7", "nowhere", "all.y"]) == ["ORDERS", "", "ALL"]
    assert Targets().names(["a"]) == [""]


def test_nothing_is_looked_up_behind_the_first_without_a_stream():
    """So the first null names a subject that has none; each stream is looked up once."""
    asked = []
    known = Target.parse(STREAMS[1])
    targets = targets_of(
        lambda subject: asked.append(subject) or (known if "all" in subject else None)
    )
    subjects = pa.array(["all.1", "all.2", "none.1", "none.2", "all.3"])

    assert targets.of(subjects).to_pylist() == [0, 0, None, None, 0]
    assert asked == ["all.1", "none.1"]


def test_a_configuration_without_limits_can_be_written_exactly_once():
    """The server's defaults are fine; a duplicate window that is not named is two minutes."""
    target = Target.parse({"name": "S", "subjects": ["s"], "max_msgs_per_subject": -1})

    assert target.duplicate_window_s == 120
    assert target.max_per_subject == 0
    assert target.fault(5.0) is None


def fault_of(target, options):
    """Reason that the stream cannot be written as the options say, or None."""
    try:
        check_target(target, options)
    except OptionError as error:
        return str(error)


@pytest.mark.parametrize(
    ("config", "fault"),
    [({}, False), ({"max_msgs_per_subject": 5}, True), ({"allow_rollup_hdrs": True}, True)],
)
@pytest.mark.parametrize("dead_letters", ["dlq", None])
@pytest.mark.parametrize("ledger", [True, False])
def test_dead_letters_of_an_exactly_once_write_need_a_stream_that_keeps_all(
    config, fault, dead_letters, ledger
):
    """Else a row whose dead letter was not stored would be taken for replaced."""
    options = sink_of(connection_of("nats://h"), ledger=ledger, dead_letter_subject=dead_letters)
    found = fault_of(Target.parse({"name": "S", "subjects": ["a"], **config}), options)

    assert (found is not None) == (fault and ledger and dead_letters is not None)
    assert found is None or "deadLetterSubject" in str(found)


@pytest.mark.parametrize(
    ("config", "fault"),
    [({}, False), ({"max_msgs_per_subject": 5}, True), ({"allow_rollup_hdrs": True}, True)],
)
@pytest.mark.parametrize("order", ["none", "subject"])
@pytest.mark.parametrize("ledger", [True, False])
def test_rows_that_overtake_each_other_need_a_stream_that_keeps_all(config, fault, order, ledger):
    """Else a row that overtook others would tell that they were stored."""
    rules = replace(sink_of(connection_of("nats://h")).rules, by_subject=order != "none")
    options = sink_of(connection_of("nats://h"), ledger=ledger, rules=rules)
    found = fault_of(Target.parse({"name": "S", "subjects": ["a"], **config}), options)

    assert (found is not None) == (fault and ledger and order == "none")
    assert found is None or "publishOrder=none" in str(found)

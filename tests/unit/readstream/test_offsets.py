"""Offsets: one text for one offset, and nothing else is taken for one."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.client.info import Mark
from pyspark_jetstream.errors import OffsetError
from pyspark_jetstream.fetch.layout import Layout
from pyspark_jetstream.fetch.options import Several
from pyspark_jetstream.readstream.offsets import Offset, check_layout, is_initial
from pyspark_jetstream.readstream.shared.claims import ClaimedOffset

LAYOUT = Layout.of_streams(["S-0", "S-1"], is_several=False)
OFFSET = Offset(
    (7, 0), (3, 0), {"S-1": "2026-01-02T00:00:00Z", "S-0": "t0"}, "spark-abc", LAYOUT, (1,)
)
ONE = Layout.of_streams(["S"], is_several=False)
VALUE = OFFSET.to_json()


def test_canonical_json():
    """The text of an offset is fixed: keys in one order, streams sorted."""
    assert json.dumps(VALUE) == (
        '{"version": 1, "consumer": "spark-abc", "streams": {"S-0": "t0",'
        ' "S-1": "2026-01-02T00:00:00Z"}, "layout": {"places": [["S-0"], ["S-1"]]},'
        ' "base": [3, 0], "sequences": [7, 0], "idle": [1]}'
    )


def test_equal_offsets_are_equal_text():
    """However its mapping was filled, and after any round trip, an offset has the same text."""
    turned = replace(OFFSET, streams=dict(sorted(OFFSET.streams.items())))
    shuffled = dict(reversed(VALUE.items()))

    assert json.dumps(turned.to_json()) == json.dumps(VALUE)
    assert json.dumps(Offset.from_json(shuffled).to_json()) == json.dumps(VALUE)


NUMBERS = st.integers(0, 2**63 - 1)
NAMES = st.text('S-1ü"\\')


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=64),
    st.dictionaries(NAMES, NAMES, min_size=1),
    NAMES,
)
def test_any_offset_survives_its_json(places, streams, name):
    """Whatever numbers and names are in it."""
    sequences, base = zip(*places, strict=True)
    layout = Layout.of_filters(name, "a.{partition}", len(places))
    offset = Offset(sequences, base, streams, name, layout)

    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "version 2, written by another pyspark-jetstream: .* version 1"),
        ({"version": 0}, "version 0"),
        ({"version": "1"}, "version '1'"),
        ({"version": True}, "version True"),
        ({"version": None}, "version None"),
        ({"layouts": []}, "with 'layouts', written by another pyspark-jetstream"),
        ({"sequences": None}, "no offset"),
        ({"sequences": 7}, "no offset"),
        ({"sequences": [7]}, "differ in length"),
        ({"base": [1, 2, 3]}, "differ in length"),
        ({"streams": ["S"]}, "no offset"),
        ({"streams": None}, "no offset"),
    ],
    ids=str,
)
def test_what_is_no_offset_is_refused(change, told):
    """A foreign, newer or damaged checkpoint is an `OffsetError` of one line."""
    with pytest.raises(OffsetError, match=told) as caught:
        Offset.from_json(VALUE | change)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"version": 2}, {"settled": {}}], ids=str)
def test_claims_of_a_newer_version_are_refused(change):
    """So are the offsets of a shared consumer, which have a version of the same count."""
    claimed = ClaimedOffset("overflow", "c", 1, {"S": "t"}, 1, {}).to_json()
    with pytest.raises(OffsetError, match="written by another pyspark-jetstream"):
        ClaimedOffset.from_json(claimed | change)


@pytest.mark.parametrize(
    "offset",
    [{"topic": {"0": 42}}, {"offset": 5, "timestamp": 1000}, {"logOffset": 0}, 17, "17", None],
    ids=["kafka", "rate-micro-batch", "files", "rate", "socket", "nothing"],
)
@pytest.mark.parametrize("kind", [Offset, ClaimedOffset])
def test_another_sources_offset_is_refused(offset, kind):
    """What Spark's other sources write is no offset of ours; the error shows it."""
    assert not is_initial(offset)
    with pytest.raises(OffsetError, match="one of another source.*checkpointLocation of its own"):
        kind.from_json(offset)


def test_an_offset_of_claims_is_named():
    """A checkpoint of a query that shares its consumer is ours, of another kind."""
    claimed = ClaimedOffset("overflow", "c", 1, {"S": "t"}, 1, {}).to_json()
    with pytest.raises(OffsetError, match="shares its consumer .priorityPolicy=overflow"):
        Offset.from_json(claimed)


@pytest.mark.parametrize(
    ("now", "several", "said"),
    [
        (LAYOUT, None, None),
        (
            Layout.of_streams(["S-0", "S-1", "S-2"], is_several=False),
            None,
            "for 2 partitions of stream S-0, S-1;",
        ),
        (
            Layout.of_streams(["S-1", "S-0"], is_several=False),
            None,
            "has 2 partitions of stream S-1, S-0. Give",
        ),
        (Layout.of_streams(["S-0", "T"]), Several(("S-0", "T")), "this query has several streams"),
        (Layout.of_filters("S-0", "a.{partition}", 2), None, "of stream S-0 (a.0, a.1). Give it"),
        (
            Layout.of_streams(["T"], is_several=False),
            None,
            "is of stream S-0, S-1, not of T: give this query a chec",
        ),
    ],
)
def test_a_checkpoint_is_one_of_its_partitions(now, several, said):
    """Other partitions, or their order, are an error with the procedure."""
    if said is None:
        check_layout(LAYOUT, now, several)
        return
    with pytest.raises(OffsetError) as caught:
        check_layout(LAYOUT, now, several)

    assert said in str(caught.value)
    assert "partition --switch" in str(caught.value)


def test_a_checkpoint_of_several_streams():
    """More of them may come; one that the options leave out is named."""
    check_layout(Layout.of_streams("BA"), Layout.of_streams("ABC"), Several(("A", "B", "C")))
    with pytest.raises(OffsetError, match=r"has stream 'B', too.*streamPattern=A\*: name it"):
        check_layout(Layout.of_streams("AB"), Layout.of_streams("A"), Several((), "A*"))


def test_what_a_take_over_adds():
    """Where a take-over's batch begins, and the query's name, survive."""
    offset = Offset((7, 9), (0, 0), {"S": "t"}, "c", LAYOUT, frozenset(), (5, 5), "q1")

    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert '"resumed": [5, 5], "query": "q1"}' in json.dumps(offset.to_json())
    assert offset.bare().resumed == offset.at((8, 9)).resumed == ()
    assert offset.bare().query == offset.at((8, 9)).query == "q1"
    with pytest.raises(OffsetError, match="differ in length"):
        Offset.from_json(offset.to_json() | {"resumed": [5]})


SEVERAL = Offset(
    (7, 0, 9), (3, 0, 2), {"C": "t2", "A": "t0", "B": "t1"}, "c", Layout.of_streams("BAC"),
    frozenset({1, 2}), (5, 0, 8), one_pass=True,
    marks={"A": Mark("t0", 4, ""), "B": Mark("t1", 7, "")},
)  # fmt: skip


def test_an_offset_of_several_streams():
    """What each partition is survives the JSON, in its order; one entry for each partition."""
    value = json.loads(json.dumps(SEVERAL.to_json()))

    assert value["layout"] == {"places": [["B"], ["A"], ["C"]], "several": True}
    assert Offset.from_json(value) == SEVERAL
    with pytest.raises(OffsetError, match="differ in length"):
        Offset.from_json(value | {"layout": {"places": [["B"]]}})
    for wrong in ({"places": [], "more": 1}, [["B"]], {}):
        with pytest.raises(OffsetError, match="no offset"):
            Offset.from_json(value | {"layout": wrong})


def test_partitions_that_come_and_go():
    """Partitions that stay are where they were; others begin where it is said."""
    laid = SEVERAL.laid_out(Layout.of_streams("CDB"), {("D",): 6}, {"D": "t3"})

    assert (laid.sequences, laid.base) == ((9, 6, 7), (2, 6, 3))
    assert laid.layout == Layout.of_streams("CDB")
    assert laid.streams == {"C": "t2", "D": "t3", "B": "t1"}
    assert (laid.idle, laid.resumed) == ({0}, (8, 6, 5))
    assert list(laid.marks) == ["B"]
    assert laid.one_pass
    assert SEVERAL.laid_out(Layout.of_streams("BAC"), {}, {}) == SEVERAL

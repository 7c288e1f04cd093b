"""What judges a run of random faults, and what counts its results."""

from __future__ import annotations

import asyncio

import pytest

from pyspark_jetstream import errors

from ..chaos.cases import MATRIX, find
from ..chaos.faults import FAULTS, fitting
from ..chaos.ledger import by_subject, judge
from ..chaos.outcomes import EXACT
from ..chaos.publisher import Sent
from ..chaos.table import BEGIN, END, NEIGHBOURS, PAGE, by_kind, tables, written
from ..chaos.world import World

SENT = {"in.0.a": [Sent((0, 0), True), Sent((1, 0)), Sent((1, 1), True), Sent((2, 0), True)]}
"""The second message has a PubAck at its second attempt."""


def copy(*keys: tuple[int, int]) -> dict[str, list[tuple[int, int]]]:
    """What a stream holds of the one subject."""
    return by_subject([("out.0.a", b"%d.%d|xx" % key) for key in keys])


@pytest.mark.parametrize(
    ("keys", "failures"),
    [
        ([(0, 0), (1, 1), (2, 0)], []),
        ([(0, 0), (1, 0), (1, 1), (2, 0)], []),
        ([(0, 0), (1, 1), (1, 0), (2, 0)], []),
        ([(0, 0), (2, 0)], ["1 lost"]),
        ([(0, 0), (1, 1), (2, 0), (1, 1)], ["1 doubled", "1 disordered"]),
        ([(0, 0), (1, 0), (1, 0), (1, 1), (2, 0)], ["1 doubled"]),
        ([(0, 0), (2, 0), (1, 1)], ["1 disordered"]),
        ([(0, 0), (1, 1), (2, 0), (7, 0)], ["1 strangers"]),
        ([(0, 0), (1, 1), (2, 0), (-1, 0)], ["1 strangers"]),
    ],
)
def test_a_copy_is_judged(keys, failures):
    """
    Each acknowledged message is there once and in its subject's order; what has no PubAck may be.
    """
    assert judge(SENT, copy(*keys)).failures(order=True) == failures


def test_what_is_empty_is_a_stranger():
    """
    A payload that says nothing was none of ours.
    """
    assert by_subject([("out.0.a", b"")]) == {"in.0.a": [(-1, 0)]}


def test_what_took_the_place_of_the_source_is_not_copied():
    """
    A message of a stream that was made anew does not stand among those of the one before.
    """
    sent = {"in.0.a": [Sent((0, 0), True), Sent((1, 0), True, era=1)]}

    assert judge(sent, copy((0, 0))).failures(order=True) == ["1 lost"]
    assert judge(sent, copy((0, 0), (1, 0))).failures(order=True) == ["1 mixed"]


def test_each_kind_says_what_it_expects():
    """
    What heals is exact; a query that may end says with which errors, all of them this package's.
    """
    for case in MATRIX.values():
        for each in fitting(case):
            outcome = each.expects(case)
            assert each.last or outcome == EXACT, each.name
            assert all(hasattr(errors, name) for name in outcome.errors), each.name
            assert outcome.exact or outcome.errors, each.name
    (made_anew,) = [each for each in FAULTS.values() if each.name == "source deleted and made anew"]
    assert str(made_anew.expects(MATRIX["streams-limits-1-async"])) == "DataLossError"


def test_the_source_decides_where_it_keeps_everything():
    """
    A message without a PubAck that the source holds must be in the copy, in the source's order.
    """
    source = {"in.0.a": [(0, 0), (1, 1), (1, 0)]}
    verdict = judge(SENT, copy((0, 0), (1, 0), (1, 1)), source)

    assert verdict.failures(order=True) == ["1 disordered"]
    assert verdict.failures(order=False) == []
    assert judge(SENT, copy((0, 0), (1, 1)), source).failures(order=True) == ["1 lost"]
    assert verdict.lost_by_server == 1
    assert verdict.unacked_copied == 1


def test_the_matrix():
    """
    Layouts, retentions, servers and modes are all there, with overflow and standby; a fault that
    the guarantees exclude does not fit.
    """
    shared = [case for case in MATRIX.values() if case.sharing]

    assert len(MATRIX) - len(shared) == 2 * 3 * 2 * 3
    assert {case.sharing for case in shared} == {"overflow", "standby"}
    assert {case.name for case in find("streams,interest,3")} == {
        f"streams-interest-3-{mode}" for mode in ("async", "fast", "atomic")
    }
    for case in MATRIX.values():
        names = {each.name for each in fitting(case)}
        assert ("consumer deleted" in names) <= (case.retention != "interest")
        grows = case.retention != "interest" or case.target_replicas > 1
        assert ("peer removed" in names) == (case.servers == 3 and grows)
        assert ("store of the source taken back" in names) == (case.servers == 1)
    nowhere = set(FAULTS) - {each.name for case in MATRIX.values() for each in fitting(case)}
    assert nowhere <= {"disk full", "clock of a query an hour off"}  # where there is no tool for it


def test_results_become_tables():
    """
    The page's tables are made of results, those of runs that failed among them.
    """
    verdict = judge(SENT, copy((0, 0), (1, 1), (2, 0))).as_dict()
    good = {
        "case": "streams-limits-1-async", "seed": 7, "settings": {"order": "strict"},
        "failures": [], "faults": 3, "kinds": {"UNPIN": 2, "SIGSTOP JVM": 1}, "lives": 2,
        "ends": {"driver killed": 1}, "verdict": verdict, "last": {},
        "each": [{"fault": "UNPIN", "expected": "exact"}] * 2,
    }  # fmt: skip
    bad = good | {"seed": 8, "failures": ["1 lost"]}
    page = written(f"head\n{BEGIN}old\n{END}tail\n", tables([good, bad]))

    assert page.startswith("head\n") and page.endswith("tail\n") and "old" not in page
    assert "| UNPIN | 4 |" in page
    assert "| streams-limits-1-async | 7, 8 | 6 | 1 |" in page
    assert "| streams-limits-1-async | 8 | 1 lost |" in page
    assert BEGIN in PAGE.read_text() and END in PAGE.read_text()
    last = {"fault": "source sealed", "came": "DataLossError"}
    sealed = good | {"last": last, "each": [{"fault": "source sealed", "expected": "exact"}]}
    rows = by_kind([good, bad, sealed])

    assert (
        "| UNPIN | 4 | exact | exact 2; a run that failed 2 | 8 (streams-limits-1-async) |" in rows
    )
    assert "| source sealed | 1 | exact | DataLossError 1 |  |" in rows
    assert NEIGHBOURS in PAGE.read_text()


def test_the_page_names_every_fault():
    """
    docs/reliability.md says of each kind what it does.
    """
    rows = PAGE.read_text().partition(BEGIN)[0]

    assert [name for name in FAULTS if f"| {name} |" not in rows] == []


def test_a_world_that_could_not_begin_ends(tmp_path):
    """Its connections were never made; the runs behind it go on."""
    asyncio.run(World(next(iter(MATRIX.values())), 1, tmp_path, 1.0).close())

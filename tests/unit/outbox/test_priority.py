"""How urgent each row is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from pyspark_jetstream.outbox.priority import (
    Priorities,
    Priority,
    Publish,
    claim_values,
    strategies,
    subject_rules,
)

from ...kits.options import priorities_of

CRITICAL, NORMAL, NON_CRITICAL = Priority


@dataclass
class Block:
    """Rows for a test: a subject each, and whatever else is given."""

    subjects: list[str | None]
    column: list[str | None] | None = None
    headers: Mapping[str, list[str | None]] = field(default_factory=dict)
    claims: Mapping[str, list[str | None]] = field(default_factory=dict)

    def __post_init__(self):
        encoded = pa.array(self.subjects, pa.string()).dictionary_encode()
        self.distinct, self.indices = encoded.dictionary, encoded.indices

    @property
    def priority(self):
        return None if self.column is None else pa.array(self.column, pa.string())

    def header(self, name):
        return pa.array(self.headers[name], pa.string()) if name in self.headers else None

    def claim(self, name):
        return pa.array(self.claims[name], pa.string()) if name in self.claims else None

    def publish(self, row):
        return Publish(self.subjects[row], b"", {})


def resolved(rules: Priorities, block: Block) -> list[Priority]:
    each = rules.of(block).each
    return [NORMAL] * len(block.subjects) if each is None else each.to_pylist()


def test_a1_labels():
    """
    A1: three priorities, the lower the more urgent, and their labels.
    """
    assert [(each.value, each.label) for each in Priority] == [
        (0, "critical"), (1, "normal"), (2, "noncritical"),
    ]  # fmt: skip


NAMES = [
    ("Critical", CRITICAL),
    ("critical", CRITICAL),
    ("criti-cal", CRITICAL),
    ("critical-", CRITICAL),
    ("-critical", CRITICAL),
    ("--critical", CRITICAL),
    ("NORMAL", NORMAL),
    ("normal", NORMAL),
    ("nor-mal", NORMAL),
    ("nor--mal", NORMAL),
    ("normal-", NORMAL),
    ("-normal", NORMAL),
    ("noncritical", NON_CRITICAL),
    ("non-critical", NON_CRITICAL),
    ("NON-critical", NON_CRITICAL),
    ("noncritical-", NON_CRITICAL),
    ("noncritical--", NON_CRITICAL),
    ("-NONCRITICAL", NON_CRITICAL),
    ("", NORMAL),
    (None, NORMAL),
    ("other", NORMAL),
    ("0", NORMAL),
    ("2", NORMAL),
    ("7", NORMAL),
    ("NON_CRITICAL", NORMAL),
]


@pytest.mark.parametrize(("text", "priority"), NAMES)
def test_a2_names(text, priority):
    """
    A2: the names the load-shedding library takes, whatever their case and hyphens; anything else,
    numbers above all, is normal.
    """
    assert Priority.parse(text) is priority


def test_a2_names_of_a_block():
    """
    A2: a column of names is read as each alone, and what is no name is counted.
    """
    block = Block(["a"] * len(NAMES), column=[text for text, _ in NAMES])
    found = priorities_of().of(block)

    assert found.each.to_pylist() == [priority for _, priority in NAMES]
    assert found.unrecognised == 6


@pytest.mark.parametrize(
    "rules",
    [
        priorities_of(),
        priorities_of(subjects=subject_rules("x.>=critical")),
        priorities_of(header="X-Priority", claim="tenant"),
    ],
)
def test_where_all_are_normal_there_is_nothing(rules):
    """
    A block without any priority costs its reader nothing.
    """
    assert rules.of(Block(["a", "b"])).each is None
    assert rules.of(Block([])).each is None


def test_a3_subject_rules():
    """
    A3: the first filter that matches the destination decides.
    """
    rules = priorities_of(
        subjects=subject_rules("orders.vip=normal, orders.>=critical, *=noncritical")
    )

    assert resolved(rules, Block(["orders.vip", "orders.a.b", "x", "x.y"])) == [
        NORMAL, CRITICAL, NON_CRITICAL, NORMAL,
    ]  # fmt: skip


def test_a3_subject_rules_overcome_the_other_strategies():
    """
    A3: whatever column, header, claim and function say.
    """
    rules = priorities_of(
        subjects=subject_rules("a=non-critical"),
        header="P",
        claim="t",
        claim_values=claim_values("x=critical"),
        resolver=lambda publish: CRITICAL,
    )
    block = Block(["a", "b"], ["critical", None], {"P": ["critical"] * 2}, {"t": ["x"] * 2})

    assert resolved(rules, block) == [NON_CRITICAL, CRITICAL]


def test_a4_header():
    """
    A4: by the header of the given name, where a row has it.
    """
    rules = priorities_of(header="X-Priority")
    block = Block(["a"] * 4, headers={"X-Priority": ["critical", None, "Non-Critical", "?"]})

    assert resolved(rules, block) == [CRITICAL, NORMAL, NON_CRITICAL, NORMAL]
    assert rules.of(block).unrecognised == 1


def test_a5_claim():
    """
    A5: by what the option says of the claim's value; of others it says nothing.
    """
    rules = priorities_of(
        claim="tenant", claim_values=claim_values("acme=critical, free=noncritical")
    )
    block = Block(["a"] * 4, claims={"tenant": ["acme", "free", "other", None]})

    assert resolved(rules, block) == [CRITICAL, NON_CRITICAL, NORMAL, NORMAL]
    assert rules.of(block).unrecognised == 0


def test_a6_column():
    """
    A6: by the column; null is no opinion.
    """
    block = Block(["a"] * 3, column=["critical", None, "non-critical"])

    assert resolved(priorities_of(), block) == [CRITICAL, NORMAL, NON_CRITICAL]


def test_a6_function():
    """
    A6: by a function of the user's, which gives a priority, a name or nothing, and is asked only of
    rows that nothing before it has an opinion of, and that are published at all.
    """
    asked = []

    def decide(publish):
        asked.append(publish.subject)
        return {"a": CRITICAL, "b": "non-critical", "c": None, "d": "?"}[publish.subject]

    rules = priorities_of(resolver=decide)
    block = Block(["a", "b", "c", "d", "e", None], column=[None] * 4 + ["critical", None])

    assert resolved(rules, block) == [CRITICAL, NON_CRITICAL, NORMAL, NORMAL, CRITICAL, NORMAL]
    assert asked == ["a", "b", "c", "d"]


def test_a6_the_sample_of_the_rfc():
    """
    A6: a function may give the numbers of the RFC's enum. Its sample, line by line: a row without
    the header is critical, because 0 is.
    """

    def sample(publish):
        if "X-Priority" in publish.headers:
            return int(publish.headers["X-Priority"])
        return 0

    block = Block(["a", "b", "c", "d"])
    numbers = {"a": "0", "b": "1", "c": "2"}
    block.publish = lambda row: Publish(
        block.subjects[row],
        b"",
        {"X-Priority": numbers[block.subjects[row]]} if block.subjects[row] in numbers else {},
    )

    assert resolved(priorities_of(resolver=sample), block) == [
        CRITICAL, NORMAL, NON_CRITICAL, CRITICAL,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (3, ValueError),
        (-1, ValueError),
        (True, TypeError),
        (1.0, TypeError),
        (b"critical", TypeError),
    ],
)
def test_a6_what_is_no_priority_is_an_error(said, error):
    """
    A6: a number of no priority, and what is no number, fail the task.
    """
    with pytest.raises(error, match="priorityResolver returned"):
        priorities_of(resolver=lambda publish: said).of(Block(["a"]))


def test_a2_what_a_function_calls_a_priority_and_is_none():
    """
    A2: a name that a function gives is counted like one of a column, and means normal.
    """
    said = iter(["high", "critical", None])
    found = priorities_of(resolver=lambda publish: next(said)).of(Block(["a", "b", "c"]))

    assert (found.each.to_pylist(), found.unrecognised) == ([NORMAL, CRITICAL, NORMAL], 1)


def test_a6_what_a_function_raises_fails_the_task():
    """
    A6: never silently normal.
    """

    def decide(publish):
        raise KeyError("tenant")

    with pytest.raises(KeyError, match="tenant"):
        priorities_of(resolver=decide).of(Block(["a"]))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (("custom", "header", "claim"), [NORMAL, CRITICAL, NON_CRITICAL, NORMAL]),
        (("claim", "header", "custom"), [NON_CRITICAL, NON_CRITICAL, NON_CRITICAL, NORMAL]),
        (("header",), [CRITICAL, CRITICAL, NORMAL, NORMAL]),
    ],
)
def test_a7_the_first_with_an_opinion_decides(order, expected):
    """
    A7: in the order of `priorityStrategies`; those that are not named are not asked.
    """
    rules = priorities_of(
        header="P", claim="t", claim_values=claim_values("free=non-critical"), strategies=order
    )
    block = Block(
        ["a"] * 4,
        column=["normal", None, None, None],
        headers={"P": ["critical", "critical", None, None]},
        claims={"t": ["free", "free", "free", None]},
    )

    assert resolved(rules, block) == expected


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (subject_rules, "orders.>", "critical, normal or non-critical"),
        (subject_rules, "orders.>=0", "critical, normal or non-critical"),
        (subject_rules, "=critical", "a filter"),
        (subject_rules, "a..b=critical", "empty"),
        (subject_rules, "a=critical,", "got ''"),
        (claim_values, "acme", "a value"),
        (claim_values, "a=critical, a=normal", "each value once"),
        (strategies, "header, endpoint", "custom, header, claim"),
        (strategies, "header, header", "each once"),
        (strategies, "", "some of"),
    ],
)
def test_mistakes_in_options(parse, text, expected):
    """
    In an option, unlike in a row, what is no name of a priority is an error.
    """
    with pytest.raises(ValueError, match=expected):
        parse(text)

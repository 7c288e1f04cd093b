"""The priority of each row, beside a model of the rules (overload.md A1 to A7), row by row."""

import pickle
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.outbox.priority import (
    Priorities,
    Priority,
    Publish,
    claim_values,
    subject_rules,
)

from ...kits.options import parse_sink, priorities_of
from ...kits.seeds import examples

CRITICAL, NORMAL, NON_CRITICAL = Priority
NAMES = {
    "critical Critical criti-cal critical- -critical --critical": CRITICAL,
    "normal NORMAL nor-mal nor--mal normal- -normal": NORMAL,
    "noncritical non-critical NON-critical noncritical- noncritical-- -NONCRITICAL": NON_CRITICAL,
}
MEANT = {name: priority for names, priority in NAMES.items() for name in names.split()}
NO_NAMES = ["", "other", "0", "2", "7", "NON_CRITICAL"]
COVERS = {
    "a": "a", "a.vip": "a.vip", "a.*": "a.vip a.b", "a.>": "a.vip a.b a.b.c", "*": "a x",
    "*.b.*": "a.b.c", "y": "",
}  # fmt: skip
SUBJECTS = ["a", "a.vip", "a.b", "a.b.c", "x", None]


@dataclass
class Block:
    """Rows for a test: a subject each, and whatever else is given."""

    subjects: list[str | None]
    column: list[str | None] | None = None
    headers: dict[str, list[str | None]] = field(default_factory=dict)
    claims: dict[str, list[str | None]] = field(default_factory=dict)

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
        return Publish(self.subjects[row], b"", {"Row": str(row)})


class Model:
    """What the rules say of a block, one row at a time."""

    def __init__(self, rules: Priorities, block: Block, answers: list[object]) -> None:
        self.rules, self.block, self.answers = rules, block, answers
        self.unrecognised = 0
        self.asked: list[int] = []
        """Rows that the function is to be asked about."""
        self.each = [self.of(row) for row in range(len(block.subjects))]

    def of(self, row: int) -> Priority:
        """Of those that have an opinion the first decides (A3, A7)."""
        found = [
            priority
            for filter, priority in self.rules.subjects
            if self.block.subjects[row] in COVERS[filter].split()
        ]
        for strategy in ("custom", "header", "claim"):
            if strategy == "claim":
                values = self.block.claims.get(self.rules.claim or "")
                known = dict(self.rules.claim_values)
                found += [known[values[row]]] if values and values[row] in known else []
                continue
            texts = self.block.column
            if strategy == "header":
                texts = self.block.headers.get(self.rules.header or "")
            found += self.meant(texts[row] if texts else None)
            is_lost = self.block.subjects[row] is None
            if strategy == "custom" and self.rules.resolver and not found and not is_lost:
                self.asked.append(row)
                found += self.meant(self.answers[row])
        return [*found, NORMAL][0]

    def meant(self, said: object) -> list[Priority]:
        """What is no name is normal, and counted (A2); nothing is no opinion (A6)."""
        if said in NO_NAMES:
            self.unrecognised += 1
            return [NORMAL]
        return [] if said is None else [MEANT[said] if isinstance(said, str) else Priority(said)]


def test_a1_labels():
    """A1: three priorities, the lower the more urgent, and their labels."""
    assert [(each.value, each.label) for each in Priority] == [
        (0, "critical"), (1, "normal"), (2, "noncritical"),
    ]  # fmt: skip


def test_a2_names():
    """A2: names whatever their case and hyphens; anything else is none."""
    assert {name: Priority.of(name) for name in MEANT} == MEANT
    assert {Priority.of(name) for name in [*NO_NAMES, None]} == {None}


CLAIMS = [None, "acme", "free", "x=y", "other"]


def rows_of(texts):
    """Of a block whose priorities are said with these texts, and by a function with numbers."""
    said = st.sampled_from(texts)
    answers = said if len(texts) < 3 else said | st.sampled_from([*Priority, 0, 1, 2])
    row = st.tuples(st.sampled_from(SUBJECTS), said, said, st.sampled_from(CLAIMS), answers)
    return st.lists(row, max_size=40)


@examples(200)
@given(
    st.sampled_from([[None], [None, "normal"], *[[*[None] * 20, *MEANT, *NO_NAMES]] * 3]).flatmap(
        rows_of
    ),
    st.lists(st.tuples(st.sampled_from([*COVERS]), st.sampled_from([*MEANT])), max_size=3),
    st.sampled_from([None, "P", "Q"]),
    st.sampled_from([None, "t", "u"]),
    st.booleans(),
    st.booleans(),
)
def test_a2_to_a7_the_first_opinion_decides(rows, filters, header, claim, has_column, may_ask):
    """A3 to A7: filter, column, function, header, claim; what is no name is counted (A2)."""
    subjects, column, headers, claims, answers = (
        map(list, zip(*rows, strict=True)) if rows else ([] for _ in range(5))
    )
    block = Block(subjects, column if has_column else None, {"P": headers}, {"t": claims})
    asked: list[int] = []

    def decide(publish: Publish) -> object:
        asked.append(int(publish.headers["Row"]))
        return answers[asked[-1]]

    rules = priorities_of(
        subjects=subject_rules(", ".join(map("=".join, filters))) if filters else (),
        header=header,
        claim=claim,
        claim_values=claim_values("acme=critical, free=noncritical, x=y=critical"),
        resolver=decide if may_ask else None,
    )
    (found, unrecognised), model = rules.of(block), Model(rules, block, answers)

    assert unrecognised == model.unrecognised
    assert asked == model.asked
    if set(model.each) <= {NORMAL}:
        assert found is None
    else:
        assert found.to_pylist() == model.each


@pytest.mark.parametrize("said", [3, -1, True, 1.0, b"critical"])
def test_a6_what_is_no_priority_is_an_error(said):
    """A6: a number of no priority, and what is no number, fail the task."""
    with pytest.raises(ValueError, match="priorityResolver returned"):
        priorities_of(resolver=lambda publish: said).of(Block(["a"]))


def test_a6_a_function_is_imported_where_the_rows_are():
    """A6: by its module and name; one that is not there is named."""
    found = parse_sink({"priorityResolver": f"{__name__}:urgent_of_all"}).priorities
    urgent, _ = pickle.loads(pickle.dumps(found)).of(Block(["a"]))
    assert urgent.to_pylist() == [CRITICAL]

    for name in ("no_module_of_ours:urgent", f"{__name__}:no_function"):
        lacking = parse_sink({"priorityResolver": name}).priorities
        with pytest.raises(OptionError, match=r"priorityResolver.*executors must have it"):
            lacking.of(Block(["a"]))


def urgent_of_all(row):
    """A function of the user's."""
    return "critical"


def test_a6_what_a_function_raises_fails_the_task():
    """A6: never silently normal."""

    def decide(publish):
        raise KeyError("tenant")

    with pytest.raises(KeyError, match="tenant"):
        priorities_of(resolver=decide).of(Block(["a"]))


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
    ],
)
def test_mistakes_in_options(parse, text, expected):
    """In an option, unlike in a row, what is no name of a priority is an error."""
    with pytest.raises(ValueError, match=expected):
        parse(text)

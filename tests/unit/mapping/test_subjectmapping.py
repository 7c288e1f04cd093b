"""
Mappings: which rule takes a subject, who decides where it goes, and how that is explained.

What is expected was measured on nats-server 2.15.1. That rows go where they go there, and with the
same shares, is held against a running one (`live/test_mapping_server.py`).
"""

import json
import pickle
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.mapping.subjectmapping import Share, SubjectMapping, explain_mapping

from ...kits.encoder import map_all, map_one
from ...kits.seeds import examples


def mapping(rules):
    return SubjectMapping.parse(json.dumps(rules))


def to(destination, weight, **more):
    return {"destination": destination, "weight": weight, **more}


# ── which rule ───────────────────────────────────────────────────────────────────────────────

OVERLAPPING = {
    ">": "rest.>",
    "a.>": "a-rest.>",
    "a.*": "star",
    "a.*.c": "star-c",
    "*.b.c": "any-b-c",
    "a.b": "literal",
}


@pytest.mark.parametrize("rows", [pytest.param(1, id="one-row"), pytest.param(300, id="many-rows")])
@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        pytest.param("a.b", "literal", id="literal-before-all"),
        pytest.param("a.x", "star", id="star-before-rest"),
        pytest.param("a.b.c", "star-c", id="leftmost-difference-decides"),
        pytest.param("a.x.d", "a-rest.x.d", id="longer-prefix-first"),
        pytest.param("x.b.c", "any-b-c", id="second-choice"),
        pytest.param("x", "rest.x", id="rest-takes-what-is-left"),
    ],
)
@examples(10)
@given(st.permutations([*OVERLAPPING.items()]))
def test_precedence(subject, expected, rows, rules):
    """Of several matching rules the most specific applies, in whichever order they are written."""
    assert map_all(mapping(dict(rules)), [subject] * rows) == [expected] * rows


def test_one_pass():
    """A mapped subject is not mapped again."""
    assert map_all(mapping({"a": "b", "b": "a"}), ["a", "b"]) == ["b", "a"]


def test_no_rules():
    """An empty object is a mapping that changes nothing."""
    assert map_all(mapping({}), ["a.b", "c"]) == ["a.b", "c"]
    assert not mapping({}).needs_identity


@pytest.mark.parametrize("subject", ["", "a.", ".x", "a..x"])
def test_empty_tokens_match_no_wildcard(subject):
    """What is no subject is left alone, not even taken by the widest rule."""
    rules = mapping({">": "x.>", "a.*": "y", "*.x": "z", "a.*.x": "w"})

    assert map_one(rules, subject) == subject
    assert map_all(rules, [subject, "b.c"] * 100) == [subject, "x.b.c"] * 100


def test_mapping_is_a_value():
    """Mappings with the same rules are equal, have the same text, and survive pickling."""
    a = mapping({"a.*": "b.$1", "c": [to("d", 98), to("e", "1%")]})
    b = mapping({"c": [to("d", "98"), to("e", 1)], "a.*": "b.$1"})
    map_all(a, ["a.x"])
    thawed = pickle.loads(pickle.dumps(a))

    assert a == b == thawed
    assert a.text == b.text
    assert hash(a) == hash(b)
    assert map_one(thawed, "a.x") == "b.x"
    assert repr(a) == f"<SubjectMapping {a.text}>"


# ── weights ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "needed"),
    [
        pytest.param("b", False, id="one"),
        pytest.param("b.{{random(2)}}", True, id="random"),
        pytest.param([to("b", 50), to("c", 50)], True, id="weights"),
        pytest.param([to("b", 50)], True, id="remainder"),
        pytest.param([to("a", 50)], True, id="loss"),
        pytest.param([to("b", 100), to("c", 0)], False, id="all-to-one"),
        pytest.param([to("a", 0)], False, id="all-lost"),
    ],
)
def test_who_needs_identities(value, needed):
    """A mapping tells whether anything but the subject can ever decide."""
    assert mapping({"a": value}).needs_identity == needed
    assert mapping({"z": "y", "a": value, "b.*": "c"}).needs_identity == needed


@pytest.mark.parametrize("rows", [1, 500])
@pytest.mark.parametrize("source", ["w.*", "w.x"])
def test_a_choice_without_identities_is_an_error(source, rows):
    """A row that only its identity could send somewhere is refused."""
    rules = mapping({source: [to("x", 50), to("y", 50)]})

    with pytest.raises(ValueError, match="a rule chooses by the row"):
        map_all(rules, ["w.x"] * rows)


def test_identity_alone_decides():
    """A row is sent to the same place in whichever column, position or batch it comes."""
    rules = mapping({"a.*": [to("{{random(7)}}.x.$1", 60), to("y.$1", 20)], "b": [to("c", 50)]})
    subjects = ["a.q" if n % 3 else "b" for n in range(5000)]
    ids = [b"row-%d" % row for row in range(5000)]
    mapped = map_all(rules, subjects, ids)
    order = list(range(5000))
    random.Random(3).shuffle(order)

    for some in (order, order[:1234], order[:50], order[7:8]):
        again = map_all(rules, [subjects[row] for row in some], [ids[row] for row in some])
        assert again == [mapped[row] for row in some]


def test_draws_of_a_row_are_independent():
    """Weights and each `random` of a row come out as often together as chance has it."""
    rules = mapping({"a": [to("x.{{random(3)}}.{{random(5)}}", 50), to("y.{{random(3)}}.-", 50)]})
    found = Counter(map_all(rules, ["a"] * 60_000, [b"%d" % row for row in range(60_000)]))

    assert len(found) == 3 * 5 + 3
    for subject, count in found.items():
        expected = 2_000 if subject.startswith("x") else 10_000
        assert abs(count - expected) < 6 * expected**0.5, subject


def test_other_draws_of_a_row():
    """The same at every attempt; with weights drawn again they come to each destination."""
    rules = mapping({"a": [to("x.{{random(4)}}", 97), to("y", 2), to("a", 0)]})
    (known,) = rules.outcomes(["a"])
    for row in range(50):
        identity = b"%d" % row
        first = known.draw(identity)
        kept, all_of_them = list(known.others(identity, False)), list(known.others(identity, True))
        assert kept == list(known.others(identity, False))
        assert {each and each[0] for each in kept} == {first and first[0]}
        assert {*all_of_them, first} == {"x.0", "x.1", "x.2", "x.3", "y", None}
    (single,) = mapping({"a": [to("x", 50), to("y", 50)]}).outcomes(["a"])
    assert list(single.others(b"1", False)) == []


# ── refusals ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1, "expected a destination, or a list of {destination, weight}, got 1"),
        (None, "expected a destination, or a list of {destination, weight}, got null"),
        (True, "expected a destination, or a list of {destination, weight}, got true"),
        (["b"], "destination 1: expected {destination, weight}, got \"b\""),
        ([to("b", 10), []], "destination 2: expected {destination, weight}, got []"),
        ([{"destination": "b"}], "destination 1: weight is missing"),
        ([{"weight": 10}], "destination 1: destination is missing"),
        ({}, "destination 1: destination is missing"),
        ([to("b", 10, wieght=1)], "destination 1: unknown field 'wieght'"),
        ([to("b", 10, cluster="east")],
         "destination 1: unknown field 'cluster'; there are destination and weight; lists for one"),
        ([to("b", 10, DEST="c")], "destination 1: destination is given twice"),
        ([to("b", 10), to("b", 20)], "destination 2: destination 'b' is given twice"),
        ([to("b", 60), to("c", 41)], "destination 2: the weights add up to 101 > 100"),
        ([to("b", 101)], "destination 1: weight: expected a whole number from 0 to 100, got 101"),
        ([to("b", -1)], "destination 1: weight: expected a whole number from 0 to 100, got -1"),
        ([to("b", 50.0)], "destination 1: weight: expected a whole number from 0 to 100, got 50.0"),
        ([to("b", True)], "destination 1: weight: expected a whole number from 0 to 100, got true"),
        ([to("b", "50 %")], "destination 1: weight: expected a whole number from 0 to 100"),
        ([to("b", "50%%")], "destination 1: weight: expected a whole number from 0 to 100"),
        ([to("b", "9" * 5000)], "destination 1: weight: expected a whole number from 0 to 100"),
        ([to(5, 50)], "destination 1: destination: expected text, got 5"),
    ],
)  # fmt: skip
def test_bad_destinations(value, reason):
    """What the server refuses behind a source is refused, naming source, destination and fault."""
    with pytest.raises(OptionError) as error:
        mapping({"a": value})

    assert f"rule 'a'{', ' if reason.startswith('dest') else ': '}{reason}" in str(error.value)


def test_bad_destination_in_a_list():
    """A rule of a list is held to what any rule is."""
    with pytest.raises(OptionError, match=r"rule 'a\.\*' -> 'b\.\$2': wildcard index 2 out of"):
        mapping({"a.*": [to("b.$1", 10), to("b.$2", 10)]})


@pytest.mark.parametrize("rows", [pytest.param(1, id="one"), pytest.param(400, id="many")])
@pytest.mark.parametrize(
    ("destination", "bad", "fault"),
    [
        ("x.{{split(1,-)}}", "--a", "token 2 is empty"),
        ("{{left(1,1)}}", "*b", "token 1 is the wildcard"),
        ("{{right(1,1)}}", "é", "a character is cut in two"),
        ("{{sliceFromRight(1,3)}}.x", "日本é", "a character is cut in two"),
        ("{{splitFromRight(1,1)}}", "é", "a character is cut in two"),
    ],
)
def test_a_bad_result_is_an_error(destination, bad, fault, rows):
    """A rule never sends a row to what is no subject; the error names rule, subject and result."""
    rules = mapping({"a.*": destination})
    subjects = [f"a.good{n}" for n in range(rows - 1)]

    with pytest.raises(ValueError, match=fault) as error:
        map_all(rules, [*subjects, f"a.{bad}"])
    assert f"rule 'a.*' -> {destination!r} makes of 'a.{bad}' the invalid" in str(error.value)
    assert len(map_all(rules, [*subjects, "a.fine"])) == rows


# ── explained ────────────────────────────────────────────────────────────────────────────────


def test_explanation():
    """An explanation tells the rule and all shares."""
    rules = {
        "a.*": [to("b.{{random(3)}}.$1", 30), to("{{left(1,1)}}", 20)],
        "a.>": "z.>",
        ">": "y.>",
        "b": "c",
    }
    explained = explain_mapping(json.dumps(rules), "a.é")

    assert explained.subject == "a.é"
    assert explained.source == "a.*"
    first, second, rest = explained.shares
    assert first == Share("b.{{random(3)}}.$1", 30, "b.[0-2].é")
    assert second[:3] == ("{{left(1,1)}}", 20, None)
    assert "a character is cut in two" in str(second.fault)
    assert rest == Share("a.$1", 50, "a.é")


@pytest.mark.parametrize(
    ("rules", "subject", "source", "main"),
    [
        pytest.param({}, "a", None, [("a", 100, "a")], id="no-rule"),
        pytest.param({"a": [to("a", 0)]}, "a", "a", [("a", 0, "a"), ("lost", 100, None)],
                     id="lost"),
        pytest.param({"a.>": [to("a.>", 25)]}, "a.b", "a.>",
                     [("a.>", 25, "a.b"), ("lost", 75, None)], id="loss"),
        pytest.param({"a.$1.*": [to("b", 50)]}, "a.$1.z", "a.$1.*",
                     [("b", 50, "b"), ("a.$1.$1", 50, "a.z.z")], id="remainder-elsewhere"),
    ],
)  # fmt: skip
def test_explained_shares(rules, subject, source, main):
    """What is left to the source has a share, and so has what is lost."""
    explained = mapping(rules).explain(subject)

    assert explained.source == source
    assert explained.shares == tuple(Share(*each) for each in main)


@pytest.mark.parametrize("subject", ["a..b", "a.*", "", "a b"])
def test_only_subjects_are_explained(subject):
    """What nothing can be published on is refused."""
    with pytest.raises(ValueError, match="invalid subject"):
        mapping({">": "x.>"}).explain(subject)

"""Mapping whole columns: row by row what mapping one subject at a time gives."""

from __future__ import annotations

import json
import random
import re
import string

import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest

from pyspark_jetstream.mapping.mapper import Mapper
from pyspark_jetstream.mapping.routes import Members, Route, Router
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.subjects import matcher, specificity, subject_fault

from ...kits.mappings import map_all, map_one
from ...kits.seeds import fresh

SEEDS = fresh(__name__, 25)

TOKENS = ("a", "b", "c", "ab", "customer1", "customer22", "x-y--z", "-", "é", "日本語", "0")
DESTINATIONS = (
    "$1", "$2", "{{wildcard(1)}}", "x", "a", "b", "$0", "{{partition(3,1)}}", "{{partition(8)}}",
    "{{partition(5000,1)}}", "{{partition(1,1)}}", "{{partition(0)}}", "{{partition(-1,2)}}",
    "{{partition(10,2,1)}}", "{{left(1,1)}}", "{{left(1,3)}}", "{{right(1,2)}}", "{{left(1,0)}}",
    "{{splitFromLeft(1,2)}}", "{{splitFromRight(2,2)}}", "{{sliceFromLeft(1,2)}}",
    "{{sliceFromRight(1,3)}}", "{{split(1,-)}}", "{{split(2,)}}", "{{split(1,a)}}",
    "{{random(5)}}", "{{random(100000)}}", "{{random(1)}}",
)  # fmt: skip


def random_source(chance):
    source = [chance.choice(("*", "*", "a", "b", "customer1")) for _ in range(chance.randint(1, 4))]
    return ".".join([*source, ">"] if chance.random() < 0.3 else source)


def random_rules(chance, count):
    """Rules that are all valid."""
    rules = {}
    while len(rules) < count:
        source = random_source(chance)
        destination = [chance.choice(DESTINATIONS) for _ in range(chance.randint(1, 4))]
        if source.endswith(">"):
            destination.append(">")
        value = ".".join(destination)
        if chance.random() < 0.3:
            entries = [value, "keep.it", source if "*" not in source else "or.this"]
            if source.endswith(">"):
                entries[1:] = [f"{each}.>" for each in entries[1:] if each != source] + [source]
            shares = [chance.choice((0, 10, 30)) for _ in entries]
            value = [
                {"destination": each, "weight": share}
                for each, share in dict(zip(entries, shares, strict=False)).items()
            ]
        try:
            SubjectMapping.parse(json.dumps({source: value}))
        except ValueError:
            continue
        rules[source] = value
    return SubjectMapping.parse(json.dumps(rules))


def random_subjects(chance, count, same_length):
    lengths = [chance.randint(1, 4)] if same_length else [1, 2, 3, 3, 4, 5]

    def token():
        if chance.random() < 0.3:
            return "customer" + "".join(chance.choices(string.digits, k=chance.choice((1, 2, 40))))
        return chance.choice(TOKENS)

    subjects = [".".join(token() for _ in range(chance.choice(lengths))) for _ in range(count)]
    if chance.random() < 0.2:
        subjects = ["a..b", ".a", "", *subjects][:count]
    return subjects


class OneByOne:
    """The same mapping by its definition: the most specific source first, a row at a time."""

    def __init__(self, mapping):
        routes = sorted(mapping.routes, key=lambda route: specificity(route.source))
        self.routes = [(matcher(route.source), route) for route in routes]

    def map(self, subject, identity):
        route = next((route for matches, route in self.routes if matches(subject)), None)
        if route is None:
            return subject
        choices = [choice for choice in route.main if choice.percent]
        number = xxh3_64_intdigest(identity) % 100
        for choice in choices:
            if number < choice.percent or len(choices) == 1:
                break
            number -= choice.percent
        if choice.rule is None:
            return None
        numbers = [xxh3_64_intdigest(identity, draw.seed) % draw.span for draw in choice.rule.draws]
        (mapped,) = choice.rule.apply([subject], *([str(number)] for number in numbers))
        return mapped


@pytest.mark.parametrize("seed", SEEDS, ids="seed={}".format)
def test_columns_are_mapped_as_their_rows(seed):
    """
    Whatever the rules, the subjects and the cut of the columns, each row gets its own result.
    """
    chance = random.Random(seed)
    mapping = random_rules(chance, chance.choice((1, 1, 2, 5, 30)))
    one_by_one = OneByOne(mapping)
    rows = chance.choice((1, 50, 1000))
    subjects = random_subjects(chance, rows, chance.random() < 0.5)
    if chance.random() < 0.5:
        subjects = chance.choices(subjects[: rows // 10 + 1], k=rows)
    ids = [f"id-{row}-é".encode() for row in range(rows)]
    results, good = [], []
    for subject, identity in zip(subjects, ids, strict=True):
        try:
            results.append(one_by_one.map(subject, identity))
            good.append(True)
        except ValueError:
            good.append(False)
    column, id_column = (
        pa.array(["before", *values, "after"], type).slice(1, rows)
        for values, type in ((subjects, pa.string()), (ids, pa.binary()))
    )
    if not all(good):
        with pytest.raises(ValueError, match="invalid subject"):
            mapping.map_array(column, lambda: id_column)
        column, id_column = column.filter(pa.array(good)), id_column.filter(pa.array(good))
    cut = chance.randrange(len(column) + 1)  # what comes later is known in part
    mapping.map_array(column.slice(cut), lambda: id_column.slice(cut))
    mapped = mapping.map_array(column, lambda: id_column)

    assert mapped.subjects.type == pa.string()
    mapped.subjects.validate(full=True)
    assert mapped.subjects.to_pylist() == results
    assert mapped.lost == results.count(None)
    for before, after in zip(column.to_pylist(), results, strict=True):
        assert after is None or subject_fault(before) or not subject_fault(after)


@pytest.mark.parametrize("rules", [{}, {"a": "b"}, {"a.*": "b.$1"}, {"a": []}], ids=str)
def test_no_rows(rules):
    """
    A column without rows stays one.
    """
    empty = pa.array([], pa.string())

    assert SubjectMapping.parse(json.dumps(rules)).map_array(empty) == (empty, 0)


@pytest.mark.parametrize("count", ["4096", "4097", "2147483647", "0", "1", "-1", "-2147483648"])
def test_any_number_of_partitions(count):
    """
    However many partitions there are, columns are mapped as their rows, and in little memory.
    """
    rules = {"a.*": f"x.{{{{partition({count},1)}}}}.{{{{partition({count})}}}}.y"}
    mapping = SubjectMapping.parse(json.dumps(rules))
    subjects = [f"a.{n * 7919}" for n in range(200)]

    assert map_all(mapping, subjects) == [map_one(mapping, each) for each in subjects]


def test_empty_subjects():
    """
    A column of nothing but empty subjects is left alone.
    """
    empty = [""] * 300

    rules = SubjectMapping.parse('{">": "x.>", "*": "{{partition(2)}}"}')

    assert map_all(rules, empty) == empty


def test_what_is_remembered_is_bounded():
    """
    However many distinct subjects come, a mapper remembers those of its room and one column more,
    and maps forgotten ones as before.
    """
    half = {"destination": "b.{{random(9)}}.$1", "weight": 50}
    routes = [
        Route.parse("a.*", "b.{{partition(7,1)}}.$1"),
        Route.parse(
            "b.*", [Members(half.items()), Members({"destination": "c", "weight": 50}.items())]
        ),
    ]
    mapper = Mapper(Router(routes), room=150 * 1000)
    columns = [
        pa.array([f"{'ab'[n % 2]}.{n}" for n in range(at, at + 500)])
        for at in range(0, 10_000, 500)
    ]
    mapped = [mapper.map(column, lambda column=column: column).subjects for column in columns]
    counts = [int(re.search(r"(\d+) subjects known", repr(mapper))[1])]
    for column, before in zip(columns * 2, mapped * 2, strict=True):
        assert mapper.map(column, lambda column=column: column).subjects == before
        counts.append(int(re.search(r"(\d+) subjects known", repr(mapper))[1]))

    assert 500 <= min(counts) <= max(counts) <= 2000


def test_draws_never_change():
    """
    A row is sent where every version of this package has sent it, by its identity: what an earlier
    attempt stored may be from another version.
    """
    rules = {
        "orders.*": [
            {"destination": "main.{{random(5)}}.$1", "weight": 60},
            {"destination": "new.$1", "weight": 30},
        ],
        "any": "{{random(9)}}.{{random(9)}}",
    }
    mapping = SubjectMapping.parse(json.dumps(rules))
    ids = [f"id-{n}".encode() for n in range(8)]
    drawn = {
        subject: mapping.map_array(pa.array([subject] * 8), lambda: pa.array(ids)).subjects
        for subject in ("orders.x", "any")
    }
    again = [
        [mapping.another("orders.x", each, lambda _: True, weights) for each in ids]
        for weights in (False, True)
    ]

    assert drawn["orders.x"].to_pylist() == [
        "new.x", "main.2.x", "new.x", "orders.x", "main.1.x", "main.3.x", "main.0.x", "new.x",
    ]  # fmt: skip
    assert drawn["any"].to_pylist()[:6] == ["2.1", "7.3", "1.4", "4.6", "0.8", "0.7"]
    assert again == [
        ["new.x", "main.1.x", "new.x", "orders.x", "main.3.x", "main.0.x", "main.4.x", "new.x"],
        ["main.4.x", "main.1.x", "new.x", "main.2.x", "main.3.x", "orders.x", "main.4.x", "new.x"],
    ]


def test_thousands_of_rules():
    """
    Many rules of every kind are told apart, in a column in which each takes a few rows.
    """
    rules = {f"literal.{n}": f"l{n}" for n in range(3000)}
    rules |= {f"chosen.{n}": [{"destination": f"c{n}", "weight": 50}] for n in range(50)}
    rules |= {f"w{n}.*": f"w{n % 9}.{{{{partition({n % 7 + 1},1)}}}}.$1" for n in range(2000)}
    rules |= {f"*.r{n}.>": f"r.$1.{n}.>" for n in range(2000)}
    mapping = SubjectMapping.parse(json.dumps(rules))
    chance = random.Random(5)
    subjects = [
        form.format(n=chance.randrange(3000), m=chance.randrange(4))
        for form in ("literal.{n}", "chosen.{m}", "w{n}.k{m}", "x.r{n}.y.z", "w{m}.k{n}")
        for _ in range(1500)
    ]
    chance.shuffle(subjects)
    ids = pa.array([f"{n}" for n in range(len(subjects))])
    one_by_one = OneByOne(mapping)
    # Only the routes that can match, or this alone would take minutes.
    first = {route.source: (matches, route) for matches, route in one_by_one.routes}
    expected = []
    for subject, identity in zip(subjects, ids.to_pylist(), strict=True):
        parts = subject.split(".")
        sources = (subject, f"{parts[0]}.*", f"*.{parts[1]}.>")
        one_by_one.routes = [first[source] for source in sources if source in first]
        expected.append(one_by_one.map(subject, identity.encode()))

    assert mapping.map_array(pa.array(subjects), lambda: ids).subjects.to_pylist() == expected

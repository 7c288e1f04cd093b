"""Mapping many subjects at once: row by row what mapping one at a time gives."""

import json
import random
import string

import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest

from pyspark_jetstream.mapping.hashes import fnv1a32, numbers_of
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.subjects import matcher, specificity, subject_fault

from ...kits.mappings import map_all
from ...kits.seeds import fresh

SEEDS = fresh(__name__, 25)

TOKENS = ("a", "b", "c", "ab", "customer1", "customer22", "x-y--z", "-", "é", "日本語", "0")
DESTINATIONS = (
    "$1", "$2", "{{wildcard(1)}}", "x", "a", "b", "$0", "{{partition(3,1)}}", "{{partition(8)}}",
    "{{partition(5000,1)}}", "{{partition(1,1)}}", "{{partition(0)}}", "{{partition(-1,2)}}",
    "{{partition(10,2,1)}}", "{{partition(2147483647,1)}}", "{{partition(-2147483648,1)}}",
    "{{left(1,1)}}", "{{left(1,3)}}", "{{right(1,2)}}", "{{left(1,0)}}",
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
        choices = [choice for choice in route.choices if choice.percent]
        number = xxh3_64_intdigest(identity)
        percent, number = number % 100, number // 100
        for choice in choices:
            if percent < choice.percent:
                break
            percent -= choice.percent
        if choice.rule is None:
            return None

        def draw(piece):
            nonlocal number
            number, drawn = divmod(number, piece.span)
            return str(drawn)

        return choice.rule.apply(subject, draw)


@pytest.mark.parametrize("seed", SEEDS, ids="seed={}".format)
def test_many_are_mapped_as_one(seed):
    """Each row gets its own result, and again when its subject is known."""
    chance = random.Random(seed)
    mapping = random_rules(chance, chance.choice((1, 1, 2, 5, 30)))
    one_by_one = OneByOne(mapping)
    rows = chance.choice((0, 1, 50, 1000))
    subjects = random_subjects(chance, rows, chance.random() < 0.5)
    ids = [f"id-{row}-é".encode() for row in range(rows)]
    results, faults = [], []
    for subject, identity in zip(subjects, ids, strict=True):
        try:
            results.append(one_by_one.map(subject, identity))
            faults.append(None)
        except ValueError as error:
            results.append(None)
            faults.append(str(error))
    columns = (
        pa.array(["before", *values, "after"], type).slice(1, rows)
        for values, type in ((subjects, pa.string()), (ids, pa.binary()))
    )
    column, identities = columns
    for _ in range(2):
        mapped = mapping.map_rows(column.dictionary_encode(), identities)

        assert mapped.subjects.type.value_type == pa.string()
        assert mapped.subjects.to_pylist() == results
        assert (mapped.faults or pa.nulls(rows)).to_pylist() == faults
    for before, after in zip(column.to_pylist(), results, strict=True):
        assert after is None or subject_fault(before) or not subject_fault(after)


def test_what_is_known_is_bounded():
    """However many subjects there are, some are kept, and all are mapped."""
    mapping = SubjectMapping.parse('{"a.*": "b.$1"}')
    for start in range(0, 200_000, 50_000):
        names = [f"a.{n}" for n in range(start, start + 50_000)]
        assert map_all(mapping, names) == [f"b.{n}" for n in range(start, start + 50_000)]
        assert 0 < len(mapping._known) <= 1 << 16
    many = [f"a.{n}" for n in range(1 << 17)]
    assert map_all(mapping, many)[-1] == f"b.{(1 << 17) - 1}"
    assert len(mapping._known) <= 1 << 16


@pytest.mark.parametrize("seed", SEEDS[:5], ids="seed={}".format)
def test_hashes_of_many_keys(seed):
    """Keys of any lengths are hashed as they are one by one."""
    chance = random.Random(seed)
    for longest, rows in ((1, 300), (3, 300), (20, 300), (40, 60), (300, 100), (3000, 5)):
        keys = ["é" * chance.randint(0, longest) + "x" for _ in range(rows)]
        keys += ["k" * chance.choice((0, longest)) for _ in range(rows)]
        for buckets in (1, 977, 4096, 2**31, 2**32 - 1):
            assert numbers_of(keys, buckets) == [str(fnv1a32(k.encode()) % buckets) for k in keys]
    assert numbers_of([""] * 200, 10) == [str(fnv1a32(b"") % 10)] * 200

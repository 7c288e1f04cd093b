"""Mapping many subjects at once: row by row what mapping one at a time gives."""

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from pyspark_jetstream.mapping.hashes import fnv1a32, numbers_of
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.subjects import matcher, specificity, subject_fault

from ...kits.encoder import map_all
from ...kits.seeds import examples

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


def parts(words, longest):
    return st.lists(st.sampled_from(words), min_size=1, max_size=longest)


def weighted(values):
    """Of several destinations, of which one may be the source itself."""
    shares = st.lists(st.sampled_from([0, 10, 30]), min_size=len(values), max_size=len(values))
    return shares.map(
        lambda weights: [
            {"destination": each, "weight": weight}
            for each, weight in dict(zip(values, weights, strict=True)).items()
        ]
    )


@st.composite
def rules(draw):
    """A source and its destinations, which may be none for it."""
    tail = draw(st.sampled_from(["", "", ".>"]))
    source = ".".join(draw(parts(["*", "*", "a", "b", "customer1"], 4))) + tail
    value = ".".join(draw(parts(DESTINATIONS, 4))) + tail
    other = source if "*" not in source else f"or.this{tail}"
    return source, draw(st.just(value) | weighted([value, f"keep.it{tail}", other]))


def are_sound(rule):
    try:
        return SubjectMapping.parse(json.dumps(dict([rule])))
    except ValueError:
        return False


MAPPINGS = st.lists(rules().filter(are_sound), min_size=1, max_size=30).map(
    lambda some: SubjectMapping.parse(json.dumps(dict(some)))
)
TOKEN = st.sampled_from(TOKENS) | st.sampled_from([0, 7, 99, 10**39]).map("customer{}".format)
SAME = st.integers(1, 4).flatmap(
    lambda count: st.lists(st.lists(TOKEN, min_size=count, max_size=count).map(".".join))
)
ANY = st.lists(
    st.lists(TOKEN, min_size=1, max_size=5).map(".".join) | st.sampled_from(["a..b", ".a", ""])
)


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


@examples(150)
@given(MAPPINGS, SAME | ANY, st.sampled_from([1, 1, 20]))
def test_many_are_mapped_as_one(mapping, subjects, times):
    """Each row gets its own result, and again when its subject is known."""
    one_by_one = OneByOne(mapping)
    subjects *= times
    rows = len(subjects)
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


LENGTHS = st.integers(0, 3) | st.integers(0, 40) | st.integers(0, 300) | st.just(3000)


@given(
    st.lists(st.tuples(st.sampled_from("ké"), LENGTHS), min_size=1),
    st.sampled_from([1, 200]),
    st.sampled_from([1, 977, 4096, 2**31, 2**32 - 1]),
)
def test_hashes_of_many_keys(keys, least, buckets):
    """Keys of any lengths are hashed as they are one by one, also if they are many."""
    texts = [letter * length for letter, length in keys] * -(-least // len(keys))
    assert numbers_of(texts, buckets) == [str(fnv1a32(k.encode()) % buckets) for k in texts]

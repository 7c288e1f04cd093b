"""
Subject mapping, without a server.

The expected subjects were computed by nats-server 2.15.1; `live/test_mapping_server.py` compares
with a running one.
"""

from __future__ import annotations

import json
import pickle
import random

import pytest

from pyspark_jetstream import mapping
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.mapping import SubjectMapping, find_partition, fnv1a32, partition_of


def one(source, destination):
    return SubjectMapping.parse(json.dumps({source: destination}))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", 0x811C9DC5, id="empty"),
        pytest.param(b"a", 0xE40C292C, id="a"),
        pytest.param(b"foobar", 0xBF9CF968, id="foobar"),
    ],
)
def test_fnv1a32(data, expected):
    """
    The hash gives FNV's own published values.
    """
    assert fnv1a32(data) == expected


@pytest.mark.parametrize(
    ("source", "destination", "subject", "expected"),
    [
        # The documentation's examples.
        ("foo", "bar", "foo", "bar"),
        ("bar.*.*", "baz.{{wildcard(2)}}.{{wildcard(1)}}", "bar.a.b", "baz.b.a"),
        ("bar.*.*", "baz.$2.$1", "bar.one.two", "baz.two.one"),
        *(
            (
                "neworders.*",
                "neworders.{{wildcard(1)}}.{{partition(3,1)}}",
                f"neworders.customerid{customer}",
                f"neworders.customerid{customer}.{partition}",
            )
            for customer, partition in enumerate((0, 2, 1, 2, 1, 0), 1)
        ),
        ("foo.*.*", "foo.$1.$2.{{partition(10,1,2)}}", "foo.1.a", "foo.1.a.1"),
        ("foo.*.*", "foo.$1.$2.{{partition(10,1,2)}}", "foo.1.b", "foo.1.b.0"),
        ("foo.*.*", "foo.$1.$2.{{partition(10,1,2)}}", "foo.2.b", "foo.2.b.9"),
        ("foo.*.*", "foo.$1.$2.{{partition(10,1,2)}}", "foo.2.a", "foo.2.a.2"),
        # What is hashed: tokens without separator, or the whole subject with its dots.
        ("*.*", "p.{{partition(10,1,2)}}", "foo.bar", "p.0"),
        ("*.*", "p.{{partition(10,1,2)}}", "fo.obar", "p.0"),
        ("*.*", "bar.{{partition(10)}}", "foo.bar", "bar.6"),
        ("*", "bar.{{partition(10)}}", "qux", "bar.9"),
        ("foo.bar", "baz.{{partition(10)}}", "foo.bar", "baz.6"),
        ("in.bar", "d.{{partition(10,7)}}", "in.bar", "d.3"),
        ("*.*.*", "{{partition(100,3,1)}}.$2", "a.bb.ccc", "31.bb"),
        ("*", "b.{{Partition(7,1)}}", "ключ", "b.4"),
        ("*", "bar.{{partition(1,1)}}", "foo", "bar.0"),
        ("*", "bar.{{partition(0)}}", "baz", "bar.0"),
        ("*", "bar.{{partition(-1)}}", "foo", "bar.2851307223"),
        ("in.*", "d.{{partition(-2147483649,1)}}", "in.bar", "d.1991736602"),
        ("in.*", "d.{{partition(-4294967296,1)}}", "in.bar", "d.0"),
        # The rest of the subject.
        ("foo.>", "p.{{partition(4)}}.>", "foo.a.b", "p.2.a.b"),
        ("foo.*.>", "p.{{partition(4,1)}}.>", "foo.a.b.c", "p.0.b.c"),
        ("foo.*.>", "$1.>", "foo.a.b.c", "a.b.c"),
        (">", "pre.>", "a.b", "pre.a.b"),
        ("in.>", ">", "in.x", "x"),
        # An index of 0 or below is the subject's first token.
        ("foo.*", "bar.{{wildcard(0)}}", "foo.x", "bar.foo"),
        ("foo.*", "bar.$0", "foo.x", "bar.foo"),
        ("foo.*", "bar.$-1", "foo.x", "bar.foo"),
        ("foo.>", "bar.$0.>", "foo.x", "bar.foo.x"),
        ("x.*", "bar.{{partition(10, 0)}}", "x.foo", "bar.5"),
        ("in.>", "d.{{partition(10,-3)}}.>", "in.bar", "d.6.bar"),
        # A number as Go reads it.
        ("foo.*", "bar.$+1", "foo.x", "bar.x"),
        ("foo.*", "bar.$01", "foo.x", "bar.x"),
        ("foo.*", "bar.$99999999999999999999", "foo.x", "bar.$99999999999999999999"),
        # A function is an entire token.
        ("foo.*", "bar.$x.$1", "foo.a", "bar.$x.a"),
        ("foo.*", "bar.$1a", "foo.a", "bar.$1a"),
        ("foo.*", "bar.a$1", "foo.a", "bar.a$1"),
        ("foo.*", "bar.{{wildcard(1)}}x", "foo.a", "bar.{{wildcard(1)}}x"),
        ("foo.*", "bar.x{{wildcard(1)}}", "foo.a", "bar.x{{wildcard(1)}}"),
        ("foo.*", "foo.{{partition(3.5,1)}}", "foo.x", "foo.{{partition(3.5,1)}}"),
        ("foo.*", "bar.{{}}", "foo.a", "bar.{{}}"),
        # ... whose text the server searches without anchors.
        ("foo.*", "bar.{{zz}}{{wildcard(1)}}", "foo.a", "bar.a"),
        ("foo.*", "bar.{{wildcard(1)}}x}}", "foo.a", "bar.a"),
        # Case of the camel letters and spaces inside the braces.
        ("foo.*", "bar.{{Wildcard(1)}}", "foo.a", "bar.a"),
        ("*", "b.{{ partition ( 7 , 1 ) }}", "foo", "b.2"),
        ("in.*", "d.{{partition(3,\t1)}}", "in.bar", "d.2"),
        # No match, no change.
        ("foo.*", "bar.{{wildcard(1)}}", "foo.x.y", "foo.x.y"),
        ("foo.*", "bar.{{wildcard(1)}}", "nomatch.x", "nomatch.x"),
        ("foo.*", "bar.{{wildcard(1)}}", "foo.", "foo."),
        ("foo.a*", "bar", "foo.ab", "foo.ab"),
    ],
    ids=lambda value: value.replace("\t", "\\t"),
)
def test_map(source, destination, subject, expected):
    """
    A rule maps a subject as nats-server's subject transform does.
    """
    assert one(source, destination).map(subject) == expected


@pytest.mark.parametrize(
    ("source", "destination", "reason"),
    [
        ("*", "bar.{{WILDCARD(1)}}", "unknown function in token 2 '{{WILDCARD(1)}}'"),
        ("*", "bar.{{wildCard(1)}}", "unknown function in token 2 '{{wildCard(1)}}'"),
        ("*", "bar.{{PARTITION(3,1)}}", "unknown function in token 2 '{{PARTITION(3,1)}}'"),
        ("*", "{{sPLITFROMLEFT(1,1)}}", "unknown function in token 1 '{{sPLITFROMLEFT(1,1)}}'"),
        ("*", "b.{{foo(1)}}", "unknown function in token 2 '{{foo(1)}}'"),
        ("*", "b.{{ }}", "unknown function in token 2 '{{ }}'"),
        ("foo.*", "foo.{{ wildcard5) }}", "unknown function in token 2 '{{ wildcard5) }}'"),
        ("foo.*", "bar.$2", "wildcard index 2 out of range in token 2 '$2'"),
        ("foo.*", "foo.{{wildcard(2)}}", "wildcard index 2 out of range in token 2"),
        ("foo.*", "foo.{{partition(3,2)}}", "wildcard index 2 out of range in token 2"),
        (">", "x.{{wildcard(1)}}.>", "wildcard index 1 out of range in token 2"),
        ("foo", "bla.{{wildcard(1)}}", "wildcard index out of range in token 2"),
        ("foo", "bla.$0", "wildcard index out of range in token 2"),
        ("foo.*", "foo.{{wildcard()}}", "not enough arguments in token 2"),
        ("foo.*", "foo.{{wildcard(1,2)}}", "too many arguments in token 2"),
        ("foo.*", "foo.{{wildcard(foo)}}", "invalid argument 'foo' in token 2"),
        ("foo.*", "foo.{{wildcard( )}}", "invalid argument ' ' in token 2"),
        ("foo.*", "foo.{{wildcard(1)}}{{wildcard(1)}}", "invalid argument"),
        ("foo.*", "foo.{{partition()}}", "invalid argument '' in token 2"),
        ("foo.*", "foo.{{partition(3,)}}", "invalid argument '' in token 2"),
        ("foo.*", "foo.{{partition(x,1)}}", "invalid argument 'x' in token 2"),
        ("foo.*", "foo.{{partition(1_0,1)}}", "invalid argument '1_0' in token 2"),
        ("foo.*", "foo.{{partition(5,１)}}", "invalid argument '１' in token 2"),
        ("foo.*", "foo.{{partition(2147483648)}}", "invalid argument '2147483648' in token 2"),
        ("foo.*", "foo..x", "invalid destination: token 2 is empty"),
        ("foo.*", "", "invalid destination: it is empty"),
        ("foo.*", "a b", "invalid destination: token 1 'a b' contains white space"),
        ("foo.*", "b.$ 1", "invalid destination: token 2 '$ 1' contains white space"),
        ("foo.*", "b.*", "invalid destination: token 2 is '*'"),
        ("foo.>", "b.>.c", "invalid destination: token 2 is '>'"),
        ("foo.*", "bar.$1.>", "source and destination must both end in '>', or neither"),
        ("foo.>", "bar", "source and destination must both end in '>', or neither"),
        ("", "b", "invalid source: it is empty"),
        ("a..b", "b", "invalid source: token 2 is empty"),
        ("a.>.b", "b.>", "invalid source: token 2 is '>'"),
        ("a. x", "b", "invalid source: token 2 ' x' contains white space"),
        ("a.*x", "b", "invalid source: token 2 '*x' only starts with a wildcard"),
        ("*", "{{split(1,-)}}", "function 'split' in token 1 '{{split(1,-)}}' is not supported"),
        ("*", "{{splitfromleft(1,3)}}", "function 'splitFromLeft' in token 1"),
        ("*", "{{SplitFromRight(1,3)}}", "function 'splitFromRight' in token 1"),
        ("*", "{{SliceFromLeft(1,3)}}", "function 'sliceFromLeft' in token 1"),
        ("*", "{{SliceFromRight(1,3)}}", "function 'sliceFromRight' in token 1"),
        ("*", "x.{{left(1,3)}}", "function 'left' in token 2"),
        ("*", "x.{{Right(1,3)}}", "function 'right' in token 2"),
        ("*", "x.{{random(3)}}", "function 'random' in token 2 '{{random(3)}}' is not supported"),
    ],
)
def test_bad_rule(source, destination, reason):
    """
    A rule the server refuses, or this version does not support, is refused by rule and token.
    """
    with pytest.raises(OptionError) as error:
        one(source, destination)

    assert str(error.value).startswith(
        f"option 'subjectMapping': rule {source!r} -> {destination!r}: {reason}"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("a => b", "but it is not JSON: Expecting value: line 1", id="not-json"),
        pytest.param("", "but it is not JSON", id="empty"),
        pytest.param('["a"]', "got a JSON array", id="array"),
        pytest.param("null", "got a JSON null", id="null"),
        pytest.param("true", "got a JSON boolean", id="boolean"),
        pytest.param('{"a": 1}', "rule 'a': expected a destination string, got a JSON number",
                     id="number"),
        pytest.param('{"a": [{"destination": "b", "weight": "50%"}]}',
                     "rule 'a': weighted destinations are not supported by this version yet",
                     id="weighted-list"),
        pytest.param('{"a": {"destination": "b", "weight": 50}}',
                     "rule 'a': weighted destinations are not supported by this version yet",
                     id="weighted-object"),
        pytest.param('{"a": "b", "a": "c"}', "source 'a' is given twice", id="duplicate"),
    ],
)  # fmt: skip
def test_bad_text(text, reason):
    """
    Text that is not a JSON object of destination strings is refused, saying what it is instead.
    """
    with pytest.raises(OptionError) as error:
        SubjectMapping.parse(text)

    assert reason in str(error.value)


OVERLAPPING = {
    ">": "rest.>",
    "a.>": "a-rest.>",
    "a.*": "star",
    "a.*.c": "star-c",
    "*.b.c": "any-b-c",
    "a.b": "literal",
}


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
def test_precedence(subject, expected):
    """
    Of several matching rules the most specific applies, in whichever order they are written.
    """
    chance = random.Random(7)
    for _ in range(10):
        rules = list(OVERLAPPING.items())
        chance.shuffle(rules)

        assert SubjectMapping.parse(json.dumps(dict(rules))).map(subject) == expected


def test_one_pass():
    """
    A mapped subject is not mapped again.
    """
    swap = SubjectMapping.parse('{"a": "b", "b": "a"}')

    assert swap.map("a") == "b"
    assert swap.map("b") == "a"


def test_no_rules():
    """
    An empty object is a mapping that changes nothing.
    """
    assert SubjectMapping.parse("{}").map("a.b") == "a.b"


def test_map_many_is_map_of_each():
    """
    Mapping many subjects gives each one's mapping in order, repeated or not, cached or not.
    """
    rules = one("o.*", "o.{{partition(8,1)}}.$1")
    subjects = [f"o.{i % 7}" for i in range(50)] + ["other", "other"]

    assert rules.map_many(subjects) == [rules.map(subject) for subject in subjects]
    assert rules.map_many(iter(subjects)) == [rules.map(subject) for subject in subjects]


def test_map_many_forgets_at_the_limit(monkeypatch):
    """
    The cache never holds more than its limit of distinct subjects, and results stay the same.
    """
    monkeypatch.setattr(mapping, "CACHE_LIMIT", 3)
    rules = one("o.*", "p.$1")
    mapped = []
    for i in range(10):
        mapped += rules.map_many([f"o.{i}", "o.0"])

        assert len(rules._cache) <= 3

    assert mapped == [subject for i in range(10) for subject in (f"p.{i}", "p.0")]


def test_mapping_is_a_value():
    """
    Mappings with the same rules are equal, hash alike and survive pickling.
    """
    a = SubjectMapping.parse('{"a.*": "b.$1", "c": "d"}')
    b = SubjectMapping.parse('{"c": "d", "a.*": "b.$1"}')
    a.map_many(["a.x"])
    thawed = pickle.loads(pickle.dumps(a))

    assert a == b == thawed
    assert hash(a) == hash(b)
    assert thawed.map("a.x") == "b.x"
    assert repr(a) == "<SubjectMapping c -> d, a.* -> b.$1>"
    assert repr(SubjectMapping.parse("{}")) == "<SubjectMapping without rules>"


def test_partition_of_is_the_partition_function():
    """
    The partition of a key is what a rule computes for it, as tokens or as a whole subject.
    """
    by_tokens = one("*.*", "{{partition(10,1,2)}}")
    by_subject = one("*.*", "{{partition(10)}}")
    for subject in ("foo.bar", "fo.obar", "é.ключ"):
        assert str(partition_of(subject.split("."), 10)) == by_tokens.map(subject)
        assert str(partition_of(subject, 10)) == by_subject.map(subject)


def test_surrogate_escapes_hash_as_their_bytes():
    """
    A subject that was not UTF-8, decoded with surrogate escapes, hashes as its original bytes.
    """
    raw = b"caf\xe9"

    assert partition_of(raw.decode("utf-8", "surrogateescape"), 1000) == fnv1a32(raw) % 1000


@pytest.mark.parametrize(
    ("destination", "expected"),
    [
        pytest.param(
            "flights.{{partition(4,1)}}.{{wildcard(1)}}.{{wildcard(2)}}",
            (4, "flights.{partition}.*.*"),
            id="wildcards",
        ),
        pytest.param(
            "flights.{{ Partition( 4 , 1 ) }}.$1.>", (4, "flights.{partition}.*.>"), id="rest"
        ),
        pytest.param("$1.{{partition(8)}}", (8, "*.{partition}"), id="whole-subject"),
        pytest.param("a.$x.{{partition(2,1)}}", (2, "a.$x.{partition}"), id="literal-dollar"),
        pytest.param(
            "{{left(1,2)}}.{{partition(3,1)}}.{{random(5)}}.{{right(1,1)}}",
            (3, "*.{partition}.*.*"),
            id="one-token-functions",
        ),
        pytest.param(
            "{{partition(3,1)}}.{{partition(5,2)}}", (3, "{partition}.*"), id="first-of-two"
        ),
        pytest.param(
            "a.{{partition(3,1)}}.{{split(1,-)}}.z", (3, "a.{partition}.>"), id="split-after"
        ),
        pytest.param(
            "a.{{partition(3,1)}}.{{brandNew(1)}}", (3, "a.{partition}.>"), id="unknown-after"
        ),
        pytest.param("{{sliceFromLeft(1,2)}}.{{partition(3,1)}}", None, id="slice-before"),
        pytest.param("flights.$1.>", None, id="no-partition"),
        pytest.param("flights.x{{partition(4,1)}}", None, id="not-a-whole-token"),
        pytest.param("flights.{{partition(0,1)}}", None, id="count-zero"),
        pytest.param("flights.{{partition(-4,1)}}", None, id="count-negative"),
        pytest.param("flights.{{partition(x)}}", None, id="count-not-a-number"),
    ],
)
def test_find_partition(destination, expected):
    """
    A destination tells the layout it creates, or None where the layout cannot be told.
    """
    assert find_partition(destination) == expected

"""
One mapping rule, without a server.

The expected subjects were computed by nats-server 2.15.1; `live/test_mapping_server.py` compares
with a running one.
"""

from collections import Counter

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.mapping.calls import find_partition
from pyspark_jetstream.mapping.hashes import fnv1a32, numbers_of
from pyspark_jetstream.mapping.rule import Random, Rule


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", 0x811C9DC5, id="empty"),
        pytest.param(b"a", 0xE40C292C, id="a"),
        pytest.param(b"foobar", 0xBF9CF968, id="foobar"),
    ],
)
def test_fnv1a32(data, expected):
    """The hash gives FNV's own published values."""
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
        # What is hashed: tokens without separator, or the whole subject with its dots.
        ("*.*", "p.{{partition(10,1,2)}}", "foo.bar", "p.0"),
        ("*.*", "p.{{partition(10,1,2)}}", "fo.obar", "p.0"),
        ("*.*", "bar.{{partition(10)}}", "foo.bar", "bar.6"),
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
        ("foo.*.>", "p.{{partition(4,1)}}.>", "foo.a.b.c", "p.0.b.c"),
        ("foo.*.>", "$1.>", "foo.a.b.c", "a.b.c"),
        (">", "pre.>", "a.b", "pre.a.b"),
        ("in.>", ">", "in.x", "x"),
        # An index of 0 or below is the subject's first token.
        ("foo.*", "bar.{{wildcard(0)}}", "foo.x", "bar.foo"),
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
        # Cut, by bytes; what is too short stays whole.
        ("*", "{{splitfromleft(1,3)}}", "12345", "123.45"),
        ("*", "{{splitfromleft(1,3)}}", "123", "123"),
        ("*", "{{SplitFromLeft(1,0)}}.x", "12345", "12345.x"),
        ("*", "{{splitFromLeft(1,-1)}}.x", "12345", "12345.x"),
        ("*", "{{SplitFromRight(1,3)}}", "12345", "12.345"),
        ("*", "{{SliceFromLeft(1,3)}}", "1234567890", "123.456.789.0"),
        ("*", "{{SliceFromLeft(1,3)}}", "1234", "123.4"),
        ("*", "{{slicefromleft(1,1)}}", "abc", "a.b.c"),
        ("*", "{{SliceFromRight(1,3)}}", "1234567890", "1.234.567.890"),
        ("*", "{{SliceFromRight(1,3)}}", "12", "12"),
        ("*", "{{left(1,3)}}", "12", "12"),
        ("*", "{{left(1,3)}}", "12345", "123"),
        ("*", "{{Left(1,0)}}.x", "12345", "12345.x"),
        ("*", "{{left(1,2)}}", "ключ", "к"),
        ("*", "{{right(1,3)}}", "12", "12"),
        ("*", "{{Right(1,1)}}", "1234", "4"),
        ("x.*", "{{left(0,2)}}", "x.yz", "x"),
        # Split where a text is, without the parts that are empty.
        ("*", "{{split(1,-)}}.x", "abc-def--ghi-", "abc.def.ghi.x"),
        ("*", "{{split(1,-)}}.x", "-abc", "abc.x"),
        ("*", "{{split(1,--)}}.x", "a--b-c", "a.b-c.x"),
        ("*", "x.{{split(1,ab)}}", "1ab2", "x.1.2"),
        ("*", "{{split(1,)}}", "éab", "é.a.b"),
        ("*", "{{split(1,))}}", "a)b", "a.b"),
        ("foo.*", "foo.{{split(1,.)}}", "foo.x", "foo.{{split(1,.)}}"),
    ],
    ids=lambda value: value.replace("\t", "\\t"),
)
def test_apply(source, destination, subject, expected):
    """A rule maps a subject as nats-server's subject transform does."""
    assert Rule.parse(source, destination).apply(subject) == expected


@pytest.mark.parametrize(
    ("source", "destination", "reason"),
    [
        ("*", "bar.{{wildCard(1)}}", "unknown function in token 2 '{{wildCard(1)}}'"),
        ("*", "bar.{{PARTITION(3,1)}}", "unknown function in token 2 '{{PARTITION(3,1)}}'"),
        ("*", "b.{{ }}", "unknown function in token 2 '{{ }}'"),
        ("foo.*", "foo.{{ wildcard5) }}", "unknown function in token 2 '{{ wildcard5) }}'"),
        ("foo.*", "bar.$2", "wildcard index 2 out of range in token 2 '$2'"),
        ("foo.*", "foo.{{partition(3,2)}}", "wildcard index 2 out of range in token 2"),
        (">", "x.{{wildcard(1)}}.>", "wildcard index 1 out of range in token 2"),
        ("foo", "bla.{{wildcard(1)}}", "wildcard index out of range in token 2"),
        ("foo.*", "foo.{{wildcard()}}", "not enough arguments in token 2"),
        ("foo.*", "foo.{{wildcard(1,2)}}", "too many arguments in token 2"),
        ("foo.*", "foo.{{wildcard(foo)}}", "invalid argument 'foo' in token 2"),
        ("foo.*", "foo.{{wildcard(1)}}{{wildcard(1)}}", "invalid argument"),
        ("foo.*", "foo.{{partition(3,)}}", "invalid argument '' in token 2"),
        ("foo.*", "foo.{{partition(1_0,1)}}", "invalid argument '1_0' in token 2"),
        ("foo.*", "foo.{{partition(5,１)}}", "invalid argument '１' in token 2"),
        ("foo.*", "foo.{{partition(2147483648)}}", "invalid argument '2147483648' in token 2"),
        ("foo.*", "foo..x", "invalid destination: token 2 is empty"),
        ("foo.*", "", "invalid destination: the subject is empty"),
        ("foo.*", "a b", "invalid destination: token 1 'a b' contains white space"),
        ("foo.*", "b.$ 1", "invalid destination: token 2 '$ 1' contains white space"),
        ("foo.*", "b.*", "invalid destination: token 2 is '*'"),
        ("foo.>", "b.>.c", "invalid destination: token 2 is '>'"),
        ("foo.*", "bar.$1.>", "source and destination must both end in '>', or neither"),
        ("foo.>", "bar", "source and destination must both end in '>', or neither"),
        ("a..b", "b", "invalid source: token 2 is empty"),
        ("a.>.b", "b.>", "invalid source: token 2 is '>'"),
        ("a. x", "b", "invalid source: token 2 ' x' contains white space"),
        ("a.*x", "b", "invalid source: token 2 '*x' only starts with a wildcard"),
        ("foo.*", "foo.{{random(1,2)}}", "too many arguments in token 2"),
        ("foo.*", "foo.{{random(2147483648)}}", "invalid argument '2147483648' in token 2"),
        ("foo.*", "foo.{{split(1)}}", "not enough arguments in token 2"),
        ("foo.*", "foo.{{split(x,a)}}", "invalid argument 'x' in token 2"),
        ("foo.*", "foo.{{split(1,a b)}}", "invalid argument 'a b' in token 2"),
        ("foo.*", "foo.{{split(2,a)}}", "wildcard index 2 out of range in token 2"),
        ("foo.*", "foo.{{left(1)}}", "not enough arguments in token 2"),
        ("foo.*", "foo.{{left(1,2,3)}}", "too many arguments in token 2"),
        ("foo.*", "foo.{{right(1,x)}}", "invalid argument 'x' in token 2"),
        ("foo.*", "{{sliceFromLeft(1,2147483648)}}", "invalid argument '2147483648' in token 1"),
        ("foo.*", "{{sliceFromRight(1,-2147483649)}}", "invalid argument '-2147483649' in token"),
        ("foo.*", "{{splitFromLeft(2,1)}}", "wildcard index 2 out of range in token 1"),
        ("foo", "b.{{left(1,1)}}", "wildcard index out of range in token 2"),
    ],
)
def test_bad_rule(source, destination, reason):
    """A rule the server refuses is refused, naming rule and token."""
    with pytest.raises(OptionError) as error:
        Rule.parse(source, destination)

    assert str(error.value).startswith(
        f"option 'subjectMapping': rule {source!r} -> {destination!r}: {reason}"
    )


@pytest.mark.parametrize(
    ("source", "destination", "subject", "result", "reason"),
    [
        ("*", "{{split(1,-)}}.x", "--", "'.x'", "token 1 is empty"),
        ("*", "{{split(1,-)}}.x", "--a--b--", "'.a.b.x'", "token 1 is empty"),
        ("*", "x.{{split(1,-)}}", "a-*-b", "'x.a.*.b'", "token 3 is the wildcard '*'"),
        ("*", "{{left(1,1)}}", ">x", "'>'", "token 1 is the wildcard '>'"),
        ("*.*", "$1.{{right(2,1)}}", "x.y*", "'x.*'", "token 2 is the wildcard '*'"),
        ("*", "{{left(1,3)}}", "ключ", r"b'\xd0\xba\xd0'", "a character is cut in two"),
        ("*", "{{sliceFromLeft(1,1)}}", "é", r"b'\xc3.\xa9'", "a character is cut in two"),
    ],
)
def test_no_subject(source, destination, subject, result, reason):
    """A subject of which a rule makes none is an error that names rule, subject and result."""
    with pytest.raises(ValueError) as error:
        Rule.parse(source, destination).apply(subject)

    assert str(error.value).startswith(
        f"rule {source!r} -> {destination!r} makes of {subject!r}"
        f" the invalid subject {result}: {reason}"
    )


@pytest.mark.parametrize(
    ("count", "span"),
    [("1", 1), ("10", 10), ("0", 1), ("-4", 4), ("2147483647", 2**31 - 1),
     ("-2147483648", 2**31), ("-4294967294", 2)],
)  # fmt: skip
def test_random_numbers_are_those_of_the_server(count, span):
    """There are as many numbers as the server draws from, and each `random` draws by itself."""
    rule = Rule.parse("a.*", f"b.{{{{random({count})}}}}.{{{{ Random( {count} ) }}}}")
    draws = [piece for piece in rule.pieces if isinstance(piece, Random)]

    assert [piece.span for piece in draws] == [span, span]
    assert rule.is_random
    assert rule.apply("a.x", lambda piece: f"of{piece.span}") == f"b.of{span}.of{span}"


def test_random_needs_a_row():
    """A rule that draws a number for each row cannot be applied to a subject alone."""
    with pytest.raises(ValueError, match="there is no row"):
        Rule.parse("a", "b.{{random(2)}}").apply("a")


def test_partitions_are_even():
    """Keys are spread over the partitions about evenly."""
    rule = Rule.parse("orders.*", "{{partition(8,1)}}")
    counts = Counter(rule.apply(f"orders.customer{n}") for n in range(8000))

    assert set(counts) == {str(n) for n in range(8)}
    assert max(counts.values()) < 1.2 * min(counts.values())


def test_surrogate_escapes_hash_as_their_bytes():
    """A subject that was not UTF-8 hashes as its original bytes."""
    raw = b"caf\xe9"

    assert numbers_of([raw.decode("utf-8", "surrogateescape")], 1000) == [str(fnv1a32(raw) % 1000)]


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
    """A destination tells the layout it creates, or None where the layout cannot be told."""
    assert find_partition(destination) == expected


def test_an_empty_source_takes_every_subject():
    """As in a stream's transform, where it is `>`."""
    assert Rule.parse("", "prefix.>").apply("foo.bar") == "prefix.foo.bar"

"""
The texts of mappings: JSON, and a block of nats-server's configuration.

`live/test_mapping_server.py` gives the same texts to a running server.
"""

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.mapping.text import read_mapping

from ...kits.encoder import map_one


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"a": "b", "c.*": "d.$1"}', id="json"),
        pytest.param(' \n{"a": "b",\n "c.*": "d.\\u00241"}\n', id="json-with-escapes"),
        pytest.param("mappings { a: b, c.*: 'd.$1' }", id="block"),
        pytest.param("mappings: {\n a: b\n c.*: d.$1\n}", id="block-on-lines"),
        pytest.param('maps = {"a" = "b"; \'c.*\' = "d.$1"; }', id="equal-signs"),
        pytest.param("MAPPINGS\n{\n a b\n c.* d.$1 }", id="white-space-alone"),
        pytest.param("{ a: b\n c.*: d.$1 }", id="block-without-name"),
        pytest.param("# first\n { // second\n a: b, # third\n c.*: d.$1 } # last", id="comments"),
        pytest.param('{ "a": "b", "c.*": "d.$1", }', id="json-with-a-last-comma"),
    ],
)  # fmt: skip
def test_forms(text):
    """However it is written, it is the same mapping."""
    assert read_mapping(text) == [("a", "b"), ("c.*", "d.$1")]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("b.c", "b.c"),
        ("'b c'", "b c"),
        ("'b\\t'", "b\\t"),
        ("b.$1", "b.$1"),
        ("'$1'", "$1"),
        ("é.ключ", "é.ключ"),
        ("b#c//d", "b#c//d"),
        ("b:c=d", "b:c=d"),
        ("*.>", "*.>"),
        ("5", 5),
        ("'5'", "5"),
        ("007", 7),
        ("50%", "50%"),
        ("true", True),
        ("Off", False),
        ("yes.x", "yes.x"),
        ("[]", []),
        ("[a, 'b', 3]", ["a", "b", 3]),
        ("[a\nb # c\n]", ["a", "b"]),
        ("{}", []),
    ],
)
def test_values(written, value):
    """A value has the type that the server gives it."""
    [(name, found)] = read_mapping(f"mappings {{ a: {written}\n }}")

    assert (name, found, type(found)) == ("a", value, type(found))
    assert type(found) is type(value) or value == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "it is neither; expected JSON", id="empty"),
        pytest.param("[]", "it is []", id="list"),
        pytest.param('"a"', 'it is "a"', id="text"),
        pytest.param("null", "it is null", id="null"),
        pytest.param("port: 4222\nmappings { a: b }", "it is neither", id="whole-configuration"),
        pytest.param("accounts { A { mappings { a: b } } }", "it is neither", id="account"),
        pytest.param("mappings: [ a ]", "it is neither", id="no-members"),
        pytest.param("mappings { a: b }\ninclude a.conf", "expected nothing more", id="two"),
        pytest.param("mappings { a: $b }", "before '$b }': expected a value; what is not plain",
                     id="variable"),
        pytest.param("mappings { a: b\\x63 }", "before '\\\\x63 }': expected a comma", id="escape"),
        pytest.param('mappings { a: "b\\x63" }', "expected a value", id="quoted-escape"),
        pytest.param("\nmappings {\n a: b c: d\n}",
                     "line 3, before ' c: d': expected a comma or the end of the line", id="line"),
        pytest.param("mappings { a: b", "line 1, at its end: expected a key, or '}'", id="open"),
        pytest.param("mappings { a: [b", "line 1, at its end: expected a value", id="open-list"),
        pytest.param("mappings { a: 'b }", "before \"'b }\": expected a value", id="open-quote"),
        pytest.param("mappings { a: }", "before '}': expected a value", id="no-value"),
        pytest.param("mappings { : a }", "before ': a }': expected a key", id="no-key"),
        pytest.param("mappings { a: b,, c: d }", "before ', c: d }': expected a key", id="commas"),
        pytest.param("mappings { a: 5.b }", "expected a whole number; put text", id="point"),
        pytest.param("mappings { a: -5 }", "expected a value; what is not plain", id="minus"),
        pytest.param("mappings { a: 2026-01-01 }", "expected a whole number", id="date"),
        pytest.param("mappings { a: b.{{wildcard(1)}} }", "before '} }': expected", id="braces"),
        pytest.param("{ a: b } c: d", "before 'c: d': expected nothing more", id="more"),
        pytest.param("mappings " + "{ a: " * 500, "expected a value", id="deep-blocks"),
        pytest.param("mappings { a: " + "[" * 500, "expected a value", id="deep-lists"),
    ],
)  # fmt: skip
def test_bad_text(text, reason):
    """What is no mapping is refused, saying where and why, and what is expected."""
    with pytest.raises(OptionError) as error:
        SubjectMapping.parse(text)

    assert reason in str(error.value)
    assert str(error.value).endswith("or a mappings { … } block of nats-server")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ['{"a": "b", "a": "c"}', "mappings { a: b, 'a': c }"])
def test_a_source_given_twice(text):
    """Two rules for one source are an error; the server would take one of them."""
    with pytest.raises(OptionError, match="source 'a' is given twice; keep one rule"):
        SubjectMapping.parse(text)


def test_a_source_named_like_a_block():
    """A source may have the name of a block."""
    assert map_one(SubjectMapping.parse("mappings { mappings: b }"), "mappings") == "b"

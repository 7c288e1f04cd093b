"""
The texts of mappings: JSON, and nats-server's configuration.

`live/test_mapping_server.py` gives the same texts to a running server.
"""

from __future__ import annotations

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.mapping.configuration import read_mapping
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping

from ...kits.mappings import map_one

SERVER = """
# A server with more to say than its mappings.
server_name: "north-1"
listen: 127.0.0.1:4222
max_payload: 8MB            // in bytes
write_deadline = "10s"
jetstream { store_dir: /data/js, max_mem: 1G; max_file: 10Gi }
cluster {
  name: east
  routes: [ nats-route://a:6222
            nats-route://b:6222 ]
}
authorization { user: derek, password: $2a$11$W2zko751KUvVy59mUTWmpOdWjpEm5qhcCZRd05GjI/sSOT.xtiHyG }
secret: $NOT_IN_THIS_TEXT
ports: [1, 2, 3]
tls { include ./tls.conf }
started: 2026-01-31T08:00:00Z
banner: (
mappings { not: these }
)
Mappings = {
  simple: other                     # to another subject
  "neworders.*" : "neworders.{{wildcard(1)}}.{{partition(3,1)}}"
  canary: [
      { destination: canary.v1, weight: 98% },
      { DEST = canary.v2, Weight: 2, cluster: 'east' }
  ]
  foo.loss.>: [ { destination: foo.loss.>, weight: 50% } ] ; last { dest last.v2; weight "5%" }
}
lame_duck_duration: 30s
"""  # noqa: E501


def plain(value):
    """Members as dictionaries."""
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):
            return {name: plain(each) for name, each in value}
        return [plain(each) for each in value]
    return value


def test_a_whole_configuration():
    """
    The mappings are found among everything else that a server's configuration says.
    """
    assert plain(read_mapping(SERVER)) == {
        "simple": "other",
        "neworders.*": "neworders.{{wildcard(1)}}.{{partition(3,1)}}",
        "canary": [
            {"destination": "canary.v1", "weight": "98%"},
            {"DEST": "canary.v2", "Weight": 2, "cluster": "east"},
        ],
        "foo.loss.>": [{"destination": "foo.loss.>", "weight": "50%"}],
        "last": {"dest": "last.v2", "weight": "5%"},
    }
    assert map_one(SubjectMapping.parse(SERVER), "simple") == "other"


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
        pytest.param("accounts { A { mappings { a: b, c.*: d.$1 } }, B { jetstream: on } }",
                     id="account"),
        pytest.param('{"accounts": {"A": {"mappings": {"a": "b", "c.*": "d.$1"}}}}', id="all-json"),
        pytest.param('{"port": 4222, "mappings": {"a": "b", "c.*": "d.$1"}}', id="json-server"),
        pytest.param('to: "b"\nmappings { a: $to, to: x, c.*: d.$1 }', id="variable"),
        pytest.param("mappings { a: \"\\x62\", c.*: 'd.$1' }", id="escape"),
        pytest.param("mappings { a: \\x62, c.*: \"d.$1\" }", id="escape-without-quotes"),
    ],
)  # fmt: skip
def test_forms(text):
    """
    However it is written, it is the same mapping.
    """
    rules = [each for each in read_mapping(text) if each[0] != "to"]

    assert rules == [("a", "b"), ("c.*", "d.$1")]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("b.c", "b.c"),
        ("'b c'", "b c"),
        ('"b\\t\\"\\\\\\x41"', 'b\t"\\A'),
        ("'b\\t'", "b\\t"),
        ("b.$1", "b.$1"),
        ("'$1'", "$1"),
        ("$2a$10$x", "$2a$10$x"),
        ("é.ключ", "é.ключ"),
        ("b#c//d", "b#c//d"),
        ("5", 5),
        ("-5", -5),
        ("007", 7),
        ("5k", 5000),
        ("5KB", 5120),
        ("5Mib", 5 * 1024**2),
        ("5.5", 5.5),
        ("50%", "50%"),
        ("5x", "5x"),
        ("1.2.3.4:5", "1.2.3.4:5"),
        ("true", True),
        ("Off", False),
        ("yes.x", "yes.x"),
        ("[]", []),
        ("[a, 'b', 3]", ["a", "b", 3]),
        ("[a\nb # c\n]", ["a", "b"]),
        ("(\nlong text\n)", "\nlong text\n"),
        ("{}", []),
    ],
)
def test_values(written, value):
    """
    A value has the type that the server gives it.
    """
    [(name, found)] = read_mapping(f"mappings {{ a: {written}\n }}")

    assert (name, found, type(found)) == ("a", value, type(found))
    assert type(found) is type(value) or value == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "there is no mappings { … } in it", id="empty"),
        pytest.param("[]", "it is a list", id="list"),
        pytest.param('"a"', "it is text", id="text"),
        pytest.param("null", "it is null", id="null"),
        pytest.param("port: 4222", "there is no mappings { … } in it", id="no-block"),
        pytest.param("mappings: [ a ]", "there is no mappings { … } in it", id="no-members"),
        pytest.param("mappings { a: b }\ninclude a.conf",
                     "include 'a.conf' is not followed; write here what it has", id="include"),
        pytest.param("mappings { a: b }\naccounts { include 'a.conf' }",
                     "include 'a.conf' is not followed", id="include-of-accounts"),
        pytest.param("accounts { A { mappings { a: b } }, B { INCLUDE a.conf\n} }",
                     "include 'a.conf' is not followed", id="include-of-an-account"),
        pytest.param("mappings { include 'a.conf' }",
                     "include 'a.conf' is not followed; write here what it has", id="inner"),
        pytest.param("mappings { a: $b }",
                     "the variable $b is not followed; if it is meant as text, put it in quotes",
                     id="variable"),
        pytest.param("mappings { a: [{dest: $b, weight: 5}] }", "variable $b is not", id="deep"),
        pytest.param("mappings {}\nmaps {}", "there are mappings and maps, and only one", id="two"),
        pytest.param("mappings {}\naccounts { A { maps {} } }",
                     "there are mappings and accounts.A.maps, and only one can be meant",
                     id="block-and-account"),
        pytest.param("accounts { A { maps {} }\n B { mappings {} } }",
                     "there are accounts.A.maps and accounts.B.mappings", id="two-accounts"),
        pytest.param("\nmappings {\n a: b c: d\n}",
                     "line 3, before ' c: d': expected a comma or the end of the line", id="line"),
        pytest.param("mappings { a: b", "line 1, at its end: expected '}'", id="open"),
        pytest.param("mappings { a: [b", "line 1, at its end: expected ']'", id="open-list"),
        pytest.param("mappings { a: 'b }", "this ' is not closed", id="open-quote"),
        pytest.param('mappings { a: "b }', 'this " is not closed', id="open-double-quote"),
        pytest.param("mappings { a: (b) }", "this ( is not closed", id="open-long-text"),
        pytest.param('mappings { a: "\\q" }', "there is no escape \\q", id="escape"),
        pytest.param('mappings { a: "\\xff" }', "the escapes make no UTF-8", id="not-utf-8"),
        pytest.param("mappings { a: }", "before '}': expected a value", id="no-value"),
        pytest.param("mappings { : a }", "before ': a }': expected a key", id="no-key"),
        pytest.param("mappings { a: -b }", "expected a number; put text in quotes", id="minus"),
        pytest.param("mappings { a: 5.b }", "expected a number; put text in quotes", id="point"),
        pytest.param("mappings { a: 2026-01-01 }", "expected a date as", id="date"),
        pytest.param("mappings { a: b.{{wildcard(1)}} }", "before '} }': expected", id="braces"),
        pytest.param("{ a: b } c: d", "before 'c: d': expected nothing more", id="more"),
        pytest.param("a => b", "line 1, before ' b': expected a comma", id="arrow"),
        pytest.param("mappings " + "{ a: " * 500, "too many blocks inside of", id="deep-blocks"),
        pytest.param("mappings { a: " + "[" * 500, "too many blocks inside of", id="deep-lists"),
        pytest.param('{"a": ' + "[" * 100_000, "too many blocks inside of", id="deep-json"),
    ],
)  # fmt: skip
def test_bad_text(text, reason):
    """
    What is no mapping is refused, saying where and why, and what is expected.
    """
    with pytest.raises(OptionError) as error:
        SubjectMapping.parse(text)

    assert reason in str(error.value)
    assert str(error.value).endswith("or nats-server's own mappings { … }")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ['{"a": "b", "a": "c"}', "mappings { a: b, 'a': c }"])
def test_a_source_given_twice(text):
    """
    Two rules for one source are an error; the server would take one of them.
    """
    with pytest.raises(OptionError, match="source 'a' is given twice; keep one rule"):
        SubjectMapping.parse(text)


def test_a_source_named_like_a_block():
    """
    A source may have the name of a block, as long as what stands behind it is a destination.
    """
    text = '{"mappings": {"destination": "b", "weight": 50}, "accounts": "c"}'
    assert map_one(SubjectMapping.parse("mappings { include: b }"), "include") == "b"

    assert map_one(SubjectMapping.parse(text), "accounts") == "c"
    assert SubjectMapping.parse(text).explain("mappings").main.kept == 50

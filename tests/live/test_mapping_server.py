"""
Subject mapping against a running server: random rules and subjects, and the same outcome.

Both sides read the `mappings` of a server's configuration. Seeds are new in each run and part of
the test's id.
"""

import asyncio
import json
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterable

import nats
import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.mapping.calls import find_partition
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.subjects import (
    is_literal,
    matches,
    partition_wildcard,
)
from pyspark_jetstream.testing import find_server

from ..kits.encoder import map_all
from ..kits.seeds import fresh
from ..kits.servers import DevServer

pytestmark = pytest.mark.live

ACCOUNT_RULES = 2500
MESSAGES = 6_000
"""To each source with weights."""

WORDS = ("a", "b", "ab", "eu-1", "customer7", "--x-", "a--b-c", "0", "12345678")
ODD_WORDS = (*WORDS, "ключ", "é", "x*", "$1", "{{}}", "é-ü", "-", "a-*-b", "日本語")
NUMBERS = ("0", "-1", "+1", "01", " 1 ", "", "x", "1_0", "4", "99999999999999999999")
SIZES = ("1", "2", "3", "4", "7", "0", "-2", "2147483647", " 2 ", "+3")
ODD_SIZES = ("2147483648", "-2147483649", "x", "", "1.5", "99999999999999999999")
COUNTS = ("1", "2", "3", "10", "977", "2147483647", "0", "-7", " 8 ", "-2147483648", "-4294967296")
DELIMITERS = ("-", "--", "b", "ab", "", "-,x", "- ", " -", "\t", ")", "é", "1")
ODD_TOKENS = (
    "$0", "$x", "$-1", "$", "a$1", "x{{wildcard(1)}}", "{{wildCard(1)}}", "{{PARTITION(3,1)}}",
    "{{nothing(1)}}", "{{zz}}{{wildcard(1)}}", "{{wildcard(1)}}y}}", "{{ }}", "{{}}", "a b", "",
    "*", ">", "{{wildcard(1,2)}}", "{{partition(3.5,1)}}", "{{partition(2147483648,1)}}",
    "{{left(1)}}", "{{left(1,2,3)}}", "{{split(1)}}", "{{random(1,2)}}", "{{random()}}",
    "{{random(2147483648)}}", "{{left()}}", "{{split(1,a b)}}", "{{SplitFromleft(1,1)}}",
    "{{leftx(1,1)}}", "{{split(1,.)}}",
)  # fmt: skip
CUTS = ("splitFromLeft", "splitFromRight", "sliceFromLeft", "sliceFromRight", "left", "right")


def seeds():
    """New ones, each shown in the test's id."""
    return pytest.mark.parametrize("seed", fresh(__name__), ids="seed={}".format)


def random_rule(chance, root, words):
    """A source under `root` and a destination that is usually, not always, valid."""
    source = [root] + [chance.choice(("*", "*", chance.choice(words))) for _ in range(3)]
    source = source[: chance.randint(1, 4)]
    rest = chance.random() < 0.4
    wildcards = source.count("*")
    destination = [random_token(chance, wildcards, words) for _ in range(chance.randint(1, 4))]
    if chance.random() < 0.3:
        destination[:0] = [token for token in source if token != "*"]
    if rest:
        source.append(">")
    if rest is (chance.random() < 0.95):
        destination.append(">")
    return ".".join(source), ".".join(destination)


def random_token(chance, wildcards, words):
    def number():
        if chance.random() < 0.05:
            return chance.choice(NUMBERS)
        return str(chance.randint(1, max(wildcards, 1)))

    def call(name, *arguments):
        name = name if chance.random() < 0.7 else name[0].upper() + name[1:]
        space = chance.choice(("", "", " "))
        comma = chance.choice((",", ", ", ",  "))
        return f"{{{{{space}{name}{space}({comma.join(arguments)}){space}}}}}"

    kind = chance.random()
    if kind < 0.06:
        return chance.choice(ODD_TOKENS)
    if kind < 0.25:
        return chance.choice(words)
    if kind < 0.35:
        return "$" + number()
    if kind < 0.45:
        return call("wildcard", number())
    if kind < 0.6:
        return call(
            "partition", chance.choice(COUNTS), *(number() for _ in range(chance.randint(0, 3)))
        )
    if kind < 0.8:
        size = chance.choice(ODD_SIZES if chance.random() < 0.05 else SIZES)
        return call(chance.choice(CUTS), number(), size)
    if kind < 0.95:
        return call("split", number(), chance.choice(DELIMITERS))
    return call("random", chance.choice(("1", "0", " 1 ", "-1")))


def random_subject(chance, source, root, words):
    """A subject under `root` that the source often matches."""
    tokens = [chance.choice(words) if token == "*" else token for token in source.split(".")]
    if tokens[-1] == ">":
        tokens[-1:] = [chance.choice(words) for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.2:
        tokens = [root] + [chance.choice(words) for _ in range(chance.randint(1, 5))]
    return ".".join(tokens)


def parsed(text):
    """A mapping, or None where we refuse it."""
    try:
        return SubjectMapping.parse(text)
    except OptionError:
        return None


def mapped(mapping, subject):
    """What we make of one subject: alone and among many, or None where that is an error."""
    try:
        (one,) = map_all(mapping, [subject], identities(1))
    except ValueError:
        with pytest.raises(ValueError, match="invalid subject"):
            map_all(mapping, [subject] * 100, identities(100))
        return None
    assert map_all(mapping, [subject] * 100, identities(100)) == [one] * 100
    return one


def identities(rows):
    return [b"row-%d" % row for row in range(rows)]


# ── an account's mappings ────────────────────────────────────────────────────────────────────


def refusals(text, path):
    """Line of each rule that the server refuses, with its reason."""
    path.write_text(text)
    done = subprocess.run(
        [str(find_server()), "-t", "-c", str(path)], capture_output=True, text=True, timeout=60
    )
    found = re.findall(
        rf"^(?:nats-server: )?{re.escape(str(path))}:(\d+):\d+: (.*)$", done.stderr, re.M
    )
    if done.returncode and not found:
        return {0: done.stderr}
    return {int(line): reason for line, reason in found}


def written(chance, source, value):
    """A rule in one of the ways in which the language lets one write it."""
    quote = chance.choice("'\"")
    plain = re.fullmatch(r"[\w.>*-]+", source) and chance.random() < 0.5
    key = source if plain else f"{quote}{source}{quote}"
    return f"  {key}{chance.choice((': ', ' = ', '=', ' : ', ' '))}{written_value(chance, value)}"


def written_value(chance, value):
    if isinstance(value, list):
        comma = chance.choice((",", ", "))
        return f"[{comma.join(written_value(chance, each) for each in value)} ]"
    if isinstance(value, dict):
        separator = chance.choice((": ", " = ", " ", ":"))
        names = {"destination": chance.choice(("destination", "dest", "Destination", "DEST"))}
        members = [
            f"{names.get(name, name)}{separator}{written_value(chance, each)}"
            for name, each in value.items()
        ]
        chance.shuffle(members)
        return f"{{ {chance.choice((', ', '; ')).join(members)} }}"
    if isinstance(value, int | float):
        return str(value)
    if re.fullmatch(r"[a-zA-Z][\w.>-]*|[0-9]+%", value) and chance.random() < 0.5:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return f"'{value}'" if chance.random() < 0.5 or "\\" in quoted else quoted


def random_entry(chance, root):
    """A source and what stands behind it: a destination, an entry, or a list of them."""
    source, destination = random_rule(chance, root, WORDS)
    kind = chance.random()
    if kind < 0.7:
        return source, destination
    entries = []
    for _ in range(chance.randint(0, 3)):
        weight = chance.choice((0, 1, 2, 10, 30, 40, "20%", "8%", "50", 100, "100%"))
        if chance.random() < 0.07:
            weight = chance.choice((101, -1, 12.5, "x", "", "50%%", " 50", "+5", "1e1"))
        entry = {"destination": destination, "weight": weight}
        if chance.random() < 0.04:
            entry[chance.choice(("subject", "wieght"))] = "x"
        if chance.random() < 0.04:
            del entry["weight"]
        entries.append(entry)
        if chance.random() < 0.1:
            destination = source
        elif chance.random() < 0.9:
            # Of the same form, so that it is as valid.
            destination = f"{chance.choice('xyz')}.{destination}"
    return source, entries[0] if len(entries) == 1 and chance.random() < 0.5 else entries


def block(lines):
    """A server's configuration with a rule on each line, from line 2 on."""
    return "\n".join(["mappings: {", *lines, "}", ""])


@seeds()
def test_same_outcome_as_an_accounts_mappings(seed, tmp_path):
    """Both read the same file: they refuse the same rules, and publish on the same subjects."""
    chance = random.Random(seed)
    rules = [random_entry(chance, f"in{n}") for n in range(ACCOUNT_RULES)]
    lines = [written(chance, source, value) for source, value in rules]
    refused = refusals(block(lines), tmp_path / "server.conf")
    for number, line in enumerate(lines, 2):
        # Where the server takes an empty destination for none, and fails on the first message.
        empty = rules[number - 2][1] == "" or '""' in line or "''" in line
        ours = parsed(block([line]))

        assert (ours is None) == (number in refused or empty), (
            f"line {line!r}: server said {refused.get(number)!r}, we said {ours!r}"
        )
    good = [
        (source, value, line)
        for number, ((source, value), line) in enumerate(zip(rules, lines, strict=True), 2)
        if number not in refused and parsed(block([line]))
    ]
    text = block([line for _, _, line in good])
    mapping = SubjectMapping.parse(text)
    sent = []
    for source, value, _ in good:
        root = source.split(".")[0]
        # Hashed as the empty string by the server; see the module `transforms`.
        if is_literal(source) and "artition" in str(value):
            continue
        sent += [random_subject(chance, source, root, WORDS) for _ in range(3)]
    with DevServer(text) as server:
        received = asyncio.run(published(server.url, sent))
    chosen = Counter()
    by_root = {source.split(".")[0]: (source, value) for source, value, _ in good}
    for subject, there in zip(sent, received, strict=True):
        possible, may_be_lost = outcomes(mapping, subject)

        assert there in possible or (there is None and may_be_lost), (
            f"{subject!r}: server sent it to {there!r}, we to {possible} (lost: {may_be_lost})"
        )
        chosen["lost" if there is None else "kept" if there == subject else "mapped"] += 1
        layout = in_layout(by_root[subject.split(".")[0]], subject)
        if layout is not None and there is not None:
            assert matches(partition_wildcard(layout), there), (subject, there, layout)
            chosen["in layout"] += 1
    assert len(refused) > 100
    assert len(chosen) == 4, chosen


def in_layout(rule, subject):
    """The layout that a rule of one destination makes of a subject; None if it makes none."""
    source, destination = rule
    if isinstance(destination, str) and matches(source, subject):
        found = find_partition(destination)
        return found and found[1]
    return None


def outcomes(mapping, subject):
    """The subjects it may get, and whether it may get none."""
    possible = {share.subject for share in mapping.explain(subject).shares if share.percent}
    random_zero = {each.replace("[0-0]", "0") for each in possible if each}
    # What we refuse to publish on, the server does not deliver.
    return random_zero, None in possible


async def published(url: str, subjects: Iterable[str]) -> list[str | None]:
    """On which subject the message to each of these arrives."""
    sender, receiver = await nats.connect(url), await nats.connect(url)
    there: dict[int, str] = {}
    events = {"ready": asyncio.Event(), "done": asyncio.Event()}

    async def note(message):
        if message.subject in events:
            events[message.subject].set()
        else:
            there[int(message.data)] = message.subject

    await receiver.subscribe(">", cb=note, pending_msgs_limit=-1, pending_bytes_limit=-1)
    # Its own message goes out behind the subscription; a flush of nats-py may overtake it.
    await receiver.publish("ready", b"")
    await asyncio.wait_for(events["ready"].wait(), 30)
    number = -1
    for number, subject in enumerate(subjects):
        await sender.publish(subject, b"%d" % number)
        if number % 1000 == 0:
            await sender.flush(timeout=60)
    await sender.publish("done", b"")
    await asyncio.wait_for(events["done"].wait(), 120)
    await sender.close()
    await receiver.close()
    return [there.get(each) for each in range(number + 1)]


# ── shares ───────────────────────────────────────────────────────────────────────────────────

DOCUMENTED = """
myservice.requests: [
    { destination: myservice.requests.v1, weight: 98% },
    { destination: myservice.requests.v2, weight: 2% }
]
myservice.shaped.*: [{ destination: myservice.shaped.ok.$1, weight: 80% }, { destination: myservice.shaped.fail.$1, weight: 20% }]
foo.loss.>: [ { destination: foo.loss.>, weight: 50% } ]
myservice.most: [{ destination: myservice.most.v3, weight: 90% }, { destination: myservice.most.v3.fail, weight: 8% }]
"""  # noqa: E501
"""The examples of the NATS documentation, each with a source of its own."""

OTHERS = """
left.over.*: [{destination: x.$1, weight: 30}, {destination: y.$1, weight: "20"}]
nothing.*: [{destination: x.$1, weight: 0}]
empty.*: []
all.lost: [{destination: all.lost, weight: 0%}]
most.lost: [{destination: most.lost, weight: 30%}]
entry: {dest: entry.v2, weight: 100%}
'one.$1.*': [{destination: q, weight: 50}]
drawn.*: "drawn.{{random(4)}}"
negative.*: "drawn.{{random(-4)}}"
some.lost: [{destination: v3, weight: 90%}, {destination: v4, weight: 8%}, {destination: some.lost, weight: 0}]
itself: [{destination: itself, weight: 100}]
other.words.*: [{destination: other.words.$1, weight: 30}]
rest.*.>: [{destination: part.$1.>, weight: 25}]
mixed: [{destination: "half.{{random(2)}}", weight: 50}, {destination: whole, weight: 50}]
twice: "two.{{random(2)}}.{{random(2)}}"
"""  # noqa: E501

TRIED = {
    "myservice.requests": {"myservice.requests.v1": 98, "myservice.requests.v2": 2},
    "myservice.shaped.q": {"myservice.shaped.ok.q": 80, "myservice.shaped.fail.q": 20},
    "foo.loss.a": {"foo.loss.a": 50, None: 50},
    # The documentation says that 2 % are lost.
    "myservice.most": {"myservice.most.v3": 90, "myservice.most.v3.fail": 8, "myservice.most": 2},
    "left.over.a": {"x.a": 30, "y.a": 20, "left.over.a": 50},
    "nothing.a": {"nothing.a": 100},
    "empty.a": {"empty.a": 100},
    "all.lost": {None: 100},
    "most.lost": {"most.lost": 30, None: 70},
    "entry": {"entry.v2": 100},
    "one.$1.z": {"q": 50, "one.z.z": 50},
    "drawn.x": {f"drawn.{n}": 25 for n in range(4)},
    "negative.x": {f"drawn.{n}": 25 for n in range(4)},
    "some.lost": {"v3": 90, "v4": 8, None: 2},
    "itself": {"itself": 100},
    "other.words.x": {"other.words.x": 100},
    "rest.x.y": {"part.x.y": 25, "rest.x.y": 75},
    "mixed": {"half.0": 25, "half.1": 25, "whole": 50},
    "twice": {f"two.{n}.{m}": 25 for n in range(2) for m in range(2)},
}
"""What each subject becomes, in per cent; None: lost."""


def test_same_shares_as_the_server():
    """With the same configuration, the server and we send the same shares to the same subjects."""
    text = f"mappings {{ {DOCUMENTED} {OTHERS} }}"
    sent = [subject for subject in TRIED for _ in range(MESSAGES)]
    with DevServer(text) as server:
        there = asyncio.run(published(server.url, sent))
    ours = map_all(SubjectMapping.parse(text), sent, identities(len(sent)))
    theirs_by_subject = Counter(zip(sent, there, strict=True))
    ours_by_subject = Counter(zip(sent, ours, strict=True))

    for subject, shares in TRIED.items():
        for counts in (theirs_by_subject, ours_by_subject):
            found = {on: n for (each, on), n in counts.items() if each == subject}
            assert found.keys() == shares.keys(), subject
            for on, percent in shares.items():
                share = percent / 100
                # Six standard deviations: by chance once in 5e8 comparisons.
                assert (
                    abs(found[on] - MESSAGES * share) <= 6 * (MESSAGES * share * (1 - share)) ** 0.5
                ), (subject, on, found)


# ── the language ─────────────────────────────────────────────────────────────────────────────

TEXTS = [
    "mappings { a: b }",
    "mappings: { a: b }",
    "mappings = { a = b }",
    "maps { a b }",
    "MAPPINGS { a: b }",
    "mappings\n{\n a: b\n c: d }",
    "mappings { a: b, c: d }",
    "mappings { a: b; c: d; }",
    "mappings { a: b c: d }",
    "mappings { a: b,\n\n # comment, : {\n // another\n c: d # more\n e: f // more\n}",
    "mappings { 'a': 'b', \"c\": \"d\" }",
    "mappings { a: \"b.\\x63\\t\" }",
    "mappings { a: \"b\\q\" }",
    "mappings { a: b\\x63 }",
    "mappings { a: 'b\\q' }",
    "mappings { 'a' : \"b }",
    "mappings { a: b",
    "mappings { a: }",
    "mappings { a: , }",
    "mappings { : a }",
    "mappings { a.*: $1 }",
    "mappings { a.*: '$1' }",
    "mappings { x: 'b', a: $x }",
    "x: 'b'\nmappings { a: $x }",
    "mappings { a: $PYSPARK_JETSTREAM_NOWHERE }",
    "mappings { a: 5 }",
    "mappings { a: 5.5 }",
    "mappings { a: 5x }",
    "mappings { a: 5k }",
    "mappings { a: 1.2.3 }",
    "mappings { a: 1.x }",
    "mappings { a: 12-3 }",
    "mappings { a: -5 }",
    "mappings { a: -x }",
    "mappings { a: .x }",
    "mappings { a: 2026-01-31T08:00:00Z }",
    "mappings { a: true }",
    "mappings { a: Off }",
    "mappings { a: truex }",
    "mappings { a: [ {dest: b, weight: 50%}\n {dest: c, weight: 50} ] }",
    "mappings { a: [ {dest: b, weight: 50%} {dest: c, weight: 50} ] }",
    "mappings { a: [ {dest: b, weight: 50%}, {dest: c, weight: 50}, ] }",
    "mappings { a: [ {dest: b, weight: 50%},, {dest: c, weight: 50} ] }",
    "mappings { a: [ {dest: b, weight: 50%\n} # x\n, // y\n {dest: c\n weight: 50} ] }",
    "mappings { a: [ {dest: b, weight: 50.0} ] }",
    "mappings { a: [ {dest: b, weight: true} ] }",
    "mappings { a: [ {dest: b, weight: -1} ] }",
    "mappings { a: [ {dest: b, weight: 101%} ] }",
    "mappings { a: [ {dest: b, weight: '50 %'} ] }",
    "mappings { a: [ {dest: b, weight: 50, cluster: 5} ] }",
    "mappings { a: [ {dest: 5, weight: 50} ] }",
    "mappings { a: [ {dest: b, weight: 50}, {dest: b, weight: 50} ] }",
    "mappings { a: [ {dest: b, weight: 50}, {dest: b, weight: 50, cluster: x} ] }",
    "mappings { a: [ {dest: b, weight: 60}, {dest: c, weight: 50} ] }",
    "mappings { a: [ {dest: b, weight: 60}, {dest: c, weight: 50, cluster: x} ] }",
    "mappings { a: [ {dest: b, weight: 60}, c ] }",
    "mappings { a: [ b ] }",
    "mappings { a: {dest: b, weight: 60} }",
    "mappings { a: {dest: b} }",
    "mappings { a: {} }",
    "mappings { a: [] }",
    "mappings { a: (\nb\n)\n }",
    "mappings { a..b: c }",
    "mappings { a.>.b: c }",
    "mappings { 'a b': c }",
    "mappings { a: 'b c' }",
    "mappings { a#b: c//d }",
    "mappings { }",
    "mappings {}",
    "port: 4333\nhttp: 127.0.0.1:8333\nmappings { a: b }\nmax_payload: 8MB\nlogtime: false",
    "accounts { A { mappings { a: b }, users: [ {user: a, password: $2a$10$abc} ] } }",
    "accounts: { A: { users: [{nkey: x}]\n mappings: { a.*: \"b.$2\" } } }",
    "{ \"port\": 4333, \"mappings\": { \"a\": \"b\" } }",
    "{ port: 4333, mappings: { a: b } }",
    "mappings { a: b } port: 4333",
    "mappings { a: b }, port: 4333",
    "mappings { a: b }; port: 4333",
    "mappings [ a ]",
]  # fmt: skip


NOT_OURS = {
    "mappings { a: b\\x63 }",
    "mappings { x: 'b', a: $x }",
    "x: 'b'\nmappings { a: $x }",
    "mappings { a: 5x }",
    "mappings { a: 1.2.3 }",
    "mappings { a: [ {dest: b, weight: 60}, {dest: c, weight: 50, cluster: x} ] }",
    "port: 4333\nhttp: 127.0.0.1:8333\nmappings { a: b }\nmax_payload: 8MB\nlogtime: false",
    "accounts { A { mappings { a: b }, users: [ {user: a, password: $2a$10$abc} ] } }",
    '{ "port": 4333, "mappings": { "a": "b" } }',
    "{ port: 4333, mappings: { a: b } }",
    "mappings { a: b }, port: 4333",
    "mappings { a: b }; port: 4333",
}
"""Of these the ones that the server takes and we do not."""


@pytest.mark.parametrize("text", TEXTS)
def test_same_language(text, tmp_path):
    """What we take the server takes, too, and what it takes we do, but for a few forms."""
    refused = refusals(text, tmp_path / "server.conf")
    ours = parsed(text)

    assert ours is None or not refused, (refused, ours)
    assert (ours is None) == (bool(refused) or text in NOT_OURS), (refused, ours)

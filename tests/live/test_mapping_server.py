"""
Subject mapping against a running server: random rules and subjects, and the same outcome.

A stream's `subject_transform` is the reference. The seed is new in each run and part of the
test's id.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from uuid import uuid4

import nats
import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.mapping import SubjectMapping, find_partition
from pyspark_jetstream.subjects import matches, partition_wildcard

pytestmark = pytest.mark.live

RULES = 150
SUBJECTS_PER_RULE = 12
WORDS = ("a", "b", "ab", "eu-1", "customer7", "ключ", "é", "x*", "$1", "{{}}", "0")
ODD_NUMBERS = ("0", "-1", "+1", "01", " 1 ", "", "x", "1_0", "4", "99999999999999999999")
ODD_TOKENS = (
    "$0", "$x", "$-1", "$", "a$1", "x{{wildcard(1)}}", "{{wildCard(1)}}", "{{PARTITION(3,1)}}",
    "{{nothing(1)}}", "{{zz}}{{wildcard(1)}}", "{{wildcard(1)}}y}}", "{{ }}", "{{}}", "a b", "",
    "*", ">", "{{wildcard(1,2)}}", "{{partition(3.5,1)}}", "{{partition(2147483648,1)}}",
)  # fmt: skip


def random_rule(chance, root):
    """A source under `root` and a destination that is usually, not always, valid."""
    source = [root] + [chance.choice(("*", "*", chance.choice(WORDS))) for _ in range(3)]
    source = source[: chance.randint(1, 4)]
    rest = chance.random() < 0.4
    wildcards = source.count("*")
    destination = [random_token(chance, wildcards) for _ in range(chance.randint(1, 4))]
    if rest:
        source.append(">")
    if rest is (chance.random() < 0.95):
        destination.append(">")
    return ".".join(source), ".".join(destination)


def random_token(chance, wildcards):
    def number():
        if chance.random() < 0.06:
            return chance.choice(ODD_NUMBERS)
        return str(chance.randint(1, max(wildcards, 1)))

    kind = chance.random()
    if kind < 0.06:
        return chance.choice(ODD_TOKENS)
    if kind < 0.3:
        return chance.choice(WORDS[:7])
    if kind < 0.45:
        return "$" + number()
    if kind < 0.65:
        return chance.choice(("{{wildcard(%s)}}", "{{Wildcard (%s) }}")) % number()
    count = chance.choice(("1", "2", "3", "10", "977", "2147483647", "0", "-7", " 8 "))
    numbers = [number() for _ in range(chance.randint(0, 3))]
    comma = chance.choice((",", ", ", ",  "))
    name = chance.choice(("partition", "Partition"))
    return f"{{{{{name}({comma.join([count, *numbers])})}}}}"


def random_subject(chance, source, root):
    """A subject under `root` that the source often matches."""
    tokens = [chance.choice(WORDS) if token == "*" else token for token in source.split(".")]
    if tokens[-1] == ">":
        tokens[-1:] = [chance.choice(WORDS) for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.2:
        tokens = [root] + [chance.choice(WORDS) for _ in range(chance.randint(1, 5))]
    return ".".join(tokens)


def ours(source, destination):
    try:
        return SubjectMapping.parse(json.dumps({source: destination}))
    except OptionError as error:
        assert "not supported by this version" not in str(error)
        return None


async def compare(url, seed):
    """Counts of what was compared; raises at the first difference."""
    chance = random.Random(seed)
    name = f"MAPPING-{uuid4().hex[:8]}"
    root = f"in-{uuid4().hex[:8]}"
    counts = Counter()
    connection = await nats.connect(url)

    async def request(subject, payload=b""):
        reply = await connection.request(subject, payload, timeout=5)
        return json.loads(reply.data)

    async def api(verb, **body):
        return await request(f"$JS.API.STREAM.{verb}.{name}", json.dumps(body).encode())

    try:
        for _ in range(RULES):
            source, destination = random_rule(chance, root)
            where = f"seed={seed} rule={source!r} -> {destination!r}"
            created = await api(
                "CREATE",
                name=name,
                subjects=[root, f"{root}.>"],
                storage="memory",
                subject_transform={"src": source, "dest": destination},
            )
            rules = ours(source, destination)
            # The server takes an empty destination for no transform at all; we refuse it.
            refused = "error" in created or destination == ""

            assert refused == (rules is None), f"{where}: server said {created.get('error')}"
            counts["refused" if refused else "accepted"] += 1
            if "error" in created:
                continue
            if rules is not None:
                found = find_partition(destination)
                for _ in range(SUBJECTS_PER_RULE):
                    subject = random_subject(chance, source, root)
                    ack = await request(subject)
                    stored = (await api("MSG.GET", seq=ack["seq"]))["message"]["subject"]

                    assert rules.map(subject) == stored, f"{where}: {subject!r}"
                    counts["mapped" if matches(source, subject) else "passed"] += 1
                    if found is not None and matches(source, subject):
                        assert matches(partition_wildcard(found[1]), stored), where
                        counts["in layout"] += 1
            await api("DELETE")
    finally:
        await api("DELETE")
        await connection.close()
    return counts


@pytest.mark.parametrize("seed", [random.SystemRandom().randrange(2**32)], ids="seed={}".format)
def test_same_outcome_as_the_server(nats_server, seed):
    """
    A random rule is refused by both or by neither, and maps every subject to what is stored.
    """
    counts = asyncio.run(compare(nats_server.url, seed))

    assert min(counts[kind] for kind in ("accepted", "refused", "mapped", "passed")) > 0

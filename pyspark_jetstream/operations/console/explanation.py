"""
Shows where a mapping sends subjects: by which rule, on which subject, with which share.

    pyspark-jetstream explain-mapping '{"orders.*": "orders.{{partition(8,1)}}.$1"}' orders.42
    pyspark-jetstream explain-mapping nats-server.conf myservice.requests foo.loss.a

The mapping is JSON or a `mappings { … }` block. It may also be a file with one of these, or
with the whole configuration of a server.

Exit status 0: every subject is explained; 2: the mapping or a subject is not valid.
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark_jetstream.mapping.subjectmapping import Explanation, SubjectMapping
from pyspark_jetstream.operations.terminal import Row, say_json, show
from pyspark_jetstream.values import inline_or_file

from .program import Parser


def arguments(parser: Parser) -> None:
    """The program's arguments."""
    parser.add_argument("mapping", help="the text of a mapping, or a file")
    parser.add_argument("subjects", metavar="SUBJECT", nargs="+")
    parser.add_json()


def run(given: argparse.Namespace) -> int:
    """Exit status 0: every subject is explained."""
    try:
        mapping = SubjectMapping.parse(inline_or_file(given.mapping))
        explained = [mapping.explain(subject) for subject in given.subjects]
    except ValueError as error:
        given.parser.error(str(error))
    if given.json:
        say_json([document(each) for each in explained])
    else:
        show([row for each in explained for row in rows(each)])
    return 0


def document(explained: Explanation) -> dict[str, Any]:
    """Destinations of a message on this subject, as JSON."""
    becomes = [
        {
            "cluster": cluster,
            "destination": destination,
            "percent": percent,
            "subject": subject,
            "error": fault,
        }
        for cluster, destination, percent, subject, fault in _ways(explained)
    ]
    return {
        "subject": explained.subject,
        "rule": explained.source,
        "also_match": list(explained.competitors),
        "becomes": becomes,
    }


def rows(explained: Explanation) -> list[Row]:
    """A line for each thing that may happen to a message on this subject."""
    first = {
        "subject": explained.subject,
        "rule": explained.source or "none matches",
        "also match, in order": ", ".join(explained.competitors),
    }
    return [
        (dict.fromkeys(first, "") if at else first)
        | {
            "in cluster": cluster,
            "destination": destination,
            "share": f"{percent} %",
            "is published on": f"error: {fault}" if fault else subject,
        }
        for at, (cluster, destination, percent, subject, fault) in enumerate(_ways(explained))
    ]


def _ways(explained: Explanation) -> list[tuple[str, str, int, str | None, str | None]]:
    """Cluster, destination, per cent, subject, fault of each."""
    ways: list[tuple[str, str, int, str | None, str | None]] = []
    for cluster, shares in (("", explained.main), *explained.clusters.items()):
        ways += [
            (cluster, share.destination, share.percent, share.subject, share.fault)
            for share in shares.destinations
        ]
        if shares.kept:
            ways.append((cluster, "stays", shares.kept, explained.subject, None))
        if shares.lost:
            ways.append((cluster, "lost", shares.lost, None, None))
    return ways

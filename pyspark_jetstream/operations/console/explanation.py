"""
Shows where a mapping sends subjects: by which rule, on which subject, with which share.

    pyspark-jetstream explain-mapping '{"orders.*": "orders.{{partition(8,1)}}.$1"}' orders.42
    pyspark-jetstream explain-mapping mappings.conf myservice.requests foo.loss.a

The mapping is JSON or a `mappings { … }` block. It may also be a file with one of these.

Exit status 0: every subject is explained; 2: the mapping or a subject is not valid.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from pyspark_jetstream.mapping.subjectmapping import Explanation, SubjectMapping
from pyspark_jetstream.operations.terminal import Columns, Row, say_json, show
from pyspark_jetstream.values import inline_or_file

from .program import Parser

_WAY: Final = Columns(
    "destination share=percent is_published_on=subject",
    {"percent": lambda percent: f"{percent} %"},
)


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
    return {
        "subject": explained.subject,
        "rule": explained.source,
        "also_match": list(explained.competitors),
        "becomes": list(_ways(explained)),
    }


def rows(explained: Explanation) -> list[Row]:
    """A line for each thing that may happen to a message on this subject."""
    first = {
        "subject": explained.subject,
        "rule": explained.source or "none matches",
        "also match, in order": ", ".join(explained.competitors),
    }
    lines: list[Row] = []
    for way in _ways(explained):
        fault = {"is published on": f"error: {way['error']}"} if way["error"] else {}
        lines.append((dict.fromkeys(first, "") if lines else first) | _WAY.row(way) | fault)
    return lines


def _ways(explained: Explanation) -> Iterator[dict[str, Any]]:
    names, shares = ("destination", "percent", "subject", "error"), explained.shares
    ways: list[tuple[str, int, str | None, str | None]] = [*shares.destinations]
    if shares.kept:
        ways.append(("stays", shares.kept, explained.subject, None))
    if shares.lost:
        ways.append(("lost", shares.lost, None, None))
    yield from (dict(zip(names, way, strict=True)) for way in ways)

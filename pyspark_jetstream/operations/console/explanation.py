"""
Shows where a mapping sends subjects: by which rule, on which subject, with which share.

    pyspark-jetstream explain-mapping '{"orders.*": "orders.{{partition(8,1)}}.$1"}' orders.42
    pyspark-jetstream explain-mapping nats-server.conf myservice.requests foo.loss.a
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from pyspark_jetstream.mapping.subjectmapping import Explanation, SubjectMapping
from pyspark_jetstream.operations.terminal import complain, show
from pyspark_jetstream.values import inline_or_file

from .connecting import described

__all__ = ["main"]

COMMAND: Final = "pyspark-jetstream explain-mapping"

_COLUMNS: Final = (
    "subject", "rule", "also match, in order", "in cluster", "destination", "share",
    "is published on",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None, program: str = COMMAND) -> int:
    """Exit status 0: every subject is explained; 2: the mapping or a subject is not valid."""
    verbatim = argparse.RawTextHelpFormatter
    parser = described(__doc__, COMMAND, program, formatter_class=verbatim)
    add = parser.add_argument
    add(
        "mapping", help="JSON, a mappings { … } block, or a file of one of them or a whole server's"
    )
    add("subjects", metavar="subject", nargs="+")
    given = parser.parse_args(arguments)
    try:
        mapping = SubjectMapping.parse(inline_or_file(given.mapping))
        explained = [mapping.explain(subject) for subject in given.subjects]
    except ValueError as error:
        complain(error)
        return 2
    show(_COLUMNS, list(map(rows, explained)), {"share"})
    return 0


def rows(explained: Explanation) -> list[tuple[str, ...]]:
    """A line for each thing that may happen to a message on this subject."""
    rule = explained.source or "none matches"
    lines: list[tuple[str, ...]] = []
    for cluster, shares in (("", explained.main), *explained.clusters.items()):
        for share in shares.destinations:
            becomes = share.subject or f"error: {share.fault}"
            lines.append((cluster, share.destination, f"{share.percent} %", becomes))
        if shares.kept:
            lines.append((cluster, "stays", f"{shares.kept} %", explained.subject))
        if shares.lost:
            lines.append((cluster, "lost", f"{shares.lost} %", ""))
    first = (explained.subject, rule, ", ".join(explained.competitors))
    return [((first if not n else ("", "", "")) + line) for n, line in enumerate(lines)]

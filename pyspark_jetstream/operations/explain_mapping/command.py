"""Where a mapping sends subjects: by which rule, on which subject, with which share."""

from __future__ import annotations

from typing import Any, Final

import click

from ...mapping.subjectmapping import SubjectMapping
from ...values import inline_or_file
from ..screen import plain, show, show_json, table

_WAY: Final = ("destination", "percent", "published_on", "error")
"""What is shown of a share."""


@click.command("explain-mapping")
@click.argument("mapping")
@click.argument("subjects", nargs=-1, required=True, metavar="SUBJECT...")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def explain_mapping(mapping: str, subjects: tuple[str, ...], as_json: bool) -> None:
    """
    Shows where a mapping sends subjects.

    MAPPING is JSON or a block `mappings { … }`, or a file with one of these.

    \b
    pyspark-jetstream explain-mapping '{"a.*": "b.{{partition(8,1)}}.$1"}' a.42
    """
    try:
        rules = SubjectMapping.parse(inline_or_file(mapping))
        explained = [rules.explain(subject) for subject in subjects]
    except ValueError as error:
        raise click.UsageError(plain(error)) from None
    rows: list[dict[str, Any]] = [
        {"subject": of.subject, "rule": of.source} | dict(zip(_WAY, share, strict=True))
        for of in explained
        for share in of.shares
    ]
    show_json(rows) if as_json else show(table(rows))

"""
The tables of docs/reference/options.md, made of the table of options in the code and of
docs/reference/options.toml, which has their examples and what their words mean:
options that people set, and those that are for when a symptom asks for them. Written by
`python -m tests.tools.optiontables`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from pyspark_jetstream.client.options import CONNECTION_OPTIONS, METRICS_OPTIONS
from pyspark_jetstream.fetch.options import READ_OPTIONS
from pyspark_jetstream.option import Option
from pyspark_jetstream.publish.options import SINK_OPTIONS
from pyspark_jetstream.read.options import BATCH_OPTIONS
from pyspark_jetstream.readstream.options import STREAM_OPTIONS

from ..kits.places import ROOT

PAGE = ROOT / "docs" / "reference" / "options.md"
NOTES = ROOT / "docs" / "reference" / "options.toml"
SAID: dict[str, Any] = tomllib.loads(NOTES.read_text())

TABLES = {
    "Connections": CONNECTION_OPTIONS,
    "Reads": READ_OPTIONS,
    "Streaming reads": STREAM_OPTIONS,
    "Batch reads": BATCH_OPTIONS,
    "Writes": SINK_OPTIONS,
    "Metrics of streaming reads and writes": METRICS_OPTIONS,
}

COMMON = frozenset(
    "servers credentialsFile user password tlsCaFile"
    " stream subject partitions includeHeaders failOnDataLoss startingOffsets startingTimestamp"
    " endingOffsets consumer maxRecordsPerTrigger multiLast bucket metricsSubject"
    " exactlyOnce publishTimeout createStream streamSubjects streamConfig"
    " subjectMapping".split()
)
"""Names of the options that people set; the others wait for a symptom."""


TYPES = {
    parser: kind
    for kind, parsers in {
        "text": "text strip",
        "text, secret": "secret",
        "path": "secret_file existing_file",
        "true or false": "boolean",
        "number from 0": "count",
        "number from 1": "positive _queue_size",
        "number from 1, or `auto`": "partition_count",
        "0 to 9": "_priority",
        "duration": "duration",
        "size": "size",
        "time": "moment at_moment",
        "offsets": "offsets",
        "URLs": "servers",
        "name": "domain stream_name bucket_name consumer_name priority_group",
        "name with `*`": "stream_pattern",
        "subject": "api_prefix inbox_prefix publish_subject dead_letter_subject",
        "subject or none": "_throttle_subject",
        "filter": "partition_subject one_filter",
        "filters": "filters whole_filters disjoint_filters stream_subjects",
        "name=value": "header_value",
        "JSON or path": "_mapping _stream_config",
        "module:function": "_resolver",
        "filter=priority list": "subject_rules",
        "value=priority list": "claim_values",
        "list of words": "_shed",
    }.items()
    for parser in parsers.split()
}
"""What each parser takes; docs/reference/options.md says how each is written."""


def words(option: Option) -> list[str]:
    """The words of an option that takes one of a few; none of another."""
    if option.parse.__name__ != "parse":
        return []
    try:
        option.parse("?")
    except ValueError as error:
        return str(error).removeprefix("expected ").removesuffix(", got '?'").split(" or ")
    raise AssertionError(f"{option.name}: takes '?'")


def examples(title: str, option: Option) -> list[str]:
    """What may be given: the example, or the words that have a line."""
    said = _said(title, option)
    if isinstance(said, str):
        return [said]
    return [said[word] if word == "example" else word for word in said]


def _said(title: str, option: Option) -> Any:
    """The example, or a table of words; of an option that is on or off, the other of the two."""
    said = SAID[title].get(option.name)
    if said is None and option.parse.__name__ == "boolean":
        return "false" if option.default == "true" else "true"
    assert said is not None, f"{NOTES.name}: [{title}] has no {option.name}"
    return said


def written(page: str) -> str:
    """The page with its tables as they should be now; what stands before the first one stays."""
    head = page.partition("\n## The options that people set\n")[0]
    tiers = [
        [(title, [o for o in options if (o.name in COMMON) is common]) for title, options in _ALL]
        for common in (True, False)
    ]
    common, others = ([group for group in tier if group[1]] for tier in tiers)
    return (
        head
        + f"\n## The options that people set\n\n{_HEAD}"
        + "".join(f"| **{title}** | | |\n{_rows(title, rows)}" for title, rows in common)
        + "\n## When a symptom asks for it\n"
        + "".join(f"\n### {title}\n\n{_HEAD}{_rows(title, rows)}" for title, rows in others)
    )


_ALL = list(TABLES.items())
_HEAD = "| option | takes (default) | |\n|---|---|---|\n"


def _rows(title: str, options: Iterable[Option]) -> str:
    return "".join(_row(title, option) for option in options)


def _row(title: str, option: Option) -> str:
    kind = "one of" if words(option) else TYPES[option.parse.__name__]
    said = _said(title, option)
    lines = said if isinstance(said, dict) else {"example": said}
    meaning = [option.doc]
    meaning += [f"`{word}`: {line}" for word, line in lines.items() if word != "example"]
    if "example" in lines and kind != TYPES["boolean"]:
        meaning.append(f"Example: {_code(lines['example'])}")
    takes = f"{kind} ({_code(option.default)})" if option.default else kind
    cells = f"`{option.name}`", takes, "<br>".join(meaning)
    return f"| {' | '.join(cells)} |\n"


def _code(text: str) -> str:
    return text and f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

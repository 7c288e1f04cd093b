"""
The tables of docs/reference/options.md, made of the table of options in the code: those that people
set, and those that are for when a symptom asks for them. Written by
`python -m tests.kits.optiontables`.
"""

from __future__ import annotations

from pyspark_jetstream.client.options import CONNECTION_OPTIONS, METRICS_OPTIONS
from pyspark_jetstream.fetch.options import READ_OPTIONS
from pyspark_jetstream.option import Option
from pyspark_jetstream.publish.options import SINK_OPTIONS
from pyspark_jetstream.read.options import BATCH_OPTIONS
from pyspark_jetstream.readstream.options import STREAM_OPTIONS

from .places import ROOT

__all__ = ["COMMON", "PAGE", "TABLES", "written"]

PAGE = ROOT / "docs" / "reference" / "options.md"

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
    " exactlyOnce publishMode publishTimeout createStream streamSubjects streamConfig"
    " subjectMapping".split()
)
"""Names of the options that people set; the others wait for a symptom."""


def written(page: str) -> str:
    """The page with its tables as they should be now; what stands before the first one stays."""
    head = page.partition("\n## ")[0]
    common = [
        (title, [o for o in options if o.name in COMMON]) for title, options in TABLES.items()
    ]
    others = [
        (title, [o for o in options if o.name not in COMMON]) for title, options in TABLES.items()
    ]
    return (
        head
        + "\n## The options that people set\n\n| option | default | |\n|---|---|---|\n"
        + "".join(_group(title, options) for title, options in common if options)
        + "\n## When a symptom asks for it\n"
        + "".join(_table(title, options) for title, options in others if options)
    )


def _group(title: str, options: list[Option]) -> str:
    return f"| **{title}** | | |\n" + _rows(options)


def _table(title: str, options: list[Option]) -> str:
    return f"\n### {title}\n\n| option | default | |\n|---|---|---|\n{_rows(options)}"


def _rows(options: list[Option]) -> str:
    return "".join(f"| `{o.name}` | {_code(o.default)} | {o.doc} |\n" for o in options)


def _code(text: str) -> str:
    return text and f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

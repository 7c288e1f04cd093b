"""
The tables of docs/reference/options.md, made of the table of options in the code. Written by
`python -m tests.kits.optiontables`.
"""

from __future__ import annotations

from pyspark_jetstream.client.options import CONNECTION_OPTIONS
from pyspark_jetstream.fetch.options import READ_OPTIONS
from pyspark_jetstream.option import Option
from pyspark_jetstream.publish.options import SINK_OPTIONS
from pyspark_jetstream.read.options import BATCH_OPTIONS
from pyspark_jetstream.readstream.options import STREAM_OPTIONS

from .places import ROOT

__all__ = ["PAGE", "TABLES", "written"]

PAGE = ROOT / "docs" / "reference" / "options.md"

TABLES = {
    "Reads and writes": CONNECTION_OPTIONS,
    "Reads": READ_OPTIONS,
    "Streaming reads": STREAM_OPTIONS,
    "Batch reads": BATCH_OPTIONS,
    "Writes": SINK_OPTIONS,
}


def written(page: str) -> str:
    """The page with its tables as they should be now; what stands before the first one stays."""
    head = page.partition("\n## ")[0]
    return head + "".join(_table(title, options) for title, options in TABLES.items())


def _table(title: str, options: tuple[Option, ...]) -> str:
    rows = "".join(f"| `{o.name}` | {_code(o.default)} | {o.doc} |\n" for o in options)
    return f"\n## {title}\n\n| option | default | |\n|---|---|---|\n{rows}"


def _code(text: str) -> str:
    return text and f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

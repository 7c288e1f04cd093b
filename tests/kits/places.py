"""Where this checkout is."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pyspark_jetstream"

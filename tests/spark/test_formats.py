"""The function of Spark's for Avro, as the page of formats has it; it is in no Python package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..kits.places import ROOT
from ..kits.snippets import snippets

PAGE = ROOT / "docs" / "guides" / "formats.md"
BEGIN = """
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.master("local[1]").config("spark.jars", {jar!r}).getOrCreate()
"""
END = "print('read', sorted(tuple(row.order) for row in rows.collect()))"


def test_spark_reads_avro(nats_server):
    """`from_avro` makes of the page's values what the page's own function does."""
    jar = next(
        (
            each
            for cache in (".m2/repository", ".ivy2", ".ivy2.5.2")
            for each in (Path.home() / cache).rglob("*spark-avro_2.13-4*.jar")
        ),
        None,
    )
    if jar is None:
        # The jar is in no Python package, and a test fetches nothing from Maven. So CI skips this:
        # there the page's functions in Python are run, with all its other examples.
        pytest.skip("needs Spark's package spark-avro_2.13 in the cache of Maven or Ivy")
    blocks = [
        each.text for each in snippets(PAGE) if each.language == "python" and "avro" in each.text
    ]
    program = "\n".join((BEGIN.format(jar=str(jar)), *blocks, END))
    done = subprocess.run(
        [sys.executable, "-c", program.replace("nats://127.0.0.1:4222", nats_server.url)],
        capture_output=True, text=True, timeout=600, cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip

    assert "from_avro" in program
    assert done.stdout.splitlines()[-1:] == ["read [(1, 'a'), (2, 'b')]"], done.stderr

"""What a backfill into Parquet has left behind, seen without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def chunks_done(output: Path) -> int:
    """Chunks that a backfill under way has recorded."""
    return len(list(output.glob("_progress/chunk-*.json")))


def manifest_of(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "_manifest.json").read_text())
    return found


def parquet_rows(output: Path) -> list[dict[str, Any]]:
    """The rows of all Parquet files that Spark would read, by pyarrow; partitions as `at`."""
    rows = []
    for path in sorted(output.rglob("*.parquet")):
        inside = path.relative_to(output)
        if not any(part.startswith("_") for part in inside.parts):
            table = pq.ParquetFile(path).read()
            rows += [row | {"at": str(inside.parent)} for row in table.to_pylist()]
    return rows


def check_manifest(output: Path) -> dict[str, Any]:
    """The manifest's counts are those of the files that are there, and nothing else is there."""
    manifest = manifest_of(output)
    files = {str(path.relative_to(output)): path for path in output.rglob("chunk-*.parquet")}

    assert {file["path"] for file in manifest["files"]} == set(files)
    for file in manifest["files"]:
        table = pq.ParquetFile(files[file["path"]]).read()
        order = table["sequence" if "sequence" in table.column_names else "revision"].to_pylist()
        assert (file["rows"], file["first"], file["last"]) == (len(order), min(order), max(order))
        assert order == sorted(order)
        assert file["bytes"] == files[file["path"]].stat().st_size
    assert manifest["rows"] == sum(file["rows"] for file in manifest["files"])
    assert not (output / "_progress").exists()
    return manifest

"""Checkpoints as Spark writes them, with the offsets a test wants."""

from __future__ import annotations

import json


def offset(streams, sequences, consumer="q", base=None, places=()):
    """An offset of ours, whose partitions are whole streams, or these places."""
    return {
        "layout": {"places": [list(place) for place in places or [[name] for name in streams]]},
        "version": 1,
        "consumer": consumer,
        "streams": dict(streams),
        "base": list(base if base is not None else [0] * len(sequences)),
        "sequences": list(sequences),
        "idle": [],
    }


def write_checkpoint(
    path, batches, committed=None, version=1, query="7182ce1d-c6c1-492d-81c4-c3bb61409ac5"
):
    """A checkpoint of these batches' offsets; all but the last are committed, or `committed`."""
    for name in ("offsets", "commits"):
        (path / name).mkdir(parents=True, exist_ok=True)
        (path / name / ".9.tmp").write_text("half a file")
        (path / name / ".0.crc").write_bytes(b"crc\xff")
    (path / "metadata").write_text(json.dumps({"id": query}))
    for batch, sources in enumerate(batches):
        lines = ["-" if each is None else json.dumps(each) for each in sources]
        if version == 2:
            lines = [f"{number}:{line}" for number, line in reversed(list(enumerate(lines)))]
        text = "\n".join([f"v{version}", '{"batchWatermarkMs":0,"conf":{}}', *lines])
        (path / "offsets" / str(batch)).write_text(text)
        if batch <= (len(batches) - 2 if committed is None else committed):
            (path / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return path

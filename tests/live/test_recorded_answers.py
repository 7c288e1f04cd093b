"""The answers that the fuzzer puts faults into are those of the server that tests run."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from pyspark_jetstream.client.jetstream import JetStream

from ..fuzz import asking


def shapes(value: Any, place: str = "") -> set[str]:
    """Where which kind of value stands; what depends on the moment is left out."""
    if isinstance(value, dict):
        return {shape for key in value for shape in shapes(value[key], f"{place}.{key}")}
    if isinstance(value, list):
        return {shape for each in value for shape in shapes(each, f"{place}[]")}
    return {f"{place} {type(value).__name__}"}


MOMENTS = (
    "replicas[].lag",
    "replicas[].offline",
    "leader_since",
    "last_active",
    "pinned_client_id",
    "pinned_ts",
)
"""Members that are there at some moments only."""

RECORDINGS = 3
"""
A consumer may be answered before its leader is known, and then `cluster.leader` is left out. Such a
moment does not come in each recording.
"""


def of(calls: dict[str, Any]) -> dict[str, set[str]]:
    """The shapes of all answers to each call."""
    found: dict[str, set[str]] = {}
    for call, turns in calls.items():
        answers = [json.loads(reply["data"]) for turn in turns for reply in turn
                   if "headers" not in reply]  # fmt: skip
        found[call] = {
            shape for each in answers for shape in shapes(each)
            if not any(moment in shape for moment in MOMENTS)
        }  # fmt: skip
    return found


@pytest.mark.slow
def test_the_recording_is_what_the_server_says():
    """
    Each request is answered by the same members of the same kinds; if not, record them again
    (`python -m tests.fuzz.asking`).
    """
    recorded = of(json.loads(asking.ANSWERS.read_text()))
    for _ in range(RECORDINGS):
        said = of(asking.record())
        if said == recorded:
            break
    assert said == recorded


def test_every_request_is_recorded():
    """None that `JetStream` makes is left out; `call` is how it makes them, `answer` makes none."""
    public = {
        name for name, _ in inspect.getmembers(JetStream, inspect.isfunction)
        if not name.startswith("_")
    }  # fmt: skip

    assert public - {"answer", "call"} == asking.CALLS.keys()

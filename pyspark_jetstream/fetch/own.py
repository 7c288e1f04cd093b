"""
A consumer of one attempt: its name and configuration. How a task reads by it is in `pulling.alone`.
"""

from __future__ import annotations

import os
from typing import Any, Final

NAMES: Final = "spark-own-"
"""Prefix of the names of consumers that belong to one attempt of a task."""

GROUP: Final = "spark"
"""The priority group where no option names one."""

_INACTIVE_S: Final = 60.0
"""
The server deletes one that nobody has pulled from for so long. A reader that Spark keeps waiting
for longer makes another one.
"""


def own_config(name: str, group: str, after: int = 0) -> dict[str, Any]:
    """Configuration of a consumer of the whole stream that begins behind a sequence."""
    return {
        "name": name,
        "description": "pyspark-jetstream: one attempt of a task, which deletes it",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": after + 1,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": round(_INACTIVE_S * 1e9),
        "priority_groups": [group],
        "priority_policy": "overflow",
    }


def new_name() -> str:
    """A name that no other attempt has."""
    return f"{NAMES}{os.urandom(8).hex()}"

"""Where a subject goes: nats-server's mappings, for one subject and for a column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import face

if TYPE_CHECKING:
    from .rule import find_partition, partition_of
    from .subjectmapping import Explanation, SubjectMapping, explain_mapping

__all__ = ["Explanation", "SubjectMapping", "explain_mapping", "find_partition", "partition_of"]

__getattr__ = face(
    __name__,
    {
        "SubjectMapping": "subjectmapping",
        "Explanation": "subjectmapping",
        "explain_mapping": "subjectmapping",
        "find_partition": "rule",
        "partition_of": "rule",
    },
)

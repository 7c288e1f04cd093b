"""What a mapping makes of subjects, as the writer asks it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pyspark_jetstream.mapping.subjectmapping import SubjectMapping


def map_all(mapping: SubjectMapping, subjects: Sequence[str]) -> list[str]:
    """Each of these, mapped together."""
    found: list[str] = mapping.map_array(pa.array(subjects, pa.string())).subjects.to_pylist()
    return found


def map_one(mapping: SubjectMapping, subject: str) -> str:
    """One subject, mapped alone."""
    return map_all(mapping, [subject])[0]

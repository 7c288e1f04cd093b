"""What a mapping makes of subjects, as the writer asks it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pyspark_jetstream.mapping.subjectmapping import SubjectMapping


def map_all(
    mapping: SubjectMapping, subjects: Sequence[str], identities: Sequence[bytes] | None = None
) -> list[str | None]:
    """Each of these, mapped together; ValueError with the reason if one becomes no subject."""
    column = pa.array(subjects, pa.string()).dictionary_encode()
    drawn_by = None if identities is None else pa.array(identities, pa.binary())
    mapped = mapping.map_rows(column, drawn_by)
    if mapped.faults is not None:
        raise ValueError(mapped.faults.drop_null()[0].as_py())
    results: list[str | None] = mapped.subjects.to_pylist()
    return results


def map_one(mapping: SubjectMapping, subject: str) -> str | None:
    """One subject, mapped alone."""
    return map_all(mapping, [subject])[0]

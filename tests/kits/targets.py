"""Target streams as tests find them: subject by subject."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_jetstream.outbox.targets import Target, Targets


def targets_of(find: Callable[[str], Target | None]) -> Targets:
    """The streams that this function gives for subjects."""
    return Targets(lambda subjects: [find(subject) for subject in subjects])

"""Target streams as tests find them: subject by subject."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_jetstream.outbox.targets import Target, TargetLookup, Targets


class Functions(TargetLookup):
    """A lookup that asks a function, not a server."""

    def __init__(self, find: Callable[[str], Target | None]) -> None:
        self._find = find

    def find(self, subjects: list[str]) -> list[Target | None]:
        return [self._find(subject) for subject in subjects]


def targets_of(find: Callable[[str], Target | None]) -> Targets:
    """The streams that this function gives for subjects."""
    return Targets(Functions(find))

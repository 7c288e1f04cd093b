"""Target streams as tests find them: subject by subject."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_jetstream.outbox.targets import Target, TargetLookup, Targets

Again = Callable[[list[Target]], list[Target | None]]


class Functions(TargetLookup):
    """A lookup that asks functions, not a server."""

    def __init__(self, find: Callable[[str], Target | None], again: Again | None) -> None:
        self._find = find
        self._again = again or super().as_they_are

    def find(self, subjects: list[str]) -> list[Target | None]:
        return [self._find(subject) for subject in subjects]

    def as_they_are(self, known: list[Target]) -> list[Target | None]:
        return self._again(known)


def targets_of(find: Callable[[str], Target | None], again: Again | None = None) -> Targets:
    """The streams that these functions give: by a subject, and as they are later."""
    return Targets(Functions(find, again))

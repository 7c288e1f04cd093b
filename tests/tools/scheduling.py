"""Which process of a run (pytest-xdist) takes which files: Spark's are beside those that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


_LONGEST: Final = [
    *(f"tests/spark/test_{name}.py" for name in ("round_trip", "faults", "source")),
    *(f"tests/spark/test_{name}.py" for name in ("snippets", "jobs", "secrets")),
]
"""
Files that go first, the longest ones: what is left to the end should be short, and at the end a
process more would start a JVM for files of Spark.
"""

_ALONE: Final = ("tests/spark/",)
"""Of a soak: tests that share no server with others of their file, and last up to minutes."""


class Scheduling(LoadFileScheduling):
    """
    A file's tests run in one process, which starts its servers and clusters once. Three of eight
    processes take the files of Spark first, the others those of servers.

    Tests with Spark compute, and tests with servers wait: together they use a machine that each
    would overload or leave idle. A process that takes no file of Spark starts no JVM.

    In a soak, where one test lasts as long as a file elsewhere, each process takes test after test.
    """

    def _split_scope(self, nodeid: str) -> str:
        if self.config.getoption("--soak-only") and nodeid.startswith(_ALONE):
            return nodeid
        return super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        with_spark = self.nodes.index(node) < max(1, round(self.numnodes * 3 / 8))
        own = [each for each in self.workqueue if each.startswith("tests/spark/") == with_spark]
        first = [each for start in _LONGEST for each in own if each.startswith(start)] or own
        if first:
            self.workqueue.move_to_end(first[0], last=False)
        super()._assign_work_unit(node)

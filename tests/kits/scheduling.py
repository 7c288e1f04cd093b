"""Which process of a run (pytest-xdist) takes which files: Spark's are beside those that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


class Scheduling(LoadFileScheduling):
    """
    A file's tests run in one process, which starts its servers and clusters once. A quarter of the
    processes, rounded up, take the files of Spark first, the others those of servers.

    Tests with Spark compute, and tests with servers wait: together they use a machine that each
    would overload or leave idle. A process that takes no file of Spark starts no JVM.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        with_spark = self.nodes.index(node) < -(-self.numnodes // 4)
        for scope in self.workqueue:
            if scope.startswith("tests/spark/") == with_spark:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)

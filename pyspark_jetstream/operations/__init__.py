"""What an operator runs beside the queries. Nothing of the package's other wings imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import face

if TYPE_CHECKING:
    from .controller import Controller
    from .handover import hand_over
    from .inspection.findings import Inspection
    from .inspection.inspector import Inspector
    from .partitioning import partition_stream, planned_streams
    from .partitionplan import PartitionPlan, numbering
    from .pauses import Pauses
    from .quota import Quota
    from .removal import undo_partitions
    from .throttled import Throttled, is_throttled, throttled_subjects

__all__ = [
    "Controller",
    "Inspection",
    "Inspector",
    "PartitionPlan",
    "Pauses",
    "Quota",
    "Throttled",
    "hand_over",
    "is_throttled",
    "numbering",
    "partition_stream",
    "planned_streams",
    "throttled_subjects",
    "undo_partitions",
]

__getattr__ = face(
    __name__,
    {
        "Inspector": "inspection.inspector",
        "Inspection": "inspection.findings",
        "PartitionPlan": "partitionplan",
        "partition_stream": "partitioning",
        "planned_streams": "partitioning",
        "hand_over": "handover",
        "undo_partitions": "removal",
        "Controller": "controller",
        "Pauses": "pauses",
        "Quota": "quota",
        "Throttled": "throttled",
        "is_throttled": "throttled",
        "throttled_subjects": "throttled",
        "numbering": "partitionplan",
    },
)

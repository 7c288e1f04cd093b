"""`df.write` and `df.writeStream`: rows into messages, and each row exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..faces import face

if TYPE_CHECKING:
    from .ids import Ids
    from .ledger import Ledger, TaskName
    from .rows import MessageBuilder
    from .sink import JetStreamBatchWriter, JetStreamStreamWriter
    from .task import write_task

__all__ = [
    "Ids",
    "JetStreamBatchWriter",
    "JetStreamStreamWriter",
    "Ledger",
    "MessageBuilder",
    "TaskName",
    "write_task",
]

__getattr__ = face(
    __name__,
    {
        "JetStreamBatchWriter": "sink",
        "JetStreamStreamWriter": "sink",
        "Ids": "ids",
        "Ledger": "ledger",
        "MessageBuilder": "rows",
        "TaskName": "ledger",
        "write_task": "task",
    },
)

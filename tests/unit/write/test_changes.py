"""What a commit concludes from target streams as they are then."""

from __future__ import annotations

import pytest

from pyspark_jetstream.client.info import stream_info_of
from pyspark_jetstream.write.changes import Seen


def info(first, last, messages):
    return stream_info_of({
        "config": {"name": "S", "retention": "limits"},
        "created": "2026-01-01T00:00:00Z", "ts": "2026-01-01T00:00:00Z",
        "state": {"first_seq": first, "last_seq": last, "messages": messages, "bytes": messages},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("first", "messages", "is_fault"), [(1, 1200, False), (2, 1200, False), (2, 1199, True)]
)
def test_what_was_removed_may_be_somebody_else_s(first, messages, is_fault):
    """
    Where as many messages are left as rows were stored, what was purged need not be one of them.
    """
    fault = Seen.of(info(0, 0, 0)).fault(info(first, 1201, messages), 1200)

    assert (fault is not None) is is_fault
    assert fault is None or "sequences 1 to 1 were removed" in fault

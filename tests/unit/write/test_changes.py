"""What a commit concludes from target streams as they are then."""

from __future__ import annotations

import pytest

from pyspark_jetstream.client.info import stream_info_of
from pyspark_jetstream.errors import RequestTimeoutError, StreamNotFoundError, TargetChangedError
from pyspark_jetstream.write import changes
from pyspark_jetstream.write.changes import Seen, check_targets


def info(first, last, messages, replicas=3):
    return stream_info_of({
        "config": {"name": "S", "retention": "limits", "num_replicas": replicas},
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


class Looks:
    """A leader, and what it says in look after look; the last for ever."""

    def __init__(self, *says):
        self.says = list(says)
        self.asked = 0

    def stream_info(self, name):
        self.asked += 1
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if said is None:
            raise StreamNotFoundError(name, 404, 10059, "stream not found")
        if isinstance(said, Exception):
            raise said
        return said


@pytest.mark.parametrize("late", [None, info(1, 150, 150)], ids=["not there", "behind"])
@pytest.mark.parametrize("rows", [1000, 0])
def test_a_loss_that_does_not_last_is_none(monkeypatch, late, rows):
    """
    A leader that was just elected may not know the stream, or all of it, for a moment.
    """
    monkeypatch.setattr(changes, "SETTLES_S", 30.0)
    now = info(1, 1200, 1200)
    leader = Looks(late, late, now)

    seen = [Seen.of(info(1, 100, 100)), Seen.of(info(1, 200, 200))]
    assert check_targets(leader, seen, rows) == [Seen.of(now)]
    assert leader.asked == 3


@pytest.mark.parametrize(
    ("last", "message"), [(None, "it was deleted"), (info(1, 150, 150), "it was set back")]
)
def test_a_loss_that_lasts(monkeypatch, last, message):
    """
    What each look says until its time is over is a loss.
    """
    monkeypatch.setattr(changes, "SETTLES_S", 0.05)
    leader = Looks(last)

    with pytest.raises(TargetChangedError, match=message):
        check_targets(leader, [Seen.of(info(1, 200, 200))], 1000)
    assert leader.asked > 1


@pytest.mark.parametrize(
    ("replicas", "first", "last"), [(1, 1201, 1200), (3, 1201, 1200), (1, 1, 100)]
)
def test_a_loss_that_is_certain(replicas, first, last):
    """
    One replica has what it says, and a leader that is as far as our rows are: what others store
    meanwhile hides no purge, and no older copy.
    """
    before = info(0, 0, 0) if first > 1 else info(1, 150, 150)
    gone = info(first, last, last + 1 - first, replicas)
    others = info(first, 2600, 2601 - first, replicas)

    with pytest.raises(TargetChangedError, match="were removed|it was set back"):
        check_targets(Looks(gone, others), [Seen.of(before)], 1200)


def test_a_loss_that_cannot_be_looked_at_again(monkeypatch):
    """
    It stays one where no further look is answered; without it there is nothing to say.
    """
    monkeypatch.setattr(changes, "SETTLES_S", 0.05)
    seen, silence = [Seen.of(info(1, 200, 200))], RequestTimeoutError("STREAM.INFO.S", 0.1)

    with pytest.raises(TargetChangedError, match="it was set back"):
        check_targets(Looks(info(1, 150, 150), silence), seen, 1000)
    assert check_targets(Looks(silence), seen, 1000) == []

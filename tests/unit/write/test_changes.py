"""What a commit concludes from target streams as they are then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_jetstream.client.info import stream_info_of
from pyspark_jetstream.errors import RequestTimeoutError, StreamNotFoundError, TargetChangedError
from pyspark_jetstream.write.exactlyonce import changes
from pyspark_jetstream.write.exactlyonce.changes import FoundStream, check_targets


def info(first, last, messages, replicas=3, others=(), **limits):
    config = {"name": "S", "retention": "limits", "num_replicas": replicas, **limits}
    return stream_info_of({
        "config": config, "cluster": {"replicas": [{"name": name} for name in others]},
        "created": "2026-01-01T00:00:00Z", "ts": "2026-01-01T00:00:00Z",
        "state": {"first_seq": first, "last_seq": last, "messages": messages, "bytes": messages},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("row", "first", "is_fault"),
    [(5, 1, False), (5, 5, False), (5, 6, True), (0, 1201, False), (1, 4, True), (1, 3, False)],
)
@pytest.mark.parametrize("others", [0, 5000])
def test_what_was_removed_may_be_somebody_else_s(row, first, is_fault, others):
    """
    A purge that ends before the first row took no row, or none that is known; one that ends behind
    it did, whoever else stores there. All that the task stored lies behind what it found.
    """
    now = info(first, 1201 + others, 1202 + others - first)
    fault = FoundStream.of(info(1, 2, 2)).holding(row).fault(now)

    assert (fault is not None) is is_fault
    assert fault is None or f"sequences 3 to {first - 1} were removed (purged?)" in fault


def test_limits_that_were_set_meanwhile_remove_rows():
    """
    A stream that kept everything, and that keeps less now, has lost what it had acknowledged.
    """
    seen = FoundStream.of(info(1, 2, 2)).holding(3)

    assert "by limits that were set?" in (seen.fault(info(9, 20, 12, max_msgs=12)) or "")
    assert FoundStream.of(info(1, 2, 2, max_msgs=12)).holding(3).fault(info(9, 20, 12)) is None


@pytest.mark.parametrize(
    ("before", "after", "is_fault"),
    [("limits", "interest", True), ("interest", "limits", False), ("interest", "interest", False)],
)
def test_another_retention(before, after, is_fault):
    """
    Whoever turns a stream to `interest` lets rows go; from then on it keeps all that it is given.
    """
    fault = FoundStream.of(info(1, 2, 2, retention=before)).fault(info(1, 9, 9, retention=after))

    assert (fault is not None) is is_fault
    assert fault is None or "turned from limits to interest retention" in fault


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


@pytest.mark.parametrize(
    "late",
    [None, info(1, 150, 150), info(1, 150, 150, 1, ["n2"])],
    ids=["not there", "behind", "placed elsewhere"],
)
def test_a_loss_that_does_not_last_is_none(monkeypatch, late):
    """
    A leader that was just elected may not know the stream, or all of it, for a moment. So may one
    of a stream without replicas, which has some while it moves to another server.
    """
    monkeypatch.setattr(changes, "SETTLES_S", 30.0)
    now = info(1, 1200, 1200)
    leader = Looks(late, late, now)

    seen = [FoundStream.of(info(1, 100, 100)), FoundStream.of(info(1, 200, 200))]
    assert check_targets(leader, seen) == [FoundStream.of(now)]
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
        check_targets(leader, [FoundStream.of(info(1, 200, 200))])
    assert leader.asked > 1


@pytest.mark.parametrize("gone", [info(1201, 1200, 0, 1), info(1, 100, 100, 1)])
def test_a_loss_that_is_certain(gone):
    """
    One replica has what it says: what others store meanwhile hides no purge, and no older copy.
    """
    seen = FoundStream.of(info(1, 150, 150)).holding(151)
    others = info(gone.first_seq, 2600, 2601 - gone.first_seq, 1)

    with pytest.raises(TargetChangedError, match="were removed|it was set back"):
        check_targets(Looks(gone, others), [seen])


def test_streams_of_dead_letters_are_looked_at_and_not_noted():
    """
    They are no targets: a later attempt looks for rows elsewhere.
    """
    now = info(3, 9, 7, 1)
    dead = replace(FoundStream.of(now), end=9, first=5, is_target=False)

    assert check_targets(Looks(now), [dead]) == []
    assert check_targets(Looks(now), [dead, FoundStream.of(now)]) == [FoundStream.of(now)]
    with pytest.raises(TargetChangedError, match="were removed"):
        check_targets(Looks(info(6, 9, 4, 1)), [dead])
    with pytest.raises(TargetChangedError, match="it was deleted"):
        check_targets(Looks(None), [replace(dead, created="", retention="")])


def test_a_loss_that_cannot_be_looked_at_again(monkeypatch):
    """
    It stays one where no further look is answered; without it there is nothing to say.
    """
    monkeypatch.setattr(changes, "SETTLES_S", 0.05)
    seen, silence = [FoundStream.of(info(1, 200, 200))], RequestTimeoutError("STREAM.INFO.S", 0.1)

    with pytest.raises(TargetChangedError, match="it was set back"):
        check_targets(Looks(info(1, 150, 150), silence), seen)
    assert check_targets(Looks(silence), seen) == []


class Listed(Looks):
    """A leader that says, too, which of its messages were deleted."""

    def __init__(self, *says, deleted=()):
        super().__init__(*says)
        self.listed = 0
        self._deleted = list(deleted)

    def deleted(self, name):
        self.listed += 1
        return self._deleted


@pytest.mark.parametrize(
    ("now", "deleted", "rows", "fault"),
    [
        (info(1, 110, 110), [], 100, None),
        (info(1, 110, 109), [5], 100, None),
        (info(1, 110, 109), [50], 100, "1 messages that were stored .* were removed"),
        (info(1, 110, 109), [50], 99, None),
        (info(1, 110, 109), [50], 0, None),
        (info(12, 110, 99), [], 100, "1 messages that were stored .* were removed"),
        (info(1, 109, 109), [], 100, "100 rows were stored .* ends 99 messages after"),
        (info(1, 109, 9, max_msgs_per_subject=1), [], 100, "100 rows .* ends 99 messages"),
        (info(1, 110, 10, max_msgs_per_subject=1), [], 100, None),
    ],
    ids=str,
)
def test_what_is_left_is_fewer_than_the_rows(monkeypatch, now, deleted, rows, fault):
    """
    Each row takes a sequence, whatever the stream keeps; and a message, where it keeps all. What
    was removed ahead of the rows is not asked for twice, and what others removed is no fault.
    """
    monkeypatch.setattr(changes, "SETTLES_S", 0.0)
    limits = {k: v for k, v in now.config.items() if k.startswith("max")}
    seen, leader = FoundStream.of(info(1, 10, 10, **limits)), Listed(now, deleted=deleted)
    if fault is None:
        assert check_targets(leader, [seen], rows) == [FoundStream.of(now)]
    else:
        with pytest.raises(TargetChangedError, match=fault):
            check_targets(leader, [seen], rows)
    keeps_less = now.messages < now.last_seq and not limits and rows < 101
    assert leader.listed == int(keeps_less and "stored after" not in (fault or ""))


def test_rows_are_counted_over_all_targets(monkeypatch):
    """
    What one has more than the task stored there, as others store as well, hides what another lacks.
    """
    monkeypatch.setattr(changes, "SETTLES_S", 0.0)
    one, other = (replace(FoundStream.of(info(1, 10, 10)), name=name) for name in ("S", "T"))

    assert len(check_targets(Listed(info(1, 60, 60)), [one, other], 100)) == 2
    with pytest.raises(TargetChangedError, match="S, T': 101 rows were stored"):
        check_targets(Listed(info(1, 60, 60)), [one, other], 101)


def test_a_new_leader_may_not_have_all_rows_at_once(monkeypatch):
    """
    A stream that is short of rows is looked at again, for a while.
    """
    monkeypatch.setattr(changes, "SETTLES_S", 30.0)
    leader = Listed(info(1, 90, 90), info(1, 90, 90), info(1, 110, 110))

    assert check_targets(leader, [FoundStream.of(info(1, 10, 10))], 100)
    assert leader.asked == 3

"""What waits in a lane of batches, and how it is cut."""

from __future__ import annotations

import pytest

from pyspark_jetstream.errors import PublishTimeoutError
from pyspark_jetstream.outbox.limits import Kind, pause_s
from pyspark_jetstream.outbox.messages import sizes
from pyspark_jetstream.publish.lanes.answers import Outcome
from pyspark_jetstream.publish.lanes.asynclane import NO_STREAM_GRACE_S
from pyspark_jetstream.publish.lanes.detour import Backlog, OneByOne, batch_name
from pyspark_jetstream.publish.lanes.frames import frame, numbered

from ...kits.lanes import PREFIX, FixedLimit, messages, terms


def rows(found) -> list[int]:
    return found.rows.to_pylist()


def test_rows_leave_in_the_order_of_their_offers():
    """
    The head is of one offer; what is dropped is gone, the rest follows.
    """
    backlog = Backlog()
    for first in (0, 3):
        backlog.append(messages(["a"] * 3, first=first))
    backlog.append(messages([]))
    heads = []
    while backlog:
        heads.append(rows(backlog.head(2, 1 << 30)))
        backlog.drop(len(heads[-1]))

    assert heads == [[0, 1], [2], [3, 4], [5]]


@pytest.mark.parametrize("keep", range(8))
def test_what_is_cut_off_is_counted_no_more(keep):
    """
    A backlog has as many rows as its blocks, after some were dropped and others cut off.
    """
    backlog = Backlog()
    for first in (0, 3):
        backlog.append(messages(["a"] * 3, first=first))
    backlog.drop(1)
    cut = [row for part in backlog.cut(keep) for row in rows(part)]

    assert len(backlog) == 5 - len(cut) == min(keep, 5)
    assert cut == [1, 2, 3, 4, 5][keep:]
    backlog.append(messages(["a"], first=6))
    assert rows(backlog.first(len(backlog))) == [*[1, 2, 3, 4, 5][:keep], 6]


def test_the_head_is_cut_by_its_bytes():
    """
    A head's frames are no larger than asked for, unless a single row is.
    """
    backlog = Backlog()
    backlog.append(messages(["a"] * 8, [b"x" * 1000] * 8))
    few = backlog.head(8, 3000)

    assert rows(few) == [0, 1]
    assert rows(backlog.head(8, 10)) == [0]
    assert len(backlog) == 8


@pytest.mark.parametrize("headers", [None, [b"A: b\r\n", b"A: %b\r\n" % (b"b" * 999)]])
def test_sizes_are_no_less_than_the_frames(headers):
    """
    What limits bytes in flight never takes a frame for smaller than it is.
    """
    sent = messages(["a.b", "c" * 300], [b"", b"x" * 99999], ids=False, headers=headers)
    frames = frame(sent, 0, numbered(f"{PREFIX}.{'i' * 64}.500.fail.", 99998, 2, ".1.$FI"))

    slack = [size.as_py() - frames.nbytes(row, row + 1) for row, size in enumerate(sizes(sent))]

    assert 0 <= min(slack) and max(slack) < 256


def test_a_detour_knows_that_the_subjects_have_a_stream():
    """
    Nobody listening is waited out where the lane has stored rows, and an error where it has not.
    """
    for served in (True, False):
        detour = OneByOne(PREFIX, terms(FixedLimit(10), 1 << 20, 5.0, 120.0))
        detour.take(messages(["a"]), served)
        failed = False
        now = 0.0
        while now <= NO_STREAM_GRACE_S + 2 and not failed:
            if detour.frames_to_send(now, 1 << 20):
                try:
                    detour.on_reply(b"0", 503, "", b"", now)
                except PublishTimeoutError:
                    failed = True
            now += 0.5

        assert failed is not served


def test_rows_that_were_in_a_batch_have_no_more_time_than_others():
    """
    `publishTimeout` counts from the first sending, in whatever way; rows that were not sent before
    have the whole of it.
    """
    detour = OneByOne(PREFIX, terms(FixedLimit(10), 1 << 20, 8.0, 100.0))
    detour.take(messages(["a"] * 3), True, sent_before=2, since=10.0)
    detour.frames_to_send(104.0, 1 << 20)
    before = detour.next_deadline(109.0), detour.give_up_at
    detour.expire(109.9)

    with pytest.raises(
        PublishTimeoutError, match=r"row 0: not stored 100\.0s after it was sent; no"
    ):
        detour.expire(110.0)
    detour.on_pubacks([0], 106.0)
    detour.frames_to_send(105.0, 1 << 20)
    detour.on_answer(1, Outcome(Kind.LIMITED, "full", 10077), 106.0)
    with pytest.raises(PublishTimeoutError, match=r"row 1: .*a limit is reached: full.*10077"):
        detour.expire(110.0)
    detour.on_pubacks([1], 106.0)
    detour.expire(110.0)
    assert before == (110.0, 110.0)
    assert detour.give_up_at == 205.0


def test_batch_names_are_short_and_never_the_same():
    """
    The inbox, the lane and the number of the batch are in the id, within the server's 64.
    """
    prefixes = [f"_INBOX.{inbox}.{lane}" for inbox in ("a" * 22, "b" * 22) for lane in (0, 12)]
    names = {batch_name(prefix, number) for prefix in prefixes for number in (1, 99999)}

    assert len(names) == 8
    assert max(map(len, names)) <= 64
    assert not any("." in name for name in names)


def test_numbers_of_reply_subjects():
    """
    Prefix, number, suffix; also none at all.
    """
    assert numbered("p.", 9, 3, ".s").to_pylist() == [b"p.9.s", b"p.10.s", b"p.11.s"]
    assert numbered("p.", 1, 0).to_pylist() == []


def test_pauses_double_up_to_a_second():
    """
    An overloaded server is asked again soon, any other less so; neither more than once a second.
    """
    assert [pause_s(Kind.OVERLOADED, n) for n in (0, 1, 20)] == [0.01, 0.02, 1.0]
    assert [pause_s(Kind.LIMITED, n) for n in (0, 1, 2, 3)] == [0.25, 0.5, 1.0, 1.0]

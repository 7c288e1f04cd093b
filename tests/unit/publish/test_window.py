"""The window: what is sent, what waits, what fails; no clock, no server."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.errors import PublishTimeoutError
from pyspark_jetstream.publish.lanes.answers import Fate, Outcome, classify
from pyspark_jetstream.publish.lanes.flight import Publishes, Window
from pyspark_jetstream.publish.lanes.lane import Lane

from ...kits.lanes import PREFIX, FixedLimit, messages, terms
from ...kits.seeds import examples

OVERLOADED = Outcome(Fate.OVERLOADED, "too many requests", 10167)
ABSENT = Outcome(Fate.ABSENT, "no responders")
LIMITED = Outcome(Fate.LIMITED, "maximum messages exceeded", 10077)
MANY = 1 << 30


def frame(ordinal: int, size: int = 0) -> bytes:
    """A frame that says which publish it is."""
    return f"{ordinal};".encode().ljust(size, b".") if size else f"{ordinal};".encode()


def block(first: int, subjects: list[str], size: int = 0) -> Publishes:
    """One publish for each subject, in order."""
    frames = [frame(first + i, size) for i in range(len(subjects))]
    offsets = [0]
    for one in frames:
        offsets.append(offsets[-1] + len(one))
    rows = messages(subjects, first=first, ids=False)
    return Publishes(first, memoryview(b"".join(frames)), offsets, rows)


def window(
    maximum: int | Window = 8,
    max_bytes: int = MANY,
    ack: float = 5.0,
    publish: float = 120.0,
):
    """A small window."""
    limit = FixedLimit(maximum) if isinstance(maximum, int) else maximum
    return Lane(PREFIX, *terms(limit, max_bytes, ack, publish))


def sent(w: Lane, now: float, maximum: int = MANY) -> list[int]:
    """Everything the window sends now, as ordinals in order."""
    ordinals: list[int] = []
    while (frames := w.frames_to_send(now, maximum)) is not None:
        ordinals += [int(one) for one in bytes(frames).replace(b".", b"").split(b";")[:-1]]
    return ordinals


@pytest.mark.parametrize(
    ("code", "err_code", "words", "is_push_back"),
    [
        (429, 10167, "too many requests", True),
        (503, 10077, "maximum messages exceeded", True),
        (400, 10002, "resource limits exceeded for account", True),
        (503, 10077, "maximum messages per subject exceeded", False),
        (409, 10158, "in process", False),
    ],
)
def test_a_subject_at_its_limit_is_no_push_back(code, err_code, words, is_push_back):
    """I6: what one subject may not cuts the limit of all the others no shorter."""
    error = {"code": code, "err_code": err_code, "description": words}
    outcome = classify(0, "", json.dumps({"stream": "S", "seq": 0, "error": error}).encode())
    limit = Window(4096)
    w = Lane(PREFIX, *terms(limit, MANY, 5.0, 120.0))
    w.append(block(0, ["a", "b"]))
    w.frames_to_send(0.0, MANY)
    w.on_pubacks([1], 0.1)
    w.on_answer(0, outcome, 0.1)

    assert outcome.is_push_back == is_push_back
    assert limit.value == (179 if is_push_back else 256)


def test_a_chunk_is_cut_at_a_publish():
    """`frames_to_send` returns whole frames, about as many bytes as asked for, and one at least."""
    w = window(100)
    w.append(block(0, ["a"] * 4, size=10))

    assert [
        bytes(w.frames_to_send(0.0, maximum) or b"").count(b";") for maximum in (25, 1, 99)
    ] == [2, 1, 1]


def test_a_full_window_waits_for_an_eighth():
    """With a full window, one PubAck makes no send; an eighth of the window does."""
    w = window(16)
    w.append(block(0, ["a"] * 100))
    sent(w, 0.0)
    w.on_pubacks([0], 0.2)
    after_one = sent(w, 0.1)
    w.on_pubacks([1], 0.2)

    assert after_one == []
    assert sent(w, 0.1) == [16, 17]


@examples(30)
@given(
    st.sets(st.integers(0, 299), max_size=3),
    st.lists(st.lists(st.integers(0, 309), min_size=10), min_size=3),
)
def test_pubacks_of_many_streams_leave_the_bytes_that_are_on_the_wire(refused, runs):
    """On the wire are the rows without an answer, in whatever runs PubAcks come."""
    w = window(MANY)
    for first in range(0, 300, 60):
        w.append(block(first, ["a", "b", "c"] * 20))
    sent(w, 0.0)
    left = set(range(300))
    for ordinal in refused:
        w.on_answer(ordinal, OVERLOADED, 0.1)
    for run in (*runs, [*range(1, 310)], [0]):
        w.on_pubacks(run, 0.2)
        left.difference_update(run)

        assert w.tally.acked == 300 - len(left)
        assert w.bytes_in_flight == sum(len(frame(ordinal)) for ordinal in left - refused)
        assert w.in_flight == len(left - refused)
        assert w.again.waiting == sorted(left & refused)

    assert (w.busy, w.wants_rows) == (False, True)


def test_a_push_back_lowers_the_limit_once_a_window_and_pubacks_raise_it():
    """A round of 429s cuts what may be in flight to 0.7; PubAcks widen it again."""
    w = window(Window(8))
    w.append(block(0, ["a"] * 200))
    sent(w, 0.0)
    w.on_pubacks([7], 0.1)
    for ordinal in range(7):
        w.on_answer(ordinal, OVERLOADED, 0.11)
    again = sent(w, 1.0)
    cut = w.limit
    now = 1.1
    w.on_pubacks(again + [5, 6], now)
    while w.busy and w.limit < 8:
        now += 0.05
        if wire := sent(w, now):
            w.on_pubacks(wire, now + 0.01)

    assert (again, cut) == ([0, 1, 2, 3, 4], 5)
    assert w.limit == 8


def test_a_pause_that_is_over_is_due_until_it_is_seen():
    """Whoever looks too late for it would else sleep until the next deadline of a publish."""
    w = window(Window(4))
    w.append(block(0, ["a"] * 4))
    sent(w, 0.0)
    w.on_pubacks([0], 1.0)
    for ordinal in (1, 2, 3):
        w.on_answer(ordinal, OVERLOADED, 1.0)
    end = w.next_deadline(1.0)

    assert 1.0 < end < 1.1
    assert w.next_deadline(end + 0.5) == end
    assert sent(w, end + 0.5) == [1, 2]
    assert w.next_deadline(end + 0.5) > end + 0.5, "the third, for which there is no room, spins"


def test_what_was_sent_before_a_push_back_cuts_no_more():
    """A round of refusals, with PubAcks among them, is one push-back, however long it comes."""
    w = window(Window(100))
    w.append(block(0, ["a"] * 100))
    sent(w, 0.0)
    for ordinal in range(0, 100, 2):
        w.on_answer(ordinal, OVERLOADED, 1.0 + ordinal / 1000)
        w.on_pubacks([ordinal + 1], 1.0 + ordinal / 1000)

    assert w.limit in (70, 71)


def test_the_limit_hears_of_pubacks():
    """With what was in flight before; of one that comes twice, once."""
    heard = []
    limit = FixedLimit(4)
    limit.acked = lambda *sample: heard.append(sample)
    w = window(limit)
    w.append(block(0, ["a"] * 8))
    sent(w, 0.0)
    w.on_pubacks([0, 1], 1.0)
    sent(w, 1.0)
    w.on_pubacks([2, 3, 4], 3.0)  # of two sendings
    w.on_pubacks([5, 99], 4.0)
    w.on_pubacks([5], 5.0)

    assert heard == [(2, 4, False), (3, 4, True)]


def test_what_was_sent_twice_is_no_sample():
    """Which sending a PubAck answers cannot be told, so it tells no round trip (Karn's rule)."""
    heard = []
    limit = FixedLimit(8)
    limit.acked = lambda *sample: heard.append(sample)
    w = window(limit, ack=1.0)
    w.append(block(0, ["a", "b"]))
    sent(w, 0.0)
    w.expire(1.0)
    again = sent(w, 1.0)
    w.on_pubacks([0, 1], 1.1)

    assert again == [0, 1]
    assert heard == []


@pytest.mark.parametrize(
    ("outcome", "drops"),
    [
        (OVERLOADED, 1),
        (LIMITED, 1),
        (ABSENT, 0),
        (Outcome(Fate.IN_PROCESS, "again", 10158), 0),
    ],
    ids=lambda value: value.kind.name if isinstance(value, Outcome) else str(value),
)
def test_only_push_backs_are_drops(outcome, drops):
    """Refusals for load are drops; no responders and broken connections are none."""
    heard = []
    limit = FixedLimit(4)
    limit.pushed_back = lambda: heard.append(1)
    w = window(limit)
    w.append(block(0, ["a"] * 4))
    sent(w, 0.0)
    w.on_answer(0, outcome, 0.1)
    w.on_disconnect()

    assert len(heard) == drops


@pytest.mark.parametrize(
    ("outcome", "unsure"),
    [(LIMITED, False), (Outcome(Fate.IN_PROCESS, "again", 10158), True)],
    ids=["no room", "in process"],
)
def test_what_another_sending_may_have_stored_is_unsure(outcome, unsure):
    """An id in process is another sending's; what found no room is not stored."""
    w = window()
    w.append(block(0, ["a"]))
    sent(w, 0.0)
    w.on_answer(0, outcome, 0.1)

    assert w.again.get(0).is_unsure is unsure


def test_silence_sends_again():
    """Without a PubAck within `ackTimeout` the frame goes out again; a late PubAck counts."""
    w = window(ack=5.0)
    w.append(block(0, ["a", "b"]))
    sent(w, 0.0)
    deadline = w.next_deadline(0.0)
    w.on_pubacks([1], 0.2)
    w.expire(5.0)
    again = sent(w, 5.0)
    w.on_pubacks([0], 0.2)
    w.on_pubacks([0], 0.2)

    assert deadline == 5.0
    assert again == [0]
    assert (w.tally.acked, w.tally.retries, w.busy) == (2, 1, False)


@pytest.mark.parametrize("stored", [True, False])
def test_a_subject_that_nobody_listens_on_is_tried_on(stored):
    """Whether something was stored there or not: until `publishTimeout`."""
    w = window(publish=60.0)
    w.append(block(0, ["b", "a", "a"]))
    sent(w, 0.0)
    w.on_pubacks([0, 1] if stored else [0], 0.0)
    for ordinal in (2,) if stored else (1, 2):
        w.on_answer(ordinal, ABSENT, 0.0)
    now = 0.0
    says = (
        r"publish to 'a': row [12]: not stored 60.0s .*no stream listens on this subject: create it"
    )
    with pytest.raises(PublishTimeoutError, match=says):
        while now < 90.0:
            now += 0.25
            w.expire(now)
            for ordinal in sent(w, now):
                w.on_answer(ordinal, ABSENT, now)

    assert now == 60.0

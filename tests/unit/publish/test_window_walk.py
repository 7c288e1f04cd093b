"""The window against a server and a network that do whatever they like."""

from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.publish.lanes.flight import Window
from pyspark_jetstream.publish.lanes.lane import Lane

from ...kits.lanes import PREFIX, FixedLimit, terms
from ...kits.seeds import examples
from .test_window import LIMITED, MANY, OVERLOADED, block, frame


class Walk:
    """A lane, and what the server has not answered."""

    def __init__(self, limit, maximum, max_bytes):
        self.lane = Lane(PREFIX, *terms(limit(maximum), max_bytes, 1.0, 1e9))
        self.maximum, self.max_bytes, self.now = maximum, max_bytes, 0.0
        self.subjects: list[str] = []
        """Of all rows."""
        self.wire: list[int] = []
        self.log: list[int] = []
        """Every sending."""
        self.acked: set[int] = set()
        self.unsettled: set[int] = set()
        """Refused or unheard, and neither acked nor held since."""
        self.paused: set[str] = set()

    def offer(self, subjects):
        if self.lane.wants_rows:
            self.lane.append(block(len(self.subjects), subjects))
            self.subjects += subjects

    def send(self, most, free):
        lane = self.lane
        lane.again.hold(lambda subject, is_tried: subject in self.paused)
        self.unsettled.difference_update(lane.again.held)
        lane.again.free(lambda subject, since: 0 if subject in self.paused else free)
        assert lane.again.held_bytes == sum(len(frame(ordinal)) for ordinal in lane.again.held)
        while (frames := lane.frames_to_send(self.now, most)) is not None:
            for ordinal in map(int, bytes(frames).split(b";")[:-1]):
                if ordinal not in self.log:
                    assert not self.unsettled, "overtook a retry"
                    assert ordinal == len(set(self.log)), "first sendings out of order"
                else:
                    assert self.subjects[ordinal] not in self.paused, "is paused"
                self.log.append(ordinal)
                self.wire.append(ordinal)
            assert lane.in_flight <= self.maximum
            assert lane.bytes_in_flight <= self.max_bytes or lane.in_flight == 1

    def ack(self, at, count):
        if self.wire:
            at %= len(self.wire)
            run = self.wire[at : at + count]
            del self.wire[at : at + count]
            self.lane.on_pubacks(run, self.now)
            self.acked.update(run)
            self.unsettled.difference_update(run)

    def refuse(self, at, outcome):
        """Or the answer is lost."""
        if self.wire:
            ordinal = self.wire.pop(at % len(self.wire))
            if outcome is not None:
                self.doubt([ordinal])
                self.lane.on_answer(ordinal, outcome, self.now)

    def doubt(self, ordinals):
        """What is refused or unheard now, unless that sending was given up before."""
        for ordinal in set(ordinals) - self.acked:
            again = self.lane.again.get(ordinal)
            if again is None or not again.waiting:
                self.unsettled.add(ordinal)

    def cut(self):
        self.doubt(self.wire)
        self.wire.clear()
        self.lane.on_disconnect()

    def pause(self, subject):
        self.paused ^= {subject}

    def wait(self, wait_s, is_due):
        self.now += wait_s
        if is_due:
            self.lane.expire(self.now)
            self.now = min(max(self.now, self.lane.next_deadline(self.now)), self.now + 2.0)
            self.lane.expire(self.now)

    def finish(self):
        """All that is sent is answered; what is lost goes again."""
        self.paused.clear()
        for _ in range(10_000):
            if not self.lane.busy:
                return
            self.send(100, 9)
            self.wait(0.1, is_due=not self.wire)
            self.ack(0, 5)
        raise AssertionError("is stuck")


PLACES = st.sampled_from([0, 0, 0, 0, 1, 7, 50])
STEPS = st.one_of(
    st.tuples(st.just("offer"), st.lists(st.sampled_from("abc"), min_size=1)),
    st.tuples(st.just("offer"), st.just([*"abcabacacb"] * 4)),
    *[st.tuples(st.just("send"), st.sampled_from([1, 20, 100]), st.sampled_from([1, 9]))] * 4,
    *[st.tuples(st.just("ack"), PLACES, st.integers(1, 5))] * 2,
    *[st.tuples(st.just("refuse"), PLACES, st.sampled_from([OVERLOADED, LIMITED, None]))] * 3,
    *[st.tuples(st.just("wait"), st.sampled_from([0.0, 0.1, 0.4, 1.0]), st.booleans())] * 3,
    *[st.tuples(st.just("pause"), st.sampled_from("abc"))] * 2,
    st.tuples(st.just("cut")),
)


@examples(100)
@given(
    st.sampled_from([FixedLimit, Window]),
    st.sampled_from([(1, 500), (5, 60), (16, 30), (64, MANY)]),
    st.lists(STEPS, min_size=40),
)
def test_any_walk(limit, limits, steps):
    """
    Whatever the server and the network do, every publish ends acked exactly once; first sendings
    are in order; a retry is never overtaken by a later first sending, of any subject, unless its
    own is paused; then it does not go; limits hold.
    """
    walk = Walk(limit, *limits)
    for name, *said in steps:
        getattr(walk, name)(*said)
    walk.finish()
    lane = walk.lane

    assert walk.acked == set(range(len(walk.subjects)))
    assert lane.tally.acked == len(walk.subjects)
    assert lane.in_flight == lane.bytes_in_flight == 0
    assert lane.wants_rows and not lane.unanswered

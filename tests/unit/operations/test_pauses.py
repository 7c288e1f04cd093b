"""PIP-385 on the operator's side: who is told what and when, and whose receipt is missing."""

from collections.abc import Iterator
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.operations.throttle.pauses import MARGIN_S, Pauses
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    DISCOVER,
    THROTTLE_SUBJECT,
    Active,
    Discover,
    Operators,
    Producer,
    Reason,
    Receipt,
    ThrottleProducer,
    understand,
)

from ...kits.seeds import examples

QUOTA = Reason.TopicProduceQuotaExceeded
GROUP = Reason.ResourceGroupProduceQuotaExceeded
PENDING = Reason.ConnectionPendingMessagesBreach


def found(pauses, now, *ids, supports=True):
    """Producers answer discovery; what they are told."""
    return [
        send
        for each in ids
        for send in pauses.receive_reply(
            0, 0, Producer(each, supports, ("orders.eu",)).encode(), now
        )
    ]


def told(sends):
    """The commands, by producer; discovery is none."""
    commands = {}
    for subject, token, data in sends:
        if data != DISCOVER:
            command = understand(data)
            assert (subject, token) == (
                f"{THROTTLE_SUBJECT}.{command.producer_id}",
                command.request_id,
            )
            commands[command.producer_id] = command
    return commands


def receipt(pauses, command, now):
    """The producer acknowledges."""
    data = Receipt(command.request_id, command.producer_id).encode()
    return pauses.receive_reply(command.request_id, 0, data, now)


def receipts(pauses):
    return {number: each.receipts for number, each in pauses.members.items()}


def begun(*ids, filter="orders.*", reason=QUOTA):
    """A pause, and what producers are told who are found at once."""
    pauses = Pauses()
    pauses.pause(filter, reason, 60.0)
    pauses.due(0.0)
    return pauses, told(found(pauses, 0.0, *ids))


# ── discovery ────────────────────────────────────────────────────────────────────────────────


def test_b21_discovery_is_asked_each_second():
    """B21: all are asked who they are, at first and each second again."""
    pauses = Pauses("control")
    asked = [now / 10 for now in range(35) if ("control", 0, DISCOVER) in pauses.due(now / 10)]

    assert asked == [0.0, 1.0, 2.0, 3.0]
    assert pauses.next_deadline == 4.0


def test_nobody_listens():
    """The server's word that nobody listens counts until somebody answers."""
    pauses = Pauses()
    pauses.due(0.0)
    pauses.receive_reply(0, 503, b"", 0.0)
    nobody = pauses.nobody
    found(pauses, 1.0, 7)

    assert nobody
    assert not pauses.nobody


@pytest.mark.parametrize(("nobody", "patient"), [(True, False), (False, True)])
def test_a_look_for_producers_is_asked_for_at_once_again(nobody, patient):
    """Only where nobody listens, and for whoever looks on; else in a second."""
    pauses = Pauses()
    pauses.nobody, pauses.patient = nobody, patient
    pauses.due(0.0)
    assert pauses.next_deadline == 1.0
    pauses.nobody = pauses.patient = True
    pauses.due(1.0)
    assert pauses.next_deadline < 1.1


def test_who_is_not_heard_of_any_more_has_ended():
    """A producer that owes no receipt is forgotten ten seconds after its last word."""
    pauses = Pauses()
    pauses.due(0.0)
    found(pauses, 0.0, 7, 8)
    for now in range(1, 11):
        pauses.due(float(now))
        assert set(pauses.members) == {7, 8}
        found(pauses, now, 8)
    pauses.due(11.0)

    assert set(pauses.members) == {8}


# ── writers that begin ───────────────────────────────────────────────────────────────────────


def test_b7_who_begins_is_told_all_that_is_in_force():
    """B7: each pause for what is left of it, then that this was all; another time, too."""
    pauses = Pauses("control")
    pauses.pause("a", QUOTA, 60.0)
    pauses.pause("b.*", GROUP, 0.7)
    pauses.due(0.0)
    sends = pauses.receive_start(Producer(7, True).encode(), 0.25)
    commands = [understand(send.data) for send in sends[:-1]]
    again = pauses.receive_start(Producer(7, True).encode(), 0.3)
    for send in again[:-1]:  # a receipt as the document has it
        pauses.receive_reply(send.token, 0, Receipt(send.token).encode(), 0.31)
    strange = pauses.receive_start(b"{", 0.5), pauses.receive_start(Receipt(1, 7).encode(), 0.5)

    assert [(each.subject, each.reason, each.producer_id) for each in commands] == [
        ("a", QUOTA, 7), ("b.*", GROUP, 7),
    ]  # fmt: skip
    assert [each.pause_s for each in commands] == [pytest.approx(1.25), pytest.approx(0.45)]
    assert {send.subject for send in sends} == {"control.7"}
    assert sends[-1] == ("control.7", None, Active(2).encode())
    assert [send.data for send in again[-1:]] == [Active(2).encode()]
    assert receipts(pauses) == {7: 2}
    assert (pauses.told, pauses.waiting, strange) == (True, False, ([], []))


# ── receipts ─────────────────────────────────────────────────────────────────────────────────


def test_b22_a_receipt_in_time_is_all():
    """B22: who acknowledges within the wait is told nothing more before the second is over."""
    pauses, commands = begun(7)
    command, waiting = commands[7], pauses.waiting
    receipt(pauses, command, 0.099)

    assert command == ThrottleProducer(command.request_id, QUOTA, 1 + MARGIN_S, "orders.*", 7)
    assert waiting
    assert not pauses.waiting
    assert told(pauses.due(0.2)) == {}
    assert (pauses.silent, pauses.told, receipts(pauses)) == ({}, True, {7: 1})


def test_b23_who_stays_silent_is_named():
    """B23: who does not acknowledge in time is named; others are not held up by it."""
    pauses, commands = begun(7, 8)
    receipt(pauses, commands[8], 0.01)
    early = told(pauses.due(0.099)), list(pauses.silent)
    sends = told(pauses.due(0.1))

    assert (early, sends) == (({}, []), {})
    assert list(pauses.silent) == [7]
    assert receipts(pauses) == {7: 0, 8: 1}
    assert not pauses.waiting


def test_b23_a_late_receipt_counts():
    """B23: it says that the producer is paused, so it is not named any more."""
    pauses, commands = begun(7)
    pauses.due(0.1)
    named = list(pauses.silent)
    receipt(pauses, commands[7], 0.9)

    assert (named, pauses.silent) == ([7], {})


def test_b23_who_is_gone_is_not_silent():
    """B23: the server says that nobody listens any more; every task ends some day."""
    pauses, commands = begun(7)
    pauses.receive_reply(commands[7].request_id, 503, b"", 0.01)
    pauses.due(0.1)
    pauses.due(0.2)

    assert (pauses.members, pauses.silent, pauses.waiting) == ({}, {}, False)
    assert pauses.told


@pytest.mark.parametrize("reason", [each for each in Reason if not each.is_quota])
def test_b22_reasons_of_a_connection_are_not_waited_for(reason):
    """B22: nobody is silent, nothing follows; a receipt that comes is shown."""
    pauses, commands = begun(7, 8, filter=">", reason=reason)
    waiting = pauses.waiting
    receipt(pauses, commands[8], 0.05)
    later = [told(pauses.due(now)) for now in (0.1, 0.2, 0.9)]

    assert set(commands) == {7, 8}
    assert not waiting
    assert later == [{}, {}, {}]
    assert set(told(pauses.due(1.0))) == {7, 8}
    assert receipts(pauses) == {7: 0, 8: 1}
    assert pauses.silent == {}


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"type":"pong"}', Receipt(99, 7).encode(), Receipt(1, 8).encode()],
    ids=["nothing", "no JSON", "no object", "unknown", "another command", "another producer"],
)
def test_what_is_no_receipt_changes_nothing(data):
    """Such a reply is no receipt; the producer is named."""
    pauses, commands = begun(7)
    sends = pauses.receive_reply(commands[7].request_id, 0, data, 0.01)
    pauses.due(0.1)

    assert (commands[7].request_id, sends) == (1, [])
    assert list(pauses.silent) == [7]


# ── windows ──────────────────────────────────────────────────────────────────────────────────


def test_b24_a_pause_is_issued_each_second_while_it_lasts():
    """B24, B7: each second, for the second and the margin, never beyond the end."""
    pauses = Pauses()
    found(pauses, 0.0, 7)
    pauses.pause("orders.*", QUOTA, 3.25)
    issued = []
    for tick in range(400):
        now = tick / 100
        for command in told(pauses.due(now)).values():
            issued.append((now, command.pause_s))
            receipt(pauses, command, now)

    assert [at for at, _ in issued] == [0.0, 1.0, 2.0]
    assert [pause_s for _, pause_s in issued] == [1.5, 1.5, 1.25]
    assert pauses.next_deadline == 4.0  # discovery


def test_b8_filters_and_reasons_are_told_side_by_side():
    """B8: each has its own window and its own receipt."""
    pauses = Pauses()
    found(pauses, 0.0, 7)
    pauses.pause("a", QUOTA, 60.0)
    pauses.pause("b", QUOTA, 0.7)
    pauses.pause("a", GROUP, 60.0)
    commands = [understand(send.data) for send in pauses.due(0.0) if send.token]
    receipt(pauses, commands[1], 0.01)

    assert [(each.subject, each.reason) for each in commands] == [
        ("a", QUOTA), ("b", QUOTA), ("a", GROUP),
    ]  # fmt: skip
    assert len(pauses.members[7].asks) == 2


# ── lifting ──────────────────────────────────────────────────────────────────────────────────


def test_b24_the_end_lifts():
    """B24: pause 0 to all that know the protocol, and no command after that."""
    pauses = Pauses()
    found(pauses, 0.0, 7, 8)
    pauses.pause("orders.*", QUOTA, 60.0)
    for command in told(pauses.due(0.0)).values():
        receipt(pauses, command, 0.01)
    lifts = told(pauses.lift("orders.*", QUOTA, 0.5))
    for command in lifts.values():
        receipt(pauses, command, 0.51)

    assert {(each.pause_s, each.reason, each.subject) for each in lifts.values()} == {
        (0.0, QUOTA, "orders.*")
    }
    assert set(lifts) == {7, 8}
    assert (pauses.waiting, pauses.silent) == (False, {})
    assert told(pauses.due(1.0)) == {}


class Writer:
    """A writer on the other side, with what is on its way to it and back, in order."""

    def __init__(self, number: int, kind: str, now: float) -> None:
        self.number, self.kind = number, kind
        self.operators = Operators("control", Producer(number, kind != "unable"), Throttle())
        self.down: list[tuple[float, int | None, bytes]] = []
        self.up: list[tuple[float, int, bytes]] = []
        self.announced = self.operators.announce(now)
        self.began = now

    def hears(self, now: float, delays: Iterator[float], is_moody: Iterator[bool]) -> None:
        """Takes what has arrived; a deaf one does not act, a moody one not always."""
        while self.down and self.down[0][0] <= now:
            _, token, data = self.down.pop(0)
            if self.kind == "deaf" or (self.kind == "moody" and next(is_moody)):
                continue
            answer = self.operators.heard(data, now)
            if answer is not None and token is not None:
                self.up.append((now + next(delays), token, answer))


FILTERS = st.sampled_from(["a", "b.*"])
EVENTS = st.one_of(
    st.tuples(
        st.just("start"), st.sampled_from(["good", "good", "good", "deaf", "unable", "moody"])
    ),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("pause"), FILTERS, st.sampled_from([0.2, 1.0, 5.0])),
    st.tuples(st.just("lift"), FILTERS),
)


@examples(50)
@given(
    st.lists(st.tuples(EVENTS, st.sampled_from([0, 1, 5, 30, 150, 400])), min_size=8),
    st.lists(st.sampled_from([0.0, 0.01, 0.02]), min_size=1),
    st.lists(st.booleans(), min_size=1),
)
def test_operator_and_writers(events, delays, is_moody):
    """
    Both sides beside each other, on a network that takes some time: whoever comes, goes, acts or
    does not. A writer that acts is paused from its first row to the end of the pause without a gap,
    and free soon after; ids are never used twice; only those that know the protocol are told; every
    wait ends; and those alone are named that do not act.
    """
    now, pauses, over = 0.0, Pauses("control"), 0.0
    delays, is_moody = cycle(delays), cycle(is_moody)  # had in turns
    writers: dict[int, Writer] = {}
    ids: set[int] = set()
    wanted: dict[str, float] = {}
    lifted: dict[str, float] = {}
    asked: dict[str, float] = {}

    def sent(sends, to_new=None):
        for _, token, data in sends:
            said = understand(data)
            number = to_new if isinstance(said, Active) else getattr(said, "producer_id", None)
            if isinstance(said, ThrottleProducer):
                assert token not in ids
                ids.add(token)
            for writer in list(writers.values()):
                if number in (None, writer.number):
                    is_command = not isinstance(said, Discover | Active)
                    assert not is_command or writer.kind != "unable"
                    arrives = max([now + next(delays), *[d[0] for d in writer.down]])
                    writer.down.append((arrives, token, data))
            if isinstance(said, ThrottleProducer) and number not in writers:
                pauses.receive_reply(token, 503, b"", now)

    def happens(number, event):
        match event:
            case "start", kind:
                writers[number] = Writer(number, kind, now)
                sent(pauses.receive_start(writers[number].announced, now), number)
            case "end", place if writers:
                del writers[sorted(writers)[place % len(writers)]]
            case "pause", filter, pause_s:
                wanted[filter], asked[filter] = now + pause_s, now
                pauses.pause(filter, QUOTA, wanted[filter])
            case "lift", filter:
                wanted.pop(filter, None)
                lifted[filter] = now
                sent(pauses.lift(filter, QUOTA, now))

    for number, (event, ticks) in enumerate(events):
        happens(number, event)
        for _ in range(ticks):
            now += 0.01
            over = max([over, *(min(now, until) for until in wanted.values())])
            sent(pauses.due(now))
            for writer in list(writers.values()):
                writer.hears(now, delays, is_moody)
                while writer.up and writer.up[0][0] <= now:
                    _, token, data = writer.up.pop(0)
                    sent(pauses.receive_reply(token, 0, data, now))
                throttle = writer.operators.throttle
                if writer.kind != "good" or writer.operators.holds(now):
                    continue
                for filter, subject in (("a", "a"), ("b.*", "b.x")):
                    told = max(writer.began, asked.get(filter, now), lifted.get(filter, 0.0)) + 0.1
                    if told < now < wanted.get(filter, 0.0) - 0.1:
                        assert throttle.is_paused(subject, now), (now, filter)
                    if now > over + 1.0 + MARGIN_S + 0.1:
                        assert not throttle.is_paused(subject, now), (now, filter)
            assert pauses.next_deadline > now - 0.1
    kinds = {writers[number].kind for number in set(pauses.silent) & set(writers)}

    assert not kinds & {"good", "unable"}

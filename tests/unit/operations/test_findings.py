"""What of an inspection is a problem, and its rates."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pyspark_jetstream.client.info import ConsumerInfo, Mark, StreamInfo
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.fetch.assumptions import Made, resumed_by
from pyspark_jetstream.fetch.layout import SubjectPartition
from pyspark_jetstream.fetch.owner import FILTER
from pyspark_jetstream.operations.inspection.findings import (
    CheckpointState,
    ConsumerState,
    Inspection,
    LimitState,
    OwnerState,
    PinState,
    PositionState,
    ProgressState,
    ServerState,
    SourceState,
    StreamState,
    claim_state,
    consumer_state,
    is_ours,
    missing,
    position_state,
    since,
    stream_state,
)
from pyspark_jetstream.operations.inspection.leases import LeaseState, WaitingState
from pyspark_jetstream.readstream.offsets import INITIAL, Offset
from pyspark_jetstream.readstream.shared.claims import ClaimedOffset

from ...kits.checkpoints import offset

PLAIN = "`{}`".format

NOW = datetime(2026, 11, 21, tzinfo=UTC)
STREAM = StreamInfo("S", "t1", 11, 100, 90, 900, 7, 0, NOW, {"subjects": ["S.>"]})
FREE = LimitState(None, None, None, None, "old", None)
STREAM_STATE = StreamState("S", "t1", "limits", FREE, 90, 900, 11, 100, ("S.>",), 1, "n1", 120.0)
CONSUMER_STATE = ConsumerState("S", "q-0", progress=ProgressState(delivered=50))
CONSUMER = ConsumerInfo("q-0", 50, 50, 0, "", {}, created="c1")


def at(sequence: int, created: str = "t1", base: int = 0) -> Offset:
    """An offset of one partition."""
    return Offset.from_json(offset({"S": created}, [sequence], base=[base]))


def position(**changes: Any) -> PositionState:
    """A position of one partition, all well but for the changes."""
    given: dict[str, Any] = {
        "stream": STREAM, "consumer": CONSUMER, "committed": at(40), "planned": at(50),
        "filter": None, "outgrown": (),
    } | changes  # fmt: skip
    server = ServerState(
        {"S": given["stream"]} if given["stream"] else {},
        {("S", "q-0"): given["consumer"]} if given["consumer"] else {},
        given["outgrown"],
    )
    partition = SubjectPartition(0, "S", given["filter"])
    return position_state(partition, given["committed"], given["planned"], server, 60)


def configured(**config: Any) -> StreamInfo:
    """A stream that has lost its oldest messages, with this configuration."""
    return replace(STREAM, first_seq=46, config=config)


ANEW = replace(STREAM, created="t2")
EMPTIED = configured()
KEEPING = replace(STREAM, config={"retention": "interest"})
MADE = replace(at(50), consumers={0: Made("c1", 0)}, marks={"S": Mark("t1", 60, "m")})


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, ()),
        ({"stream": None}, ("stream is gone",)),
        ({"stream": ANEW}, ("stream was made anew",)),
        (
            {"stream": replace(STREAM, last_seq=49)},
            ("stream was taken back to an older copy: it ends at 49, the checkpoint is at 50",),
        ),
        ({"stream": replace(STREAM, last_seq=59), "planned": MADE}, ()),
        (
            {"planned": MADE, "outgrown": {"S"}},
            ("stream was taken back to an older copy, and written to since",),
        ),
        ({"stream": EMPTIED}, ("5 messages left the stream unread",)),
        ({"stream": EMPTIED, "filter": "S.>"}, ("up to 5 messages left the stream unread",)),
        ({"stream": configured(max_msgs_per_subject=1)}, ()),
        ({"stream": EMPTIED, "committed": at(45)}, ()),
        ({"consumer": None}, ()),
        ({"consumer": None, "stream": KEEPING}, ("consumer is gone",)),
        ({"consumer": None, "stream": KEEPING, "committed": None}, ()),
        ({"stream": KEEPING, "planned": MADE}, ()),
        (
            {"stream": KEEPING, "planned": MADE, "consumer": replace(CONSUMER, created="c2")},
            ("consumer was made anew",),
        ),
        ({"consumer": replace(CONSUMER, stream_seq=51)}, ()),
    ],
)
def test_positions(changes: dict[str, Any], problems: tuple[str, ...]) -> None:
    """
    What costs messages, or will when the query starts again, is a problem: a stream that is
    another one, messages that are gone, a consumer that is gone where the stream keeps messages for
    it. What does not is none.
    """
    assert position(**changes).problems == problems


@pytest.mark.parametrize(
    ("delivered", "notes"),
    [
        (0, ()),
        (50, ()),
        (51, ("consumer beyond the checkpoint, mostly until the next batch",)),
    ],
)
def test_a_consumer_beyond_the_checkpoint(delivered: int, notes: tuple[str, ...]) -> None:
    """A consumer that stands beyond the batch that was planned is noted; it is no problem."""
    found = position(consumer=replace(CONSUMER, stream_seq=delivered))

    assert (found.notes, found.problems) == (notes, ())


def test_where_a_position_begins() -> None:
    """
    Before the first batch is done, and after the stream was made anew, it is the base; the lag of
    a stream that is another one is not told.
    """
    first = position(committed=None, planned=at(50, base=30))
    anew = position(committed=at(90), planned=at(50, "t2", base=10), stream=ANEW)

    assert (first.committed, first.planned, first.lag) == (30, 50, 60)
    assert (anew.committed, anew.problems) == (10, ())
    assert position(stream=ANEW).lag is None
    assert position(stream=None).lag is None


CLAIMED = {
    "version": 1, "policy": "overflow", "consumer": "q", "partitions": 2, "streams": {"S": "t1"},
    "serial": 4,
    "claims": {"0": {"1": "15-20,30", "3": "12"}},
}  # fmt: skip


def test_claims() -> None:
    """
    Claims are counted by partition, ranges with both ends, and those that were delivered before.
    """
    claims = ClaimedOffset.from_json(CLAIMED)
    server = ServerState({"S": STREAM}, {("S", "q-0"): replace(CONSUMER, num_ack_pending=9)})
    found = [claim_state(index, "S", claims, False, server) for index in (0, 1)]

    assert (claims.policy, claims.serial) == ("overflow", 4)
    assert (found[0].claimed, found[0].first, found[0].last) == (8, 12, 30)
    assert (found[0].redelivered, found[0].ack_pending, found[0].problems) == (1, 9, ())
    assert (found[1].claimed, found[1].ack_pending) == (0, None)
    assert found[1].problems == ("consumer is gone",)


@pytest.mark.parametrize(
    ("stream", "committed", "problems"),
    [
        (None, False, ("stream is gone",)),
        (ANEW, False, ("stream was made anew",)),
        (replace(STREAM, first_seq=18), False, ("4 claimed messages left the stream",)),
        (replace(STREAM, first_seq=18), True, ()),
        (replace(STREAM, first_seq=101), False, ("8 claimed messages left the stream",)),
    ],
)
def test_problems_of_claims(stream, committed, problems) -> None:
    """
    Claimed messages that left the stream before their batch was committed are a problem; after it
    that is what should happen.
    """
    server = ServerState({"S": stream} if stream else {}, {("S", "q-0"): CONSUMER})

    found = claim_state(0, "S", ClaimedOffset.from_json(CLAIMED), committed, server)
    assert found.problems == problems


@pytest.mark.parametrize(
    ("value", "ours"),
    [
        (offset({"S": "t"}, [1]), True),
        (offset({"S": "t"}, [1]) | {"version": 9}, True),
        (CLAIMED, True),
        (dict(INITIAL), True),
        ({"topic": {"0": 1}}, False),
        ({"version": 1, "logOffset": 0}, False),
        (3, False),
        ("x", False),
        (None, False),
    ],
)
def test_whose_offset_it_is(value: Any, ours: bool) -> None:
    """Offsets of this package are told from those of other sources, whatever their version."""
    assert is_ours(value) is ours


def test_a_stream_with_replicas() -> None:
    """Leader and replicas come from the server's cluster; one that is offline is a problem."""
    cluster = {"leader": "n1", "replicas": [{"name": "n2"}, {"name": "n3", "offline": True}]}
    config = {"num_replicas": 3, "subjects": ["a"], "duplicate_window": 5 * 10**9}
    info = StreamInfo("S", "t", 1, 2, 2, 9, 1, 0, datetime.now(UTC), config, cluster)
    found = stream_state(info, PLAIN)

    assert (found.leader, found.replicas, found.duplicate_window_s) == ("n1", 3, 5.0)
    assert found.problems == ("replica n3 is offline",)


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        ({}, FREE),
        ({"max_msgs": -1, "max_bytes": 0, "max_age": 0}, FREE),
        ({"max_msgs": 180}, replace(FREE, messages=180, used=0.5)),
        ({"max_msgs": 900, "max_bytes": 1000}, replace(FREE, messages=900, bytes=1000, used=0.9)),
        ({"max_age": 3 * 10**9, "max_msgs_per_subject": 2, "discard": "new"},
         replace(FREE, age_s=3.0, messages_per_subject=2, discard="new")),
    ],
)  # fmt: skip
def test_the_limits_of_a_stream(config: dict[str, Any], limits: LimitState) -> None:
    """A stream shows its limits, and how much it has used of the one that is nearer."""
    assert stream_state(replace(STREAM, config=config), PLAIN).limits == limits


@pytest.mark.parametrize(
    ("config", "full"),
    [
        ({"discard": "new", "max_msgs": 91}, False),
        ({"discard": "new", "max_msgs": 90}, True),
        ({"discard": "old", "max_msgs": 90}, False),
        ({"discard": "new", "max_bytes": 910}, False),
        ({"discard": "new", "max_bytes": 909}, True),
        ({"discard": "new", "max_msgs_per_subject": 1}, False),
    ],
)
def test_a_stream_that_is_full(config: dict[str, Any], full: bool) -> None:
    """
    A stream that has no room for one more message of the mean size, and refuses it, is a problem:
    90 messages of 10 bytes lie here.
    """
    info = replace(STREAM, messages=90, bytes=900, config=config)

    assert bool(stream_state(info, PLAIN).problems) is full


@pytest.mark.parametrize(
    ("batched", "how"),
    [
        (False, "(`nats stream edit S --max-msgs=…`)"),
        (
            True,
            "from Python: `nats stream edit` would take allow_batched away (page Prepare a"
            " stream, section Change a stream from Python)",
        ),
    ],
)
def test_what_raises_the_limit_of_a_full_stream(batched: bool, how: str) -> None:
    """The problem has the limit and what raises it."""
    config = {"discard": "new", "max_msgs": 1090, "allow_batched": batched}
    info = replace(STREAM, name="S", messages=1090, config=config)
    (problem,) = stream_state(info, PLAIN).problems

    assert problem.endswith(f"its limit is 1,090 messages: make room, or raise it {how}")


def test_a_consumer_of_a_group() -> None:
    """The pin and its time are shown while somebody holds it."""
    group = {"group": "spark", "pinned_client_id": "abc", "pinned_ts": "2026-01-01T00:00:00Z"}
    answer = {
        "name": "q-0",
        "config": {"priority_groups": ["spark"], "priority_policy": "pinned_client"},
        "delivered": {"consumer_seq": 1, "stream_seq": 2},
        "priority_groups": [group],
    }
    pinned = consumer_state("S", answer, PLAIN)
    free = consumer_state(
        "S", answer | {"priority_groups": [group | {"pinned_client_id": ""}]}, PLAIN
    )

    assert pinned.pin == PinState("pinned_client", "spark", "abc", "2026-01-01T00:00:00Z")
    assert free.pin == PinState("pinned_client", "spark", "", "")
    assert consumer_state("S", {"name": "bare"}, PLAIN) == ConsumerState("S", "bare")


OWNED = {f"pyspark-jetstream.{key}": "x" for key in ("query", "host", "pid")}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"headers_only": False}, "it has headers_only False where it was made with headers_only"),
        ({"priority_policy": "overflow"}, "priority_policy 'overflow' where it was made with"),
        ({"description": "pyspark-jetstream, shared", "headers_only": True}, None),
        ({"metadata": {}, "headers_only": False}, None),
        ({"metadata": OWNED | {FILTER: "S.x"}}, None),
        ({"metadata": OWNED | {FILTER: "S.y"}}, "'S.x' where it was made with filter_subject 'S.y"),
        ({"metadata": OWNED | {FILTER: ""}}, "'S.x' where it was made with no filter_subject"),
    ],
)
def test_a_consumer_that_was_edited(changes, problem) -> None:
    """
    A query's own consumer that delivers otherwise than it was made to is a problem; that of others,
    and one that is shared, is none of ours. Which filter it was made with, its metadata say.
    """
    config = {
        "durable_name": "q-0", "description": "pyspark-jetstream", "ack_policy": "none",
        "filter_subject": "S.x", "headers_only": True, "priority_groups": ["g"],
        "priority_policy": "pinned_client",
        "metadata": OWNED,
    }  # fmt: skip
    delivered = {"consumer_seq": 1, "stream_seq": 2}
    answer = {"name": "q-0", "delivered": delivered, "config": config | changes}
    problems = consumer_state("S", answer, PLAIN).problems

    assert (problems == ()) if problem is None else (problem in problems[0])


def test_a_consumer_that_is_paused() -> None:
    """
    That a query waits for its consumer is a problem for whoever wonders why nothing is read. One
    command ends the pause of all partitions of the query.
    """
    config = {
        "durable_name": "q-0", "description": "pyspark-jetstream", "ack_policy": "all",
        "priority_groups": ["g"], "priority_policy": "pinned_client", "metadata": OWNED,
        "headers_only": True, "max_ack_pending": -1, "ack_wait": 365 * 86_400 * 10**9,
        "pause_until": "2026-11-24T08:00:00.25Z",
    }  # fmt: skip
    answer = {"name": "q-0", "delivered": {"consumer_seq": 1, "stream_seq": 2}, "config": config}
    answer |= {"paused": True, "pause_remaining": 90 * 10**9}

    assert consumer_state("S", answer, PLAIN, "interest").problems == (
        "the consumer 'q-0' is paused until 2026-11-24T08:00:00Z, for 0:01:30 more"
        " (`pyspark-jetstream resume --stream S --consumer q` ends it)",
    )


def test_commands_reach_the_server_that_was_asked() -> None:
    """Each command in a problem has the address of the servers, unless that is the default."""
    config = {"discard": "new", "max_msgs": 90}
    edited = {
        "durable_name": "q-0", "description": "pyspark-jetstream", "metadata": OWNED,
        "deliver_subject": "x",
    }  # fmt: skip
    answer = {"name": "q-0", "config": edited, "delivered": {"consumer_seq": 1, "stream_seq": 2}}
    command = parse_connection({"servers": "tls://n1:4222, n2"}).command
    (full,) = stream_state(replace(STREAM, config=config), command).problems
    problem, *_ = consumer_state("S", answer, command).problems

    assert "(`nats stream edit S --max-msgs=… --server tls://n1:4222,nats://n2`)" in full
    assert "(`nats consumer rm S q-0 --server tls://n1:4222,nats://n2`)" in problem
    assert resumed_by(command, "S", "q-0") == (
        "`pyspark-jetstream resume --stream S --consumer q-0 --servers tls://n1:4222,nats://n2`"
        " ends it"
    )
    assert parse_connection({}).command("nats stream info S") == "`nats stream info S`"


QUERY = OwnerState("id", "orders", "vm", runs=True)
READS = ConsumerState("S", "q-0", owner=QUERY)
DEAD = replace(READS, owner=replace(QUERY, runs=False))
LEASE = LeaseState("S", "q", "id", left_s=20.0, notes=("nobody waits to take its place; a did",))
PAIR = replace(LEASE, waiting=(WaitingState("b", "", "h", 1, ""),), notes=())
OVER = LeaseState("S", "q", notes=("given back",))
LATE = replace(PAIR, left_s=-1.0)
ALONE = LeaseState("S", "q", "id", notes=("query orders reads without standby; …",))


@pytest.mark.parametrize(
    ("consumers", "leases", "expected", "lines"),
    [
        ([READS], [], "running", []),
        (
            [DEAD],
            [],
            "running",
            ["query orders does not run, or is amid a batch, and 0 messages wait for it. If nob"],
        ),
        ([DEAD], [LEASE], "running", []),  # it is read without consumers now
        ([READS], [LEASE], "standby", ["standby S/q: nobody waits to take its place; a did"]),
        ([READS], [PAIR], "standby", []),
        ([DEAD], [OVER], "running", ["query orders does not run", "standby S/q: nobody reads"]),
        (
            [DEAD],
            [LATE],
            "running",
            ["query orders does not run, or is amid a batch, and 0 messages wait for it. Its"],
        ),
        ([READS], [ALONE], "running", []),
        ([READS], [ALONE], "standby", ["standby S/q: query orders reads without standby; …"]),
        ([READS], [], "standby", ["no query with a standby is here"]),
        ([], [], "running", ["no query is here"]),
    ],
)
def test_what_is_expected_and_missing(consumers, leases, expected, lines) -> None:
    """
    With `expected` a problem is a query that does not run, whatever waits for it, a lease that
    nobody holds, a pair without a standby, and that there is none.
    """
    found = missing(consumers, leases, expected)
    inspection = replace(found_at(1, 1, 1, 1), missing=tuple(found))

    assert len(found) == len(lines)
    assert all(line.startswith(begin) for line, begin in zip(found, lines, strict=True))
    assert inspection.problems()[-len(found) :] == found or not found


def found_at(last: int, deliveries: int, lag: int, committed: int) -> Inspection:
    """A look at one of each."""
    place = replace(position(), committed=committed, lag=lag)
    return Inspection(
        "",
        "",
        (replace(STREAM_STATE, last=last),),
        (),
        (replace(CONSUMER_STATE, progress=ProgressState(deliveries=deliveries, lag=lag)),),
        CheckpointState("", "", 1, 1, (SourceState("0", "q", positions=(place,)),), 0),
    )


def test_rates() -> None:
    """Two looks make rates a second: stored, delivered, read, and how the lag grows."""
    before, now = found_at(100, 40, 60, 40), found_at(300, 90, 50, 80)
    rated = since(now, before, 10.0, {("0", 0): 35})
    position = rated.checkpoint.sources[0].positions[0]

    assert rated.streams[0].stored_rate == 20.0
    assert (rated.consumers[0].read_rate, rated.consumers[0].lag_rate) == (5.0, -1.0)
    assert (position.read_rate, position.lag_rate) == (3.5, -1.0)


def test_rates_that_cannot_be_told() -> None:
    """
    A stream that was made anew, a consumer that was reset or is new and a position whose lag is not
    known have none.
    """
    before, now = found_at(100, 40, 60, 40), found_at(10, 3, 5, 80)
    now = replace(now, streams=(replace(now.streams[0], created="t2"),))
    rated = since(now, before, 1.0, {})
    fresh = since(now, replace(before, consumers=(), streams=(), checkpoint=None), 1.0, {})

    assert rated.streams[0].stored_rate is None
    assert rated.consumers[0].read_rate is None
    assert rated.checkpoint.sources[0].positions[0].read_rate is None
    assert fresh.consumers[0].lag_rate is None
    assert fresh.checkpoint == now.checkpoint


def test_all_problems_with_their_places() -> None:
    """Each problem says where it is."""
    claim = claim_state(
        2, "S", ClaimedOffset.from_json(CLAIMED), False, ServerState({"S": STREAM}, {})
    )
    sources = (
        SourceState("0", "q", positions=(position(stream=ANEW),), problems=("N differs",)),
        SourceState("1", "q", claims=(claim,)),
    )
    found = Inspection(
        "", "",
        (replace(STREAM_STATE, problems=("replica n2 is offline",)),),
        (),
        (replace(CONSUMER_STATE, problems=("no leader answers",)),),
        CheckpointState("", "", 1, 1, sources, 0),
        (LeaseState("S", "q", problems=("nobody reads",)),),
    )  # fmt: skip

    assert found.problems() == [
        "stream S: replica n2 is offline",
        "consumer S/q-0: no leader answers",
        "standby S/q: nobody reads",
        "source 0: N differs",
        "source 0, partition 0 of S: stream was made anew",
        "source 1, partition 2 of S: consumer is gone",
    ]

"""What of a look is a problem."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pyspark_jetstream.client.info import ConsumerInfo, Mark, StreamInfo
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.fetch.durable import FILTER, Owner
from pyspark_jetstream.fetch.layout import SubjectPartition
from pyspark_jetstream.operations.inspect.findings import (
    Report,
    Row,
    Seen,
    add_consumer,
    add_idle,
    add_position,
    add_shared,
    add_stream,
    add_write,
)
from pyspark_jetstream.readstream.offsets import INITIAL, Offset, begins
from pyspark_jetstream.readstream.shared.claims import ClaimedOffset
from pyspark_jetstream.write.exactlyonce.records import Committed
from pyspark_jetstream.write.streams import FoundStream

from ...kits.checkpoints import offset

PLAIN = "`{}`".format

NOW = datetime(2026, 11, 21, tzinfo=UTC)
STREAM = StreamInfo("S", "t1", 11, 100, 90, 900, 7, 0, NOW, {"subjects": ["S.>"]})
CONSUMER = ConsumerInfo("q-0", 50, 50, 0, "", {}, created="c1")
HERE = "source 0, partition 0 of S: "


def report() -> Report:
    return Report("t", "nats://h")


def at(sequence: int, created: str = "t1", base: int = 0) -> Offset:
    """An offset of one partition."""
    return Offset.from_json(offset({"S": created}, [sequence], base=[base]))


def position(**changes: Any) -> tuple[Row, list[str], list[str]]:
    """A position of one partition, all well but for the changes; its problems and notes."""
    given: dict[str, Any] = {
        "stream": STREAM, "consumer": CONSUMER, "committed": at(40), "planned": at(50),
        "outgrown": (),
    } | changes  # fmt: skip
    seen = Seen(
        {"S": given["stream"]} if given["stream"] else {},
        {("S", "q-0"): given["consumer"]} if given["consumer"] else {},
        given["outgrown"],
    )
    found, partition = report(), SubjectPartition(0, "S")
    committed = given["committed"] or begins(INITIAL, given["planned"])
    add_position(found, "0", partition, (committed, given["planned"]), seen)
    assert all(each.startswith(HERE) for each in found.problems)
    short = [each.removeprefix(HERE) for each in found.problems]
    return found.positions[0], short, found.notes


def configured(**config: Any) -> StreamInfo:
    """A stream that has lost its oldest messages, with this configuration."""
    return replace(STREAM, first_seq=46, config=config)


ANEW = replace(STREAM, created="t2")
EMPTIED = configured()
KEEPING = replace(STREAM, config={"retention": "interest"})
OTHERS = replace(CONSUMER, config={"metadata": Owner("other", "h", 7).metadata})
STANDBY = replace(CONSUMER, config={"metadata": Owner("other", "h", 7, standby=True).metadata})
OWN = replace(CONSUMER, config={"metadata": Owner("mine", "h", 7, standby=True).metadata})
MADE = replace(at(50), consumers={0: "c1"}, marks={"S": Mark("t1", 60, "m")})
FAIL = "; to go on with what is there, start the query with failOnDataLoss=false"
NEW = "; give the query a new checkpointLocation, or the stream that it had"


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"stream": None}, [f"stream is gone{NEW}"]),
        ({"stream": ANEW}, [f"the stream was made anew at t2{NEW}"]),
        ({"stream": replace(STREAM, last_seq=49)}, [f"the stream ends at sequence 49{FAIL}"]),
        ({"stream": replace(STREAM, last_seq=59), "planned": MADE}, []),
        (
            {"planned": MADE, "outgrown": {"S"}},
            [f"another message stands under a sequence up to which the stream was known{FAIL}"],
        ),
        ({"stream": EMPTIED}, [f"sequences 41 to 45 left the stream{FAIL}"]),
        ({"stream": configured(max_msgs_per_subject=1)}, []),
        ({"stream": EMPTIED, "committed": at(45)}, []),
        ({"consumer": None}, []),
        ({"consumer": None, "stream": KEEPING}, [f"consumer is gone{FAIL}"]),
        ({"stream": KEEPING, "planned": MADE}, []),
        (
            {"stream": KEEPING, "planned": MADE, "consumer": replace(CONSUMER, created="c2")},
            [f"consumer was made anew{FAIL}"],
        ),
        ({"consumer": replace(CONSUMER, stream_seq=51)}, []),
        ({"consumer": OTHERS}, []),
        ({"consumer": OTHERS, "planned": replace(at(50), query="mine")},
         ["consumer 'q-0' is that of query other (host h, process 7)"
          ": give one of the two queries another consumer"]),
        ({"consumer": STANDBY, "planned": replace(at(50), query="mine")}, []),
        ({"consumer": OWN, "planned": replace(at(50), query="mine")}, []),
    ],
)  # fmt: skip
def test_positions(changes: dict[str, Any], problems: list[str]) -> None:
    """What costs messages, or will, is a problem with its remedy; who reads of a pair is a note."""
    _, found, notes = position(**changes)
    whose = {id(STANDBY): "; this checkpoint's stands by", id(OWN): ": it is this checkpoint's"}
    says = whose.get(id(changes.get("consumer")))
    holds = f"source 0: process 7 on host h has the consumers{says}"

    assert [note.startswith(holds) for note in notes] == [True] * (says is not None)
    for problem, expected in zip(found, problems, strict=True):
        says, _, mend = expected.partition(";")
        assert problem.startswith(says) and problem.endswith(mend)


def test_where_a_position_begins() -> None:
    """Before the first batch is done, and after the stream was made anew, it is the base."""
    first, _, _ = position(committed=None, planned=at(50, base=30))
    anew, problems, _ = position(committed=at(90), planned=at(50, "t2", base=10), stream=ANEW)

    assert (first["committed"], first["planned"]) == (30, 50)
    assert (anew["committed"], problems) == (10, [])


CLAIMED = {
    "version": 1, "policy": "overflow", "consumer": "q", "partitions": 2, "streams": {"S": "t1"},
    "serial": 4,
    "claims": {"0": {"1": "15-20,30", "3": "12"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("stream", "there", "problems"),
    [
        (STREAM, 2, []),
        (None, 2, [f"source 0, stream S: stream is gone{NEW}"]),
        (ANEW, 2, [f"source 0, stream S: stream was made anew{NEW}"]),
        (STREAM, 1, [f"source 0, consumer 'q-1': consumer is gone{FAIL}"]),
    ],
)
def test_a_source_that_shares_its_consumers(stream, there, problems) -> None:
    """Its streams are to be the same, and its consumers to be there."""
    consumers = {("S", f"q-{index}"): CONSUMER for index in range(there)}
    found = report()
    seen = Seen({"S": stream} if stream else {}, consumers)
    add_shared(found, "0", ClaimedOffset.from_json(CLAIMED), seen)

    assert found.problems == problems


def of_stream(info: StreamInfo) -> Report:
    found = report()
    add_stream(found, info, PLAIN)
    return found


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        ({}, {}),
        ({"max_msgs": -1, "max_bytes": 0, "max_age": 0}, {}),
        ({"max_msgs": 180, "discard": "old"}, {"used_percent": 50, "discard": "old"}),
        ({"max_msgs": 900, "max_bytes": 1000, "discard": "old"},
         {"used_percent": 90, "discard": "old"}),
    ],
)  # fmt: skip
def test_the_limits_of_a_stream(config: dict[str, Any], limits: dict[str, Any]) -> None:
    """A stream shows how much it has used of the limit that is nearer."""
    (row,) = of_stream(replace(STREAM, config=config)).streams
    names = "used_percent", "discard"

    assert {name: row[name] for name in names} == dict.fromkeys(names) | limits


@pytest.mark.parametrize(
    ("config", "full", "near"),
    [
        ({"discard": "new", "max_msgs": 101}, False, False),
        ({"discard": "new", "max_msgs": 100}, False, True),
        ({"discard": "new", "max_msgs": 91}, False, True),
        ({"discard": "new", "max_msgs": 90}, True, False),
        ({"discard": "old", "max_msgs": 90}, False, False),
        ({"discard": "new", "max_bytes": 910}, False, True),
        ({"discard": "new", "max_bytes": 909}, True, False),
        ({"discard": "new", "max_msgs_per_subject": 1}, False, False),
    ],
)
def test_a_stream_that_is_full(config: dict[str, Any], full: bool, near: bool) -> None:
    """One without room for a message of the mean size is a problem, near to it a note."""
    found = of_stream(replace(STREAM, config=config))

    assert (bool(found.problems), bool(found.notes)) == (full, near)


def test_what_raises_the_limit_of_a_full_stream() -> None:
    """The problem has the limit and what raises it."""
    config = {"discard": "new", "max_msgs": 1090}
    (problem,) = of_stream(replace(STREAM, messages=1090, config=config)).problems

    how = "(`nats stream edit S --max-msgs=… --force`)"
    assert problem.endswith(f"its limit is 1,090 messages: make room, or raise it {how}")


def of_consumer(answer: dict[str, Any], retention: str = "limits", command=PLAIN) -> Report:
    found = report()
    add_consumer(found, "S", answer, command, retention)
    return found


def test_a_consumer_of_a_group() -> None:
    """The pin and its time are shown while somebody holds it."""
    group = {"group": "spark", "pinned_client_id": "abc", "pinned_ts": "2026-01-01T00:00:00.5Z"}
    answer = {
        "name": "q-0",
        "config": {"priority_groups": ["spark"], "priority_policy": "pinned_client"},
        "delivered": {"consumer_seq": 1, "stream_seq": 2},
        "priority_groups": [group],
    }
    free = answer | {"priority_groups": [group | {"pinned_client_id": ""}]}
    names = ("policy", "pinned", "pinned_since", "runs")
    bare = {"name": "bare", "config": {}}
    rows = [of_consumer(each).consumers[0] for each in (answer, free, bare)]

    assert [tuple(map(row.get, names)) for row in rows] == [
        ("pinned_client", "abc", "2026-01-01T00:00:00.5Z", None),
        ("pinned_client", None, None, None),
        (None, None, None, None),
    ]


OWNED = {f"pyspark-jetstream.{key}": "x" for key in ("query", "host", "pid")}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"headers_only": False}, "has headers_only False where its query needs headers_only"),
        ({"priority_policy": "overflow"}, "priority_policy 'overflow' where its query needs"),
        ({"description": "pyspark-jetstream, shared", "headers_only": True}, None),
        ({"metadata": {}, "headers_only": False}, None),
        ({"metadata": OWNED | {FILTER: "S.x"}}, None),
        ({"metadata": OWNED | {FILTER: "S.y"}}, "'S.x' where its query needs filter_subject 'S.y"),
        ({"metadata": OWNED | {FILTER: ""}}, "'S.x' where its query needs no filter_subject"),
    ],
)
def test_a_consumer_that_was_edited(changes, problem) -> None:
    """A query's own consumer that delivers otherwise than it was made to is a problem."""
    config = {
        "durable_name": "q-0", "description": "pyspark-jetstream", "ack_policy": "none",
        "filter_subject": "S.x", "headers_only": True, "priority_groups": ["g"],
        "priority_policy": "pinned_client",
        "metadata": OWNED,
    }  # fmt: skip
    delivered = {"consumer_seq": 1, "stream_seq": 2}
    problems = of_consumer(
        {"name": "q-0", "delivered": delivered, "config": config | changes}
    ).problems

    assert (problems == []) if problem is None else (problem in problems[0])


def test_a_consumer_that_is_paused() -> None:
    """That a query waits for its consumer is a problem for whoever wonders why nothing is read."""
    config = {
        "durable_name": "q-0", "description": "pyspark-jetstream", "ack_policy": "all",
        "priority_groups": ["g"], "priority_policy": "pinned_client", "metadata": OWNED,
        "headers_only": True, "max_ack_pending": -1, "ack_wait": 365 * 86_400 * 10**9,
        "pause_until": "2026-11-24T08:00:00.25Z",
    }  # fmt: skip
    answer = {"name": "q-0", "delivered": {"consumer_seq": 1, "stream_seq": 2}, "config": config}
    answer |= {"paused": True, "pause_remaining": 90 * 10**9}
    found = of_consumer(answer, "interest")

    assert found.consumers[0]["paused_until"] == "2026-11-24T08:00:00.25Z"
    assert found.problems == [
        "consumer S/q-0: the consumer 'q-0' is paused until 2026-11-24T08:00:00Z, for 0:01:30 more"
        " (`pyspark-jetstream resume --stream S --consumer q` ends it)",
    ]


def test_commands_reach_the_server_that_was_asked() -> None:
    """Each command in a problem has the address of the servers, unless that is the default."""
    edited = {
        "durable_name": "q-0", "description": "pyspark-jetstream", "metadata": OWNED,
        "deliver_subject": "x",
    }  # fmt: skip
    answer = {"name": "q-0", "config": edited, "delivered": {"consumer_seq": 1, "stream_seq": 2}}
    command = parse_connection({"servers": "tls://n1:4222, n2"}).command
    found = report()
    add_stream(found, replace(STREAM, config={"discard": "new", "max_msgs": 90}), command)
    full, problem = found.problems[0], of_consumer(answer, command=command).problems[0]

    assert "(`nats stream edit S --max-msgs=… --force --server tls://n1:4222,nats://n2`)" in full
    assert "(`nats consumer rm S q-0 --server tls://n1:4222,nats://n2`)" in problem
    assert parse_connection({}).command("nats stream info S") == "`nats stream info S`"


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ({}, 1),
        ({"num_waiting": 1}, 0),
        ({"priority_groups": [{"group": "g", "pinned_client_id": "a"}]}, 0),
        ({"num_pending": 0}, 0),
    ],
)
def test_a_query_that_does_not_run(changes, notes) -> None:
    """A query at whose consumer nobody sits, while messages wait, is noted."""
    config = {"priority_groups": ["g"], "priority_policy": "pinned_client", "metadata": OWNED}
    answer = {"name": "q-0", "config": config | {"headers_only": True}, "num_pending": 7}
    found = of_consumer(answer | {"delivered": {"consumer_seq": 1, "stream_seq": 2}} | changes)
    add_idle(found)

    assert len(found.notes) == notes
    assert all(
        "query x does not run, or is amid a batch, and 7 messages wait" in each
        and each.endswith("start it again over its checkpoint")
        for each in found.notes
    )


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (STREAM, ""),
        (replace(STREAM, last_seq=99), "it ended at sequence 100, and ends at 99 now"),
        (ANEW, "it was made anew at t2"),
        (None, "it was deleted, and the rows in it are gone"),
    ],
)
def test_a_target_that_lost_rows(stream, why) -> None:
    """A target is judged as a writer judges it."""
    last = Committed(7, {"S": FoundStream("S", "t1", 100)})
    asked, listed = report(), report()
    for found, is_asked in ((asked, True), (listed, False)):
        add_write(found, "w", last, {"S": stream} if stream else {}, "`forget`", is_asked)

    assert asked.writes == [{"write": "w", "batch": 7, "stream": "S", "up_to": 100}]
    assert (asked.notes, listed.problems) == ([], [])
    assert asked.problems == listed.notes
    assert len(asked.problems) == bool(why)
    assert all(each.startswith(f"write w, stream S: {why}") for each in asked.problems)
    assert all("`forget`" in each for each in asked.problems)

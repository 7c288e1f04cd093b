"""
Quotas in bytes, of resource groups and of the broker, with real servers and writers: those of the
sink, which keep rates, and producers that only know pauses.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason

from ..conftest import connection_to
from ..kits.servers import DevServer
from ..kits.throttle import Keeper, Writer
from .test_throttle_job import PATIENT, rows_of, start, until

KIB = 1024


@pytest.fixture
def server() -> Iterator[tuple[DevServer, JetStream]]:
    """A server of its own, with two streams, for the broker's quota counts all there are."""
    with DevServer() as server:
        js = JetStream(Client(connection_to(server)))
        for name in ("S", "T"):
            js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        yield server, js
        js.client.close()


NAME = "filter, writers"
"""The first column of the job's table."""


def limited(row):
    """What a row says of its limit."""
    return [row[NAME], row["limit /s"]]


def near(rate, found):
    """Whether it is what a limit says, to within a third."""
    return rate * 2 / 3 < found < rate * 4 / 3


def held(server, js, limits, writers, wanted):
    """
    Messages and bytes a second while these limits hold these writers, and what the job printed.

    Of the middle one of six seconds, as a machine that stops for one spoils no more than two; the
    first six of which these two are as `wanted` says, within two minutes, or the last.
    """
    looks: deque[tuple[float, ...]] = deque(maxlen=7)

    def rates() -> list[float]:
        return [
            median((b[of] - a[of]) / (b[0] - a[0]) for a, b in itertools.pairwise(looks))
            for of in (1, 2)
        ]

    with ExitStack() as stack:
        for each in writers:
            stack.enter_context(each)
        job = start(server, "quota", *limits, *PATIENT)
        until(lambda: any(each.commands for each in writers))
        deadline = time.monotonic() + 120
        while len(looks) < 7 or (not wanted(*rates()) and time.monotonic() < deadline):
            time.sleep(1.0)
            looks.append((time.monotonic(), *stored(js)))
        job.send_signal(signal.SIGINT)
        out, _ = job.communicate(timeout=240)
    return *rates(), rows_of(out)


def stored(js):
    """Messages and bytes of both streams."""
    infos = js.stream_infos(["S", "T"])
    return sum(each.last_seq for each in infos), sum(each.bytes for each in infos)


@pytest.mark.parametrize("filter", ["S.>", "S.eu"], ids=["a stream", "a part of it"])
def test_bytes_a_second(server, filter):
    """
    A publisher that would be four times as fast publishes the bytes that its limit says, over six
    seconds to within a third; the stream's own count says so.
    """
    writer = Writer(server[0], 7, ("S.eu",), rate=2000, payload=b"x" * 170)
    limits = ("--limit", f"{filter}=100KiB/s,burst=10KiB")
    _, nbytes, rows = held(*server, limits, [writer], lambda _, nbytes: near(100 * KIB, nbytes))

    assert near(100 * KIB, nbytes)
    assert {each.reason for _, each in writer.commands} == {Reason.TopicProduceQuotaExceeded}
    assert limited(rows[0]) == [filter, "100.0 KiB"]
    assert rows[0]["published"].endswith(" KiB")


def test_a_limit_of_messages_and_bytes(server):
    """
    PIP-385: "in bytes and/or messages per second": the tighter one holds, here that of bytes.
    """
    writer = Writer(server[0], 7, ("S.eu",), rate=2000, payload=b"x" * 170)
    limit = "S.>=1000/s,burst=50 and 50KiB/s,burst=5KiB"
    messages, nbytes, rows = held(
        *server, ("--limit", limit), [writer], lambda _, nbytes: near(50 * KIB, nbytes)
    )

    assert messages < 500
    assert near(50 * KIB, nbytes)
    assert [limited(row) for row in rows] == [["S.>", "1,000.0"], ["S.>", "50.0 KiB"]]


def test_a_resource_group_shares_its_rate(server):
    """
    PIP-385's second reason: of two streams together no more is published than the group may, and
    both are paused; a subject that is not in it goes on.
    """
    writers = [
        Writer(server[0], 7, ("S.eu",), rate=800),
        Writer(server[0], 8, ("T.us",), rate=800),
    ]
    free = Writer(server[0], 9, ("T.free",), rate=100)
    group = ("--group", "S.>, T.us=400/s,burst=40")
    messages, _, rows = held(
        *server, group, [*writers, free], lambda messages, _: near(400, messages - 100)
    )
    commands = [each for writer in writers for _, each in writer.commands]

    assert near(400, messages - 100)
    assert all(each.published for each in writers)
    assert {each.reason for each in commands} == {Reason.ResourceGroupProduceQuotaExceeded}
    assert {each.subject for each in commands} == {"S.>", "T.us"}
    assert free.free and free.free[-1] - free.free[0] > 5
    assert limited(rows[0]) == ["S.>, T.us", "400.0"]


def test_the_broker_s_quota_pauses_whole_writers(server):
    """
    PIP-385's last reason: all that is stored counts, and every writer is paused as a whole.
    """
    writers = [
        Writer(server[0], 7, ("S.eu",), rate=800),
        Writer(server[0], 8, ("T.us",), rate=800),
    ]
    limits = ("--broker", "400/s,burst=40")
    messages, _, rows = held(*server, limits, writers, lambda messages, _: near(400, messages))

    assert near(400, messages)
    for writer in writers:
        assert {(each.reason, each.subject) for _, each in writer.commands} == {
            (Reason.BrokerProduceQuotaExceeded, ">")
        }
    assert limited(rows[0]) == ["broker", "400.0"]


def test_both_quotas_of_one_subject_hold(server):
    """
    B8: pauses for different reasons do not end each other: the tighter quota holds, whosever it is.
    """
    writer = Writer(server[0], 7, ("S.eu",), rate=2000)
    limits = ("--limit", "S.>=1000/s,burst=100", "--group", "S.*=300/s,burst=30")
    messages, _, rows = held(*server, limits, [writer], lambda messages, _: near(300, messages))

    assert near(300, messages)
    assert [row[NAME] for row in rows] == ["S.>", "S.*"]


@pytest.mark.parametrize(
    ("limits", "of", "rate"),
    [
        (("--limit", "S.>=300/s"), 1, 300),
        (("--limit", "S.eu=300/s", "--limit", "S.us=300/s"), 1, 600),
        (("--group", "S.eu, S.us=300/s"), 1, 300),
        (("--broker", "300/s"), 1, 300),
        (("--limit", "S.>=300/s and 1MiB/s"), 1, 300),
        (("--limit", "S.>=75KiB/s"), 2, 75 * KIB),
    ],
    ids=["a topic's", "two topics'", "a group's", "the broker's", "both", "bytes"],
)
def test_b26_writers_share_a_quota(server, limits, of, rate):
    """
    B26: two of the sink's writers that always have rows store the messages, or bytes, that the
    quota says, in the middle one of six seconds to within a third, once the program has begun; the
    table shows the shares of both.
    """
    dev, js = server
    job = start(dev, "quota", *limits, *PATIENT)
    looks: deque[tuple[float, ...]] = deque(maxlen=7)

    def found() -> float:
        return median((b[of] - a[of]) / (b[0] - a[0]) for a, b in itertools.pairwise(looks))

    with Keeper(dev, 7, "S.eu") as first, Keeper(dev, 8, "S.us") as second:
        until(lambda: js.stream_info("S").messages)
        held = set[str]()
        while len(held) < len(set(limits[1::2])):  # until then the program only begins
            name, _, state = job.stderr.readline().rstrip().rpartition(": ")
            assert name, state
            held |= {name} if state == "limited" else set()
        deadline = time.monotonic() + 120
        while len(looks) < 7 or (not near(rate, found()) and time.monotonic() < deadline):
            time.sleep(1.0)
            looks.append((time.monotonic(), *stored(js)))
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=240)
    rows = rows_of(out)

    assert job.returncode == 0, err
    assert near(rate, found())
    assert {row[NAME] for row in rows} > {"7", "8"}
    assert {row["state"] for row in rows} <= {"limited", "free", ""}  # free for a moment
    assert min(first.acked, second.acked) > 0

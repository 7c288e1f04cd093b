"""Streams of one partition each, made by a real server from a stream that exists."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_jetstream.devserver import DevServer
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.jetstream import JetStream
from pyspark_jetstream.options import parse_connection
from pyspark_jetstream.partitioning import (
    Copied,
    CopyStalledError,
    CountMismatchError,
    PartitioningError,
    PartitionPlan,
    StreamDiffersError,
    numbering,
    partition_stream,
)
from pyspark_jetstream.transforms import Rule

ROOT = Path(__file__).parents[2]
N = 4
ORIGINS = [f"O{i}" for i in range(12)]
Rows = dict[str, list[bytes]]


@pytest.fixture
def clean(js: JetStream) -> Iterator[None]:
    """Removes every stream that the test has made."""
    before = set(js.stream_names())
    yield
    for name in set(js.stream_names()) - before:
        js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")


@pytest.fixture
def raw(
    new_stream: Callable[..., str], publish: Callable[..., None], clean: None
) -> Callable[..., str]:
    """A stream `<name>.<origin>.<destination>` with ten messages a subject, interleaved."""

    def make(**config: Any) -> str:
        name = new_stream(**config)
        publish(
            [
                (f"{name}.{o}.{d}", b"%d %s" % (i, o.encode()))
                for i in range(10)
                for o in ORIGINS
                for d in ("JFK", "LAX")
            ]
        )
        return name

    return make


@pytest.fixture
def numbered(
    new_stream: Callable[..., str], publish: Callable[..., None], clean: None
) -> Callable[..., str]:
    """A stream `<name>.<partition>.<origin>`, ten messages a subject, interleaved."""

    def make(**config: Any) -> str:
        name = new_stream(**config)
        publish(
            [(f"{name}.{p}.{o}", b"%d" % i) for i in range(10) for o in ORIGINS for p in range(N)]
        )
        return name

    return make


def stored(js: JetStream, *streams: str) -> Rows:
    """Payloads by subject in stored order, of all the streams together."""
    rows: Rows = defaultdict(list)
    for stream in streams:
        info = js.stream_info(stream)
        requests = [
            (f"{js.prefix}.STREAM.MSG.GET.{stream}", json.dumps({"seq": seq}).encode())
            for seq in range(info.first_seq, info.last_seq + 1)
        ]
        for reply in js.client.requests(requests):
            message = json.loads(reply.data)["message"]
            rows[message["subject"]].append(base64.b64decode(message["data"]))
    return rows


def test_numbered_subjects_are_sourced_in_one_hop(
    js: JetStream, numbered: Callable[..., str]
) -> None:
    """Where subjects carry the number, each stream holds exactly its subjects, in their order."""
    origin = numbered()
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")

    done = partition_stream(js.client.options, plan)

    names = [f"{origin}-{p}" for p in range(N)]
    assert [each.stream for each in done.streams] == names
    assert [each.messages for each in done.streams] == [120] * N
    assert (done.messages, done.subjects, done.left_out, done.numbered) == (480, 48, 0, None)
    assert stored(js, *names) == stored(js, origin)
    for p, name in enumerate(names):
        assert {s.split(".")[1] for s in stored(js, name)} == {str(p)}
        assert js.stream_info(name).allow_direct


def test_raw_subjects_are_numbered_first(js: JetStream, raw: Callable[..., str]) -> None:
    """Raw subjects get the number our mapping gives them, and keep their order in both hops."""
    origin = raw(storage="memory")
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", subject=f"{origin}.*.*", tokens=(1,))
    seen: list[tuple[Copied, ...]] = []

    done = partition_stream(
        js.client.options, plan, progress=lambda looked: seen.append(tuple(looked))
    )

    rule = Rule.parse(f"{origin}.*.*", numbering(f"{origin}.*.*", N, (1,)))
    expected = {rule.apply(s): rows for s, rows in stored(js, origin).items()}
    names = [each.stream for each in done.streams]
    assert (done.messages, done.numbered) == (240, f"{origin}-all")
    assert stored(js, *names) == expected
    assert stored(js, f"{origin}-all") == expected
    assert {js.stream_info(name).config["storage"] for name in names} == {"memory"}
    assert [each.stream for each in seen[-1]] == [f"{origin}-all", *names]
    assert all(each.messages == each.expected for each in seen[-1])


def test_without_streams_the_numbered_stream_is_the_filtered_layout(
    js: JetStream, raw: Callable[..., str]
) -> None:
    """Asked for the numbered stream alone, only that one is made."""
    origin = raw()
    plan = PartitionPlan(origin, N, subject=f"{origin}.*.JFK", tokens=(1,), numbered=f"{origin}N")

    done = partition_stream(js.client.options, plan)

    assert [each.stream for each in done.streams] == [f"{origin}N"]
    assert (done.messages, done.left_out) == (120, 120)


def test_messages_that_come_later_are_copied_too(
    js: JetStream, raw: Callable[..., str], publish: Callable[..., None]
) -> None:
    """Run again, it finds its own streams, waits for what came since, and compares anew."""
    origin = raw()
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", subject=f"{origin}.*.*", tokens=(1,))
    partition_stream(js.client.options, plan)
    publish([(f"{origin}.NEW{i}.JFK", b"later") for i in range(20)])

    done = partition_stream(js.client.options, plan)

    assert done.messages == 260


def test_an_interrupted_run_is_resumed(js: JetStream, numbered: Callable[..., str]) -> None:
    """Interrupted while it waits, or with streams missing, a second run ends with all messages."""
    origin = numbered()
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition_stream(js.client.options, plan, progress=interrupt)
    js.client.request(f"{js.prefix}.STREAM.DELETE.{origin}-2")
    done = partition_stream(js.client.options, plan)

    assert [each.messages for each in done.streams] == [120] * N


def test_a_different_stream_is_refused_before_anything_is_made(
    js: JetStream, numbered: Callable[..., str], new_stream: Callable[..., str]
) -> None:
    """A stream of the name with another configuration is left as it is, and no other is made."""
    origin = numbered()
    new_stream(f"{origin}-3")
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")

    with pytest.raises(StreamDiffersError, match=r"-3': exists with another .* subjects of its"):
        partition_stream(js.client.options, plan)

    assert f"{origin}-0" not in js.stream_names()
    assert js.stream_info(f"{origin}-3").config["subjects"] == [f"{origin}-3.>"]


def test_a_number_outside_the_partitions_is_refused(
    js: JetStream, numbered: Callable[..., str]
) -> None:
    """Messages that belong to none of the N partitions are named, and nothing is made."""
    origin = numbered()
    plan = PartitionPlan(origin, 3, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")

    with pytest.raises(PartitioningError, match="120 messages belong to none of the partitions"):
        partition_stream(js.client.options, plan)

    assert f"{origin}-0" not in js.stream_names()


def test_a_work_queue_is_refused(js: JetStream, numbered: Callable[..., str]) -> None:
    """A source on a work queue would take its messages away, so there is none."""
    origin = numbered(retention="workqueue")
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")

    with pytest.raises(PartitioningError, match="retention is workqueue"):
        partition_stream(js.client.options, plan)


def test_a_lost_message_is_a_mismatch(js: JetStream, numbered: Callable[..., str]) -> None:
    """A copy with as many messages as it should have, but not of each subject, is refused."""
    origin = numbered()
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")
    partition_stream(js.client.options, plan)
    js.purge(origin, f"{origin}.1.O3", 10_000)

    with pytest.raises(CountMismatchError, match=r"has 10 messages of '.*1\.O3' where .* has 0"):
        partition_stream(js.client.options, plan)


def test_copying_that_stands_still_is_given_up(js: JetStream, numbered: Callable[..., str]) -> None:
    """When a copy stays behind, the error says where and how far, and that a run resumes."""
    origin = numbered()
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")
    partition_stream(js.client.options, plan)
    js.purge(f"{origin}-2", None, 61)

    with pytest.raises(CopyStalledError, match=r"-2': nothing was copied .* 60 of 120 messages"):
        partition_stream(js.client.options, plan, stall_timeout_s=0.5)


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({}, "partitionSubject"),
        ({"partition_subject": "f.{partition}.>", "subject": "f.*"}, "partitionSubject"),
        ({"partition_subject": "f.>"}, "partitionSubject"),
        ({"partition_subject": "f.{partition}.>", "tokens": (1,)}, "tokens"),
        ({"subject": "f..x"}, "subject"),
        ({"subject": "f.*", "tokens": (2,)}, "destination"),
        ({"subject": "f.*", "destination": "f.{{partition(3,1)}}.$1"}, "destination"),
        ({"subject": "f.*", "streams": None}, "streams"),
        ({"subject": "f.*", "streams": "P"}, "streams"),
        ({"subject": "f.*", "numbered": "P-1"}, "streams"),
        ({"subject": "f.*", "partitions": 0}, "partitions"),
    ],
)
def test_a_plan_that_makes_no_sense_names_the_option(settings: dict[str, Any], option: str) -> None:
    """A mistake in the plan is found before anything is asked of the server."""
    with pytest.raises(OptionError) as caught:
        PartitionPlan(**{"origin": "F", "partitions": N, "streams": "P-{partition}"} | settings)

    assert caught.value.option == option


def test_the_number_stands_after_the_literal_beginning() -> None:
    """The default transform keeps every token and puts the number before the first wildcard."""
    assert numbering("a.*.*", 4, (1,)) == "a.{{partition(4,1)}}.{{wildcard(1)}}.{{wildcard(2)}}"
    assert numbering("a.*.b.>", 2, (1,)) == "a.{{partition(2,1)}}.{{wildcard(1)}}.b.>"
    assert numbering("*", 8) == "{{partition(8)}}.{{wildcard(1)}}"


def test_a_connection_takes_only_the_options_of_a_connection() -> None:
    """A program's connection options are the data source's, and no others."""
    assert parse_connection({"servers": "a:1,b:2"}).servers == ("nats://a:1", "nats://b:2")
    with pytest.raises(OptionError, match="'maxInFlight': is none of the connection's options"):
        parse_connection({"maxInFlight": "1"})


def test_the_job_partitions_a_stream(
    nats_server: DevServer, js: JetStream, raw: Callable[..., str]
) -> None:
    """`jobs/partition_stream.py` shows plain lines without a terminal; a refusal is status 1."""
    origin = raw()
    job = [sys.executable, str(ROOT / "jobs/partition_stream.py"), "--servers", nats_server.url]
    job += [
        "--stream",
        origin,
        "--streams",
        f"{origin}-{{partition}}",
        "--subject",
        f"{origin}.*.*",
    ]
    good = [*job, "--partitions", "4", "--tokens", "1"]

    first = subprocess.run(good, capture_output=True, text=True, timeout=60, check=False)
    other = subprocess.run(
        [*job, "--partitions", "3"], capture_output=True, text=True, timeout=60, check=False
    )

    assert (first.returncode, first.stdout) == (0, "240 messages of 24 subjects, 0 left out\n")
    assert f"{origin}-all 240/240" in first.stderr
    assert other.returncode == 1
    assert "exists with another configuration" in other.stderr

"""Streams of one partition each, made by a real server from a stream that exists."""

import json
import subprocess
import sys
from collections import defaultdict
from functools import partial

import pytest

from pyspark_jetstream.errors import (
    CopyMismatchError,
    CopyStalledError,
    OptionError,
    PartitioningError,
)
from pyspark_jetstream.mapping.rule import Rule
from pyspark_jetstream.operations.partition.making import missing_names, partition_stream
from pyspark_jetstream.operations.partition.plan import PartitionPlan, numbering

from ..kits import streams
from ..kits.programs import main
from ..kits.shared import eventually
from ..kits.streams import delete_messages, update_stream
from .conftest import N

JOB = [sys.executable, "-m", "pyspark_jetstream", "partition"]


def stored(js, *names):
    """Payloads by subject in stored order, of all the streams together."""
    rows = defaultdict(list)
    for name in names:
        for message in streams.stored(js, name).values():
            rows[message["subject"]].append(message["data"])
    return rows


def test_numbered_subjects_are_sourced_in_one_hop(js, numbered):
    """Where subjects carry the number, each stream holds exactly its subjects, in their order."""
    origin = numbered()
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")

    done = partition_stream(js, plan)

    names = [f"{origin}-{p}" for p in range(N)]
    assert done.streams == dict.fromkeys(names, 120)
    assert (done.messages, done.subjects, done.left_out, done.cut) == (480, 48, 0, 480)
    assert stored(js, *names) == stored(js, origin)
    for p, name in enumerate(names):
        assert {s.split(".")[1] for s in stored(js, name)} == {str(p)}
        assert js.stream_info(name).allow_direct


def test_raw_subjects_are_numbered_first(js, raw):
    """Raw subjects get the number our mapping gives them, and keep their order in both hops."""
    origin = raw(storage="memory")
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", subject=f"{origin}.*.*", tokens=(1,))
    seen: dict[str, tuple[int, int]] = {}

    def show(stream, done, end):
        seen[stream] = (done, end)

    done = partition_stream(js, plan, progress=show)

    rule = Rule.parse(f"{origin}.*.*", numbering(f"{origin}.*.*", N, (1,)))
    expected = {rule.apply(s): rows for s, rows in stored(js, origin).items()}
    names = list(done.streams)
    assert done.messages == 240
    assert stored(js, *names) == expected
    assert stored(js, f"{origin}-all") == expected
    assert {js.stream_info(name).config["storage"] for name in names} == {"memory"}
    assert list(seen) == [f"{origin}-all", *names]
    assert all(done == end for done, end in seen.values())


def test_messages_that_come_later_are_copied_too(js, raw, publish):
    """Run again, it finds its own streams, waits for what came since, and compares anew."""
    origin = raw()
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", subject=f"{origin}.*.*", tokens=(1,))
    partition_stream(js, plan)
    publish([(f"{origin}.NEW{i}.JFK", b"later") for i in range(20)])

    done = partition_stream(js, plan)

    assert done.messages == 260


def test_a_different_stream_is_refused_before_anything_is_made(js, numbered, new_stream):
    """A stream of the name with another configuration is left as it is, and no other is made."""
    origin = numbered()
    new_stream(f"{origin}-3")
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")

    with pytest.raises(PartitioningError, match=r"-3': exists with another .* its subjects are"):
        partition_stream(js, plan)

    assert f"{origin}-0" not in js.stream_names()
    assert js.stream_info(f"{origin}-3").config["subjects"] == [f"{origin}-3.>"]


def test_a_number_outside_the_partitions_is_refused(js, numbered):
    """Messages that belong to none of the N partitions are named, and nothing is made."""
    origin = numbered()
    plan = PartitionPlan(origin, 3, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")

    with pytest.raises(PartitioningError, match="120 messages belong to none of the partitions"):
        partition_stream(js, plan)

    assert f"{origin}-0" not in js.stream_names()


def test_a_work_queue_is_refused(js, numbered):
    """A source on a work queue would take its messages away, so there is none."""
    origin = numbered(retention="workqueue")
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")

    with pytest.raises(PartitioningError, match="retention is workqueue"):
        partition_stream(js, plan)


def test_a_lost_message_is_a_mismatch(js, numbered):
    """A copy with as many messages as it should have, but not of each subject, is refused."""
    origin = numbered()
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")
    partition_stream(js, plan)
    js.purge(origin, f"{origin}.1.O3", 10_000)

    with pytest.raises(CopyMismatchError, match=r"has 10 messages of '.*1\.O3' where .* has 0"):
        partition_stream(js, plan)


def stuck(js, numbered, publish):
    """A layout with a copy that takes no more, and a message that it would have to take."""
    origin = numbered()
    plan = PartitionPlan(origin, N, f"{origin}-{{partition}}", f"{origin}.{{partition}}.>")
    partition_stream(js, plan)
    update_stream(js, f"{origin}-2", max_msgs=120, discard="new")
    publish([(f"{origin}.2.O3", b"one too many")])
    return origin, plan


def test_copying_that_stands_still_is_given_up(js, numbered, publish):
    """When a copy stays behind, the error says where and how far, and that a run resumes."""
    origin, plan = stuck(js, numbered, publish)

    with pytest.raises(
        CopyStalledError, match=r"-2': nothing was copied .* sequence 479 of 481 of"
    ):
        partition_stream(js, plan, stall_timeout_s=0.5)


def test_a_message_that_goes_before_it_is_copied(js, numbered, publish):
    """What the origin has lost meanwhile is waited for no more."""
    origin, plan = stuck(js, numbered, publish)
    looks: list[object] = []

    def show(stream, done, end):
        if done < end and not looks:
            delete_messages(js, origin, [481])
            looks.append(stream)

    done = partition_stream(js, plan, progress=show)

    assert list(done.streams.values()) == [120] * N
    assert looks == [f"{origin}-2"]


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
        ({"partition_subject": "f.{partition}", "streams": "P"}, "streams"),
        ({"subject": "f.*", "streams": "{partition}{partition}"}, "streams"),
    ],
)
def test_a_plan_that_makes_no_sense_names_the_option(settings, option):
    """A mistake in the plan is found before anything is asked of the server."""
    with pytest.raises(OptionError) as caught:
        PartitionPlan(**{"origin": "F", "partitions": N, "streams": "P-{partition}"} | settings)

    assert caught.value.option == option


def test_the_number_stands_after_the_literal_beginning():
    """The default transform keeps every token and puts the number before the first wildcard."""
    assert numbering("a.*.*", 4, (1,)) == "a.{{partition(4,1)}}.{{wildcard(1)}}.{{wildcard(2)}}"
    assert numbering("a.*.b.>", 2, (1,)) == "a.{{partition(2,1)}}.{{wildcard(1)}}.b.>"
    assert numbering("*", 8) == "{{partition(8)}}.{{wildcard(1)}}"


def job(server, *arguments):
    """A run of `partition`."""
    return subprocess.run(
        [*JOB, "--servers", server.url, *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_job_partitions_a_stream(nats_server, js, raw):
    """`partition` shows plain lines, names streams, undoes its work; one in the way is status 1."""
    origin = raw()
    what = ["--stream", origin, "--subject", f"{origin}.*.*"]
    good = [*what, "--partitions", "4", "--tokens", "1"]

    dry = job(nats_server, *good, "--dry-run")
    first = job(nats_server, *good)
    other = job(nats_server, *what, "--partitions", "3")
    filtered = job(nats_server, *good, "--streams", f"{origin}-all", "--dry-run")
    undone = job(nats_server, *good, "--undo")

    names = [f"{origin}-{each}" for each in ("all", 0, 1, 2, 3)]
    said = dry.stdout.splitlines()
    assert said.pop() == "a dry run: nothing was changed"
    assert [line.split() for line in said[1:6]] == [[name, "no"] for name in names]
    assert said[-3:] == [
        "options that read the result:", f"  stream={origin}-{{partition}}", "  partitions=4",
    ]  # fmt: skip
    assert first.returncode == 0
    assert first.stdout.splitlines()[-7:] == [
        "messages: 240", "subjects: 24", "left out: 0", "cut: 240", *said[-3:]
    ]  # fmt: skip
    assert other.returncode == 1
    assert "exists with another configuration" in other.stderr
    assert filtered.stdout.splitlines()[1].split() == [f"{origin}-all", "yes"]
    assert f"  partitionSubject={origin}.{{partition}}.*.*" in filtered.stdout
    assert undone.stdout.splitlines()[-1] == "removed: 5"
    assert not set(names) & set(js.stream_names())


def test_the_job_tells_a_copy_that_is_wrong(nats_server, js, raw):
    """A copy that is not what it should be is one line, and a status of its own."""
    origin = raw()
    good = ["--stream", origin, "--subject", f"{origin}.*.*", "--partitions", "2", "--tokens", "1"]
    job(nats_server, *good)
    delete_messages(js, f"{origin}-all", [100])

    found = job(nats_server, *good)

    assert found.returncode == 3
    assert "delete the copies (--undo) and begin anew" in " ".join(found.stderr.split())


def test_a_killed_job_is_run_again(nats_server, js, raw):
    """Killed at its first sign of life, or with some streams made, the same command ends well."""
    origin = raw()
    good = ["--stream", origin, "--subject", f"{origin}.*.*", "--partitions", "9", "--tokens", "1"]

    def has_come(killed, at_streams):
        made = sum(name.startswith(f"{origin}-") for name in js.stream_names())
        return made >= at_streams or killed.poll() is not None

    for at_streams in (1, 5):
        with subprocess.Popen([*JOB, "--servers", nats_server.url, *good]) as killed:
            try:
                eventually(partial(has_come, killed, at_streams))
            finally:
                killed.kill()

    done = job(nats_server, *good)

    assert done.returncode == 0
    assert "messages: 240\nsubjects: 24\nleft out: 0\n" in done.stdout


def test_what_the_program_shows_as_json(nats_server, js, numbered, capsys):
    """`--json` says what would be made, what was made, and what was removed."""
    origin = numbered()
    words = ["partition", "--stream", origin, "--servers", nats_server.url, "--partitions", str(N)]
    words += ["--partition-subject", f"{origin}.{{partition}}.>"]
    found = []
    for more in (("--dry-run",), (), ("--undo", "--dry-run"), ("--undo",)):
        assert main([*words, *more, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    planned, made, lost, removed = found

    assert not any(each["is_there"] for each in planned["streams"])
    assert planned["options"] == {"stream": f"{origin}-{{partition}}", "partitions": str(N)}
    assert made["messages"] == 480
    assert [lost["changed"], removed["changed"]] == [False, True]
    assert len(removed["streams"]) == N


@pytest.mark.parametrize("layout", ["numbered", "raw"])
def test_what_copies_inherit(js, request, layout):
    """Limits that mean the same for a part copies have of their origin, and no others."""
    origin = request.getfixturevalue(layout)(max_bytes=1 << 22, max_age=3_600_000_000_000)
    names = f"{origin}-{{partition}}"
    plan = PartitionPlan(origin, N, names, f"{origin}.{{partition}}.>")
    if layout == "raw":
        plan = PartitionPlan(origin, N, names, subject=f"{origin}.*.*", tokens=(1,))

    planned = missing_names(js, plan)
    partition_stream(js, plan)

    assert (planned, missing_names(js, plan)) == (set(plan.names), set())
    for name in plan.names:
        config = js.stream_info(name).config
        assert (config["max_age"], config["max_bytes"]) == (3_600_000_000_000, -1)

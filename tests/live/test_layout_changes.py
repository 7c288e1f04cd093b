"""A query goes over to other partitions of its origin, under its checkpoint."""

from __future__ import annotations

import itertools
import random
import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import (
    CopyMismatchError,
    OffsetError,
    OptionError,
    StreamNotFoundError,
)
from pyspark_jetstream.fetch.layout import REPLACED, replaced_by
from pyspark_jetstream.operations.console.commands import main
from pyspark_jetstream.operations.handover import announce, reading
from pyspark_jetstream.operations.inspection.checkpoints import LocalDirectory
from pyspark_jetstream.operations.inspection.inspector import Inspector
from pyspark_jetstream.operations.partitioning import partition_stream
from pyspark_jetstream.operations.removal import undo_partitions

from ..kits.checkpoints import write_checkpoint
from ..kits.partitions import ORIGINS, layouts, stored, update, writing
from ..kits.places import ROOT
from ..kits.reading import Query, query
from ..kits.seeds import fresh
from ..kits.servers import DevServer
from ..kits.shared import eventually
from ..kits.snippets import snippets

__all__ = ["query"]

SEEDS = [1, *fresh(__name__)]


def turn(of: Query, options: dict[str, Any]) -> None:
    """Starts the query with other options for what it reads."""
    layout = {"stream", "partitions", "partitionSubject", "subject", "endingOffsets"}
    of.options = {k: v for k, v in of.options.items() if k not in layout} | options
    of.restart()


def origins_subject(subject: str, origin: str) -> str:
    """The subject that a message of a copy has in the origin."""
    return ".".join([origin, *subject.split(".")[-2:]])


def check_whole(js: JetStream, origin: str, of: Query) -> None:
    """The query has read each message of the origin once, in the order of its subject."""
    rows: dict[str, list[bytes]] = {}
    for row in of.rows:
        rows.setdefault(origins_subject(row["subject"], origin), []).append(row["data"])
    assert rows == stored(js, origin)


def mirrored(js: JetStream, origin: str, n: int) -> str:
    """A mirror of the origin, which numbers its subjects."""
    transform = {"src": f"{origin}.*.*", "dest": f"{origin}.{{{{partition({n},1)}}}}."}
    transform["dest"] += "{{wildcard(1)}}.{{wildcard(2)}}"
    mirror = {"name": origin, "subject_transforms": [transform]}
    js.create_stream({"name": f"{origin}-m", "allow_direct": True, "mirror": mirror})
    return f"{origin}-m"


def where(of: Query) -> tuple[str, int]:
    """The first stream of the layout that was planned last, and how many partitions it has."""
    places = of.planned[-1]["layout"]["places"] if of.planned else []
    return (places[0][0], len(places)) if places else ("", 0)


def steps(of: Query, rng: random.Random, done: Callable[[], bool], kills: bool = True) -> None:
    """Micro-batches, amid which the run is killed again and again: 400, and more in two minutes."""
    deadline = time.monotonic() + 120
    for number in itertools.count():
        if done():
            return
        assert number < 400 or time.monotonic() < deadline, "the query does not come to its end"
        if of.plan() is not None:
            if kills and rng.random() < 0.3:
                of.restart()
                continue
            of.commit()
        if kills and rng.random() < 0.2:
            of.restart()


@pytest.mark.parametrize(
    ("ways", "mode"),
    [
        (("streams4", "streams8", "streams3"), "auto"),
        (("filtered2", "streams3", "filtered3"), "consumer"),
        (("origin1", "filtered4", "streams2", "origin1"), "direct"),
        (("origin1", "streams2"), "consumer"),
        (("streams2", "mirror4", "streams3"), "auto"),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_query_goes_over(
    js: JetStream,
    raw: Callable[..., str],
    query: Callable[..., Query],
    ways: tuple[str, ...],
    mode: str,
    seed: int,
) -> None:
    """
    From one layout to the next, while a writer goes on and runs are killed between any two steps:
    each message once, in the order of its subject, under one name of the query and its consumers;
    consumers of the layout that it has left are deleted.
    """
    origin, rng = raw(), random.Random(seed)
    of: Query | None = None
    with writing(js, origin):
        for way in ways:
            n = int(way[-1])
            if way == "mirror4":
                streams = [mirrored(js, origin, n)] * n
                options = {"stream": streams[0]}
            elif way == "origin1":
                options, streams = {"stream": origin}, [origin]
            else:
                plan = layouts(origin, n, way[:-1])
                partition_stream(js, plan)
                options, streams = reading(plan), list(plan.stream_names or plan.names * n)
            if of is None:
                of = query(**options, readMode=mode, maxRecordsPerTrigger=60)
            else:
                left = of.planned[-1]["layout"]["places"]
                turn(of, options)
            steps(of, rng, lambda at=(streams[-n], n), of=of: where(of) == at)
            batches = len(of.planned)
            steps(of, rng, lambda of=of, most=batches + 4: len(of.planned) > most)
            if way != ways[0] and mode == "consumer":
                assert not [c for stream, *_ in left for c in js.consumer_list(stream)[0]] or (
                    {stream for stream, *_ in left} & set(streams)
                )
    for name in streams:
        if name != origin:
            partition_stream(js, layouts(origin, n, ways[-1][:-1]))
            break
    while of.step():
        pass

    check_whole(js, origin, of)
    assert len({(offset["query"], offset["consumer"]) for offset in of.planned}) == 1


@pytest.mark.parametrize("mode", ["auto", "consumer"])
def test_a_query_follows_while_it_runs(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query], mode: str
) -> None:
    """
    With partitions=auto a query that runs goes over at a batch's end to what `partition --replaces`
    has announced, one layout after the other; and so does one that is started with the options it
    began with. Back to the first layout, too.
    """
    origin = raw()
    plans = [layouts(origin, 2, "streams"), layouts(origin, 3, "filtered")]
    for plan in plans:
        partition_stream(js, plan)
    stream = plans[0].layout
    of = query(stream=stream, partitions="auto", readMode=mode, maxRecordsPerTrigger=60)
    with writing(js, origin):
        of.step()
        assert where(of) == (plans[0].stream_names[0], 2)
        announce(js, origin, plans[0])
        announce(js, stream, plans[1])
        steps(of, random.Random(0), lambda: where(of) == (plans[1].layout, 3), kills=False)
        of.step()
        of.restart()
        of.step()
        assert where(of) == (plans[1].layout, 3)
        announce(js, plans[1].layout, plans[0])
        steps(of, random.Random(0), lambda: where(of)[1] == 2, kills=False)
    partition_stream(js, plans[0])
    while of.step():
        pass

    check_whole(js, origin, of)
    fresh_one = query(stream=origin, partitions="auto")
    fresh_one.step()
    assert where(fresh_one) == (plans[0].stream_names[0], 2)


def transformed(new_stream: Callable[..., str]) -> str:
    """The stream of docs/guides/streams.md that numbers what it stores: 4 partitions."""
    dest = "numbered.{{partition(4,1)}}.{{wildcard(1)}}.{{wildcard(2)}}"
    own = {"src": "in.*.*", "dest": dest}
    return new_stream("NUMBERED", subjects=["in.*.*"], subject_transform=own)


def test_a_stream_with_a_transform_of_its_own(
    nats_server: DevServer,
    js: JetStream,
    new_stream: Callable[..., str],
    clean: None,
    query: Callable[..., Query],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    By the guide's own command a query that runs goes over from 4 numbers of the stream to 8 of its
    copies, while a writer goes on: each message once, in the order of its subject. The program says
    that the stream has to stay. Started again, with the old options or the new names, it goes on.
    """
    origin = transformed(new_stream)
    page = snippets(ROOT / "docs" / "guides" / "layout.md")
    (command,) = (each.text for each in page if each.language == "bash")
    words = shlex.split(command.replace("\\\n", ""))
    assert words.pop(0) == "pyspark-jetstream"
    of = query(stream=origin, partitions="auto", maxRecordsPerTrigger=60)
    with writing(js, "in"):
        eventually(of.step)
        assert where(of) == (origin, 4)
        assert main([*words, "--servers", nats_server.url]) == 0
        steps(of, random.Random(0), lambda: where(of) == ("NUMBERED8-0", 8), kills=False)
        eventually(of.step)
    assert main([*words, "--servers", nats_server.url]) == 0
    of.drain()
    new = {"stream": "NUMBERED8-{partition}", "partitions": "8"}
    for options in ({"stream": origin, "partitions": "auto"}, new):
        turn(of, options)
        with writing(js, "in"):
            eventually(of.step)
        of.drain()
        assert where(of) == ("NUMBERED8-0", 8)
    rows: dict[str, list[bytes]] = {}
    for row in of.rows:
        rows.setdefault(".".join(row["subject"].split(".")[-2:]), []).append(row["data"])

    there = stored(js, origin)
    assert rows == {subject.split(".", 2)[2]: data for subject, data in there.items()}
    assert {row["subject"].count(".") for row in of.rows} == {3}
    assert {row["stream"] for row in of.rows} > {origin}
    assert capsys.readouterr().out.endswith("Keep 'NUMBERED': the server copies from it.\n")


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--hand-over"]], ids=str)
def test_a_filter_of_what_is_not_stored(
    nats_server: DevServer,
    js: JetStream,
    new_stream: Callable[..., str],
    clean: None,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
) -> None:
    """
    A filter that takes nothing of what the origin has stored makes no layout that replaces another
    one, for queries would go over to nothing. While the origin is empty nobody can tell.
    """
    origin = transformed(new_stream)
    words = ["partition", "--stream", origin, "--servers", nats_server.url, "--partitions", "8"]
    words += ["--subject", "in.*.*", "--tokens", "1", "--streams", "NUMBERED8-{partition}"]
    words += ["--replaces", origin, *more]
    for subject in ("in.JFK.BOS", "in.SFO.BOS"):
        js.publish(subject, b"x", [])
    status = main(words)
    error = capsys.readouterr().err
    first, last = stored(js, origin)
    js.purge(origin, ">", 10_000)

    assert status == 2
    assert f"--subject: 'in.*.*' takes no message of stream '{origin}'" in error
    assert f"such as '{first}' and '{last}'; name subjects as the stream stores them" in error
    assert not [name for name in js.stream_names() if name.startswith("NUMBERED8")]
    assert REPLACED not in (js.stream_info(origin).config.get("metadata") or {})
    assert more == ["--hand-over"] or main(words) == 0


def test_the_way_to_a_layout_is_gone(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query]
) -> None:
    """
    A query that followed to a layout stays there when it is started with the options it began with,
    also where what led there is deleted.
    """
    origin = raw()
    plans = [layouts(origin, 2, "streams"), layouts(origin, 3, "filtered")]
    for plan in plans:
        partition_stream(js, plan)
    announce(js, origin, plans[0])
    of = query(stream=origin, partitions="auto", maxRecordsPerTrigger=60)
    of.step()
    announce(js, plans[0].layout, plans[1])
    steps(of, random.Random(0), lambda: where(of) == (plans[1].layout, 3), kills=False)
    for name in plans[0].stream_names:
        js.delete_stream(name)
    of.restart()
    of.drain()

    assert where(of) == (plans[1].layout, 3)
    check_whole(js, origin, of)


@pytest.mark.parametrize("amid", [False, True])
def test_the_layout_of_the_options_is_gone(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query], amid: bool
) -> None:
    """
    A query that has gone over, and is started with the options of the layout that `--undo` has
    removed, names the layout that its checkpoint reads, also where a batch has to run again. With
    the options of that one it goes on. A new query only hears that there is no such stream.
    """
    origin = raw()
    plans = [layouts(origin, 2, "streams"), layouts(origin, 3, "filtered")]
    for plan in plans:
        partition_stream(js, plan)
    announce(js, plans[0].layout, plans[1])
    old = {"stream": plans[0].layout, "partitions": "auto"}
    of = query(**old, maxRecordsPerTrigger=60)
    steps(of, random.Random(0), lambda: where(of) == (plans[1].layout, 3), kills=False)
    with writing(js, origin):
        if amid:
            eventually(of.plan)
    undo_partitions(js, plans[0], force=True)
    again = r"reads stream " + plans[1].layout + ": give the options that read this layout"
    gone = plans[0].stream_names[0]
    with pytest.raises(StreamNotFoundError, match=f"stream '{gone}' not found .*{again}"):
        of.restart()
        of.step()
    with pytest.raises(StreamNotFoundError, match="not found") as caught:
        query(**old).step()
    assert "checkpoint" not in str(caught.value)
    turn(of, reading(plans[1]))
    of.drain()

    check_whole(js, origin, of)


def test_a_replacement_that_is_none(
    js: JetStream,
    raw: Callable[..., str],
    query: Callable[..., Query],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """
    Metadata that name no layout, or one that cannot be gone over to, stop nobody: the query says
    so, and stays.
    """
    origin, other = raw(), raw()
    plan = layouts(origin, 2, "filtered")
    partition_stream(js, plan)
    of = query(stream=plan.layout, partitions="auto", maxRecordsPerTrigger=60)
    of.step()
    for said in ("{", '{"stream": 7}', replaced_by("S", 0, None), replaced_by(other, 1, None)):
        mark(js, plan.layout, said)
        of.restart()
        of.step()
    mark(js, plan.layout, replaced_by(f"{other}-gone", 1, None))
    of.restart()
    of.drain()

    assert len(of.rows) == 240
    assert where(of) == (plan.layout, 2)
    assert "the query does not go over to the new layout, and tries again in" in caplog.text
    assert "names no layout" in caplog.text
    assert "not all of its streams exist" in caplog.text
    assert "copies of another stream" in caplog.text


def mark(js: JetStream, stream: str, said: str) -> None:
    config = js.stream_info(stream).config
    js.update_stream(config | {"metadata": (config.get("metadata") or {}) | {REPLACED: said}})


def test_a_change_shows(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query], tmp_path: Path
) -> None:
    """
    While a query is on its way to another layout, `inspect` says where it stands; and a run with
    the old options goes on in the old layout.
    """
    origin = raw()
    old, new = layouts(origin, 2, "streams"), layouts(origin, 3, "filtered")
    for plan in (old, new):
        partition_stream(js, plan)
    of = query(**reading(old), maxRecordsPerTrigger=40)
    of.step()
    turn(of, reading(new))
    of.step()
    files = LocalDirectory(write_checkpoint(tmp_path, [[each] for each in of.planned]))
    found = Inspector(js.client, checkpoint=files).look()
    turn(of, reading(old))
    of.drain()

    assert found.notes == (
        f"source 0 goes over from 2 partitions to 3 of {new.layout}: before that 160 sequences are"
        " left to read",
    )
    assert not found.problems()
    assert len(of.rows) == 240
    assert "change" not in of.planned[-1]


def test_a_paused_partition_is_waited_for(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query]
) -> None:
    """
    While a consumer of the old layout is paused its partition has messages left: nobody goes over.
    """
    origin = raw()
    old, new = layouts(origin, 2, "streams"), layouts(origin, 3, "streams")
    for plan in (old, new):
        partition_stream(js, plan)
    of = query(**reading(old), readMode="consumer", maxRecordsPerTrigger=40)
    of.step()
    stream, consumer = old.stream_names[0], f"{of.planned[-1]['consumer']}-0"
    js.pause(stream, consumer, datetime.now(UTC) + timedelta(hours=1))
    turn(of, reading(new))
    for _ in range(12):
        of.step()
    assert where(of) == (stream, 2)
    assert of.planned[-1]["sequences"][0] < of.planned[-1]["sequences"][1]
    js.pause(stream, consumer, None)
    of.restart()
    steps(of, random.Random(0), lambda: where(of) == (new.stream_names[0], 3), kills=False)
    of.drain()

    check_whole(js, origin, of)


def test_layouts_without_a_common_origin(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query]
) -> None:
    """
    What cannot be changed over to is refused before a row moves, and the error says why and what
    there is to do: other streams, several filters, options of one layout, a stream that is gone.
    """
    origin, other = raw(), raw()
    old, new = layouts(origin, 2, "streams"), layouts(other, 3, "streams")
    for plan in (old, new):
        partition_stream(js, plan)
    of = query(**reading(old))
    of.step()

    says = "is of stream .*not of .*--replaces .*partitions=auto.*--hand-over name one point"
    with pytest.raises(OffsetError, match=says):
        turn(of, reading(new))
        of.step()
    with pytest.raises(OffsetError, match="each filter is a partition"):
        turn(of, {"stream": origin, "subject": f"{origin}.O1.>,{origin}.O2.>"})
        of.step()
    turn(of, {"stream": origin, "endingOffsets": '{"0": 480}'})
    with pytest.raises(OptionError, match="'endingOffsets': the query goes over"):
        of.step()
    update(js, origin, retention="interest")
    says = f"'{origin}' has retention interest. To hand over .*, keep both layouts"
    with pytest.raises(OffsetError, match=says):
        turn(of, {"stream": origin})
        of.step()
    js.delete_stream(old.stream_names[1])
    with pytest.raises(OffsetError, match=f"'{old.stream_names[1]}' was deleted before it was"):
        turn(of, {"stream": origin})
        of.step()


def test_a_run_that_ends_waits_for_a_pause_before_it_goes_over(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query]
) -> None:
    """
    `availableNow` ends when all is read that was there, in the layout that the query leaves, too,
    where one of its consumers is paused.
    """
    origin = raw()
    old, new = layouts(origin, 2, "streams"), layouts(origin, 3, "streams")
    for plan in (old, new):
        partition_stream(js, plan)
    of = query(**reading(old), readMode="consumer", maxRecordsPerTrigger=40)
    of.step()
    until = datetime.now(UTC) + timedelta(seconds=3)
    js.pause(old.stream_names[0], f"{of.planned[-1]['consumer']}-0", until)
    turn(of, reading(new))
    of.reader.prepareForTriggerAvailableNow()
    while of.plan() is not None:
        of.commit()

    assert where(of) == (new.stream_names[0], 3)
    check_whole(js, origin, of)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_stream_is_made_anew_before_the_query_goes_over(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query], is_restarted: bool
) -> None:
    """
    A stream that was made anew has not the sequences by which the query was to leave it: also with
    failOnDataLoss=false that is an error, in the same run and in the next one.
    """
    origin = raw()
    old, new = layouts(origin, 2, "streams"), layouts(origin, 3, "streams")
    for plan in (old, new):
        partition_stream(js, plan)
    of = query(**reading(old), maxRecordsPerTrigger=40, failOnDataLoss="false")
    of.step()
    turn(of, reading(new))
    of.step()
    name = old.stream_names[0]
    config = js.stream_info(name).config
    js.delete_stream(name)
    js.create_stream(config)
    if is_restarted:
        of.restart()

    with pytest.raises(OffsetError, match=f"'{name}' was made anew before it was read to a common"):
        of.drain()
    assert where(of) == (name, 2)


def test_a_standby_was_there_before(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query]
) -> None:
    """
    A query that comes back to a layout goes on where it comes in, and not where the lease of its
    first time there says that it stood.
    """
    origin = raw()
    there, away = layouts(origin, 2, "streams"), layouts(origin, 3, "streams")
    for plan in (there, away):
        partition_stream(js, plan)
    of = query(**reading(there), maxRecordsPerTrigger=40, consumer="sb", standby="true")
    eventually(lambda: of.step() and len(of.rows) == 80)
    of.options["standby"] = "false"
    for plan in (away, there):
        turn(of, reading(plan))
        steps(of, random.Random(0), lambda plan=plan: where(of)[0] in plan.stream_names, False)
        if plan is away:
            of.drain()
    of.restart(standby="true")
    js.publish(f"{origin}.O0.JFK", b"last", [])
    partition_stream(js, there)
    eventually(lambda: of.step() and of.data[-1] == b"last")

    check_whole(js, origin, of)


@pytest.mark.parametrize("how", ["purged", "begun later"])
def test_copies_that_lack_what_is_unread(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query], how: str
) -> None:
    """
    From the origin itself a query goes over to what it has not read there: not to copies that lack
    it, from which it was removed or never copied. When it has read that far, it goes over.
    """
    origin = raw()
    of = query(stream=origin, maxRecordsPerTrigger=60)
    assert of.step() == 60
    if how == "purged":
        plan = layouts(origin, 2, "streams")
        partition_stream(js, plan)
        options, name = reading(plan), plan.stream_names[0]
        js.purge(name, None, js.stream_info(name).last_seq - 5)
    else:
        source = {"name": origin, "opt_start_seq": 150}
        js.create_stream({"name": f"{origin}-n", "allow_direct": True, "sources": [source]})
        options = {"stream": f"{origin}-n"}
    with pytest.raises(CopyMismatchError, match="begins with a copy of sequence .* never copied"):
        turn(of, options)
        of.step()

    turn(of, {"stream": origin})
    while of.step():
        pass
    turn(of, options)
    while of.step():
        pass
    assert where(of)[0] != origin
    check_whole(js, origin, of)


def test_an_origin_that_was_made_anew(
    js: JetStream,
    raw: Callable[..., str],
    publish: Callable[..., None],
    query: Callable[..., Query],
) -> None:
    """
    Its sequences count from 1 again, and those of the one before stand in the copies, too: no
    sequence of it divides them.
    """
    origin = raw()
    old, new = layouts(origin, 2, "streams"), layouts(origin, 3, "streams")
    partition_stream(js, old)
    of = query(**reading(old), maxRecordsPerTrigger=60)
    of.step()
    config = js.stream_info(origin).config
    js.delete_stream(origin)
    js.create_stream(config)
    publish([(f"{origin}.{o}.JFK", b"new") for o in ORIGINS])
    partition_stream(js, new)

    with pytest.raises(CopyMismatchError, match="was made anew at .* stand here twice"):
        turn(of, reading(new))
        of.step()


def standing_by(query: Callable[..., Query], stream: str) -> tuple[Query, Query]:
    """Two queries that follow what replaces this layout; whoever ends gives the lease back."""
    options = {"stream": stream, "partitions": "auto", "maxRecordsPerTrigger": 60}
    options |= {"consumer": "sb", "standby": "true", "priorityTimeout": "1h"}
    return query(**options), query(**options)


def has_the_lease(of: Query) -> bool:
    """Whether a query reads, after one more micro-batch, if there is one."""
    of.step()
    return of.reader.reportLatestOffset()["standby"]["active"]


@pytest.mark.parametrize("seed", [*SEEDS, 1470899600])  # it goes along twice, without a look
def test_a_standby_takes_over_amid_a_change(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query], seed: int
) -> None:
    """
    Two queries take each other's place at any moment of a change, and so does one that is new: no
    message is left out, and a take-over brings no more twice than the batch whose commit nobody has
    noted, and the unfinished one of the query that comes back.
    """
    origin, rng, turns = raw(), random.Random(seed), 0
    ways = ((2, "streams"), (3, "filtered"), (4, "streams"))
    plans = [layouts(origin, n, how) for n, how in ways]
    for plan in plans:
        partition_stream(js, plan)
    reads, other = standing_by(query, plans[0].layout)
    eventually(reads.step)
    numbers = itertools.count()

    def plan_one(of: Query) -> None:
        for n in itertools.islice(numbers, 20):  # fewer than a batch has
            js.publish(f"{origin}.O{n % 12}.JFK", b"w%d" % n, [])
        eventually(lambda: of.plan() is not None)

    for before, plan in itertools.pairwise(plans):
        announce(js, before.layout, plan)
        while where(reads)[1] != plan.partitions:
            waits = other.committed == len(other.planned) and rng.random() < 0.5
            if waits:
                other.restart()
            for _ in range(rng.randint(3, 6)):
                plan_one(reads)
                reads.commit()
                assert not waits or not other.step()
            if rng.random() < 0.5:
                plan_one(reads)
            reads.die()
            reads, other = other, reads
            if not waits:
                reads.restart()
            eventually(lambda of=reads: has_the_lease(of))
            turns += 1
            assert turns < 60
    partition_stream(js, plans[-1])
    wanted = {(subject, each) for subject, all_ in stored(js, origin).items() for each in all_}
    reads.restart(maxRecordsPerTrigger=10_000)

    def rows() -> list[tuple[str, bytes]]:
        reads.step()
        every = reads.rows + other.rows
        return [(origins_subject(row["subject"], origin), row["data"]) for row in every]

    eventually(lambda: set(rows()) >= wanted, 120)
    found = rows()
    assert set(found) == wanted
    assert len(found) - len(wanted) <= 120 * turns


def test_one_that_waits_goes_along(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query]
) -> None:
    """
    A query that waits has the partitions of the one that reads, so the streams that this one has
    left may be deleted; it goes on there where the other one ended.
    """
    origin = raw()
    plans = [layouts(origin, 2, "streams"), layouts(origin, 3, "filtered")]
    for plan in plans:
        partition_stream(js, plan)
    reads, waits = standing_by(query, plans[0].layout)
    eventually(reads.step)
    waits.step()
    announce(js, plans[0].layout, plans[1])

    def have_gone() -> bool:
        reads.step()
        assert not waits.step()
        return where(waits) == where(reads) == (plans[1].layout, 3)

    eventually(have_gone)
    for name in plans[0].stream_names:
        js.delete_stream(name)
    reads.drain()
    reads.die()
    for p in range(20):
        js.publish(f"{origin}.O{p % 12}.JFK", b"late %d" % p, [])
    partition_stream(js, plans[1])
    eventually(lambda: waits.step() and len(reads.rows + waits.rows) >= 260)

    reads.rows += waits.rows
    check_whole(js, origin, reads)


def test_who_takes_over_goes_over_at_once(
    js: JetStream, raw: Callable[..., str], query: Callable[..., Query]
) -> None:
    """
    A query that takes over where nothing is left to read goes over from where the other one stood,
    far from where it began itself, and does not come back there.
    """
    origin = raw()
    plan = layouts(origin, 3, "filtered")
    partition_stream(js, plan)
    reads, waits = standing_by(query, origin)
    eventually(lambda: reads.step() is not None and len(reads.rows) == 240)
    for each in (waits, waits, reads):
        each.step()
    reads.die()
    announce(js, origin, plan)
    eventually(lambda: has_the_lease(waits) and where(waits) == (plan.layout, 3))
    js.publish(f"{origin}.O0.JFK", b"last", [])
    partition_stream(js, plan)
    eventually(lambda: waits.step() and waits.data == [b"last"])

    partitions = [len(each["sequences"]) for each in waits.planned]
    assert partitions == sorted(partitions)

"""A subject mapping that changes: from the next batch on, and never in the middle of one."""

from __future__ import annotations

import json
import random
import threading

import pytest

from pyspark_jetstream.errors import LedgerError
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.publish.options import SinkOptions
from pyspark_jetstream.write.exactlyonce.ids import Ids
from pyspark_jetstream.write.exactlyonce.ledger import STREAM, Ledger
from pyspark_jetstream.write.exactlyonce.records import TaskName

from ..kits.options import changed, connection_of, sink_of
from ..kits.proxy import Proxy
from ..kits.seeds import fresh
from .test_writes import BRIEF, FAST, KilledError, data_of, outlive, rows, write


@pytest.fixture
def options(js, nats_server) -> SinkOptions:
    """Options of an exactly-once write."""
    Ledger(js).ensure()
    return sink_of(connection_of(nats_server.url), ledger=True)


def mapped(options, rules, **changes):
    """The same options with these rules."""
    mapping = None if rules is None else SubjectMapping.parse(json.dumps(rules))
    return changed(options, mapping=mapping, **changes)


def shares(first, second, percent):
    """Rules that send so many of a hundred rows to the first."""
    return {
        "in.*": [
            {"destination": f"{first}.$1", "weight": percent},
            {"destination": f"{second}.$1", "weight": 100 - percent},
        ]
    }


def halves(js, streams, task, before, after, **columns):
    """An attempt that dies half-way, and one with other options when the streams have forgotten."""
    with pytest.raises(KilledError):
        write(before, task, rows("in", 600, fail_at=300, **columns), Ids("ids"))
    outlive(js, *streams)
    return write(after, task, rows("in", 600, **columns), Ids("ids"))


@pytest.mark.parametrize("own", [False, True], ids=["made-ids", "own-ids"])
def test_a_batch_ends_by_the_mapping_it_was_begun_with(js, options, new_stream, own):
    """
    An attempt that finds other rules sends each row where the first one did: into the first stream,
    once, beyond its duplicate window. The next batch goes by the new rules.
    """
    old, new = new_stream(**BRIEF), new_stream(**BRIEF)
    columns = {"msg_id": lambda row: f"o{row}"} if own else {}
    before = mapped(options, {"in.*": f"{old}.$1"}, **FAST)
    after = mapped(options, {"in.*": f"{new}.$1"}, **FAST)
    written = halves(js, [old, new], TaskName(f"m1-{own}", 0, 0), before, after, **columns)
    other = write(after, TaskName(f"m1-{own}", 0, 1), rows("in", 10), Ids("other"))
    here, there = data_of(js, old), data_of(js, new)
    Ledger(js).commit(f"m1-{own}", 0, 2, {})
    write(after, TaskName(f"m1-{own}", 1, 0), rows("in", 10), Ids("next"))

    assert written.already_stored > 0
    assert written.already_stored + written.acked == 600
    assert other.acked == 10
    assert sorted(here) == sorted([*range(600), *range(10)])
    assert there == []
    assert data_of(js, new) == list(range(10))


def test_weights_that_change_move_no_row_of_the_batch(js, options, new_stream):
    """
    A canary's weights are turned from 30 to 100 per cent in the middle of a batch: every row is in
    one of the streams once, as the first weights say.
    """
    canary, stable = new_stream(**BRIEF), new_stream(**BRIEF)
    before = mapped(options, shares(canary, stable, 30), **FAST)
    after = mapped(options, shares(canary, stable, 100), **FAST)
    halves(js, [canary, stable], TaskName("m2", 0, 0), before, after, msg_id=lambda row: f"o{row}")

    few, many = data_of(js, canary), data_of(js, stable)
    assert sorted(few + many) == list(range(600))
    assert 100 < len(few) < 260


@pytest.mark.parametrize("seed", fresh(__name__, 2), ids="seed={}".format)
def test_tasks_that_begin_at_one_time_agree(js, options, new_stream, seed):
    """
    Of tasks of one batch with different rules, begun at one time, all go by the same.
    """
    chance = random.Random(seed)
    streams = [new_stream() for _ in range(2)]
    ways = [mapped(options, {"in.*": f"{name}.$1"}) for name in streams]
    start, failed = threading.Barrier(8), []

    def task(number, way):
        try:
            start.wait(60)
            write(way, TaskName(f"m4-{seed}", 0, number), rows("in", 20), Ids(f"{number}"))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=task, args=(n, chance.choice(ways))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failed == []
    assert sorted(js.stream_info(name).messages for name in streams) == [0, 160]


@pytest.mark.parametrize("taken_away", [True, False])
def test_a_mapping_that_came_or_went_is_an_error(js, options, new_stream, taken_away):
    """
    A batch that was begun with rules and goes on without any, or the other way round, is an error
    that says what to do; without the task's record all rows are written anew.
    """
    name, query = new_stream(**BRIEF), f"m5-{taken_away}"
    way = mapped(options, {f"{name}.1": f"{name}.one"}, **FAST)
    plain = changed(options, **FAST)
    before, after = (way, plain) if taken_away else (plain, way)
    task = TaskName(query, 0, 0)
    with pytest.raises(KilledError):
        write(before, task, rows(name, 600, fail_at=300))
    with pytest.raises(LedgerError, match=rf"as they were .*nats kv del SPARK_LEDGER {query}.0.0"):
        write(after, task, rows(name, 600))
    js.publish(f"$KV.SPARK_LEDGER.{query}.0.0", b"", [("KV-Operation", "DEL")])
    outlive(js, name)

    assert write(after, task, rows(name, 600)).acked == 600


def test_a_record_of_an_earlier_version_says_nothing_of_mappings(js, options, new_stream):
    """
    A batch that an earlier version of this package began is finished.
    """
    name, task = new_stream(), TaskName("m6", 0, 0)
    js.publish(
        "$KV.SPARK_LEDGER.m6.0.0",
        json.dumps({"attempt": "a", "streams": {name: 0}}).encode(),
        [("Nats-Expected-Last-Subject-Sequence", "0")],
    )
    written = write(mapped(options, {f"{name}.1": f"{name}.one"}), task, rows(name, 600))

    assert written.acked == 600


def test_the_commit_drops_the_mapping(js, options, new_stream):
    """
    Of a batch that is committed one record stays.
    """
    name = new_stream()
    write(mapped(options, {"in.*": f"{name}.$1"}), TaskName("m7", 0, 0), rows("in", 10))
    during = list(js.subject_counts(STREAM, ["$KV.SPARK_LEDGER.m7.>"])[1])
    Ledger(js).commit("m7", 0, 1, {})

    assert sorted(during) == ["$KV.SPARK_LEDGER.m7.0.0", "$KV.SPARK_LEDGER.m7.0.mapping"]
    assert list(js.subject_counts(STREAM, ["$KV.SPARK_LEDGER.m7.>"])[1]) == [
        "$KV.SPARK_LEDGER.m7.committed"
    ]


def test_a_mapping_the_ledger_cannot_hold_is_refused(options, new_stream, nats_server):
    """
    Rules that are too many for one message are an error before a row moves, not a lost connection.
    """
    name = new_stream()
    chance = random.Random(7)
    rules = {f"in.{chance.randbytes(20).hex()}": f"{name}.a" for _ in range(200)}

    def smaller(data: bytes) -> bytes:  # also in what the server says after CONNECT
        return data.replace(b'"max_payload":1048576', b'"max_payload":4096   ')

    with Proxy(nats_server.port, smaller, rewrite=smaller) as proxy:
        way = mapped(options, rules, connection=connection_of(proxy.url))
        with pytest.raises(LedgerError, match=r"a record of \d+ bytes, and the server takes 3072"):
            write(way, TaskName("m8", 0, 0), rows("in", 10))


def test_a_note_that_cannot_be_read_is_an_error(js, options, new_stream):
    """
    Rules of another version of this package, or somebody's bytes, are not guessed.
    """
    place = [("Nats-Expected-Last-Subject-Sequence", "0")]
    js.publish("$KV.SPARK_LEDGER.m9.0.mapping", b"strange", place)
    with pytest.raises(LedgerError, match="the mapping that its batch was begun with cannot be"):
        write(mapped(options, {"in.*": "x.$1"}), TaskName("m9", 0, 0), rows("in", 10))

"""Pausing all consumers of a query by command, on a real server, and by the command `nats`."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta

import pytest

from ..kits.layouts import Place
from ..kits.natscommand import nats, needs_nats
from ..kits.options import BELOW
from ..kits.programs import main
from ..kits.reading import query

__all__ = ["query"]


@pytest.fixture
def place(js):
    """Two partitions on one stream, which goes with the test."""
    made = Place(js, "filtered", f"P{time.monotonic_ns()}")
    yield made
    made.remove()


@pytest.fixture
def command(nats_server, capsys):
    """A command: its status, its lines, and what it said of mistakes."""

    def run(*words):
        status = main([*words, "--servers", nats_server.url])
        said = capsys.readouterr()
        return status, said.out.splitlines(), said.err

    return run


def begun(query, place, **options):
    """A query that has read twenty messages; the words that name its consumers."""
    reader = query(**place.options | options)
    reader.plan()
    reader.commit()
    place.publish(20)
    reader.drain()
    return reader, ("--stream", place.streams[0], "--consumer", reader.planned[-1]["consumer"])


@pytest.mark.parametrize("mode", ["auto", "direct"])
def test_all_consumers_of_a_query(js, place, query, command, mode):
    """
    A query that is paused reads nothing, also after a restart, and says until when; `resume` lets
    it go on, and nothing is lost or doubled. Paused again the time is another, and resumed twice
    the second is told from the first by its status.
    """
    reader, which = begun(query, place, directBelow=BELOW[mode])
    paused = command("pause", *which, "--for", "1h")
    again = command("pause", *which, "--for", "2h", "--json")
    place.publish(3_000)
    reader.restart()
    reader.drain()
    waits, rows = reader.reader.reportLatestOffset(), len(reader.rows)
    inspected = command("inspect", *which[:2], "--json")
    resumed, twice = command("resume", *which), command("resume", *which)
    reader.drain()

    consumers = [f"{which[-1]}-{index}" for index in range(2)]
    assert [line.split()[1] for line in paused[1][1:]] == consumers
    facts = json.loads("".join(again[1]))
    until = [each["paused_until"] for each in facts]
    assert len(set(until)) == 1
    assert [waits[index]["pausedUntil"] for index in "01"] == until
    document = json.loads("".join(inspected[1]))
    assert [each["paused_until"] for each in document["consumers"]] == until
    assert len(document["problems"]) == 2
    assert rows == 20
    assert sum(waits[index]["lag"] for index in "01") == 3_000
    assert [line.split()[1:] for line in resumed[1][1:]] == [[each, "yes"] for each in consumers]
    assert [paused[0], again[0], inspected[0], resumed[0], twice[0]] == [0, 0, 3, 0, 3]
    assert sorted(reader.data) == sorted(b"m%d" % i for i in range(3_020))
    assert "pausedUntil" not in reader.reader.reportLatestOffset()["0"]


@needs_nats
def test_the_command_nats_does_the_same(js, nats_server, place, query, command):
    """What `nats consumer pause` pauses `resume` lets go on, and the other way round."""
    _, which = begun(query, place)

    def consumer(*words):
        nats(nats_server.url, "consumer", *words)

    def pauses():
        return [js.consumer_info(which[1], f"{which[-1]}-{i}").pause_s > 0 for i in range(2)]

    until = (datetime.now() + timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")
    consumer("pause", which[1], f"{which[-1]}-0", until, "--force")
    first, waits = pauses(), command("resume", *which)
    then = pauses()
    command("pause", *which, "--for", "1h")
    consumer("resume", which[1], f"{which[-1]}-1", "--force")

    assert (first, then, pauses()) == ([True, False], [False, False], [True, False])
    assert (waits[0], len(waits[1])) == (3, 3)

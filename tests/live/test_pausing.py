"""Pausing all consumers of a query by command, on a real server, and by the command `nats`."""

import json
import time

import pytest

from ..kits.layouts import Place
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
    """A query that is paused reads nothing, says until when, and loses nothing."""
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

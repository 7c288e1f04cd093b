"""JetStream of an account goes away and comes back: what is asked meanwhile is waited for."""

from __future__ import annotations

import logging
import threading
from contextlib import closing

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client, Reply
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.keyvalue import Bucket
from pyspark_jetstream.errors import ApiError
from pyspark_jetstream.fetch.layout import Span
from pyspark_jetstream.fetch.survey import Survey
from pyspark_jetstream.options import parse_read

from ..kits.clients import serving
from ..kits.options import connection_of
from ..kits.ranges import fill, ranged, reading, sequences
from ..kits.servers import ACCOUNT
from ..kits.shared import eventually

MESSAGES = 30_000


@pytest.fixture(scope="module")
def server():
    """A server whose account can lose its JetStream, with a stream of some record batches."""
    with serving(ACCOUNT) as (server, js):
        fill(js, "S", MESSAGES)
        yield server


@pytest.fixture
def js(server):
    """A client that waits for long."""
    client = Client(connection_of(server.url, request_timeout_s=30.0))
    yield JetStream(client)
    client.close()


def switch(server, on):
    """JetStream of the account on or off; returns once that is so."""
    server.reload(r"A \{ jetstream: \w+", f"A {{ jetstream: {'enabled' if on else 'disabled'}")
    with closing(Client(connection_of(server.url))) as client:
        eventually(lambda: (b'"error"' in client.request("$JS.API.INFO").data) != on)


def while_off(server, caplog, call):
    """What `call` brings that begins while JetStream is off, and sees it come back."""
    found: list[object] = []

    def run():
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    switch(server, on=False)
    try:
        with caplog.at_level(logging.WARNING):
            thread = threading.Thread(target=run)
            thread.start()
            eventually(lambda: found or "it is asked again for" in caplog.text)
    finally:
        switch(server, on=True)
    thread.join(60)
    return found[0]


@pytest.mark.parametrize("mode", ["consumer", "direct"])
def test_a_read_goes_on(server, js, caplog, mode):
    """A read in the middle of its range has the rest of its rows once JetStream is back."""
    if mode == "consumer":
        batches = reading("S", MESSAGES).batches(js.client)
    else:
        batches = ranged("S", MESSAGES).batches(js.client)
    first = sequences([next(batches)])
    rest = while_off(server, caplog, lambda: sequences(batches))

    assert isinstance(rest, list), rest
    assert first + rest == list(range(1, MESSAGES + 1))


QUESTIONS = {
    "stream": lambda js: js.stream_info("S").last_seq,
    "message": lambda js: js.message_get("S", seq=MESSAGES).sequence,
    "subjects": lambda js: js.subject_counts("S", [">"])[1]["S.a"],
    "count": lambda js: _count(js),
    "bucket": lambda js: Bucket(js, "B", "").replace("key", b"1", 0) and MESSAGES,
}


def _count(js):
    survey = Survey(js.client, parse_read({"stream": "S"}))
    infos = survey.streams()
    return survey.counts([Span("S", None, 0, MESSAGES)], infos)[0]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_asked_again(server, js, caplog, question):
    """Whatever a driver asks while JetStream is off is answered when it is back."""
    if question == "bucket":
        assert Bucket(js, "B", "").ensure() is None
    found = while_off(server, caplog, lambda: QUESTIONS[question](js))

    assert found == MESSAGES


def test_waiting_has_an_end(server):
    """What stays off is the server's own error after `requestTimeout`."""
    client = Client(connection_of(server.url, request_timeout_s=8.0))
    client.connection.ping(30.0)
    switch(server, on=False)
    try:
        with pytest.raises(ApiError) as caught:
            JetStream(client).stream_info("S")
    finally:
        switch(server, on=True)
        client.close()

    assert caught.value.err_code == 10039


def test_a_publish_waits_for_the_leader_of_its_stream(js, monkeypatch):
    """A publish without a leader is sent again; one that no stream takes fails at once."""
    asked, requests = [], js.client.requests

    def without_leader(batch, *rest):
        asked.extend(subject for subject, *_ in batch)
        if asked.count("S.leaderless") in (1, 2) and asked[-1] == "S.leaderless":
            return [Reply(wire.NO_RESPONDERS, "", b"", b"")]
        return requests(batch, *rest)

    monkeypatch.setattr(js.client, "requests", without_leader)

    assert js.publish("S.leaderless", b"", []) == MESSAGES + 1
    assert asked.count("S.leaderless") == 3

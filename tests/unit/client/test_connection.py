"""How long a client tries: by a clock that only its pauses move."""

import json
import socket
import traceback
from types import SimpleNamespace

import pytest

from pyspark_jetstream.client import connection as module
from pyspark_jetstream.client import jetstream, patience
from pyspark_jetstream.client.connection import Client, Reply
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.wire import NO_RESPONDERS
from pyspark_jetstream.errors import ApiError, NotConnectedError

from ...kits.options import connection_of
from ...kits.shared import Clock


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for pauses."""
    made = Clock()
    for each in (module, jetstream, patience):
        monkeypatch.setattr(each, "time", made)
    return made


@pytest.fixture
def dialled(monkeypatch):
    """Handshakes, each with what it was told; they fail but for the numbers that are in `open`."""
    calls, peers = SimpleNamespace(told=[], open=set()), []

    def shake_hands(options):
        calls.told.append(options.where)
        if len(calls.told) - 1 not in calls.open:
            raise NotConnectedError("nats://h", "refused")
        ours, theirs = socket.socketpair()
        peers.append(theirs)
        return ours, {"version": "2.15.1"}, b""

    monkeypatch.setattr(module, "shake_hands", shake_hands)
    yield calls
    for peer in peers:
        peer.close()


@pytest.mark.parametrize(("at_start", "seconds"), [(True, 5.0), (False, 30.0)])
def test_who_was_never_reached_at_the_start_is_given_up_soon(clock, dialled, at_start, seconds):
    """At a query's start it is `connectTimeout` in all, else `requestTimeout`."""
    client = Client(
        connection_of("nats://h", connect_timeout_s=5.0, request_timeout_s=30.0), at_start
    )
    began = clock.now
    with pytest.raises(NotConnectedError):
        client.request("a")

    assert seconds - module.LONGEST_PAUSE_S <= clock.now - began <= seconds
    assert len(dialled.told) > seconds / module.LONGEST_PAUSE_S
    assert set(dialled.told) == {"nats://h"}


def test_who_was_reached_once_may_come_back(clock, dialled):
    """A connection that had worked has all of `requestTimeout` to come back."""
    dialled.open = {1}
    client = Client(
        connection_of("nats://h", connect_timeout_s=5.0, request_timeout_s=30.0), at_start=True
    )
    assert client.connection is not None
    client.drop()
    began = clock.now
    with pytest.raises(NotConnectedError):
        client.request("a")

    assert clock.now - began > 30.0 - module.LONGEST_PAUSE_S


class Silent:
    """A server on which nobody answers but for the requests with these numbers."""

    def __init__(self, prefix, answered=(), unanswered=True):
        self.options = connection_of(
            "nats://h", api_prefix=prefix, connect_timeout_s=5.0, request_timeout_s=30.0
        )
        self.unanswered = unanswered
        self.answered = answered
        self.asked = 0

    def requests(self, requests):
        self.asked += 1
        if self.asked - 1 in self.answered:
            return [Reply(0, "", b"", json.dumps({"streams": ["S"]}).encode())]
        return [Reply(NO_RESPONDERS, "", b"", b"")]


@pytest.mark.parametrize(
    ("prefix", "unanswered", "seconds"),
    [("$JS.d.API", True, 5), ("$JS.API", True, 5), ("$JS.d.API", False, 30)],
)
def test_nobody_answers_at_the_start(clock, prefix, unanswered, seconds):
    """JetStream has `connectTimeout` at first; whoever has answered has `requestTimeout`."""
    began = clock.now
    with pytest.raises(ApiError, match="nobody answers: .*jsDomain"):
        JetStream(Silent(prefix, unanswered=unanswered)).stream_names()

    assert clock.now - began == pytest.approx(seconds, abs=0.11)


def test_who_has_answered_is_waited_for(clock):
    """The first answer ends the start."""
    client = Silent("$JS.d.API", {0, 3})
    js = JetStream(client)

    assert js.stream_of("a") == "S"
    assert js.stream_of("a") == "S"
    assert client.asked == 4


def test_an_error_has_no_frames_of_the_handshake():
    """The traceback of a connection that fails ends with our sentence."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = Client(connection_of(f"nats://127.0.0.1:{port}", connect_timeout_s=0.1), at_start=True)
    with pytest.raises(NotConnectedError) as caught:
        client.request("a")
    text = "".join(traceback.format_exception(caught.value))

    assert text.splitlines()[-1].endswith("whether it wants tlsHandshakeFirst")
    assert text.count("Traceback") == 1
    for foreign in ("asyncio", "concurrent", "nats/aio", "ssl.py", "socket.py"):
        assert foreign not in text


def test_an_error_of_a_broken_connection_has_one_traceback(dialled, monkeypatch):
    """What the system said is in the sentence, not above it."""
    dialled.open = {0}
    connection = Client(connection_of("nats://h")).connection
    connection.close()
    with pytest.raises(NotConnectedError, match="Bad file descriptor") as caught:
        connection.ping(1.0)

    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


def test_few_connections_wait_for_a_next_task(monkeypatch):
    """Of logins that change again and again the connections used last are kept."""
    closed = []
    monkeypatch.setattr(module, "_idle", module._Idle())
    monkeypatch.setattr(Client, "close", lambda client: closed.append(client.options.user))
    for number in range(10):
        with module.borrow(connection_of("nats://h", user=f"u{number}")):
            pass

    assert closed == [f"u{number}" for number in range(6)]
    assert [each.user for each in module._idle.clients] == ["u6", "u7", "u8", "u9"]

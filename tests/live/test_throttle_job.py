"""The operator's side of the throttle, with real servers and producers that do as they are told."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.operations.throttle.controller import Controller
from pyspark_jetstream.operations.throttle.pauses import MARGIN_S, Pauses
from pyspark_jetstream.outbox.throttling import throttleprotocol as protocol
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import (
    THROTTLE_SUBJECT,
    Operators,
    Reason,
    ThrottleProducer,
    understand,
)

from ..kits.options import connection_of
from ..kits.servers import DevServer
from ..kits.shared import eventually

QUOTA = Reason.TopicProduceQuotaExceeded

PATIENT = ("--receipt-wait", "900ms")
"""For tests that are not about the wait: a busy machine is no silent producer."""


def start(server: DevServer, *arguments: str, **env: str):
    """The program in a Python of its own, where a receipt may take long, and lines are whole."""
    script = (
        "import sys; from pyspark_jetstream.operations.throttle import command;"
        " command._LONGEST_S = 60.0;"
        " from pyspark_jetstream.operations.main import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", script, "throttle", *arguments, "--servers", server.url]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"COLUMNS": "400"} | env,
    )  # fmt: skip


def run(server: DevServer, *arguments: str, **env: str) -> tuple[int, dict[str, Any], str]:
    """Status, the document, and what else was said."""
    job = start(server, *arguments, "--json", **env)
    out, err = job.communicate(timeout=60)
    return job.returncode, json.loads(out) if out else {}, err


class Producer(threading.Thread):
    """Publishes on its subjects every few milliseconds, and does as it is told, if it `answers`."""

    def __init__(self, server, number, subjects, control=THROTTLE_SUBJECT, supports=True,
                 answers=True):  # fmt: skip
        super().__init__(daemon=True)
        self.commands: list[tuple[float, ThrottleProducer]] = []
        """All that came, and when."""
        self.free: list[float] = []
        """When the first of its subjects was found not to be paused."""
        self._operators = Operators(control, protocol.Producer(number, supports), Throttle())
        self._subjects, self._answers, self._options = subjects, answers, connection_of(server.url)
        self._operators.sent(subjects)
        self._ready, self._ending = threading.Event(), threading.Event()

    def __enter__(self):
        self.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_):
        self._ending.set()
        self.join(60)

    def run(self):
        with closing(Client(self._options)) as client:
            for subject in self._operators.listens:
                client.connection.subscribe(subject)
            client.connection.send(wire.pub(self._operators.active, self._operators.announce(0.0)))
            client.connection.ping(60.0)
            self._ready.set()
            while not self._ending.is_set():
                if frame := client.connection.next_frame(time.monotonic() + 0.005):
                    self._hear(client.connection, frame)
                if not self._operators.throttle.is_paused(self._subjects[0], time.monotonic()):
                    self.free.append(time.monotonic())

    def _hear(self, connection, frame):
        said, now = understand(frame.data), time.monotonic()
        if isinstance(said, ThrottleProducer):
            self.commands.append((now, said))
            if not self._answers:
                return
        answer = self._operators.heard(frame.data, now)
        if answer and frame.reply:
            connection.answer(frame.reply, answer)


# ── producers ────────────────────────────────────────────────────────────────────────────────


def test_b21_the_producers(nats_server):
    """B21: those that know the protocol and those that do not, with what they send to."""
    with (
        Producer(nats_server, 8, [*"abcd"], supports=False),
        Producer(nats_server, 7, ["orders.eu", "\x1b[2J"]),
    ):
        status, found, said = run(nats_server, "producers", "--wait", "2s")
        shown, _ = start(nats_server, "producers", "--wait", "2s").communicate(timeout=60)

    keys = ("producer", "supports_throttle", "subjects")
    assert [[each[key] for key in keys] for each in found["producers"]] == [
        ["7", True, ["orders.eu", "\x1b[2J"]],
        ["8", False, [*"abcd"]],
    ]
    assert (status, said) == (0, "")
    assert [line.split() for line in shown.splitlines()] == [
        ["producer", "subjects", "can", "be", "paused"],
        ["7", "orders.eu,", "\\x1b[2J", "yes"],
        ["8", "a,", "b,", "c,", "…", "no"],
    ]


@pytest.mark.parametrize(
    "command",
    [("producers",), ("pause", "--subject", "a", "--for", "500ms"), ("lift", "--subject", "a")],
    ids=lambda command: command[0],
)
def test_nobody_is_there(nats_server, command):
    """Where nobody listens, that is said, with a status of its own."""
    status, _, said = run(nats_server, *command, "--throttle-subject", "nobody.here")

    assert status == 4
    assert "no writer on 'nobody.here' answered" in said


def test_b21_who_comes_while_it_looks_is_found(nats_server):
    """B21: `producers` and `lift` look on where nobody is there, and find who comes."""
    pauses, alone = Pauses("comes.later"), threading.Event()
    client = Client(connection_of(nats_server.url))
    looking = Controller(client, pauses, lambda: alone.set() if pauses.nobody else None)
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(looking.discover, 15.0, patient=True)
        assert alone.wait(60)
        with Producer(nats_server, 7, ["orders.eu"], control="comes.later"):
            found.result(50)
    client.close()

    assert list(pauses.members) == [7]


# ── pause and lift ───────────────────────────────────────────────────────────────────────────


def test_b24_a_pause(nats_server):
    """B22, B24: matching subjects rest; it is issued again each second, and lifted."""
    with (
        Producer(nats_server, 7, ["orders.eu"]) as paused,
        Producer(nats_server, 8, ["metrics.eu"]) as other,
    ):
        status, found, _ = run(
            nats_server, "pause", "--subject", "orders.*", "--for", "6s", *PATIENT
        )
        eventually(lambda: paused.free[-1] > paused.commands[-1][0])
    times, commands = zip(*paused.commands, strict=True)
    pauses_s = [each.pause_s for each in commands]

    assert (status, found["silent"], len(found["producers"])) == (0, [], 2)
    assert [each > 0 for each in pauses_s] == [True] * (len(commands) - 1) + [False]
    told = {(each.reason, each.subject, each.producer_id) for each in commands}
    assert told == {(QUOTA, "orders.*", 7)}
    assert len(commands) >= 3
    assert times[-1] - times[0] > 2.0  # it may be found late
    for begun, pause_s in list(zip(times, pauses_s, strict=True))[:-2]:  # the last ends by itself
        assert not [at for at in paused.free if begun < at < begun + pause_s]
    assert [at for at in other.free if times[0] < at < times[-1]]


def test_b24_an_early_end_lifts(nats_server):
    """B24: SIGTERM, as Ctrl-C, sends pause 0, and the subjects are free at once."""
    with Producer(nats_server, 7, ["orders.eu"]) as writer:
        job = start(nats_server, "pause", "--subject", "orders.*", "--for", "1h", *PATIENT)
        eventually(lambda: writer.commands)
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=60)
        eventually(lambda: writer.free[-1] > writer.commands[-1][0])

    assert job.returncode == 0
    assert writer.commands[-1][1].pause_s == 0


def test_b7_a_pause_does_not_outlive_its_operator(nats_server):
    """B7: when the program is killed, the pause is over within a second and the margin."""
    with Producer(nats_server, 7, ["orders.eu"]) as writer:
        job = start(nats_server, "pause", "--subject", "orders.*", "--for", "1h", *PATIENT)
        eventually(lambda: writer.commands)
        job.kill()
        job.communicate(timeout=60)
        at, last = writer.commands[-1]
        eventually(lambda: writer.free[-1] > at)

    assert last.pause_s <= 1 + MARGIN_S


def test_b23_who_never_answers(nats_server):
    """§12.6, B23: it is listed, the status is 3, and the others are paused all the same."""
    with (
        Producer(nats_server, 7, ["orders.eu"]) as good,
        Producer(nats_server, 9, ["orders.us"], answers=False) as deaf,
    ):
        status, found, said = run(nats_server, "pause", "--subject", "orders.*", "--for", "4s")
        reasons = {each.reason for _, each in deaf.commands}

    assert status == 3
    assert found["silent"] == ["9"]
    assert "not acknowledged by " in said
    assert " 9: they may go on publishing" in said
    assert reasons == {QUOTA}
    assert good.commands


def test_lift(nats_server):
    """What another operator paused for long is lifted, for both quota reasons."""
    control = Client(connection_of(nats_server.url))
    with Producer(nats_server, 7, ["orders.eu"]) as writer:
        for reason in (QUOTA, Reason.ResourceGroupProduceQuotaExceeded):
            command = ThrottleProducer(1, reason, 3600.0, "orders.*")
            control.connection.send(wire.pub(THROTTLE_SUBJECT, command.encode(), "_INBOX.x"))
        eventually(lambda: len(writer.commands) == 2)
        status, found, said = run(nats_server, "lift", "--subject", "orders.*", *PATIENT)
        eventually(lambda: writer.free and writer.free[-1] > writer.commands[-1][0])
    control.close()

    assert "so far" in said
    (writer,) = found["producers"]
    assert (status, writer["producer"], writer["receipts"]) == (0, "7", 2)


def test_the_server_is_gone_for_a_while():
    """The operator dials again and goes on; who is there by then is paused."""
    with DevServer() as server:
        with Producer(server, 7, ["orders.eu"]) as before:
            job = start(server, "pause", "--subject", "orders.*", "--for", "1h", *PATIENT)
            eventually(lambda: before.commands)
        server.restart()
        with Producer(server, 8, ["orders.eu"]) as after:
            eventually(lambda: after.commands)
            job.send_signal(signal.SIGINT)
            _, said = job.communicate(timeout=60)

    assert job.returncode == 0, said
    assert after.commands[-1][1].pause_s == 0


# ── permissions ──────────────────────────────────────────────────────────────────────────────

ACCOUNTS = """
authorization { users: [
  { user: operator, password: pw-o, permissions: {
      publish: ["spark.jetstream.throttle", "spark.jetstream.throttle.*", "$JS.API.STREAM.NAMES",
                "$JS.API.STREAM.INFO.S", "$JS.API.STREAM.MSG.GET.S", "$JS.API.DIRECT.GET.S"]
      subscribe: ["_INBOX.>", "spark.jetstream.throttle.active"] } }
  { user: stranger, password: pw-s, permissions: {
      publish: { deny: ["spark.jetstream.throttle.>", "spark.jetstream.throttle"] } } }
] }
"""


@pytest.mark.parametrize(
    ("user", "password", "status", "says"),
    [
        ("operator", "pw-o", 4, "no writer on 'spark.jetstream.throttle' answered"),
        ("stranger", "pw-s", 1, "grant it to this user"),
        ("operator", "wrong", 1, "refused the connection"),
    ],
)
def test_b25_who_may_publish_on_the_control_subject(user, password, status, says):
    """B25: what docs/guides/login.md grants is enough; the password is never shown."""
    with DevServer(ACCOUNTS) as server:
        arguments = ("pause", "--subject", ">", "--for", "1s", "--user", user)
        ended, found, said = run(server, *arguments, JETSTREAM_PASSWORD=password)

    assert ended == status
    assert says in said
    assert password not in said + str(found)

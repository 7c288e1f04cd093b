"""
Rows that are made of what a stranger wrote: what they cannot make the writer do.

SQL may make a row's subject or headers of a message whose author may not publish where the writer
may.
"""

import re
import time
from contextlib import closing, contextmanager

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client, Connection
from pyspark_jetstream.errors import OptionError, PublishRejectedError, RowError
from pyspark_jetstream.options import parse_sink
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason, ThrottleProducer
from pyspark_jetstream.serverheaders import EXPECTS
from pyspark_jetstream.values import Secret
from pyspark_jetstream.write import task
from pyspark_jetstream.write.exactlyonce.ids import Ids, TaskName
from pyspark_jetstream.write.exactlyonce.ledger import Ledger
from pyspark_jetstream.write.streams import Streams

from ..kits.clients import serving
from ..kits.encoder import LISTS
from ..kits.options import connection_of
from ..kits.writing import attempt
from .test_publisher import stored
from .test_serverheaders import copy, read_directly, stored_raw
from .test_strangers import hpub


def rows(*subjects, **columns) -> pa.RecordBatch:
    """A row a subject; its data is its number."""
    data = [str(number) for number in range(len(subjects))]
    headers = {"headers": pa.array(columns.pop("headers"), LISTS)} if "headers" in columns else {}
    others = {name: pa.array(values) for name, values in columns.items()}
    return pa.record_batch(
        {"subject": pa.array(subjects), "data": pa.array(data)} | others | headers
    )


WAYS = {
    "ledger": {"exactlyOnce": "true"},
    "once": {},
    "least": {"exactlyOnce": "false"},
}
"""Options of writes that look streams up for reasons of their own, and of those that do not."""


def written(url, *batches, write="w", **options):
    """The counts of writing the batches as one task, by these options, on its own connection."""
    sink = parse_sink({"servers": url, "ackTimeout": "1s", "publishTimeout": "3s"} | options)
    ids = Ids(write) if sink.message_ids else None
    return attempt(sink, batches, TaskName(write, 0, 0), ids)


@pytest.fixture
def write(nats_server, js):
    """Writes batches as one task to the shared server; its counts."""
    Ledger(js).ensure()
    writes = iter(range(1_000))

    def run(*batches, **options):
        name = f"strange-{js.client.connection.new_inbox()[-6:]}-{next(writes)}"
        return written(nats_server.url, *batches, **{"write": name} | options)

    return run


@contextmanager
def ear(url, *subjects):
    """What somebody who listens on these subjects has heard, once they end."""
    heard = []
    with closing(Client(connection_of(url))) as client:
        connection = client.connection
        for subject in subjects:
            connection.subscribe(subject)
        connection.ping(60.0)
        yield heard
        marker = connection.subscribe("the.end")
        connection.send(b"PUB the.end 0\r\n\r\n")
        deadline = time.monotonic() + 60
        while (frame := connection.next_frame(deadline)).sid != marker:
            heard.append(frame.subject.decode())


# ── subjects ─────────────────────────────────────────────────────────────────────────────────

PAUSE = ThrottleProducer(1, Reason.TopicProduceQuotaExceeded, 86_400.0).encode()

RESERVED = {
    "the throttle's": ("spark.jetstream.throttle", {}),
    "one producer's": ("spark.jetstream.throttle.77", {}),
    "its default": ("spark.jetstream.throttle", {"throttleSubject": "ops.pause"}),
    "another's": ("ops.pause", {"throttleSubject": "ops.pause"}),
    "below that": ("ops.pause.active", {"throttleSubject": "ops.pause"}),
    "without one": ("spark.jetstream.throttle", {"throttleSubject": "none"}),
    "metrics": ("ops.metrics", {"metricsSubject": "ops.metrics"}),
    "below metrics": ("ops.metrics.x", {"metricsSubject": "ops.metrics"}),
    "an inbox": ("_INBOX.abc.1", {}),
    "an inbox of ours": ("_OURS.abc", {"inboxPrefix": "_OURS"}),
    "a service": ("$SRV.PING", {}),
    "JetStream": ("$JS.API.STREAM.PURGE.S", {}),
    "the system": ("$SYS.REQ.SERVER.PING", {}),
    "the ledger": ("$KV.SPARK_LEDGER.q.committed", {}),
}
"""Where no row may go, and what the write is told."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", RESERVED)
def test_no_row_goes_where_others_take_it_for_more(nats_server, js, new_stream, write, where, way):
    """Such a row is refused by its name, whether a stream has the subject or not."""
    subject, options = RESERVED[where]
    name = new_stream()
    row = rows(f"{name}.a", subject).set_column(1, "data", pa.array([b"0", PAUSE]))

    with ear(nats_server.url, "spark.jetstream.throttle.>", subject) as heard:
        with pytest.raises(RowError, match="row 1 of partition 0: a message on ") as caught:
            write(row, **WAYS[way] | options)
    assert caught.value.subject == subject
    assert [each for each in heard if each == subject] == []
    assert js.stream_info(name).messages == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_no_stream_takes_is_not_sent(nats_server, js, new_stream, write, way):
    """It would reach whoever listens there by chance, by the writer's rights; a row names it."""
    name = new_stream()
    block = [rows(f"{name}.a"), rows(f"{name}.a", f"{name}.b", "nowhere.orders", f"{name}.c")]

    with ear(nats_server.url, "nowhere.>") as heard:
        with pytest.raises(RowError, match="row 3 of partition 0: no stream of this account") as e:
            write(*block, **WAYS[way])
    assert e.value.subject == "nowhere.orders"
    assert heard == []


MAPPED = """
accounts {
    A {
        jetstream: enabled
        mappings: { outside: "T.inside" }
        users: [{ user: a, password: p }]
        exports: [{ stream: "none.>" }, { service: "T.>" }]
    }
    B {
        jetstream: enabled
        users: [{ user: b, password: p }]
        imports: [{ service: { account: A, subject: "T.>" }, to: "far.>" }]
    }
}
no_auth_user: a
"""


@pytest.mark.parametrize(
    ("user", "subject", "stored_on"),
    [("a", "outside", "T.inside"), ("b", "far.x", "T.x")],
    ids=["mappings", "import"],
)
def test_a_subject_that_the_server_maps_is_for_an_option(user, subject, stored_on):
    """A row is stored there if the user says that it is so."""
    with serving(MAPPED, {"T": {}}, user="a", password=Secret("p")) as (server, js):
        options = {"user": user, "password": "p"}

        with pytest.raises(RowError, match=f"'{subject}'.*requireStream=false"):
            written(server.url, rows(subject), **options)
        assert js.stream_info("T").messages == 0
        more = {"exactlyOnce": "false", "requireStream": "false"}
        assert written(server.url, rows(subject), **options | more).acked == 1
        assert stored(js, "T") == [(stored_on, b"0")]


FORBIDDEN = """
accounts { A {
    jetstream: enabled
    users: [
        { user: any, password: p }
        { user: clerk, password: p, permissions: { publish: ["T.>", "U.>"%s], subscribe: ">" } }
    ]
} }
"""


@pytest.mark.parametrize("more", ["", ', "$JS.API.STREAM.NAMES"'], ids=["names", "info"])
@pytest.mark.parametrize("way", ["once", "least"])
def test_who_may_not_ask_is_told_by_pubacks(way, more):
    """Without the right to look a stream up each row has its PubAck."""
    with serving(FORBIDDEN % more, {"T": {}}, user="any", password=Secret("p")) as (server, _):
        login = {"user": "clerk", "password": "p"}

        assert written(server.url, rows("T.a", "T.b"), **WAYS[way] | login).acked == 2


def test_the_option_is_for_writes_that_need_to_know_nothing():
    """Exactly once is a promise about streams."""
    for options in ({}, {"exactlyOnce": "true"}):
        with pytest.raises(OptionError, match="option 'requireStream': .*exactlyOnce=false"):
            parse_sink({"requireStream": "false"} | options)


# ── headers ──────────────────────────────────────────────────────────────────────────────────


ROLLS_UP = [("Nats-Rollup", ["sub"]), ("K", ["v"])]


@pytest.mark.parametrize(("value", "left"), [("sub", 2), ("all", 12)])
def test_a_rollup_that_is_asked_for_goes_out(js, new_stream, write, value, left):
    """With `allowRollup` it replaces what its subject had; with `all` never."""
    name = new_stream(allow_rollup_hdrs=True)
    write(rows(*[f"{name}.a"] * 10, f"{name}.b"))
    write(rows(f"{name}.a", headers=[[("Nats-Rollup", [value])]]), allowRollup="true")

    assert js.stream_info(name).messages == left


@pytest.mark.parametrize("name", sorted(EXPECTS))
def test_what_a_copied_publish_expected_of_its_stream_stays_behind(js, new_stream, write, name):
    """Such a header would stop a copy for ever."""
    origin, target = new_stream(), new_stream()
    stored_raw(js, f"{origin}.a", [("K", "v"), (name, "77")])
    counts = write(copy(read_directly(js, origin), f"{target}.a"))
    (found,) = js.last_messages(target, [f"{target}.a"])

    assert counts.acked == 1
    assert [pair for pair in found.headers if pair[0] != "Nats-Msg-Id"] == [("K", "v")]


@pytest.mark.parametrize("way", ["ledger", "once", "least"])
@pytest.mark.parametrize("id", ["", " ", "\t "])
def test_an_empty_id_is_none(js, new_stream, write, way, id):
    """The server takes it for none."""
    origin, target = new_stream(), new_stream()
    hpub(js, [(f"{origin}.a".encode(), b"NATS/1.0\r\nNats-Msg-Id: %b\r\nK: v\r\n\r\n"
               % id.encode(), b"x")])  # fmt: skip
    batch = copy(read_directly(js, origin), f"{target}.a")
    own = rows(f"{target}.b", msg_id=[id])

    assert write(batch, **WAYS[way]).acked == write(own, **WAYS[way]).acked == 1
    for subject in "ab":
        (found,) = js.last_messages(target, [f"{target}.{subject}"])
        ids = [value for name, value in found.headers if name == "Nats-Msg-Id"]
        assert len(ids) == (way != "least")
        assert all(each.startswith("strange-") for each in ids)


# ── headers that do not go out ───────────────────────────────────────────────────────────────

LEFT_OUT = [
    [("Nats-Schedule", ["@every 1m"]), ("K", ["v"])],
    [("Nats-Schedule", ["@every 1m", "@every 2m"]), ("Nats-TTL", ["5s"])],
    None,
    [("Nats-Rollup", ["sub"]), ("Nats-Msg-Id", [""])],
]


@pytest.mark.parametrize("way", WAYS)
def test_what_did_not_go_out_is_told(new_stream, write, way, caplog, monkeypatch):
    """Once in a process: which headers rows had that are not in the stream, and what to do."""
    monkeypatch.setattr(task, "_SAID", set())
    name = new_stream()
    block = rows(*[f"{name}.a"] * 4, headers=LEFT_OUT)

    assert write(block, block, **WAYS[way]).acked == 8
    assert write(block, **WAYS[way]).acked == 4
    said = [each.message for each in caplog.records if "is not sent: " in each.message]
    assert [each.split()[2] for each in said] == ["Nats-Rollup", "Nats-Schedule", "Nats-TTL"]
    assert said[1].endswith("columns deliver_at or schedule, and schedule_target")


def test_a_counter_is_told_why_nothing_is_added(new_stream, write):
    """The server misses what the write has left out, and the error says so."""
    name = new_stream(allow_msg_counter=True)
    copied = rows(f"{name}.a", headers=[[("Nats-Incr", ["+1"])]])

    with pytest.raises(PublishRejectedError, match="is missing.*the header Nats-Incr of rows is"):
        write(copied, exactlyOnce="false")


# ── a row's fault is its own ─────────────────────────────────────────────────────────────────

LONG = "T." + "x" * 3_990

UNFIT = {
    "ESC": ({"subject": "T.a\x1bb"}, r"contains the control character '\\x1b'"),
    "NUL": ({"subject": "T.\x00"}, r"contains the control character '\\x00'"),
    "DEL": ({"subject": "T.\x7f"}, "contains the control character"),
    "line end": ({"subject": "T.a\r\nPUB b"}, "contains white space"),
    "wildcard": ({"subject": "T.*"}, "is the wildcard"),
    "no subject": ({"subject": None}, "subject is null"),
    "long": ({"subject": LONG}, "longer than a protocol line"),
    "a command": ({"subject": "spark.jetstream.throttle"}, "is a command, an answer"),
    "the API": ({"subject": "$JS.API.STREAM.PURGE.T"}, "is a command, an answer"),
    "no stream": ({"subject": "nowhere.x"}, "no stream of this account takes 'nowhere.x'"),
    "dead letters' own": ({"subject": "dead.x\x1b"}, "contains the control character"),
    "no data": ({"data": None}, "data is null"),
    "large": ({"data": "x" * 1_048_577}, "more than the server's max_payload"),
    "id": ({"msg_id": " a"}, "msg_id contains"),
    "id of two lines": ({"msg_id": "a\r\nNats-Rollup: all"}, "msg_id contains"),
    "two ids": ({"msg_id": "a", "headers": [("Nats-Msg-Id", ["b"])]}, "both a msg_id and"),
    "header": ({"headers": [("a b", ["1"]), ("K", ["v"])]}, "header 'a b': the name"),
    "header's lines": ({"headers": [("a", ["1\r\nb: 2"]), ("K", ["v"])]}, "header 'a': the value"),
    "ttl": ({"ttl": "5s\nA: b"}, "ttl contains a line break"),
}
"""Rows that can be no messages, and what is said of them."""

ONE = {"subject": "T.a", "data": "x", "msg_id": None, "headers": None, "ttl": None}

ROW = pa.schema({name: LISTS if name == "headers" else pa.string() for name in ONE})


def unfit_among(names, before=3) -> list[dict]:
    """So many sound rows before each unfit one, and behind the last."""
    found = []
    for name in [*names, None]:
        found += [ONE | {"subject": f"T.{i % 2}"} for i in range(before)]
        found += [] if name is None else [ONE | {"subject": "T.0"} | UNFIT[name][0]]
    return [
        row | {"data": row["data"] if row["data"] != "x" else str(n)} for n, row in enumerate(found)
    ]


@contextmanager
def streams():
    """A server with a stream T, another one for dead letters, and a ledger."""
    with serving(streams={"T": {}, "dead": {}}) as (server, js):
        Ledger(js).ensure()
        yield server, js


def everything(js, stream):
    info = js.stream_info(stream)
    return js.messages(stream, [{"seq": each + 1} for each in range(info.last_seq)])


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("to", ["dead.letters", "dead.{subject}"])
def test_what_can_be_no_message_is_a_dead_letter(way, to):
    """The others go out in order, all is counted, and the letter says what it was."""
    given = unfit_among(UNFIT)
    bad = [n for n in range(len(given)) if n % 4 == 3]
    options = WAYS[way]
    with streams() as (server, js):
        counts = written(
            server.url,
            pa.RecordBatch.from_pylist(given[:10], ROW),
            pa.RecordBatch.from_pylist(given[10:], ROW),
            onReject="dead-letter",
            deadLetterSubject=to,
            **options,
        )
        kept, letters = everything(js, "T"), everything(js, "dead")

    assert (counts.rows, counts.dead_letters) == (len(given), len(UNFIT))
    assert counts.acked == len(kept) == len(given) - len(UNFIT)
    for subject in ("T.0", "T.1"):
        numbers = [int(each.data) for each in kept if each.subject == subject]
        assert numbers == [
            n for n, row in enumerate(given) if row["subject"] == subject and n not in bad
        ]
    by_row = {int(dict(each.headers)["Jetstream-Sink-Ordinal"]): each for each in letters}
    assert sorted(by_row) == bad
    for number, (name, (_, why)) in zip(bad, UNFIT.items(), strict=True):
        letter, headers = by_row[number], dict(by_row[number].headers)
        assert re.search(why, headers["Jetstream-Sink-Reason"]), name
        assert headers["Jetstream-Sink-Reason"].startswith("Rejected: ")
        is_sound = re.fullmatch(r"(T|nowhere)\.\w{1,99}", given[number]["subject"] or "")
        is_whole = is_sound and name != "large"
        assert headers.get("Jetstream-Sink-Original-Subject") == (
            given[number]["subject"] if is_whole else None
        ), name
        assert letter.data == (given[number]["data"] or "").encode() * (name != "large"), name
        assert headers.get("K") == ("v" if "header" in name else None)
        assert way == "least" or headers["Nats-Msg-Id"].endswith(".dlq")
        assert "Nats-Rollup" not in headers


def test_a_task_of_nothing_but_faults(js, new_stream, write):
    """Its rows are dead letters, twice the same if it is tried again, and the batch may commit."""
    name = new_stream()
    for _ in range(2):
        counts = write(
            rows(*["nowhere.x"] * 5),
            write="all-unfit",
            exactlyOnce="true",
            onReject="dead-letter",
            deadLetterSubject=f"{name}.dead",
        )
        assert (counts.rows, counts.dead_letters) == (5, 5)
    assert js.stream_info(name).messages == 5


def test_headers_that_are_too_many_for_a_dead_letter():
    """A message with all the headers that a stream takes is no reason to stop for ever."""
    headers = [[("A", ["x" * 65_505])], [("A", ["x"])], [("A", ["x" * 65_520])]]
    with streams() as (server, js):
        counts = written(
            server.url,
            rows("T.a", "T.a", "T.a", headers=headers),
            onReject="dead-letter",
            deadLetterSubject="dead.{subject}",
        )
        letters = everything(js, "dead")

    assert (counts.acked, counts.dead_letters) == (1, 2)
    for letter in letters:
        found = dict(letter.headers)
        assert "too large for a dead letter" in found["Jetstream-Sink-Reason"]
        assert "Jetstream-Sink-Original-Subject" not in found
        assert letter.data == b""


def test_subjects_without_a_stream_are_looked_up_many_at_one_time(
    nats_server, js, new_stream, monkeypatch
):
    """A stranger's subjects, each another one, cost a round trip for many of them."""
    name, trips = new_stream(), []
    options = parse_sink({"servers": nats_server.url})
    client = Client(options.connection)
    streams_ = Streams(client, options)
    ask = Connection.requests
    monkeypatch.setattr(
        Connection,
        "requests",
        lambda self, each, *more: trips.append(len(each)) or ask(self, each, *more),
    )
    subjects = pa.array([f"{name if i % 10 == 0 else 'nowhere'}.{i}" for i in range(1000)])
    found = streams_.targets.of(subjects, True).to_pylist()
    client.close()

    assert found == [0 if i % 10 == 0 else None for i in range(1000)]
    assert sum(trips) == 900 + 2
    assert len(trips) < 30


# ── the price ────────────────────────────────────────────────────────────────────────────────

"""Every call of the direct-get document against a real server, and every status it answers."""

from datetime import UTC, datetime

import pytest

from pyspark_jetstream.errors import (
    ApiError,
    OptionError,
    ReadError,
    StreamNotFoundError,
    TooManySubjectsError,
)
from pyspark_jetstream.fetch.call import DirectCall
from pyspark_jetstream.fetch.directcalls import DirectCalls
from pyspark_jetstream.options import parse_read
from pyspark_jetstream.read.singleget import JetStreamCallReader
from pyspark_jetstream.values import Secret

from ..kits.clients import serving
from ..kits.reading import batch_reader, rows_of
from ..kits.streams import delete_messages


@pytest.fixture
def filled(new_stream, publish):
    """A stream of twelve messages on the subjects A to D in turn, each with its number."""
    stream = new_stream()
    publish([(f"{stream}.{'ABCD'[i % 4]}", b"%d" % (i + 1)) for i in range(12)])
    return stream


@pytest.fixture
def read(nats_server, filled):
    """Sequences that `spark.read` with these options would bring, through its one task."""

    def rows(**options):
        reader = batch_reader(nats_server, JetStreamCallReader, **{"stream": filled} | options)
        (task,) = reader.partitions()
        return rows_of(reader, [task])

    return rows


def sequences(found):
    if found is None:
        return []
    many = found if not hasattr(found, "sequence") else [found]
    return [each["sequence"] if isinstance(each, dict) else each.sequence for each in many]


def moment(js, stream, sequence):
    """The time of a message, to the nanosecond."""
    with_headers = js.client.request(
        f"{js.prefix}.DIRECT.GET.{stream}", b'{"seq":%d}' % sequence
    ).headers
    line = next(each for each in with_headers.split(b"\r\n") if each.startswith(b"Nats-Time-Stamp"))
    return line.split(b": ")[1].decode()


A, ANY, T6 = "{stream}.A", "{stream}.*", {"startingTimestamp": "{t6}"}


CALLS = [
    ({"sequence": 5}, lambda c, s, t: c.message(5), [5]),
    ({"sequence": 99}, lambda c, s, t: c.message(99), []),
    ({"lastBySubject": A}, lambda c, s, t: c.last(f"{s}.A"), [9]),
    ({"lastBySubject": ANY}, lambda c, s, t: c.last(f"{s}.*", appended=False), [12]),
    ({"lastBySubject": "{stream}.no"}, lambda c, s, t: c.last(f"{s}.no"), []),
    ({"nextBySubject": "{stream}.B"}, lambda c, s, t: c.next(f"{s}.B"), [2]),
    ({"nextBySubject": A, "sequence": 3}, lambda c, s, t: c.next(f"{s}.A", 3), [5]),
    ({"nextBySubject": A, "sequence": 10}, lambda c, s, t: c.next(f"{s}.A", 10), []),
    ({"nextBySubject": A} | T6, lambda c, s, t: c.next(f"{s}.A", start_time=t), [9]),
    ({"batch": 1} | T6, lambda c, s, t: c.first_since(t), [6]),
    ({"sequence": 4, "batch": 3, "nextBySubject": ANY}, lambda c, s, t: c.batch(3, f"{s}.*", 4),
     [4, 5, 6]),
    ({"sequence": 11, "batch": 3}, lambda c, s, t: c.batch(3, sequence=11), [11, 12]),
    ({"nextBySubject": A, "batch": 2}, lambda c, s, t: c.batch(2, f"{s}.A"), [1, 5]),
    ({"batch": 2, "nextBySubject": A} | T6, lambda c, s, t: c.batch(2, f"{s}.A", start_time=t),
     [9]),
    ({"batch": 2} | T6, lambda c, s, t: c.batch(2, start_time=t), [6, 7]),
    ({"sequence": 1, "batch": 9, "maxBytes": 8},
     lambda c, s, t: c.batch(9, sequence=1, max_bytes=8), "max_bytes"),
    ({"batch": 9, "maxBytes": 8, "nextBySubject": ANY} | T6,
     lambda c, s, t: c.batch(9, f"{s}.*", start_time=t, max_bytes=8), "max_bytes from 6"),
    ({"multiLast": "{stream}.A,{stream}.D", "batch": 9},
     lambda c, s, t: c.multi_last([f"{s}.A", f"{s}.D"]), [9, 12]),
    ({"multiLast": "{stream}.A,{stream}.D", "batch": 1},
     lambda c, s, t: c.multi_last([f"{s}.A", f"{s}.D"], batch=1), [9]),
    ({"multiLast": ANY, "upToSequence": 6, "batch": 9},
     lambda c, s, t: c.multi_last([f"{s}.*"], up_to_sequence=6), [3, 4, 5, 6]),
    ({"multiLast": ANY, "upToSequence": 6, "batch": 2},
     lambda c, s, t: c.multi_last([f"{s}.*"], up_to_sequence=6, batch=2), [3, 4]),
    ({"multiLast": ANY, "upToTime": "{t6}", "batch": 9},
     lambda c, s, t: c.multi_last([f"{s}.*"], up_to_time=t), [2, 3, 4, 5]),
    ({"multiLast": ANY, "upToTime": "{t6}", "batch": 3},
     lambda c, s, t: c.multi_last([f"{s}.*"], up_to_time=t, batch=3), [2, 3, 4]),
    ({"multiLast": "{stream}.no", "batch": 3},
     lambda c, s, t: c.multi_last([f"{s}.no"], batch=3), []),
]  # fmt: skip
"""Options, the same in Python, and the sequences that come; `t6` is when message 6 was stored."""


@pytest.mark.parametrize(
    ("options", "call", "wanted"), CALLS,
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_every_call(js, filled, read, options, call, wanted):
    """Each call brings the same messages through `spark.read` and through Python."""
    t6 = moment(js, filled, 6)
    texts = {name: str(value).format(stream=filled, t6=t6) for name, value in options.items()}
    by_call = call(DirectCalls(js.client, filled), filled, t6)
    if isinstance(wanted, str):
        # The server counts subject and payload, and ends at the message that reaches the limit.
        first = 6 if "6" in wanted else 1
        wanted = list(range(first, first + -(-8 // (len(filled) + 3))))

    assert sequences(read(**texts)) == wanted
    assert sequences(by_call) == wanted


def test_a_message_comes_whole(filled, js, publish, nats_server):
    """A message has its subject, data, time and headers, without the server's own."""
    publish([(f"{filled}.A", b"\x00data", [("Mine", "1"), ("Mine", "2"), ("Nats-Sequence", "3")])])
    with DirectCalls.open({"servers": nats_server.url}, filled) as calls:
        message = calls.last(f"{filled}.A")

    assert message.subject == f"{filled}.A"
    assert message.data == b"\x00data"
    assert message.sequence == 13
    assert abs(message.timestamp - datetime.now(UTC)).total_seconds() < 60
    assert message.headers == [("Mine", ["1", "2"])]


@pytest.mark.parametrize("small", [0, 50])
def test_many_large_messages(small):
    """More than the server keeps for a reader comes when asked for one by one."""
    stream = {"subjects": ["S"], "storage": "memory"}
    with serving("max_payload: 8MB", {"S": stream}, request_timeout_s=60.0) as (_, js):
        client = js.client
        for size in [0] * small + [4 << 20] * 60:
            client.request("S", b"x" * size)
        calls = [DirectCall(seq=1 + i) for i in range(small + 60)]
        found = DirectCalls(client, "S").each(calls)

        assert [each.sequence for each in found] == list(range(1, small + 61))


def test_a_long_batch_takes_several_requests(js, new_stream, publish):
    """A batch larger than one request may bring comes whole and in order."""
    stream = new_stream()
    publish([(f"{stream}.{i % 3}", b"x" * 2000) for i in range(12_000)])
    calls = DirectCalls(js.client, stream)
    pages = list(calls.pages(DirectCall(seq=1, batch=11_500)))

    assert len(pages) > 2
    assert [each.sequence for page in pages for each in page] == list(range(1, 11_501))
    assert [m.sequence for m in calls.batch(3, f"{stream}.1", 11_990)] == [11_990, 11_993, 11_996]


def test_a_large_multi_get_is_of_one_point(js, new_stream, publish):
    """A multi-subject get of several requests stays as of the sequence of its first answer."""
    stream = new_stream()
    publish([(f"{stream}.{i}", b"x" * 30_000) for i in range(1024)])
    pages = DirectCalls(js.client, stream).pages(DirectCall(multi_last=(f"{stream}.*",)))
    first = next(pages)
    publish([(f"{stream}.{i}", b"new") for i in range(1000, 1024)])
    found = first + [each for page in pages for each in page]

    assert len(first) < 1024
    assert [each.sequence for each in found] == list(range(1, 1025))


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("removed", [(), (12,), (9, 10, 11, 12)], ids=["whole", "last", "tail"])
def test_a_multi_get_as_of_a_sequence_beyond_the_end(
    nats_server, js, new_stream, publish, storage, removed
):
    """As of a sequence beyond the end the last messages are those of the end, at once."""
    stream = new_stream(storage=storage)
    publish([(f"{stream}.{'ABCD'[i % 4]}", b"%d" % (i + 1)) for i in range(12)])
    delete_messages(js, stream, removed)
    with DirectCalls.open({"servers": nats_server.url, "requestTimeout": "2s"}, stream) as calls:
        found = sequences(calls.multi_last([f"{stream}.*"], up_to_sequence=10_000))
        found_by_one = sequences(calls.multi_last([f"{stream}.*"], up_to_sequence=13, batch=3))

    wanted = sorted(max(i for i in range(n, 13, 4) if i not in removed) for n in (1, 2, 3, 4))
    assert found == wanted
    assert found_by_one == wanted[:3]


def test_what_was_deleted_is_stepped_over(js, new_stream, publish):
    """The first message since a moment, and the last of all, are found beside deleted ones."""
    stream = new_stream()
    publish([(f"{stream}.{i % 3}", b"x" * 100_000) for i in range(250)])
    times = [moment(js, stream, seq) for seq in range(40, 121)]
    delete_messages(js, stream, [*range(40, 121), 249, 250])
    calls = DirectCalls(js.client, stream)

    assert {calls.first_since(each).sequence for each in times} == {121}
    assert calls.last(">", appended=False).sequence == 248
    assert calls.last(f"{stream}.>", appended=False).sequence == 248


# ── statuses ─────────────────────────────────────────────────────────────────────────────────


class Malformed(DirectCall):
    """A call that the server cannot read."""

    def request(self, prefix, stream):
        return f"{prefix}.DIRECT.GET.{stream}", b'{"seq":'


def test_408_is_a_typed_error(js, filled):
    """A request that the server refuses is an error with its code."""
    with pytest.raises(ApiError, match="Malformed Request") as caught:
        DirectCalls(js.client, filled).each([Malformed(seq=1)])

    assert caught.value.code == 408


def test_413_is_a_typed_error(js, new_stream, publish, nats_server):
    """A multi-subject get of 1,025 subjects says so, and names the way that reads any number."""
    stream = new_stream()
    publish([(f"{stream}.{i}", b"") for i in range(1025)])
    options = {"stream": stream, "multiLast": f"{stream}.>", "batch": 5}
    reader = batch_reader(nats_server, JetStreamCallReader, **options)
    task = reader.partitions()[0]

    with pytest.raises(TooManySubjectsError, match="more than 1024 .* multiLast without batch"):
        list(reader.read(task))
    assert len(DirectCalls(js.client, stream).multi_last([f"{stream}.{i}" for i in range(9)])) == 9


def test_503_is_a_typed_error(js, new_stream, publish, nats_server):
    """Where direct get is off, or no stream is there, the driver's error says what to do."""
    stream = new_stream(allow_direct=False)
    publish([(f"{stream}.a", b"")])
    options = {"servers": nats_server.url, "stream": stream, "sequence": "1"}

    with pytest.raises(ReadError, match="direct get is off; set allow_direct"):
        DirectCalls(js.client, stream).message(1)
    with pytest.raises(OptionError, match="direct get off; set allow_direct .*--allow-direct"):
        JetStreamCallReader(parse_read(options)).partitions()
    with pytest.raises(StreamNotFoundError, match="stream 'NOWHERE' not found"):
        DirectCalls(js.client, "NOWHERE").message(1)
    with pytest.raises(StreamNotFoundError, match="stream 'NOWHERE' not found"):
        JetStreamCallReader(parse_read(options | {"stream": "NOWHERE"})).partitions()


# ── who answers ──────────────────────────────────────────────────────────────────────────────


def test_the_subject_appended_form_needs_no_other_permission():
    """A user who may ask for one subject, and for nothing else, reads its last message."""
    config = """
    accounts { A { jetstream: enabled, users: [
      {user: admin, password: x}
      {user: reader, password: x, permissions: {
         publish: ["$JS.API.DIRECT.GET.S.S.open.>"], subscribe: ["_INBOX.>"]}}
    ] } }
    """
    with serving(config, user="admin", password=Secret("x")) as (server, js):
        admin = {"servers": server.url, "user": "admin", "password": "x", "stream": "S"}
        js.client.request("S.open.a", b"open")
        js.client.request("S.shut.a", b"shut")

        def last(subject):
            reader = JetStreamCallReader(
                parse_read(admin | {"user": "reader", "lastBySubject": subject})
            )
            return [
                row["data"] for task in reader.partitions() for batch in reader.read(task)
                for row in batch.to_pylist()
            ]  # fmt: skip

        assert last("S.open.a") == [b"open"]
        assert last("S.open.none") == []
        with pytest.raises(Exception, match="(?i)permissions violation"):
            last("S.shut.a")

"""Servers that are too old: what is missing and since when, never a wrong answer or a wait."""

import json

import pytest
from pyspark.sql.types import StringType, StructType

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.errors import UnsupportedServerError
from pyspark_jetstream.fetch.directcalls import DirectCalls
from pyspark_jetstream.fetch.directget import read_direct
from pyspark_jetstream.fetch.layout import Slice
from pyspark_jetstream.options import parse_sink

from ..kits.messages import hmsg, msg
from ..kits.model import parse
from ..kits.proxy import Peer, Proxy, info_with

INFO_2_9: dict[str, object] = {
    "server_id": "NBGS", "server_name": "NBGS", "version": "2.9.25", "proto": 1, "go": "go1.20.12",
    "host": "0.0.0.0", "port": 4222, "headers": True, "max_payload": 1048576, "jetstream": True,
    "client_id": 4, "client_ip": "127.0.0.1",
}  # fmt: skip
"""Of nats-server 2.9.25."""

STREAM_INFO_2_9 = (
    b'{"type":"io.nats.jetstream.api.v1.stream_info_response","total":0,"offset":0,"limit":0,'
    b'"config":{"name":"S","subjects":["S.\\u003e"],"retention":"limits","max_consumers":-1,'
    b'"max_msgs":-1,"max_bytes":-1,"max_age":0,"max_msgs_per_subject":5,"max_msg_size":-1,'
    b'"discard":"old","storage":"file","num_replicas":1,"duplicate_window":120000000000,'
    b'"allow_direct":true,"mirror_direct":false,"sealed":false,"deny_delete":false,'
    b'"deny_purge":false,"allow_rollup_hdrs":false},"created":"2026-11-22T05:37:58.679232907Z",'
    b'"state":{"messages":4,"bytes":204,"first_seq":1,"first_ts":"2026-11-22T05:37:58.680382941Z",'
    b'"last_seq":4,"last_ts":"2026-11-22T05:37:58.680901989Z","num_subjects":2,"consumer_count":0},'
    b'"cluster":{"leader":"NBGS"}}'
)
"""Its answer to STREAM.INFO: no `ts`."""

FIRST_2_9 = (
    b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: S.0\r\nNats-Sequence: 1\r\n"
    b"Nats-Time-Stamp: 2026-11-22T05:37:58.680382941Z\r\n\r\n",
    b"x0",
)
"""Its whole answer to a direct get of `{"batch": 3, "seq": 1}`: one message, and no count."""

EMPTY_2_9 = (b"NATS/1.0 408 Empty Request\r\n\r\n", b"")
"""Its answer where only fields are given that it does not know, as `multi_last`."""


def direct_get_2_9(payload: bytes) -> list[tuple[bytes, bytes]]:
    """As it answers a direct get: fields that it does not know are none."""
    known = {"seq", "last_by_subj", "next_by_subj"} & json.loads(payload or b"{}").keys()
    return [FIRST_2_9 if known else EMPTY_2_9]


STREAM_2_9 = {
    "$JS.API.STREAM.NAMES": lambda _: [(b"", b'{"total":1,"streams":["S"]}')],
    "$JS.API.STREAM.INFO.S": lambda _: [(b"", STREAM_INFO_2_9)],
    "$JS.API.DIRECT.GET.S": direct_get_2_9,
}
"""What it says of its stream S, by the subjects of the API."""


class RecordedServer(Peer):
    """Speaks as much of the protocol as one client needs; `answers` has headers and data."""

    def __init__(self, info, answers):
        super().__init__(self._speak)
        self.info, self.answers = info, answers

    def _speak(self, client, _):
        sids: dict[bytes, int] = {}
        with client.makefile("rb") as lines:
            client.sendall(b"INFO %s\r\n" % json.dumps(self.info).encode())
            while line := lines.readline():
                verb, *words = line.split()
                if verb == b"PING":
                    client.sendall(b"PONG\r\n")
                elif verb == b"SUB":
                    sids[words[0].rstrip(b"*>")] = int(words[-1])
                elif verb in (b"PUB", b"HPUB"):
                    (sent,) = parse(line + lines.read(int(words[-1]) + 2))
                    answer, reply = self.answers.get(sent.subject), sent.reply.encode()
                    for head, data in answer(sent.data) if answer is not None else ():
                        (sid,) = (sid for inbox, sid in sids.items() if reply.startswith(inbox))
                        said = [head, data] if head else [data]
                        client.sendall((hmsg if head else msg)(reply, b"", *said, sid))


ROWS = StructType().add("subject", StringType()).add("data", StringType())


@pytest.fixture
def old():
    """nats-server 2.9.25, as far as it was recorded."""
    with RecordedServer(INFO_2_9, STREAM_2_9) as server:
        yield server


@pytest.fixture
def mixed():
    """A cluster: the server we are connected to is new, the one that has the stream is old."""
    with RecordedServer(INFO_2_9 | {"version": "2.15.1"}, STREAM_2_9) as server:
        yield server


CALLS = {
    "batch": lambda calls: list(calls.batch(3, sequence=1)),
    "batch-next": lambda calls: list(calls.batch(3, "S.>")),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_old_server_shows_in_its_first_answer(mixed, call):
    """The first reply without Nats-Num-Pending shows it (ADR-31), in a cluster as well."""
    with (
        DirectCalls.open({"servers": mixed.url}, "S") as calls,
        pytest.raises(
            UnsupportedServerError, match=r"this one is 2\.15\.1, but an older one has answered"
        ),
    ):
        CALLS[call](calls)


@pytest.mark.parametrize("server", ["old", "mixed"])
@pytest.mark.parametrize("what", ["count", "range"])
def test_what_reads_are_made_of(request, server, what):
    """Counting and reading a range name what an old server has not, at once."""
    client = Client(parse_sink({"servers": request.getfixturevalue(server).url}).connection)
    js = JetStream(client)
    with pytest.raises(UnsupportedServerError, match="needs nats-server 2.12 or newer"):
        if what == "count":
            js.next_messages([("S", {"seq": 1})])
        else:
            list(read_direct(client, Slice.whole("S", 0, 4)))
    client.close()


@pytest.mark.parametrize("options", [{"sequence": 1}, {"multiLast": "S.>"}, {}])
def test_reads_from_an_old_server(old, options):
    """`spark.read` names on the driver what is missing."""
    given = {"servers": old.url, "stream": "S"} | {k: str(v) for k, v in options.items()}
    source = JetStreamDataSource(given)
    with pytest.raises(UnsupportedServerError, match="needs nats-server 2.12"):
        source.reader(source.schema()).partitions()


def test_a_range_from_a_server_that_counts_otherwise(nats_server, new_stream):
    """nats-server 2.11 has batches, but counts what follows a message with the message itself."""
    with Proxy(nats_server.port, info_with(version="2.11.11")) as proxy:
        source = JetStreamDataSource({"servers": proxy.url, "stream": new_stream()})
        with pytest.raises(UnsupportedServerError, match=r"2\.12 or newer, this one is 2\.11\.11"):
            source.reader(source.schema()).partitions()

"""What people do wrong, and what they see of it; what needs Spark is in tests/spark."""

import json
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.client.options import parse_connection
from pyspark_jetstream.datasource import JetStreamDataSource
from pyspark_jetstream.errors import JetStreamError

from ..kits.proxy import Proxy, info_with
from ..kits.servers import DevServer
from ..kits.tls import tls_server
from .test_old_servers import INFO_2_9, STREAM_2_9, RecordedServer

ERRORS = "pyspark_jetstream.errors."
"""What the line begins with that is ours, wherever Spark shows it."""


def source(options: dict[str, Any]) -> JetStreamDataSource:
    """The data source of these options, as `format("jetstream")` makes it."""
    return JetStreamDataSource(CaseInsensitiveDict({k: str(v) for k, v in options.items()}))


def read(**options: Any) -> int:
    """`spark.read`, and an action on it; how many rows it brings."""
    made = source(options)
    reader = made.reader(made.schema())
    return sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))


def stream(checkpoint: Any = None, **options: Any) -> int:
    """`spark.readStream`, and its next batch; how many rows it brings."""
    made = source(options)
    reader = made.streamReader(made.schema())
    try:
        reader.getDefaultReadLimit()
        start = reader.initialOffset() if checkpoint is None else checkpoint
        end = reader.latestOffset(start, ReadAllAvailable())
        tasks = reader.partitions(start, end)
        return sum(batch.num_rows for each in tasks for batch in reader.read(each))
    finally:
        reader.stop()


def write(
    batch: pa.RecordBatch, streaming: bool = False, overwrite: bool = False, **options: Any
) -> None:
    """`df.write`, in one task; of `df.writeStream` what comes before any task."""
    made, schema = source(options), from_arrow_schema(batch.schema)
    if streaming:
        made.streamWriter(schema, overwrite)
        return
    writer = made.writer(schema, overwrite)
    writer.commit([writer.write(iter([batch]))])


def told(call: Callable[[], object]) -> tuple[JetStreamError, str]:
    """The error of ours that a mistake ends in, and Spark's last line: ours, and alone."""
    with pytest.raises(JetStreamError) as caught:
        call()
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    ours = [line for line in lines if line.startswith(ERRORS)]

    assert ours == lines[-1:], ours or lines
    assert lines[0] == "Traceback (most recent call last):"
    assert lines.count(lines[0]) == 1, "another error stands before it"
    return caught.value, lines[-1]


SOON = {"requestTimeout": "10m"}
AT_ONCE = SOON | {"publishTimeout": "10m"}
"""Of reads and writes: nobody waits for so long, so what is not told at once hangs."""

AT_THE_START = SOON | {"connectTimeout": "3s"}
"""A driver that was never answered waits no longer, whatever a request may take."""

BRIEFLY = {"requestTimeout": "3s", "connectTimeout": "3s"}
"""What bounds a wait for something that may yet come."""

ANYWHERE = {"exactlyOnce": "false", "requireStream": "false"}
"""Of writes that send what no stream is known to take."""

ACCOUNTS = """
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: pw }
    { user: mute, password: pw, permissions: { publish: ["other.>"] } }
    { user: deaf, password: pw, permissions: { subscribe: ["other.>"] } }
    { user: reader, password: pw, permissions: { publish: ["$JS.API.>"] } }
    { user: clerk, password: pw, permissions: { publish: ["S.>", "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.INFO.S"] } }
  ] }
  B { users: [ { user: zoe, password: pw } ] }
}
"""


@dataclass
class Place:
    """The servers of the module, by name, and where each is."""

    urls: dict[str, str]
    certificates: Path
    offsets: dict[str, Any] = field(default_factory=dict)

    def on(self, name, **options):
        """Options that lead to a server."""
        return {"servers": self.urls[name]} | options

    def as_(self, user, password="pw", **options):
        """Options of a user of the server with accounts."""
        return self.on("accounts", user=user, password=password) | options

    def pem(self, name):
        """Where a file with certificates is."""
        return str(self.certificates / name)


@pytest.fixture(scope="module")
def place(certificates):
    """All servers that the mistakes are made with."""
    with ExitStack() as stack:
        servers = {
            "plain": stack.enter_context(DevServer()),
            "accounts": stack.enter_context(DevServer(ACCOUNTS)),
            "tls": stack.enter_context(tls_server(certificates)),
            "tls first": stack.enter_context(tls_server(certificates, "handshake_first: true")),
            "mutual tls": stack.enter_context(tls_server(certificates, "verify: true")),
        }
        urls = {name: server.url for name, server in servers.items()}
        urls["monitoring"] = servers["plain"].monitor_url.replace("http:", "nats:")
        old = stack.enter_context(RecordedServer(INFO_2_9, STREAM_2_9))
        urls["2.9"] = old.url
        proxy = stack.enter_context(Proxy(servers["plain"].port, info_with(version="2.13.0")))
        urls["2.13"] = proxy.url
        made = Place(urls, certificates)
        streams_of(made)
        yield made


def streams_of(place):
    """Streams that something is wrong with, and offsets of streams that changed since."""
    for options in (place.on("plain"), place.as_("ann")):
        client = Client(parse_connection(options))
        js = JetStream(client)

        def new(name, js=js, **config):
            js.create_stream(
                {"name": name, "subjects": [f"{name}.>"], "allow_direct": True} | config
            )
            js.client.request(f"{name}.a", b"x")

        new("S")
        if "user" in options:
            client.close()
            continue
        new("SMALL", max_msg_size=100)
        new("FULL", max_msgs=1, discard="new")
        new("TTL", allow_msg_ttl=True)
        new("NODIRECT", allow_direct=False)
        new("WORK", retention="workqueue")
        new("HIDDEN", retention="workqueue", allow_direct=False)
        new("MOVED")
        js.client.request(
            f"{js.prefix}.STREAM.UPDATE.MOVED",
            json.dumps(js.stream_info("MOVED").config | {"subjects": ["elsewhere.>"]}).encode(),
        )
        new("FILLED", subjects=None, sources=[{"name": "S"}])
        js.create_consumer("S", {"durable_name": "mine-0", "ack_policy": "explicit"})
        for name in ("PURGED", "REMADE", "GONE", "OTHER"):
            new(name)
            created = js.stream_info(name).created
            place.offsets[name] = {
                "version": 1, "consumer": f"c-{name}", "streams": {name: created}, "base": [0],
                "layout": {"places": [[name]]}, "sequences": [1], "idle": [],
            }  # fmt: skip
        for _ in range(3):
            js.client.request("PURGED.a", b"x")
        js.purge("PURGED", None, None)
        js.delete_stream("GONE")
        js.delete_stream("REMADE")
        new("REMADE")
        client.close()


@dataclass(frozen=True)
class Mistake:
    """What somebody does, and the error's type and words."""

    call: Callable[[Place], object]
    error: str
    says: str
    remedy: str


def data(size=1, **columns):
    """One row to write."""
    return pa.record_batch({"data": ["x" * size]} | columns)


MISTAKES = {
    # ── where the server is ──
    "wrong port": Mistake(
        lambda at: read(servers="nats://127.0.0.1:1", stream="S", **AT_THE_START),
        "NotConnectedError", "Connection refused", "check host and port in option servers",
    ),
    "unknown host": Mistake(
        lambda at: stream(servers="nats://nosuch.invalid:4222", stream="S", **AT_THE_START),
        "NotConnectedError", "nosuch.invalid:4222", "check host and port in option servers",
    ),
    "monitoring port": Mistake(
        lambda at: read(**at.on("monitoring", stream="S"), **BRIEFLY),
        "NotConnectedError", "4222 is for clients", "8222 for monitoring",
    ),
    # ── who one is ──
    "no password": Mistake(
        lambda at: read(**at.on("accounts", stream="S"), requestTimeout="10m"),
        "AuthenticationError", "Authorization Violation", "check option user and option password",
    ),
    "wrong password": Mistake(
        lambda at: stream(**at.as_("ann", "wrong", stream="S"), requestTimeout="10m"),
        "AuthenticationError", "Authorization Violation", "check option user and option password",
    ),
    "a token for a user": Mistake(
        lambda at: read(**at.on("accounts", stream="S", token="pw"), requestTimeout="10m"),
        "AuthenticationError", "Authorization Violation", "check option user and option password",
    ),
    # ── TLS ──
    "no CA": Mistake(
        lambda at: read(**at.on("tls", stream="S"), requestTimeout="10m"),
        "AuthenticationError", "certificate verify failed", "tlsCaFile must hold the CA",
    ),
    "a key for a CA": Mistake(
        lambda at: read(**at.on("tls", stream="S", tlsCaFile=at.pem("ca.key"))),
        "AuthenticationError", "tlsCaFile: ", "must hold the CA's certificates as PEM",
    ),
    "another's key": Mistake(
        lambda at: read(**at.on("tls", stream="S", tlsCaFile=at.pem("ca.pem"),
                                tlsCertFile=at.pem("client.pem"), tlsKeyFile=at.pem("ca.key"))),
        "AuthenticationError", "tlsCertFile, tlsKeyFile: ", "the key that of the certificate",
    ),
    "no such CA": Mistake(
        lambda at: read(**at.on("tls", stream="S", tlsCaFile="/no/such.pem")),
        "OptionError", "option 'tlsCaFile': no such file", "'/no/such.pem'",
    ),
    "another name": Mistake(
        lambda at: read(servers=at.urls["tls"].replace("127.0.0.1", "localhost"), stream="S",
                        tlsCaFile=at.pem("ca.pem")),
        "AuthenticationError", "not valid for 'localhost'", "must name it as the certificate",
    ),
    "no certificate of ours": Mistake(
        lambda at: read(**at.on("mutual tls", stream="S", tlsCaFile=at.pem("ca.pem"))),
        "AuthenticationError", "it wants a client certificate", "give tlsCertFile and tlsKeyFile",
    ),
    "TLS of a server without": Mistake(
        lambda at: read(servers=at.urls["plain"].replace("nats:", "tls:"), stream="S"),
        "TlsError", "its INFO does not offer it", "configure tls { } in that server",
    ),
    "TLS after INFO": Mistake(
        lambda at: read(**at.on("tls first", stream="S", tlsCaFile=at.pem("ca.pem")), **BRIEFLY),
        "NotConnectedError", "no connection to", "whether it wants tlsHandshakeFirst",
    ),
    "TLS before INFO": Mistake(
        lambda at: read(**at.on("tls", stream="S", tlsCaFile=at.pem("ca.pem"),
                                tlsHandshakeFirst="true")),
        "NotConnectedError", "SSL", "whether it wants tlsHandshakeFirst",
    ),
    # ── what one may ──
    "no API": Mistake(
        lambda at: read(**at.as_("mute", stream="S"), **SOON),
        "PermissionsError", 'Violation for Publish to "$JS.API.STREAM.INFO.S"', "grant it to this",
    ),
    "no inbox": Mistake(
        lambda at: stream(**at.as_("deaf", stream="S"), **SOON),
        "PermissionsError", 'Violation for Subscription to "_INBOX.', "let inboxPrefix name",
    ),
    "no consumer": Mistake(
        lambda at: stream(**at.as_("clerk", stream="S"), **SOON),
        "PermissionsError", "Violation for Publish to", "grant it to this user",
    ),
    "no publish": Mistake(
        lambda at: write(data(), **at.as_("reader", subject="S.a"), **AT_ONCE),
        "PermissionsError", 'Violation for Publish to "S.a"', "grant it to this user",
    ),
    "no ledger": Mistake(
        lambda at: write(data(), **at.as_("clerk", subject="S.a", exactlyOnce="true"), **AT_ONCE),
        "LedgerError", "$JS.API.STREAM.INFO.KV_SPARK_LEDGER", "or set exactlyOnce=false",
    ),
    # ── JetStream ──
    "JetStream off for a read": Mistake(
        lambda at: read(**at.as_("zoe", stream="S"), **BRIEFLY),
        "ApiError", "JetStream not enabled for account", "enable JetStream for this account",
    ),
    "JetStream off for a write": Mistake(
        lambda at: write(data(), **at.as_("zoe", subject="S.a"), **BRIEFLY),
        "ApiError", "JetStream not enabled for account", "enable JetStream for this account",
    ),
    "JetStream off for PubAcks": Mistake(
        lambda at: write(data(), **at.as_("zoe", subject="S.a"), **ANYWHERE,
                         publishTimeout="5s", ackTimeout="500ms", **BRIEFLY),
        "PublishTimeoutError", "no stream listens on this subject", "enable JetStream for this acc",
    ),
    "another domain": Mistake(
        lambda at: read(**at.on("plain", stream="S", jsDomain="hub"), **AT_THE_START),
        "ApiError", "$JS.hub.API.STREAM.INFO.S: nobody answers", "or jsDomain or jsApiPrefix is",
    ),
    # ── the stream ──
    "no such stream for a read": Mistake(
        lambda at: read(**at.on("plain", stream="NO"), **SOON),
        "StreamNotFoundError", "stream 'NO' not found", "check its name, jsDomain",
    ),
    "a stream's name in small letters": Mistake(
        lambda at: stream(**at.on("plain", stream="remade"), **SOON),
        "StreamNotFoundError", "stream 'remade' not found", "did you mean 'REMADE'?",
    ),
    "no such bucket": Mistake(
        lambda at: read(**at.on("plain", bucket="NO"), **SOON),
        "StreamNotFoundError", "stream 'KV_NO' not found", "check its name, jsDomain",
    ),
    "a subject of another stream": Mistake(
        lambda at: read(**at.on("plain", stream="S", subject="T.>"), **SOON),
        "OptionError", "'T.>' matches no message of stream 'S', which takes S.>", "or leave it out",
    ),
    "partitions of another stream": Mistake(
        lambda at: stream(**at.on("plain", stream="S", partitions=2,
                                  partitionSubject="T.{partition}.>"), **SOON),
        "OptionError", "option 'partitionSubject': 'T.*.>' matches no message", "or leave it out",
    ),
    "subjects that overlap": Mistake(
        lambda at: read(**at.on("plain", stream="S", subject="S.a.*, S.*.b"), **SOON),
        "OptionError", "'S.a.*' and 'S.*.b' have subjects in common", "leave the others out with",
    ),
    "no direct get": Mistake(
        lambda at: read(**at.on("plain", stream="NODIRECT"), **SOON),
        "OptionError", "'NODIRECT' has direct get off", "nats stream edit NODIRECT --allow-direct",
    ),
    "no partitions": Mistake(
        lambda at: stream(**at.on("plain", stream="S", partitions=4), **SOON),
        "OptionError", "has no partition() transform to follow", "with partitionSubject=",
    ),
    "beyond the end": Mistake(
        lambda at: read(**at.on("plain", stream="S", startingOffsets='{"0": 99}'), **SOON),
        "OptionError", "names sequence 99", "stream 'S' ends at",
    ),
    "a work queue from its end": Mistake(
        lambda at: stream(**at.on("plain", stream="WORK", startingOffsets="latest")),
        "OptionError", "stream 'WORK' is a work queue", "use earliest",
    ),
    "somebody else's consumer": Mistake(
        lambda at: stream(**at.on("plain", stream="S", consumer="mine"), **SOON),
        "OptionError", "the consumer 'mine-0' has ack_policy", "choose another prefix",
    ),
    # ── the checkpoint ──
    "Kafka's checkpoint": Mistake(
        lambda at: stream({"topic": {"0": 5}}, **at.on("plain", stream="S"), **SOON),
        "OffsetError", 'whose offset is {"topic": {"0": 5}}', "a checkpointLocation of its own",
    ),
    "the rate source's checkpoint": Mistake(
        lambda at: stream(17, **at.on("plain", stream="S"), **SOON),
        "OffsetError", "one of another source, whose offset is 17", "a checkpointLocation of its",
    ),
    "another stream's checkpoint": Mistake(
        lambda at: stream(at.offsets["OTHER"], **at.on("plain", stream="S"), **SOON),
        "OffsetError", "the checkpoint is of stream OTHER, not of S", "a checkpointLocation of",
    ),
    "another N's checkpoint": Mistake(
        lambda at: stream(at.offsets["OTHER"] | {"sequences": [1, 1], "base": [0, 0], "layout": {
                              "places": [["OTHER", "a"], ["OTHER", "b"]]}},
                          **at.on("plain", stream="OTHER"), **SOON),
        "OffsetError", "2 partitions of stream OTHER (a, b); this query has 1", "--switch",
    ),
    "the checkpoint of a shared consumer": Mistake(
        lambda at: stream({"version": 1, "policy": "overflow", "claims": {}},
                          **at.on("plain", stream="S"), **SOON),
        "OffsetError", "a query that shares its consumer", "give the options it had, or a new che",
    ),
    "purged": Mistake(
        lambda at: stream(at.offsets["PURGED"], **at.on("plain", stream="PURGED"), **SOON),
        "DataLossError", "left the stream before they were read", "set failOnDataLoss=false",
    ),
    "made anew": Mistake(
        lambda at: stream(at.offsets["REMADE"], **at.on("plain", stream="REMADE"), **SOON),
        "DataLossError", "the stream was made anew at", "use a new checkpointLocation",
    ),
    "deleted": Mistake(
        lambda at: stream(at.offsets["GONE"], **at.on("plain", stream="GONE"), **SOON),
        "StreamNotFoundError", "stream 'GONE' not found", "check its name",
    ),
    # ── rows ──
    "no data": Mistake(
        lambda at: write(pa.record_batch({"value": ["x"]}),
                         **at.on("plain", subject="S.a"), **AT_ONCE),
        "ColumnError", "column 'value': unknown", "rename it to data",
    ),
    "Kafka's topic": Mistake(
        lambda at: write(data(topic=["S.a"]), **at.on("plain"), **AT_ONCE),
        "ColumnError", "column 'topic': unknown", "rename it to subject",
    ),
    "larger than the server takes": Mistake(
        lambda at: write(data(2_000_000), **at.on("plain", subject="S.a"), **AT_ONCE),
        "RowError", "more than the server's max_payload", "make the row smaller, or raise that",
    ),
    "larger than the stream takes": Mistake(
        lambda at: write(data(1000), **at.on("plain", subject="SMALL.a"), **AT_ONCE),
        "PublishRejectedError", "message size exceeds maximum", "raise the stream's max_msg_size",
    ),
    "a TTL where there is none": Mistake(
        lambda at: write(data(ttl=["1h"]), **at.on("plain", subject="S.a"), **AT_ONCE),
        "PublishRejectedError", "per-message TTL is disabled", "set allow_msg_ttl on the stream",
    ),
    "a TTL too short": Mistake(
        lambda at: write(data(ttl=["10ms"]), **at.on("plain", subject="TTL.a"), **AT_ONCE),
        "PublishRejectedError", "invalid per-message TTL", "give a ttl of 1s at least",
    ),
    "a full stream": Mistake(
        lambda at: write(data(), **at.on("plain", subject="FULL.a"), publishTimeout="5s",
                         ackTimeout="500ms"),
        "ProducerThrottledError", "maximum messages exceeded", "the stream is full: raise its lim",
    ),
    "a subject that no stream takes": Mistake(
        lambda at: write(data(), **at.on("plain", subject="nobody.a"), **AT_ONCE),
        "OptionError", "no stream of this account takes 'nobody.a'", "create the stream",
    ),
    "the same, though it is said that a stream takes it": Mistake(
        lambda at: write(data(), **at.on("plain", subject="nobody.a"), **ANYWHERE,
                         publishTimeout="5s", ackTimeout="500ms"),
        "PublishTimeoutError", "no stream listens on this subject", "create it, check the subject",
    ),
    "overwrite": Mistake(
        lambda at: write(data(), overwrite=True, **at.on("plain", subject="S.a"), **AT_ONCE),
        "OptionError", "a stream is append-only", "use mode('append')",
    ),
    "complete": Mistake(
        lambda at: write(data(), True, True, **at.on("plain", subject="S.a"), **AT_ONCE),
        "OptionError", "a stream is append-only", "use outputMode('append')",
    ),
    "a way to publish": Mistake(
        lambda at: write(data(), **at.on("plain", subject="S.a", publishMode="fast"), **AT_ONCE),
        "OptionError", "there is one way to publish", "leave it out",
    ),
    # ── old servers ──
    "too old to stand by": Mistake(
        lambda at: stream(**at.on("2.13", stream="S", standby="true", consumer="c"), **SOON),
        "UnsupportedServerError", "needs nats-server 2.14 or newer, this one is 2.13.0", "upgrade",
    ),
    "too old to read": Mistake(
        lambda at: read(**at.on("2.9", stream="S"), **SOON),
        "UnsupportedServerError", "needs nats-server 2.12 or newer, this one is 2.9.25", "upgrade",
    ),
    "too old to write exactly once": Mistake(
        lambda at: write(data(), True, **at.on("2.9", subject="S.a"), **AT_ONCE),
        "UnsupportedServerError", "needs nats-server 2.12 or newer", "upgrade the serv",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_told(place, name):
    """A mistake is one error of ours: type, what happened, what to do, and no other before it."""
    mistake = MISTAKES[name]
    error, line = told(lambda: mistake.call(place))

    assert type(error).__name__ == mistake.error, line
    assert line.startswith(f"{ERRORS}{mistake.error}: ")
    assert mistake.says in line
    assert mistake.remedy in line
    assert str(error) in line and "\n" not in str(error)
    assert "password" not in line.replace("check option user and option password", "")


TO_COME = "2200-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("blamed", "options"),
    [
        ("upToSequence", {"multiLast": "S.>", "upToSequence": 99}),
        ("upToTime", {"multiLast": "S.>", "upToTime": TO_COME}),
        ("multiLast", {"multiLast": "other.>"}),
        ("multiLast", {"multiLast": "S.a,other"}),
        ("stream", {"multiLast": "NODIRECT.>", "stream": "NODIRECT"}),
        ("nextBySubject", {"nextBySubject": "other.>"}),
        ("lastBySubject", {"lastBySubject": "other"}),
        ("multiLast", {"multiLast": "S.a,other", "batch": 2}),
        ("upToSequence", {"multiLast": "S.a", "batch": 2, "upToSequence": 99}),
        ("upToTime", {"multiLast": "S.a", "batch": 2, "upToTime": TO_COME}),
        ("startingTimestamp", {"startingTimestamp": TO_COME, "batch": 2}),
    ],
)
def test_snapshots_and_single_gets_that_cannot_be(place, blamed, options):
    """A bound to come, a subject outside, no direct get: one error each before a task."""
    made = source(place.on("plain", **{"stream": "S"} | options))
    error, _ = told(lambda: made.reader(made.schema()).partitions())

    assert (type(error).__name__, error.option) == ("OptionError", blamed)
    assert "\n" not in str(error)


def test_what_is_no_mistake(place, caplog):
    """Subjects that the stream takes no more are read; a filter that nothing matches warns."""
    assert read(**place.on("plain", stream="MOVED", subject="MOVED.>")) == 1
    assert caplog.text == ""
    assert read(**place.on("plain", stream="FILLED", subject="T.>")) == 0
    assert (
        "nothing is read until a message matches: option 'subject': 'T.>' matches no message"
        in caplog.text
    )
    assert "which takes none by itself" in caplog.text

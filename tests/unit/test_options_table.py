"""
Options: what a text becomes, and what is said of one that is none, as tables.

Each row of a table is a kind of read or write (`kits.options.parse`), what is given, and what comes
of it.
"""

import json
from operator import attrgetter

import pytest

from pyspark_jetstream.fetch.options import RangeCut, RowExtent, Several
from pyspark_jetstream.outbox.priority import Priority
from pyspark_jetstream.publish.settings import StreamCreation
from pyspark_jetstream.read.options import CallOptions, RangeOptions, SnapshotOptions
from pyspark_jetstream.readstream.options import Sharing
from pyspark_jetstream.values import Starting

from ..kits.options import SECRET, parse, priorities_of, refused, rules_of

OVERFLOW = {"priorityPolicy": "overflow", "consumer": "jobs"}
PRIORITIZED = {"priorityPolicy": "prioritized", "consumer": "jobs"}
LIST, PATTERN = {"stream": "ORDERS, RETURNS"}, {"streamPattern": "tenant-*"}
BY_SUBJECT = {"partitions": "2", "partitionSubject": "a.{partition}"}
NUMBERED = {"stream": "S-{partition}", "partitions": "2"}
CREATE = {"createStream": "true", "stream": "S"}
CONFIG = {
    "num_replicas": 3, "retention": "interest", "subject_transform": {"dest": "h.>"},
    "of": {"tomorrow": 1},
}  # fmt: skip
BOUNDS = '{"ORDERS": {"0": 7}, "RETURNS": {"0": "latest"}}'


# ── one option ───────────────────────────────────────────────────────────────────────────────

TEXTS = [
    ("sink", "requestTimeout", "connection.request_timeout_s",
     {"500ms": 0.5, "30s": 30.0, "1.5m": 90.0, "2 h": 7200.0, " 1d ": 86400.0,
      "36500d": 36500 * 86400.0}),
    ("stream", "maxBytesPerTrigger", "max_bytes",
     {"1": 1, "17B": 17, "2kB": 2000, "2KiB": 2048, "8 MiB": 8 << 20, "3mb": 3_000_000,
      "1GiB": 1 << 30, "1gb": 10**9}),
    ("sink", "servers", "connection.servers",
     {"h": ("nats://h",), "h:1, tls://i:2/": ("nats://h:1", "tls://i:2"),
      "nats://[::1]:4222": ("nats://[::1]:4222",)}),
    ("sink", "jsDomain", "connection.api_prefix", {"hub": "$JS.hub.API"}),
    ("sink", "jsApiPrefix", "connection.api_prefix", {"JS.imported.": "JS.imported"}),
    *(
        (kind, "subject", "subjects",
         {"a.*": ("a.*",), "b.>, a.>": ("b.>", "a.>"),
          "[eu].>": ("[eu].>",), "a.b, a.>, c, a.*": ("a.>", "c"), "a,a": ("a",), ">, a": (">",),
          "a.*.c, a.b, a.*.d": ("a.*.c", "a.b", "a.*.d"), "a.*.>": ("a.*.>",)})
        for kind in ("stream", "range")
    ),
    *(
        ("range", name, field,
         {"a.*": "a.*", " a.> ": "a.>", "a,a": "a", "[eu].>": "[eu].>"})
        for name, field in (("lastBySubject", "last_by_subject"),
                            ("nextBySubject", "next_by_subject"))
    ),
    ("sink", "subject", "rows.subject", {"a.b": "a.b"}),
    ("stream", "checkpointLocation", "stream", {"": "S"}),  # Spark's own are not ours
    ("stream", "queryName", "stream", {"": "S"}),
    ("stream", "path", "stream", {"": "S"}),
    ("stream", "maxPublishDelay", "connection.max_publish_delay_s", {"20ms": 0.02}),
    ("range", "maxPublishDelay", "connection.max_publish_delay_s", {"20ms": 0.02}),
    ("stream", "priorityTimeout", "priority_timeout_s", {"6s": 6.0}),
    # B20: then operators can pause nothing
    ("sink", "throttleSubject", "throttle_subject", dict.fromkeys(["none", "NONE", " ", ""])),
    ("sink", "throttleMaxWait", "rules.throttle_max_wait_s", {"5m": 300.0}),
]  # fmt: skip
"""Kind, option, the field it fills, and what that is for each text."""

JSON = "expected earliest, latest, or JSON"
NO_TEXTS = [
    ("stream", "partitions", "positive integer",
     ["0", "-1", "4k", "1.5", "", "٣", "9" * 5000]),
    ("stream", "partitions", "'4k'", ["4k"]),
    ("stream", "includeHeaders", "true or false", ["yes"]),
    ("range", "dropMarkers", "true or false", ["yes"]),
    ("stream", "requestTimeout", "with its unit", ["30", "30 s s", "-3s"]),
    ("stream", "requestTimeout", "more than zero", ["0s", "0.0ms"]),
    ("stream", "requestTimeout", "at most", ["36501d", "9" * 400 + "s"]),
    ("stream", "maxBytesPerTrigger", "8MiB", ["8 parsecs", "0", "-1", "1.5MiB"]),
    ("stream", "priorityPolicy", "pinned_client", ["pinned", "overflow,prioritized"]),
    ("stream", "priorityGroup", "1 to 16", ["seventeen-letters", "a b", "x" * 17, "a.b"]),
    ("stream", "priorityGroup", "expected a value", [""]),
    ("stream", "stream", "empty", [""]),
    ("stream", "stream", "no dots", ["a.b", "a*", "a b", "a/b"]),
    ("range", "streamPattern", "no dots", ["a.*"]),
    ("range", "streamPattern", "a name with * for any characters", ["tenant"]),
    ("stream", "consumer", "no dots", ["a.b", "a{partition}"]),
    ("stream", "subject", "empty", ["a..b"]),
    ("stream", "subject", "last token", ["a.>.b"]),
    ("stream", "subject", "white space", ["a b"]),
    ("stream", "subject", "control", ["a\u0000b"]),
    ("stream", "partitionSubject", "{partition}", ["a.>"]),
    ("stream", "partitionSubject", "exactly one", ["a.{partition}.{partition}", "a.x{partition}"]),
    ("stream", "startingOffsets", JSON,
     ["first", "{}", "[1]", '{"x": 1}', '{"00": 1}', '{"-1": 1}', '{"0": -3}', '{"0": 1.0}',
      '{"0": true}', '{"0": null}', '{"0": [1]}', '{"0": "soon"}', "[" * 100_000]),
    ("stream", "startingTimestamp", "RFC 3339",
     ["yesterday", '{"S": {"0": "yesterday"}}', "2026-13-31T08:00:00Z",
      "0001-01-01T00:00:00+14:00"]),
    ("stream", "startingTimestamp", "zone", ["2026-01-31T08:00:00"]),
    ("stream", "startingTimestamp", "unit", ["-10", "--10m"]),
    ("stream", "startingTimestamp", "at most", ["-99999999999d"]),
    ("sink", "metricsSubject", "wildcard", ["spark.*"]),
    ("range", "endingOffsets", "latest or JSON", ["earliest"]),
    ("range", "endingOffsets", "sequences or latest", ['{"0": "earliest"}']),
    ("range", "multiLast", "expected a subject", ["", " , ", '["a"]']),
    ("range", "multiLast", "empty", ["a,,b"]),
    ("range", "multiLast", "last token", ["a.>.b"]),
    ("range", "multiLast", "stands for a whole token", ["a.b*", "a, b.>c"]),
    ("range", "upToSequence", "positive", ["0"]),
    ("range", "sequence", "positive", ["-1"]),
    ("range", "upToTime", "RFC 3339", ["yesterday"]),
    ("range", "batch", "positive", ["0"]),
    ("range", "bucket", "bucket name", ["a.b"]),
    ("range", "bucket", "empty", [""]),
    ("range", "lastBySubject", "white space", ["a b"]),
    *(
        ("range", name, said, ["a.>,b.>", "a, b, c"])
        for name in ("lastBySubject", "nextBySubject")
        for said in ("expected one filter, got",)
    ),
    *((kind, "subject", f"subjects in common, such as those of '{both}'", [text])
      for kind in ("stream", "range")
      for text, both in (("a.*.c, a.b.*", "a.b.c"), ("x, *.b, c.y, a.*", "a.b"))),
    ("stream", "subject", "'>'", ["*.>, >.x"]),
    ("range", "subject", "'>'", ["*.>, >.x"]),
    ("sink", "subject", "wildcard", ["a.>", "a.*"]),
    ("sink", "subjectMapping", "subjectMapping", ["{"]),
    ("sink", "subjectMapping", "no such file", ["/nowhere.conf"]),
    ("sink", "maxInFlight", "positive integer", ["0"]),
    ("sink", "publishOrder", "subject or strict or none", ["random"]),
    ("sink", "ackTimeout", "unit", ["soon"]),
    ("sink", "tlsCaFile", "no such file", ["/no/such/file"]),
    ("sink", "credentialsFile", "no such file", ["/no/such/file"]),
    ("sink", "credentials", "with BEGIN NATS USER JWT",
     ["no creds", "x", "-----END NATS USER JWT-----", SECRET]),
    ("sink", "jsDomain", "without dots", ["a.b"]),
    ("sink", "jsApiPrefix", "empty", ["a..b"]),
    ("sink", "inboxPrefix", "empty", ["a..b"]),
    ("stream", "inboxPrefix", "wildcard", ["_INBOX.>"]),
    ("range", "inboxPrefix", "nobody's", ["$JS.API"]),
    ("sink", "inboxPrefix", "48", ["x" * 49]),
    ("sink", "servers", "nats://",
     ["http://h:1", "nats://h:x", "nats://h:99999", "nats://h:0", "a,,b", "", "nats://h/path"]),
    ("sink", "servers", "WebSocket is not supported", ["wss://h:443", "nats://a,ws://b"]),
    ("sink", "prioritySubjects", "critical, normal", ["orders.>=high"]),
    ("sink", "priorityResolver", "package.module:function", ["function"]),
    ("sink", "throttleMaxWait", "more than zero", ["0.0s"]),
    ("sink", "throttleMaxWait", "a duration with its unit", ["10"]),
    ("sink", "throttleSubject", "wildcard", ["a.*"]),
    ("sink", "bufferMemory", "a size such as", ["0"]),
    ("sink", "queueSize", "positive", ["none"]),
    ("sink", "shedPriorities", "never shed", ["critical"]),  # A19
    ("sink", "shedPriorities", "expected", ["low"]),
    ("sink", "deadLetterSubject", "wildcard", ["dead.*"]),
    ("stream", "priority", "expected 0", ["10", "-1", "1.5"]),
    ("stream", "minPending", "expected a positive integer", ["0"]),
    *((kind, "user", "null", [None]) for kind in ("stream", "range", "sink")),
    ("range", "path", "no path", ["/tmp/x"]),
    # names: an unknown one has the nearest of its kind, and never its value
    ("stream", "steram", "did you mean 'stream'?", [SECRET]),
    ("stream", "startingOffset", "did you mean 'startingOffsets'?", [SECRET]),
    ("stream", "MAXRECORDPERTRIGGER", "did you mean 'maxRecordsPerTrigger'?", [SECRET]),
    ("stream", "serverz", "did you mean 'servers'?", [SECRET]),
    ("stream", "zzqqxx", "unknown option; leave it out", [SECRET]),
    ("range", "endingOffset", "did you mean 'endingOffsets'?", [SECRET]),
    ("range", "pasword", "did you mean 'password'?", [SECRET]),
    ("sink", "buferMemory", "did you mean 'bufferMemory'?", [SECRET]),
    ("sink", "subjectMaping", "did you mean 'subjectMapping'?", [SECRET]),
    ("sink", "bufferMemoryy", "did you mean 'bufferMemory'?", [SECRET]),
    ("stream", "endingTimestamp", "applies to", ["-1m"]),
    ("sink", "includeHeaders", "applies to", ["true"]),
    ("sink", "startingOffsets", "applies to", ["latest"]),
    ("range", "maxRecordsPerTrigger", "applies to", ["5"]),
    ("range", "maxInFlight", "applies to", ["5"]),
    ("range", "metricsSubject", "applies to", ["spark.metrics"]),
    ("stream", "ackTimeout", "applies to", ["5s"]),
]  # fmt: skip
"""Kind, option, what is said of it, and each text of which it is."""


def _id(value):
    return str(value)[:60].encode("ascii", "replace").decode()


@pytest.mark.parametrize(("kind", "name", "field", "values"), TEXTS, ids=_id)
def test_a_text_becomes_a_value(kind, name, field, values):
    """Each text of one option fills its field."""
    found = {text: attrgetter(field)(parse(kind, {name: text})) for text in values}

    assert found == values


@pytest.mark.parametrize(("kind", "name", "said", "texts"), NO_TEXTS, ids=_id)
def test_a_text_that_is_none_is_refused(kind, name, said, texts):
    """In one line that names the option and says what was expected, without any secret."""
    for text in texts:
        error = refused(kind, {name: text})
        assert (error.option, said in error.reason) == (name, True), (text, str(error))
        assert "\n" not in str(error) and SECRET not in str(error)


# ── several options ──────────────────────────────────────────────────────────────────────────

TAKEN = [
    ("stream", {"STREAM": "S", "INCLUDEHEADERS": "TRUE", "directbelow": "7"},
     {"stream": "S", "include_headers": True, "direct_below": 7}),
    ("range", {"stream": "S", "includeheaders": "True", "STARTINGOFFSETS": "LATEST"},
     {"include_headers": True, "starting.word": "latest"}),
    ("sink", {"MAXINFLIGHT": "7"}, {"window.max_in_flight": 7}),
    ("stream", {}, {"sharing": None, "connection.max_publish_delay_s": None}),
    ("range", {}, {"connection.max_publish_delay_s": None}),
    # where reads begin and end: sequences of 2^63-1 survive; -2 and -1 are words, as of Kafka's
    ("stream", {"startingOffsets": '{"0": 9223372036854775807, "2": "LATEST"}'},
     {"starting.sequences": {0: 2**63 - 1, 2: "latest"}, "starting.word": "earliest"}),
    ("range", {"endingOffsets": '{"1": 0}'},
     {"ending.word": "latest", "ending.sequences": {1: 0}}),
    ("range", {"subject": "a,b", "startingOffsets": '{"1": 7}'}, {"starting.sequences": {1: 7}}),
    ("range", {"subject": "a,b", "endingOffsets": '{"1": 7}'}, {"ending.sequences": {1: 7}}),
    ("range", LIST | {"startingOffsets": BOUNDS, "endingOffsets": BOUNDS},
     {"starting.streams": {"ORDERS": {0: 7}, "RETURNS": {0: "latest"}}, "starting.word": "earliest",
      "ending.streams": {"ORDERS": {0: 7}, "RETURNS": {0: "latest"}}, "ending.word": "latest"}),
    ("range", LIST | {"startingOffsets": '{"ORDERS": {"0": -2}, "RETURNS": {"0": -1}}'},
     {"starting.streams": {"ORDERS": {0: "earliest"}, "RETURNS": {0: "latest"}}}),
    # partitions, splits
    *((kind, more | {"minPartitions": "3", "maxRecordsPerPartition": "10"},
       {"cut.min_partitions": 3, "cut.max_records_per_partition": 10})
      for kind, more in (("stream", {}), ("range", {}))),
    ("stream",
     {"partitions": "4", "partitionSubject": "a.{partition}.>", "consumer": "mine",
      "priorityGroup": "g", "priorityTimeout": "30s", "maxRecordsPerTrigger": "9",
      "maxBytesPerTrigger": "1KiB", "minRecordsPerTrigger": "9", "maxTriggerDelay": "1m",
      "failOnDataLoss": "false", "includeHeaders": "true", "directBelow": "0",
      "endingOffsets": '{"1": 7}',
      "queryName": " Flights ", "onInvalidSubject": " Replace"},
     {"several": None, "stream": "S", "subjects": (), "partitions": 4,
      "partition_subject": "a.{partition}.>", "include_headers": True,
      "extent": RowExtent(True, False), "bucket": None, "fail_on_data_loss": False,
      "on_invalid_subject": "replace", "cut": RangeCut(None, None),
      "consumer": "mine", "priority_group": "g", "priority_timeout_s": 30.0, "standby": False,
      "direct_below": 0, "max_records": 9, "max_bytes": 1024, "min_records": 9,
      "max_trigger_delay_s": 60.0,
      "query_name": "Flights", "sharing": None, "ending": Starting("latest", {1: 7})}),
    # several streams
    ("range", {"stream": "ORDERS"}, {"several": None, "stream": "ORDERS"}),
    ("range", LIST, {"several": Several(("ORDERS", "RETURNS")), "stream": "ORDERS,RETURNS"}),
    ("range", PATTERN, {"several": Several((), "tenant-*"), "stream": "tenant-*"}),
    # fields of a pull, as ADR-42 names them
    ("stream", OVERFLOW, {"sharing.pull": {}, "sharing.policy": "overflow"}),
    ("stream", OVERFLOW | {"minPending": "5"}, {"sharing.pull": {"min_pending": 5}}),
    ("stream", OVERFLOW | {"minAckPending": "7"}, {"sharing.pull": {"min_ack_pending": 7}}),
    ("stream", OVERFLOW | {"minPending": "5", "minAckPending": "7"},
     {"sharing.pull": {"min_pending": 5, "min_ack_pending": 7}}),
    ("stream", PRIORITIZED, {"sharing.pull": {"priority": 0}, "sharing.policy": "prioritized"}),
    ("stream", PRIORITIZED | {"priority": "9"}, {"sharing.pull": {"priority": 9}}),
    ("stream",
     OVERFLOW | {
         "minPending": "1", "minAckPending": "2", "ackWait": "3s", "maxAckPending": "4",
         "maxDeliver": "5", "deadLetterSubject": "dead.{subject}", "maxRecordsPerTrigger": "6",
         "minPartitions": "2", "maxRecordsPerPartition": "3"},
     {"sharing": Sharing(
         policy="overflow", min_pending=1, min_ack_pending=2, priority=None, ack_wait_s=3.0,
         max_ack_pending=4, max_deliver=5, dead_letter_subject="dead.{subject}",
         asked=frozenset({"ackWait", "maxAckPending"})),
      "consumer": "jobs", "max_records": 6, "cut.min_partitions": 2}),
    # which of the four batch reads
    ("range", {}, {"__class__": RangeOptions, "drop_markers": False}),
    ("range", {"subject": "a.>", "dropMarkers": "true"},
     {"__class__": RangeOptions, "drop_markers": True}),
    ("range", {"multiLast": "a.>"},
     {"__class__": SnapshotOptions, "filters": ("a.>",), "drop_markers": False}),
    ("range", {"multiLast": "a, b.*", "upToSequence": "7"},
     {"__class__": SnapshotOptions, "filters": ("a", "b.*"), "up_to_sequence": 7,
      "up_to_time": None}),
    ("range", {"bucket": "USERS"},
     {"__class__": SnapshotOptions, "stream": "KV_USERS", "filters": ("$KV.USERS.>",),
      "drop_markers": True}),
    ("range", {"bucket": "B", "keys": "x.*,y", "history": "true", "upToSequence": "3"},
     {"__class__": RangeOptions, "subjects": ("$KV.B.x.*", "$KV.B.y"), "drop_markers": False,
      "ending": Starting("latest", {0: 3, 1: 3})}),
    ("range", {"bucket": "B", "dropMarkers": "false"},
     {"__class__": SnapshotOptions, "drop_markers": False}),
    ("range", {"sequence": "5"}, {"__class__": CallOptions, "sequence": 5, "batch": None}),
    ("range", {"lastBySubject": "a.*"}, {"__class__": CallOptions, "last_by_subject": "a.*"}),
    ("range", {"nextBySubject": "a", "sequence": "5"},
     {"__class__": CallOptions, "next_by_subject": "a", "sequence": 5}),
    ("range", {"nextBySubject": "a", "batch": "3", "maxBytes": "1KiB"},
     {"__class__": CallOptions, "next_by_subject": "a", "batch": 3, "max_bytes": 1024}),
    ("range", {"multiLast": "a,b", "batch": "2", "upToSequence": "9"},
     {"__class__": CallOptions, "multi_last": ("a", "b"), "batch": 2, "up_to_sequence": 9}),
    # writes: a ledger is the default of streaming ones
    ("sink", {}, {"connection.api_prefix": "$JS.API", "ledger": False, "message_ids": True,
                  "throttle_subject": "spark.jetstream.throttle", "rows.rejects": False}),
    ("streaming", {}, {"ledger": True, "message_ids": True, "rules.buries_paused": False}),
    *((kind, {"exactlyOnce": value}, {"ledger": value == "true", "message_ids": value == "true"})
      for kind in ("sink", "streaming") for value in ("true", "false")),
    ("sink", {}, {"window.max_in_flight": 8192, "window.min_in_flight": 1}),
    ("sink", {"maxInFlight": "1"}, {"window.max_in_flight": 1}),
    ("sink", {"createStream": "true", "stream": "F-{partition}", "partitions": "3",
              "streamSubjects": "f.{partition}.>, g.{partition}",
              "streamConfig": json.dumps(CONFIG)},
     {"create": StreamCreation("F-{partition}", ("f.{partition}.>", "g.{partition}"), 3, CONFIG)}),
    # A18, I3: nothing is shed by default; then non-critical rows; onReject sheds nothing
    ("sink", {}, {"rules.sheddable": frozenset()}),
    ("sink", {"overloadPolicy": "drop"},
     {"rules.sheddable": {Priority.NON_CRITICAL}, "drops": True}),
    ("sink", {"onReject": "dead-letter", "deadLetterSubject": "dead"},
     {"rows.rejects": True, "drops": False, "dead_letter_subject": "dead",
      "rules.sheddable": frozenset()}),
    ("sink", {"metricsSubject": "m"}, {"metrics.metrics_subject": "m"}),
    ("sink",
     {"throttleSubject": "ops.throttle", "throttleMaxWait": "1m", "bufferMemory": "8MiB",
      "queueSize": "99", "queueTimeout": "30s", "publishTimeout": "20s",
      "overloadPolicy": "dead-letter", "deadLetterSubject": "dead.{subject}",
      "shedPriorities": "normal, non-critical",
      "prioritySubjects": "orders.>=critical, metrics.*=non-critical",
      "priorityHeader": "X-Priority", "priorityClaim": "tenant",
      "priorityClaimValues": "acme=critical"},
     {"window.max_in_flight_bytes": 2 << 20, "throttle_subject": "ops.throttle",
      "dead_letter_subject": "dead.{subject}",
      "rules": rules_of(
          queue_size=99, queue_bytes=2 << 20, held_bytes=4 << 20,
          sheddable=frozenset({Priority.NORMAL, Priority.NON_CRITICAL}), queue_timeout_s=30.0,
          throttle_max_wait_s=60.0),
      "priorities": priorities_of(
          subjects=(("orders.>", Priority.CRITICAL), ("metrics.*", Priority.NON_CRITICAL)),
          header="X-Priority", claim="tenant", claim_values=(("acme", Priority.CRITICAL),))}),
    ("sink", {"onThrottleTimeout": "dead-letter", "deadLetterSubject": "dead"},
     {"rules.buries_paused": True}),
]  # fmt: skip
"""Kind, options, and the fields that these fill."""

REFUSED = [
    # ── streaming reads ──
    ("stream", {"stream": "S-{partition}{partition}", "partitions": "2"}, "stream"),
    ("stream", BY_SUBJECT | {"stream": "S-{partition}"}, "partitionSubject"),
    ("stream", NUMBERED | {"subject": "a"}, "subject"),
    ("stream", {"partitionSubject": "a.{partition}"}, "partitionSubject"),
    ("stream", {"partitions": "auto"}, "partitions: partition --switch"),
    ("stream", LIST | OVERFLOW, "priorityPolicy: belongs to consumers, and stream="),
    ("stream", PATTERN | OVERFLOW, "priorityPolicy: belongs to consumers, and streamPattern="),
    ("stream", {"maxTriggerDelay": "1s"}, "maxTriggerDelay"),
    ("stream", {"minRecordsPerTrigger": "3", "maxRecordsPerTrigger": "2"}, "minRecordsPerTrigger"),
    ("stream", {"priorityTimeout": "5999ms"},
     "priorityTimeout: expected at least 6s, got 5.999s: a reader renews its pin every third"),
    ("stream", {"standby": "true"}, "standby"),
    ("sink", {"metricsInterval": "1s"}, "metricsInterval: reports have one interval"),
    # ── shared consumers ──
    ("stream", {"minPending": "5"}, "minPending: belongs to priorityPolicy=overflow"),
    ("stream", {"minAckPending": "5"}, "minAckPending: belongs to priorityPolicy=overflow"),
    ("stream", {"priority": "5"}, "priority: belongs to priorityPolicy=prioritized"),
    *(("stream", given, f"{name}: overflow or prioritized")
      for given in ({"ackWait": "5s"}, {"maxAckPending": "5"}, {"maxDeliver": "5"},
                    {"deadLetterSubject": "d"})
      for name in given),
    ("stream", PRIORITIZED | {"minPending": "5"}, "minPending: this query has prioritized"),
    ("stream", OVERFLOW | {"priority": "5"}, "priority: this query has overflow"),
    ("stream", {"priorityPolicy": "overflow"}, "consumer: required"),
    ("stream", OVERFLOW | {"priorityTimeout": "9s"}, "priorityTimeout: pinned_client"),
    ("stream", OVERFLOW | {"standby": "true"}, "standby: pinned_client"),
    ("stream", OVERFLOW | {"endingOffsets": "latest"}, "endingOffsets: an end for one reader"),
    ("stream", OVERFLOW | {"minRecordsPerTrigger": "5"}, "minRecordsPerTrigger: hold claims back"),
    ("stream", OVERFLOW | {"maxDeliver": "5"}, "maxDeliver: needs option 'deadLetterSubject' too"),
    ("stream", OVERFLOW | {"deadLetterSubject": "d"},
     "deadLetterSubject: needs option 'maxDeliver' too"),
    ("stream", OVERFLOW | {"maxDeliver": "5", "deadLetterSubject": "{subject}"},
     "deadLetterSubject: where their rows should"),
    ("stream", OVERFLOW | {"maxDeliver": "5", "deadLetterSubject": "a.b", "subject": "a.b"},
     "deadLetterSubject: a subject of dead letters"),
    # ── batch reads ──
    ("range", {"subject": "a", "partitions": "2"}, "subject"),
    ("range", BY_SUBJECT | {"subject": "a"}, "subject"),
    ("range", {"startingOffsets": "latest", "startingTimestamp": "-1m"}, "startingTimestamp"),
    ("range", {"endingOffsets": "latest", "endingTimestamp": "-1m"}, "endingTimestamp"),
    ("range", {"multiLast": "a", "upToSequence": "1", "upToTime": "-1m"}, "upToTime"),
    ("range", {"bucket": "B", "upToSequence": "1", "upToTime": "-1m"}, "upToTime"),
    ("range", {"upToSequence": "1"}, "upToSequence"),
    ("range", {"upToTime": "-1m", "startingOffsets": "latest"}, "upToTime"),
    ("range", {"sequence": "1", "upToSequence": "1"}, "upToSequence"),
    *(("range", {"multiLast": "a", name: value}, name)
      for name, value in (("subject", "b"), ("startingOffsets", "latest"), ("sequence", "1"),
                          ("startingTimestamp", "-1m"), ("endingOffsets", "latest"),
                          ("maxBytes", "5"))),
    ("range", {"multiLast": "a", "batch": "1", "maxBytes": "5"}, "maxBytes"),
    ("range", {"multiLast": "a", "bucket": "B"}, "multiLast"),
    *(("range", {"lastBySubject": "a", name: value}, name)
      for name, value in (("nextBySubject", "a"), ("sequence", "1"), ("batch", "1"),
                          ("startingTimestamp", "-1m"))),
    *(("range", {"sequence": "1", name: value}, name)
      for name, value in (("startingTimestamp", "-1m"), ("minPartitions", "2"), ("subject", "a"),
                          ("maxBytes", "5"))),
    *(("range", {name: value}, name)
      for name, value in (("batch", "5"), ("maxBytes", "5"), ("keys", "a"), ("history", "true"))),
    *(("range", {"bucket": "B", name: value}, name)
      for name, value in (("stream", "S"), ("partitions", "2"), ("startingOffsets", "latest"),
                          ("batch", "2"))),
    ("range", NUMBERED | {"sequence": "1"}, "stream"),
    ("range", NUMBERED | {"multiLast": "a", "upToSequence": "1"}, "upToSequence"),
    *(("stream", {"bucket": "B", name: value}, name)
      for name, value in (("stream", "S"), ("subject", "x"), ("partitions", "2"),
                          ("includeCount", "true"), ("keys", "a.*,*.b"), ("history", "true"))),
    ("stream", {"stream": "S", "keys": "a"}, "keys"),
    ("stream", {"bucket": "B"} | OVERFLOW, "bucket"),
    *((kind, {"bucket": "B", "keys": text}, "keys: stands for a whole token")
      for kind in ("stream", "range") for text in ("J*", "user.*, a.b>")),
    # ── several streams ──
    ("range", LIST | PATTERN, "streamPattern: contradicts option 'stream'"),
    ("range", {"stream": "A,"}, "stream: got an empty string"),
    ("range", {"stream": "A,A"}, "stream: expected distinct whole names"),
    ("range", {"stream": "A,B c"}, "stream: expected a stream name"),
    ("range", {"stream": "A,B-{partition}"}, "stream: expected distinct whole names"),
    ("range", LIST | {"partitions": "2"}, "partitions: belongs to one stream"),
    ("range", LIST | BY_SUBJECT, "partitions: belongs to one stream"),
    ("range", PATTERN | {"subject": "a.>"}, "subject: belongs to one stream"),
    ("range", LIST | {"startingOffsets": '{"0": 3}'}, "startingOffsets: by stream, such as"),
    ("range", LIST | {"startingOffsets": '{"ORDERS": {"1": 3}}'},
     "startingOffsets: partition 0 of 'ORDERS'"),
    ("range", LIST | {"startingOffsets": '{"OTHERS": {"0": 3}}'},
     "startingOffsets: 'OTHERS' is none of ORDERS,RETURNS"),
    ("range", LIST | {"startingOffsets": '{"ORDERS": {"0": -3}}'}, f"startingOffsets: {JSON}"),
    ("range", LIST | {"startingOffsets": '{"ORDERS": 3}'}, f"startingOffsets: {JSON}"),
    ("range", LIST | {"endingOffsets": '{"ORDERS": {"0": -2}}'},
     "endingOffsets: sequences or latest"),
    ("range", LIST | {"endingOffsets": '{"ORDERS": {"0": "earliest"}}'},
     "endingOffsets: sequences or latest"),
    ("range", {"stream": "A", "startingOffsets": '{"A": {"0": 3}}'},
     "startingOffsets: one stream is read: give sequences"),
    ("range", LIST | {"multiLast": ">", "upToSequence": "3"},
     "upToSequence: names a sequence of one stream"),
    ("range", PATTERN | {"multiLast": ">", "upToSequence": "3"}, "upToSequence: ; use upToTime"),
    ("range", LIST | {"sequence": "3"}, "stream: a direct get has one stream"),
    ("range", PATTERN | {"bucket": "B"}, "streamPattern: contradicts option 'bucket'"),
    ("stream", PATTERN | {"priorityPolicy": "pinned_client", "consumer": "c"},
     "priorityPolicy: belongs to consumers, and streamPattern=tenant-* reads without"),
    ("stream", PATTERN | {"consumer": "c"}, "consumer: reads without"),
    ("stream", PATTERN | {"standby": "true", "consumer": "c"}, "standby: reads without"),
    # ── reads of which Spark does not say the kind ──
    ("load", {}, "stream: required"),
    ("load", {"strem": "S"}, "strem: did you mean 'stream'?"),
    ("load", {"stream": "S", "maxRecordPerTrigger": "5"},
     "maxRecordPerTrigger: did you mean 'maxRecordsPerTrigger'?"),
    ("load", {"stream": "S", "maxrecordspertrigger": "many"},
     "maxRecordsPerTrigger: expected a pos"),
    ("load", {"stream": "S", "multiLast": "a..b"}, "multiLast: invalid subject filter"),
    ("load", {"stream": "S", "minPending": "5"}, "minPending: belongs to priorityPolicy=overflow"),
    ("load", {"stream": "S", "batch": "5"}, "batch: needs where to begin"),
    ("load", {"stream": "S", "multiLast": ">", "maxTriggerDelay": "1m"},
     "multiLast: applies to spark.read, not to spark.readStream"),
    ("load", {"stream": "S", "partitionSubject": "a.{partition}"},
     "partitionSubject: needs option 'partitions' too"),
    ("stream", NUMBERED | {"stream": "S.{partition}"}, "stream: expected a stream name"),
    # ── writes ──
    ("sink", {"user": "u"}, "user"),
    ("sink", {"password": "p"}, "password"),
    ("sink", {"user": "u", "password": "p", "token": "t"}, "token"),
    ("sink", {"jsDomain": "d", "jsApiPrefix": "p"}, "jsApiPrefix"),
    ("sink", {"tlsCertFile": __file__}, "tlsCertFile"),
    ("sink", {"tlsKeyFile": __file__}, "tlsKeyFile"),
    ("sink", {"nkeySeedFile": __file__, "token": "t"}, "token"),
    ("sink", {"mappingKey": "subject"}, "mappingKey: needs a subjectMapping with weights"),
    ("sink", {"ackTimeout": "5m", "publishTimeout": "1m"},
     "ackTimeout: is longer than publishTimeout"),
    # ── streams to create: each line names the place in the text ──
    *(("sink", CREATE | {"streamConfig": text}, f"streamConfig: {said}") for text, said in (
        ("/nowhere/stream.json", "no such file: '/nowhere/stream.json'"),
        ('{"max_age": 1', "JSON, or a file of it: Expecting ',' delimiter: line 1 column 14"),
        ('[{"max_age": 1}]', "JSON, or a file of it:  is [{'max_age': 1}], no object"),
        ('{"duplicate_window": "2m"}', ".duplicate_window is '2m', no number from 0"),
        ('{"max_age": -1}', ".max_age is -1, no number from 0"),
        ('{"allow_direct": "yes"}', ".allow_direct is 'yes', neither true nor false"),
        ('{"num_replicas": 1.5}', ".num_replicas is 1.5, no number"),
        ('{"subjects": "a.>"}', ".subjects is 'a.>', no list"),
        ('{"subjects": [7]}', ".subjects[0] is 7, no text"),
        ('{"subjects": ["a..b"]}', "invalid subject filter 'a..b': token 2 is empty"),
        ("[" * 100_000 + "{", "nested too deep"),
    )),
    ("sink", {"stream": "S"}, "stream: is only for createStream=true"),
    ("sink", {"streamConfig": '{"max_age": 5}', "createStream": "false"},
     "streamConfig: describes the stream"),
    ("sink", CREATE | {"streamConfig": '{"name": "T"}'},
     "stream: contradicts option 'streamConfig', which has another"),
    ("sink", {"createStream": "true", "streamSubjects": "a",
              "streamConfig": '{"name": "T", "subjects": ["b"]}'},
     "streamSubjects: contradicts option 'streamConfig', which has another"),
    ("sink", {"createStream": "true", "streamConfig": '{"name": "S.x", "subjects": ["s"]}'},
     "stream: expected a stream name"),
    ("sink", {"createStream": "true"}, "createStream: needs option 'stream' too"),
    ("sink", CREATE, "createStream: needs option 'streamSubjects' too"),
    ("sink", CREATE | {"stream": "S.x", "streamSubjects": "s"}, "stream: expected a stream name"),
    ("sink", CREATE | {"stream": "S-{partition}", "streamSubjects": "s.>"},
     "streamSubjects: streams cannot share subjects"),
    ("sink", CREATE | {"streamSubjects": "s.>", "partitions": "2"},
     "partitions: needs {partition} in streamSubjects"),
    ("sink", CREATE | {"stream": "S-{partition}", "streamSubjects": "s.{partition}"},
     "stream: with {partition} in it needs option 'partitions' too"),
    ("sink", CREATE | {"streamSubjects": "s..a"},
     "streamSubjects: invalid subject filter 's..a': token 2 is empty"),
    # ── writes under pressure: A20, dead letters have somewhere to go ──
    ("sink", {"overloadPolicy": "dead-letter"},
     "deadLetterSubject: required with overloadPolicy=dead-letter"),
    ("sink", {"deadLetterSubject": "dead"}, "deadLetterSubject: does nothing without"),
    ("sink", {"deadLetterSubject": "dead", "onReject": "fail"},
     "deadLetterSubject: does nothing without"),
    ("sink", {"onReject": "dead-letter"}, "deadLetterSubject: required with onReject"),
    ("sink", {"overloadPolicy": "drop", "onReject": "dead-letter"},
     "deadLetterSubject: required with onReject"),
    ("sink", {"overloadPolicy": "dead-letter", "deadLetterSubject": "dead", "subject": "dead"},
     "deadLetterSubject: dead"),
    ("sink", {"shedPriorities": "normal"}, "shedPriorities: block"),
    ("sink", {"priorityClaim": "tenant"}, "priorityClaim: give both"),
    ("sink", {"priorityClaimValues": "a=critical"}, "priorityClaim: give both"),
    ("sink", {"throttleReroute": "true"}, "throttleReroute: needs a subjectMapping"),
    ("sink", {"throttleReroute": "true", "subjectMapping": '{"a": "b.{{random(2)}}"}',
              "mappingKey": "subject"}, "throttleReroute: keys"),
    ("sink", {"onThrottleTimeout": "dead-letter"}, "deadLetterSubject: onThrottleTimeout"),
]  # fmt: skip
"""Kind, options, the one that is blamed, and what is said of it."""


@pytest.mark.parametrize(("kind", "given", "fields"), TAKEN, ids=_id)
def test_options_become_values(kind, given, fields):
    """Options together fill these fields."""
    parsed = parse(kind, given)

    assert {field: attrgetter(field)(parsed) for field in fields} == fields


@pytest.mark.parametrize(("kind", "given", "said"), REFUSED, ids=_id)
def test_what_does_not_go_together_is_refused(kind, given, said):
    """On the driver, before anybody asks the server, in one line that blames one option."""
    error = refused(kind, given)
    option, _, why = said.partition(": ")

    assert error.option == option
    assert why in error.reason
    assert "\n" not in str(error)

"""Errors: one line that says what, where and what to do; the same after pickling."""

import pickle
import re

import pytest

from pyspark_jetstream import errors

from ..kits.places import ROOT

CASES = [
    (errors.JetStreamError("something went wrong"), "something went wrong"),
    (errors.ColumnError("data", "required"), "column 'data': required"),
    (errors.OptionError("maxInFlight", "expected 1"), "option 'maxInFlight': expected 1"),
    (
        errors.UnsupportedServerError("priority groups", "2.11", "2.10"),
        "priority groups needs nats-server 2.11 or newer, this one is 2.10; upgrade the server",
    ),
    (errors.NotConnectedError("nats://h", "refused"), "no connection to nats://h: refused"),
    (
        errors.AuthenticationError("nats://h", "Authorization Violation"),
        "nats://h refused the connection: Authorization Violation; check option user and option"
        " password, option token, nkeySeedFile, credentialsFile or the TLS certificate",
    ),
    (
        errors.TlsError("h:4222", "why; do"),
        "no TLS with h:4222, and nothing was sent there in clear: why; do",
    ),
    (
        errors.PermissionsError('Permissions Violation for Publish to "a"'),
        'Permissions Violation for Publish to "a"; check the name in this subject, or grant it to'
        " this user",
    ),
    (
        errors.PermissionsError('Permissions Violation for Subscription to "pauses"'),
        'Permissions Violation for Subscription to "pauses"; check the name in this subject, or'
        " grant it to this user",
    ),
    (
        errors.RequestTimeoutError("$JS.API.INFO", 2.0, "is it up?"),
        "no answer on $JS.API.INFO within 2.0s (requestTimeout); is it up?",
    ),
    (errors.ApiError("A.B", 400, 10025, "bad"), "A.B: bad (code 400, err_code 10025)"),
    (
        errors.StreamNotFoundError("$JS.API.STREAM.INFO.ORDERS", 404, 10059, "stream not found"),
        "stream 'ORDERS' not found (err_code 10059); check its name, jsDomain and the"
        " account of the credentials",
    ),
    (
        errors.StreamNotFoundError("$JS.API.CONSUMER.MSG.NEXT.ORDERS.spark-1-0", 404, 10059, "no"),
        "stream 'ORDERS' not found (err_code 10059); check its name, jsDomain and the"
        " account of the credentials",
    ),
    (
        errors.StreamNotFoundError("A.orders", 404, 10059, "no").near(["X", "ORDERS"]),
        "stream 'orders' not found (err_code 10059); did you mean 'ORDERS'? If not, check"
        " its name, jsDomain and the account of the credentials",
    ),
    (
        errors.ConsumerNotFoundError("A.S.c", 404, 10014, "consumer not found"),
        "A.S.c: consumer not found (code 404, err_code 10014)",
    ),
    (errors.ProtocolError("unknown line"), "unknown line"),
    (
        errors.ConsumerEditedError("S", 1, "it was edited; set it back"),
        "stream 'S', partition 1: it was edited; set it back",
    ),
    (errors.CheckpointError("s3a://b/c", "no such bucket"), "checkpoint s3a://b/c: no such bucket"),
    (
        errors.RecordError("B", "q.committed", "not ours"),
        "bucket B, key 'q.committed': not ours; it is not believed. Find out who may publish on"
        " $KV.B.>, and delete it (nats kv del B 'q.committed'): what it said is then forgotten",
    ),
    (
        errors.QueryFencedError("c", "query q took over"),
        "consumer 'c': query q took over. If both are to run, give each a consumer of its own, or"
        " standby=true: then this one waits",
    ),
    (errors.OffsetError("no offset"), "no offset"),
    (
        errors.TargetChangedError("S", "it was deleted"),
        "stream 'S': it was deleted",
    ),
    *(
        (each("S", "why; do"), "stream 'S': why; do")
        for each in (
            errors.PartitioningError,
            errors.CopyStalledError,
            errors.CopyMismatchError,
        )
    ),
    (errors.ReadError("S", 3, "why; do"), "stream 'S', partition 3: why; do"),
    (errors.ReadTimeoutError("S", 3, "why; do"), "stream 'S', partition 3: why; do"),
    (errors.DataLossError("S", 3, "why; do"), "stream 'S', partition 3: why; do"),
    (
        errors.SnapshotLossError("S", 0, "2 left", ("a", "b")),
        "stream 'S': 2 left: 'a', 'b'",
    ),
    (
        errors.TooManySubjectsError("S", 0, "", ("a.>", "b", "c", "d"), 1024),
        "stream 'S': more than 1024 subjects match a.>, b, c, …; multiLast without batch reads any"
        " number of them",
    ),
    (errors.PublishError("a.b", "why", 10025), "publish to 'a.b': why (err_code 10025)"),
    (errors.RowError("a.b", "why"), "publish to 'a.b': why"),
    (errors.PublishRejectedError("a.b", "why", 1), "publish to 'a.b': why (err_code 1)"),
    (
        errors.PublishRejectedError("a.b", "expected stream does not match", 10060),
        "publish to 'a.b': expected stream does not match (err_code 10060); another stream takes"
        " this subject: give a subjectMapping, or drop the row's header Nats-Expected-Stream"
        " (map_filter)",
    ),
    (
        errors.PublishRejectedError("a.b", "per-message TTL is disabled", 10166),
        "publish to 'a.b': per-message TTL is disabled (err_code 10166); set allow_msg_ttl on the"
        " stream (`nats stream edit`), or drop the column ttl",
    ),
    (
        errors.ApiError("A.INFO", 503, 10039, "JetStream not enabled for account"),
        "A.INFO: JetStream not enabled for account (code 503, err_code 10039); enable JetStream for"
        " this account, or log in as a user of one that has it",
    ),
    (
        errors.AuthenticationError("tls://h", "TLS: unknown", "name its CA with tlsCaFile"),
        "tls://h refused the connection: TLS: unknown; name its CA with tlsCaFile",
    ),
    (
        errors.PermissionsError('Permissions Violation for Publish to "$JS.ACK.S.c-0.1.9.1.0.0"'),
        'Permissions Violation for Publish to "$JS.ACK.S.c-0.1.9.1.0.0"; grant it to this user for'
        " all acks of this consumer: '$JS.ACK.S.c-0.>'",
    ),
    (
        errors.PermissionsError('Permissions Violation for Publish to "$JS.ACK.d.h.S.c.1.9.1.0.0"'),
        'Permissions Violation for Publish to "$JS.ACK.d.h.S.c.1.9.1.0.0"; grant it to this user'
        " for all acks of this consumer: '$JS.ACK.d.h.S.c.>'",
    ),
    (
        errors.PermissionsError('Permissions Violation for Subscription to "_INBOX.a.*"'),
        'Permissions Violation for Subscription to "_INBOX.a.*"; let inboxPrefix name'
        " where its replies may come, or grant it to this user",
    ),
    (
        errors.ProducerThrottledError("a", "no", 10077, "TopicProduceQuotaExceeded", "a", 2.0),
        "publish to 'a': refused for 2.0s by the server (in metrics TopicProduceQuotaExceeded); no"
        " (err_code 10077); the stream is full: raise its limit, make room in it, or allow more"
        " time (publishTimeout; with exactlyOnce also the stream's duplicate_window)",
    ),
    (errors.PublishTimeoutError("a.b", "why"), "publish to 'a.b': why"),
    (
        errors.ProducerThrottledError(
            "a.b", "full", 10077, "TopicProduceQuotaExceeded", "a.*", 12.34, 42
        ),
        "publish to 'a.b': paused 12.3s by TopicProduceQuotaExceeded (filter 'a.*', request 42);"
        " full (err_code 10077); end the pause, or raise throttleMaxWait",
    ),
    (errors.QueueTimeoutError("a.b", "why"), "publish to 'a.b': why"),
    (errors.WriterFencedError("*", "why"), "publish to '*': why"),
    (errors.LedgerError("q.0.1", "why"), "exactlyOnce, q.0.1: why"),
    (errors.CommitError("a.b", "why"), "publish to 'a.b': why"),
]

PAGE = (ROOT / "docs" / "errors.md").read_text()

CLASSES = [
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.JetStreamError)
]


@pytest.mark.parametrize(("error", "text"), CASES, ids=lambda v: type(v).__name__)
def test_rendering(error, text):
    """Each error renders one line: what happened, where, what to do."""
    assert str(error) == text
    assert "\n" not in text


@pytest.mark.parametrize("error", [error for error, _ in CASES], ids=lambda e: type(e).__name__)
def test_pickling(error):
    """An error crosses from a worker to the driver unchanged."""
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert (str(copy), vars(copy), copy.args) == (str(error), vars(error), error.args)


def test_an_error_has_its_fields_and_no_others():
    for values, named in [(("a", "b", (), "c"), {}), (("a",), {"why": "b"})]:
        with pytest.raises(TypeError, match="OptionError has the fields option, reason, others"):
            errors.OptionError(*values, **named)
    with pytest.raises(AttributeError, match="reason"):
        errors.OptionError("a")


def test_many_lost_subjects_are_counted():
    """A loss of many subjects names ten, and says how many more there are."""
    error = errors.SnapshotLossError("S", 0, "they left", tuple(f"s{i}" for i in range(1000)))

    assert str(error).startswith("stream 'S': they left: 's0', 's1'")
    assert str(error).endswith("'s9' and 990 more")
    assert str(errors.SnapshotLossError("S", 0, "all left", ())) == "stream 'S': all left"


def test_every_class_is_rendered_here():
    """No error class is without a case above, and all are exported."""
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }

    assert {type(error) for error, _ in CASES} == defined == set(CLASSES)


def test_what_may_be_tried_again():
    """Only what can pass by itself is retryable."""
    assert {each.__name__ for each in CLASSES if each.retryable} == {
        "CopyStalledError", "NotConnectedError",
        "ProducerThrottledError", "PublishTimeoutError", "QueueTimeoutError", "ReadTimeoutError",
        "RequestTimeoutError",
    }  # fmt: skip


def test_the_page_of_errors():
    """docs/errors.md has one row for each error, and which may succeed later."""
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (yes|no) \|$", PAGE, re.MULTILINE)
    named = [name for name, *_ in rows]

    assert sorted([*named, "JetStreamError"]) == sorted(each.__name__ for each in CLASSES)
    assert {name: again == "yes" for name, _, _, again in rows} == {
        name: getattr(errors, name).retryable for name in named
    }
    assert "`JetStreamError` is the one to catch" in PAGE

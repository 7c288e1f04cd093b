"""What the API says, as it is read: the one border, and that nobody reads what it lets pass."""

import json
from types import SimpleNamespace

import pytest

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.connection import Reply
from pyspark_jetstream.client.info import consumer_info_of, message_of, stream_info_of
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import ApiError, ProtocolError

STREAM = {
    "config": {"name": "S", "retention": "limits"},
    "created": "2026-01-01T00:00:00Z", "ts": "2026-01-02T00:00:00Z",
    "state": {"first_seq": 1, "last_seq": 3, "messages": 3, "bytes": 30},
}  # fmt: skip
CONSUMER = {
    "name": "c", "stream_name": "S", "config": {}, "delivered": {"consumer_seq": 1, "stream_seq": 2}
}  # fmt: skip


def answered(answer, subject, read):
    js = JetStream(SimpleNamespace(options=SimpleNamespace(api_prefix="$JS.API")))
    return js.answer(subject, Reply(0, "", b"", json.dumps(answer).encode()), read)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": STREAM["state"] | {"last_seq": "x"}}, ".state.last_seq is 'x', no number"),
        ({"state": STREAM["state"] | {"last_seq": 1 << 63}}, ".last_seq is 9223372036854775808"),
        ({"config": {}}, "the answer lacks 'name'"),
        ({"config": {"name": "S", "subjects": ["a", 7]}}, ".config.subjects[1] is 7, no text"),
        ({"config": {"name": "S", "max_msgs_per_subject": "5"}}, ".max_msgs_per_subject is '5'"),
        ({"config": {"name": "S", "mirror": "M"}}, ".config.mirror is 'M', no object"),
        ({"config": {"name": "T"}}, "the answer is about 'T'"),
        ({"ts": "now"}, "the answer.ts is 'now', no time"),
        ({"created": 7}, "the answer.created is 7"),
        ({"error": 7}, "the answer.error is 7"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_named(change, words):
    """A `ProtocolError` names the request and the member that is wrong."""
    subject = "$JS.API.STREAM.INFO.S"
    with pytest.raises(ProtocolError) as caught:
        answered(STREAM | change, subject, stream_info_of)

    assert str(caught.value).startswith(f"{subject}: the answer")
    assert words in str(caught.value)


def test_what_a_server_adds_is_let_pass():
    """Members that nobody here reads may be anything, and a configuration keeps them."""
    config = STREAM["config"] | {"new": {"x": 1}}
    info = answered(STREAM | {"config": config, "y": []}, "a.S", stream_info_of)

    assert info.config == config


def test_an_answer_about_another_consumer_is_refused():
    """The last token of a request names what its answer is about."""
    assert answered(CONSUMER, "$JS.API.CONSUMER.INFO.S.c", consumer_info_of).stream_seq == 2
    with pytest.raises(ProtocolError, match=r"CONSUMER\.INFO\.S\.d: the answer is about 'c'"):
        answered(CONSUMER, "$JS.API.CONSUMER.INFO.S.d", consumer_info_of)


def test_a_refusal_may_say_little():
    """An error without code and words is one."""
    with pytest.raises(ApiError, match="no reason given") as caught:
        answered({"error": {}}, "$JS.API.STREAM.MSG.GET.S", message_of)
    assert (caught.value.code, caught.value.err_code) == (0, 0)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"{", "no INFO of a server"),
        (b"[]", "no object"),
        (b'{"max_payload": "x"}', ".max_payload is 'x', no number"),
        (b'{"max_payload": 0}', ".max_payload is 0"),
        (b'{"version": 2}', ".version is 2, no text"),
        (b'{"server_name": ["x"]}', ".server_name is ['x']"),
        (b'{"tls_required": "yes"}', ".tls_required is 'yes'"),
    ],
)
def test_an_info_that_is_none_is_named(said, words):
    """Likewise what a server says of itself."""
    with pytest.raises(ProtocolError) as caught:
        wire.info_of(said)

    assert words in str(caught.value)

"""What answers to publishes mean."""

import pytest

from pyspark_jetstream.publish.lanes.answers import Fate, classify
from pyspark_jetstream.publish.sender import puback_pattern


@pytest.mark.parametrize(
    ("status", "data", "kind", "err_code"),
    [
        (0, b'{"stream":"S","seq":7}', Fate.STORED, 0),
        (0, b'{"stream":"S","domain":"hub","seq":7}', Fate.STORED, 0),
        (0, b'{"stream":"S","seq":7,"duplicate": true}', Fate.DUPLICATE, 0),
        (503, b"", Fate.ABSENT, 0),
        (429, b"", Fate.OVERLOADED, 0),
        (429, b'{"error":{"code":429,"err_code":10167,"description":"x"}}', Fate.OVERLOADED, 10167),
        (0, b'{"error":{"code":429,"err_code":10210}}', Fate.OVERLOADED, 10210),
        (0, b'{"error":{"code":429,"err_code":10211}}', Fate.OVERLOADED, 10211),
        (0, b'{"error":{"code":503,"err_code":10023}}', Fate.OVERLOADED, 10023),
        (0, b'{"error":{"code":500,"err_code":10028}}', Fate.OVERLOADED, 10028),
        (0, b'{"error":{"code":500,"err_code":10047}}', Fate.OVERLOADED, 10047),
        (0, b'{"error":{"code":503,"err_code":10077}}', Fate.LIMITED, 10077),
        (0, b'{"error":{"code":400,"err_code":10002}}', Fate.LIMITED, 10002),
        (0, b'{"error":{"code":409,"err_code":10158}}', Fate.IN_PROCESS, 10158),
        (0, b'{"error":{"code":400,"err_code":10164}}', Fate.IN_PROCESS, 10164),
        (0, b'{"error":{"code":400,"err_code":10054}}', Fate.REJECTED, 10054),
        (0, b'{"error":{"code":400,"err_code":10227}}', Fate.REJECTED, 10227),
        (0, b'{"error":{"code":500,"err_code":10111}}', Fate.REJECTED, 10111),
        (0, b"pong", Fate.REJECTED, 0),
        (0, b"[1]", Fate.REJECTED, 0),
        (0, b'{"type":"io.nats.jetstream.api.v1.stream_delete_response"}', Fate.REJECTED, 0),
        (400, b"", Fate.REJECTED, 0),
    ],
)
def test_answers_are_classified(status, data, kind, err_code):
    """Every answer of a server to a publish means one of seven things."""
    outcome = classify(status, "", data)

    assert (outcome.kind, outcome.err_code) == (kind, err_code)
    # Of stream, account and server; other refusals hold the lane, and no subject.
    assert outcome.has_no_room == (err_code in (10077, 10002, 10023, 10028, 10047))


def test_plain_pubacks_are_matched_without_json():
    """The pattern takes PubAcks of one inbox and subscription, and nothing else."""
    frames = (
        b'MSG IN.12 3 22\r\n{"stream":"S","seq":7}\r\n'
        b'MSG IN.13 3 35\r\n{"stream":"S","domain":"h","seq":8}\r\n'
        b'MSG XX.14 3 22\r\n{"stream":"S","seq":7}\r\n'
        b'MSG IN.15 4 22\r\n{"stream":"S","seq":7}\r\n'
        b'MSG IN.16 3 40\r\n{"stream":"S","seq":7,"duplicate": true}\r\n'
        b'MSG IN.17 3 40\r\n{"error":{"code":400},"stream":"S","seq":0}\r\n'
    )

    plain, duplicate = (puback_pattern("IN", 3, mark).findall(frames) for mark in (False, True))
    assert [ordinal for ordinal, *_ in plain] == [b"12", b"13"]
    assert duplicate == [(b"16", b"40", b'{"stream":"S","seq":7,"duplicate": true}', b"S")]

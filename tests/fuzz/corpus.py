"""What once broke a decoder, or hypothesis found, in its smallest form: `CASES`, by name."""

from __future__ import annotations

from typing import Any, Final

from ..kits.messages import EMPTY, INBOX, hmsg, sent_on
from .cases import Case
from .material import FORGED

CASES: Final[dict[str, Case]] = {}


def _case(name: str, kind: str, stream: bytes, cut: int = 0, **flags: Any) -> None:
    name = f"{kind}: {name}"
    assert name not in CASES, name
    CASES[name] = Case(kind, stream, cut, flags)


# ── what consumers deliver ───────────────────────────────────────────────────────────────────


def _delivered(
    number: int, subject: bytes = b"a", reply: bytes = b"", data: bytes = b"x",
    stored: bytes = EMPTY,
) -> bytes:  # fmt: skip
    reply = reply or b"$JS.ACK.S.c.1.%d.%d.17.9" % (number, number)
    return hmsg(subject, reply, stored, data)


def _resized(frame: bytes, header: bytes, total: bytes) -> bytes:
    line, _, rest = frame.partition(b"\r\n")
    return b"%b %b %b\r\n%b" % (line.rsplit(b" ", 2)[0], header, total, rest)


_MANY: Final = [_delivered(number) for number in range(1, 91)]
"""So many that they are cut by the column."""


def _amid(name: str, frame: bytes) -> None:
    """One among many, taken by the column; and the same where columns begin at any message."""
    stream = b"".join([*_MANY[:40], frame, *_MANY[40:]])
    for small in (False, True):
        _case(f"{name}{', small windows' * small}", "deliveries", stream, small=small)
    stream = b"".join([_MANY[0], frame, *_MANY])
    _case(f"{name}, at the beginning", "deliveries", stream)


_amid("nothing wrong", _delivered(41))
for word in (b"0x29", b"-41", b"+41", b"4_1", b"", b"9223372036854775808", b"\xd9\xa3"):
    _amid(f"sequence {word!r}", _delivered(41, reply=b"$JS.ACK.S.c.1.%b.41.17.50" % word))
    _amid(f"time {word!r}", _delivered(41, reply=b"$JS.ACK.S.c.1.41.41.%b.50" % word))
for word in (b"0x29", b"-41", b"", b"x"):
    _amid(f"delivery {word!r}", _delivered(41, reply=b"$JS.ACK.S.c.1.41.%b.17.50" % word))
    _amid(f"pending {word!r}", _delivered(41, reply=b"$JS.ACK.S.c.1.41.41.17.%b" % word))
for reply in (
    b"some.reply", b"$JS.ACK.S.c.1.41.41.17", b"$JS.ACK.S.c.1.41.41.17.9.9",
    b"$JS.ACK.hub.hash.S.c.1.41.41.17.9", b"$JS.ACK.hub.hash.S.c.1.41.41.17.9.tok.en",
):  # fmt: skip
    _amid(f"reply {reply!r}", _delivered(41, reply=reply))
_amid("tab in a reply", _delivered(41, reply=b"$JS.ACK.h.h.S.c.1.41.41.17.9.\ta"))
_amid("no subject", _delivered(41).replace(b"HMSG a 7", b"HMSG 7"))
for subject in (b"a\t", b"\ta", b"a\r\nb", b"a b", b"\r\n", b"a\rb", b"a\x00b"):
    _amid(f"subject {subject!r}", _delivered(41, subject=subject))
_amid("payload of messages", _delivered(41, data=b"\r\n" + FORGED * 3))
_amid("payload of a line end", _delivered(41, data=b"\r\n"))
_amid("a block that is none", _delivered(41, stored=b"xyz"))
_amid("a status stored", _delivered(41, stored=b"NATS/1.0 503"))
for header, total in (
    (b"9999999999", b"9999999999"), (b"49", b"+50"), (b"50", b"49"), (b"-1", b"50"), (b"49", b"51"),
    (b"49", b"49"), (b"0x31", b"50"), (b"48", b"50"), (b"49", b"4294967346"), (b"", b"50"),
):  # fmt: skip
    _amid(f"sizes {header!r} {total!r}", _resized(_delivered(41), header, total))

# ── frames and blocks ────────────────────────────────────────────────────────────────────────

_case("tabs separate words everywhere", "frames", b"MSG\ta\t1\t1\r\nx\r\n")
for cut in range(3):  # the limit counts however the line comes
    _case(f"a line of 2 MiB, cut {cut}", "frames", b"+OK " + b"x" * (2 << 20) + b"\r\n", cut)
for size in (b"9999999999", b"9" * 5000, b"-1", b"+1", b"0x1", b"1_0", b"\xc2\xb2"):
    _case(f"size {size[:12]!r}", "frames", b"MSG a 1 %b\r\nx\r\n" % size)
    _case(f"subscription {size[:12]!r}", "frames", b"MSG a %b 1\r\nx\r\n" % (size * 2))


def _got(
    number: int, pending: int = 0, sequence: bytes = b"", time: bytes = b"2026-01-01T00:00:00Z",
    stream: bytes = b"S",
) -> bytes:  # fmt: skip
    lines = (
        b"Nats-Stream: %b\r\nNats-Subject: a\r\nNats-Sequence: %b\r\nNats-Time-Stamp: %b\r\n"
        b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n"
    ) % (stream, sequence or b"%d" % number, time, pending, number - 1)
    return hmsg(INBOX, b"", sent_on(EMPTY, lines), b"x")


_case("a stream's name with a line end", "frames", _got(1, stream=b"S\r\nx"))
_case("a sequence of many digits", "frames", _got(1, sequence=b"9" * 5000))

# ── direct gets ──────────────────────────────────────────────────────────────────────────────

_ONE, _TWO, _THREE = _got(1, 2), _got(2, 1), _got(3)


def _end(last: bytes = b"3", pending: bytes = b"0") -> bytes:
    lines = b"Nats-Num-Pending: %b\r\nNats-Last-Sequence: %b\r\n" % (pending, last)
    return hmsg(INBOX, b"", b"NATS/1.0 204 EOB\r\n%b\r\n" % lines, b"")


def _answer(name: str, *frames: bytes) -> None:
    for cut in (0, 7):
        _case(f"{name}, cut {cut}", "replies", b"".join(frames), cut, after=0)


_answer("nothing wrong", _ONE, _TWO, _THREE, _end())
for word in (b"0x2", b"-2", b"+2", b"", b"9" * 30):
    _answer(f"sequence {word!r}", _ONE, _got(2, 1, sequence=word or b" "), _THREE, _end())
    _answer(f"last sequence {word!r}", _ONE, _TWO, _THREE, _end(last=word))
    _answer(f"count {word!r}", _ONE, _TWO, _THREE, _end(pending=word))
    first = _ONE.replace(b"Pending: 2", b"Pending: " + word)
    _answer(f"first count {word!r}", first, _TWO, _THREE, _end())
_answer("last sequence of many digits", _ONE, _TWO, _THREE, _end(last=b"9" * 5000))
_answer("count with bytes", _ONE, _TWO, _THREE, _end(pending=b"1\xff"))
_answer("size of many digits", _resized(_ONE, b"9" * 5000, b"1"), _TWO, _THREE, _end())
_answer("sizes in hex", _ONE, _resized(_TWO, b"0x96", b"0x97"), _THREE, _end())
for word in (
    b"1970-01-01T-1:00:00Z", b"\xff", b"", b"9999-01-01T00:00:00Z", b"x",
    b"1969-01-01T00:00:00.000000999Z", b"2026-01-01T00:00:00.1234567891Z",
):  # fmt: skip
    _answer(f"time {word!r}", _ONE, _got(2, 1, time=word), _THREE, _end())
_answer("bytes of no frame", b"\n", _end(b"1"))
_answer("a line of no frame before the end", _ONE, _TWO, _THREE, b"HMSG f 0 49 5-", _end())
_answer("ours on another subject", _ONE.replace(INBOX, b"_"), _end(b"1"))
for cut in (0, 19, 62, 79, 127):  # a piece ends between the two
    stream = _ONE.replace(b"HMSG _INBOX.abc 7 ", b"HMSG _c 7\t") + _end(b"1")
    _case(f"ours with a tab, cut {cut}", "replies", stream, cut, after=0)
_answer("INFO of no JSON", _ONE, b'INFO {"\x00":1}\r\n', _TWO, _THREE, _end())
_answer("INFO of a list", _ONE, b"INFO [1]\r\n", _TWO, _THREE, _end())
_answer("INFO nested deeply", _ONE, b"INFO " + b"[" * 20_000 + b"\r\n", _TWO, _THREE, _end())
_answer("PING and others", _ONE, b"PING\r\nMSG a 8 1\r\nx\r\n", _TWO, _THREE, _end())
_answer("one twice", _ONE, _TWO, _TWO, _THREE, _end())
_answer("one missing", _ONE, _THREE, _end())

# ── answers to publishes ─────────────────────────────────────────────────────────────────────


def _ack(data: bytes, token: bytes = b"0.1", size: int | None = None) -> bytes:
    return b"MSG %b.%b 7 %d\r\n%b\r\n" % (INBOX, token, len(data) if size is None else size, data)


_PUBACK: Final = b'{"stream":"S","seq":5}'
_case("nothing wrong", "acks", _ack(_PUBACK) + _ack(_PUBACK, b"1.2"))
for data in (
    b"[" * 20_000, b'{"a":' * 20_000, '{"stream":"S","seq":1}'.encode("utf-16"), b"\xef\xbb\xbf{}",
    b'{"stream":"\xff","seq":1}', b'{"stream":"\x01","seq":1}', b'{"stream":"S","seq":0}',
    b'{"stream":"S","seq":07}', b'"type"', b'["error"]', b"1",
):  # fmt: skip
    _case(f"payload {data[:30]!r}", "acks", _ack(data))
for word in (b"1e999", b"Infinity", b"NaN", b"-1", b"true", b"1.5", b'"5"', b"9" * 5000):
    what = repr(word[:10])
    _case(f"sequence {what}", "acks", _ack(b'{"stream":"S","seq":%b}' % word))
    _case(f"code {what}", "acks", _ack(b'{"error":{"code":%b}}' % word))
    _case(f"err_code {what}", "acks", _ack(b'{"error":{"err_code":%b}}' % word))
for size in (21, 23, 0, 47):
    _case(f"size {size} of 22", "acks", _ack(_PUBACK, size=size) + _ack(_PUBACK, b"0.2"))
_case("a line that ends like a PubAck's", "acks", b"H" + _ack(_PUBACK))
for token in (
    b"9.1", b"-1.1", b"x.1", b".1", b"9" * 5000 + b".1", b"0.x", b"0.-1", b"0.1_0", b"0", b"0.",
    b"0." + b"9" * 30, b"0.\xb2", b"", b"active", b"0.1.2",
):  # fmt: skip
    _case(f"reply to {token[:9]!r}", "acks", _ack(_PUBACK, token) + _ack(_PUBACK, b"0.2"))

# ── answers of the API ───────────────────────────────────────────────────────────────────────


def _asked(call: str, answer: bytes) -> None:
    name = f"{call} is answered {answer[:40]!r}"
    _case(name, "api", answer, call=call, turn=0, at=0, headers=False)


for call in (
    "stream_info",
    "consumer_info",
    "message_get",
    "messages",
    "publish",
    "subject_counts",
):
    for answer in (
        b"{}",
        b"[]",
        b"7",
        b"null",
        b'{"error": 7}',
        b'{"error": {"code": "x"}}',
        b"[" * 9,
    ):
        _asked(call, answer)
_asked("messages", b'{"message": {"seq": 3, "subject": "s", "data": "="}}')
_asked("stream_names", b'{"total": 9, "streams": ["S"]}')
_asked("subject_counts", b'{"total": 9, "state": {"last_seq": 4}}')
_asked("subject_counts", b'{"total": 9, "state": {"last_seq": 4, "subjects": {"s.1": 1}}}')

"""
A reference decoder: what the protocol's documents say, one message at a time, nothing clever.

It shares no code with the package, and imports nothing of it. Its sources: NATS's client protocol
(frames), ADR-4 (headers), ADR-15 (ack subjects), ADR-31 (direct gets), ADR-42 (pins), ADR-8, 43 and
48 (markers), and for blocks that are no headers what nats-server 2.15.1 does with them (genHeader).

Where the documents set no limit these are the package's: a line has at most 1 MiB, a size 9 digits,
any other number 18, or fits a signed integer of 64 bits.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

CONTROL: Final = (b"PING", b"PONG", b"INFO", b"+OK", b"-ERR")
LONGEST_LINE: Final = 1 << 20
MOST: Final = 2**63 - 1
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# What servers add to messages, or are told by them: no header of the message's own.
SERVERS: Final = frozenset(
    """
    Nats-Stream Nats-Subject Nats-Sequence Nats-Time-Stamp Nats-Last-Sequence Nats-Num-Pending
    Nats-UpTo-Sequence Nats-Msg-Size Nats-Pin-Id Nats-Pending-Messages Nats-Pending-Bytes
    Nats-Last-Consumer Nats-Last-Stream Nats-Consumer-Stalled Nats-Stream-Source Nats-Request-Info
    Nats-Trace-Dest Nats-Trace-Only Nats-Trace-Hop Nats-Trace-Origin-Account
    Nats-Required-Api-Level Nats-Stream-Identity Nats-Response-Type
    """.split()
)


class Frame(NamedTuple):
    """A message, or a control line with its text in `data`."""

    verb: bytes
    begin: int
    subject: bytes = b""
    sid: int = 0
    reply: bytes = b""
    headers: bytes = b""
    data: bytes = b""


class Read(NamedTuple):
    """The frames of a stream, where it stopped, and why: `end`, `incomplete` or `fault`."""

    frames: list[Frame]
    at: int
    why: str


def is_number(word: bytes, digits: int = 18) -> bool:
    """Whether it is a number in decimal without a sign."""
    return 0 < len(word) <= digits and not word.strip(b"0123456789")


def read(stream: bytes) -> Read:
    """All frames from the beginning to the first thing that is none."""
    frames: list[Frame] = []
    at = 0
    while at < len(stream):
        eol = stream.find(b"\r\n", at)
        if (len(stream) if eol < 0 else eol) - at > LONGEST_LINE:
            return Read(frames, at, "fault")
        if eol < 0:
            return Read(frames, at, "incomplete")
        line = stream[at:eol].replace(b"\t", b" ")
        verb, _, rest = line.partition(b" ")
        verb = verb.upper()
        if verb in CONTROL:
            frames.append(Frame(verb, at, data=stream[at + len(verb) : eol].strip(b" \t")))
            at = eol + 2
            continue
        words = [word for word in rest.split(b" ") if word]
        if verb == b"MSG" and len(words) in (3, 4):
            words.insert(-1, b"0")
        elif verb != b"HMSG" or len(words) not in (4, 5):
            return Read(frames, at, "fault")
        if len(words) == 4:
            words.insert(2, b"")
        subject, sid, reply, header, total = words
        if not (is_number(sid) and is_number(header, 9) and is_number(total, 9)):
            return Read(frames, at, "fault")
        if int(header) > int(total):
            return Read(frames, at, "fault")
        begin, end = eol + 2, eol + 2 + int(total)
        if end + 2 > len(stream):
            return Read(frames, at, "incomplete")
        if stream[end : end + 2] != b"\r\n":
            return Read(frames, at, "fault")
        body = begin + int(header)
        frames.append(
            Frame(verb, at, subject, int(sid), reply, stream[begin:body], stream[body:end])
        )
        at = end + 2
    return Read(frames, at, "end")


# ── header blocks ────────────────────────────────────────────────────────────────────────────


def status(block: bytes) -> tuple[int, str]:
    """Code and description in a block's first line; 0 without one."""
    first = block.split(b"\r\n")[0]
    name, _, rest = first.partition(b" ")
    code, _, text = rest.strip().partition(b" ")
    if name != b"NATS/1.0" or not is_number(code, 9):
        return 0, ""
    return int(code), text.decode("utf-8", "replace").strip()


def pairs(block: bytes) -> list[tuple[str, str]]:
    """All lines with a colon, behind the first."""
    found = []
    for line in block.split(b"\r\n")[1:]:
        if b":" in line:
            name, value = line.split(b":", 1)
            text = value.strip().decode("utf-8", "replace")
            found.append((name.decode("utf-8", "replace"), text))
    return found


def stored_headers(stored: bytes) -> list[tuple[str, list[str]]] | None:
    """Of what stands before a server's lines: names and values, without the server's names."""
    lines = stored.split(b"\r\n")
    if not (lines[0] == b"NATS/1.0" or lines[0].startswith(b"NATS/1.0 ")) or lines[-1] != b"":
        return None
    if len(lines) == 1:
        return None
    found: dict[str, list[str]] = {}
    for line in lines[1:-1]:
        name, colon, value = line.partition(b":")
        text = value.strip().decode("utf-8", "replace")
        printable = bool(name) and all(33 <= byte <= 126 for byte in name)
        sound = colon and printable and "\r" not in text and "\n" not in text
        if sound and name.decode() not in SERVERS:
            found.setdefault(name.decode(), []).append(text)
    return list(found.items()) or None


def operation(headers: list[tuple[str, list[str]]] | None) -> str:
    """What a message does to its key: PUT, DEL or PURGE."""
    first = {name: values[0] for name, values in headers or []}
    if first.get("KV-Operation") in ("DEL", "PURGE"):
        return first["KV-Operation"]
    reason = first.get("Nats-Marker-Reason")
    if reason is None:
        return "PUT"
    return "DEL" if reason == "Remove" else "PURGE"


# ── what consumers deliver ───────────────────────────────────────────────────────────────────


class Facts(NamedTuple):
    """What an ack subject says."""

    sequence: int
    delivery: int
    time: int
    pending: int


def facts(reply: bytes) -> Facts | None:
    """`$JS.ACK.<stream>.<consumer>.…`, or with domain and account; None if it is neither."""
    words = reply.split(b".")
    if words[:2] != [b"$JS", b"ACK"] or not (len(words) == 9 or len(words) >= 11):
        return None
    numbers = words[4:9] if len(words) == 9 else words[6:11]
    if not all(is_number(word, 160) for word in numbers) or sum(map(len, numbers)) > 160:
        return None
    _, sequence, delivery, time, pending = map(int, numbers)
    if sequence > MOST or time > MOST:
        return None
    return Facts(sequence, delivery, time, pending)


class Row(NamedTuple):
    """A message of a stream."""

    subject: bytes
    data: bytes
    sequence: int
    time: int | bytes
    """Nanoseconds since 1970, or as a direct get says it."""
    stored: bytes
    facts: Facts = Facts(0, 0, 0, 0)


class Taken(NamedTuple):
    """The rows of a stream of frames, and how it ended (`Read`)."""

    rows: list[Row]
    at: int
    why: str


def deliveries(stream: bytes, sid: int) -> Taken:
    """The messages that one subscription to a consumer brings: a block is what was stored."""
    whole = read(stream)
    rows: list[Row] = []
    for frame in whole.frames:
        if frame.verb in CONTROL or frame.sid != sid or not frame.reply.startswith(b"$JS.ACK."):
            continue
        stored = frame.headers[:-2] if len(frame.headers) > 2 else b"NATS/1.0\r\n"
        told = facts(frame.reply)
        if told is None:
            return Taken(rows, frame.begin, "fault")
        rows.append(Row(frame.subject, frame.data, told.sequence, told.time, stored, told))
    return Taken(rows, whole.at, whole.why)


# ── direct gets ──────────────────────────────────────────────────────────────────────────────

LINES: Final = (
    b"Nats-Subject: ",
    b"Nats-Sequence: ",
    b"Nats-Time-Stamp: ",
    b"Nats-Num-Pending: ",
    b"Nats-Last-Sequence: ",
)


class Got(NamedTuple):
    """A message's block in a direct get's answer."""

    stored: bytes
    stream: bytes
    subject: bytes
    sequence: int
    time: bytes
    pending: int
    previous: int
    batched: bool


def got(block: bytes, strict: bool = True) -> Got | None:
    """The server's lines at the end of a block, and what stands before; None if they are not."""
    if not block.endswith(b"\r\n\r\n"):
        return None
    lines = block[:-4].split(b"\r\n")
    names = LINES if lines[-1].startswith(LINES[-1]) or not strict else LINES[:3]
    if len(lines) <= len(names):
        return None
    values = []
    for line, name in zip(lines[-len(names) :], names, strict=True):
        if not line.startswith(name) and (strict or name in LINES[:3]):
            return None
        values.append(line[len(name) :])
    # What was stored may end within a line, so the server's first need not begin one.
    before = b"\r\n".join(lines[: -len(names)])
    at = before.rfind(b"Nats-Stream: ")
    stream = before[at + len(b"Nats-Stream: ") :]
    if at < 0 or b"\r\n" in stream:
        return None
    numbers = [values[1], *values[3:]] if strict else [values[1], b"0", b"0"]
    if not all(is_number(word, 19) and int(word) <= MOST for word in numbers):
        return None
    sequence, pending, previous = [*map(int, numbers), 0, 0][:3]
    return Got(
        before[:at], stream, values[0], sequence, values[2], pending, previous, len(names) > 3
    )


def is_info(text: bytes) -> bool:
    """Whether the text of an INFO is a JSON object, whose `max_payload`, if there, is a size."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return False
    size = said.get("max_payload", 1) if isinstance(said, dict) else None
    return type(size) is int and 1 <= size <= 2**31 - 1


def is_plain(stream: bytes, frame: Frame) -> bool:
    """Whether a message's line has the blanks that a server sends, and no others."""
    line = b"HMSG %b %d %d %d\r\n" % (
        frame.subject, frame.sid, len(frame.headers), len(frame.headers) + len(frame.data),
    )  # fmt: skip
    return stream.startswith(line, frame.begin)


class Answer(NamedTuple):
    """A whole answer to a batched direct get, or why it is none."""

    rows: list[Row]
    code: int
    why: str
    """`whole`, or what is wrong."""
    last: bool = True
    """Whether nothing stands behind its end: that belongs to whoever reads on."""


def answer(stream: bytes, sid: int, name: bytes, after: int) -> Answer:
    """What comes for a request of messages beyond a sequence: messages, and a status at the end."""
    whole = read(stream)
    found: list[tuple[Frame, Got]] = []
    for frame in whole.frames:
        if frame.verb == b"-ERR" or (frame.verb == b"INFO" and not is_info(frame.data)):
            return Answer([], 0, "an error")
        if frame.verb in CONTROL or frame.sid != sid:
            continue
        message = got(frame.headers) or (got(frame.headers, False) if found else None)
        if message is None:
            code, _ = status(frame.headers)
            if not code:
                return Answer([], 0, "a message that is none")
            end = _answer(found, code, dict(pairs(frame.headers)), name, after)
            return end._replace(last=frame is whole.frames[-1] and whole.why == "end")
        if not message.batched:
            return Answer([], 0, "no batch")
        found.append((frame, message))
    return Answer([], 0, "no end")


def _answer(
    found: list[tuple[Frame, Got]], code: int, end: dict[str, str], name: bytes, after: int
) -> Answer:
    rows = [
        Row(message.subject, frame.data, message.sequence, message.time, message.stored)
        for frame, message in found
    ]
    said = [end.get(key, "0").encode() for key in ("Nats-Num-Pending", "Nats-Last-Sequence")]
    if not all(is_number(word, 19) and int(word) <= MOST for word in said):
        return Answer(rows, code, "an end without numbers")
    if not found:
        return Answer([], code, "whole")
    pending, last = map(int, said)
    first = found[0][1]
    sequences = [message.sequence for _, message in found]
    if any(frame.reply or message.stream != name for frame, message in found):
        return Answer(rows, code, "not this stream's")
    if sequences != sorted(set(sequences)) or first.previous > after or last != sequences[-1]:
        return Answer(rows, code, "not in order")
    if first.pending - pending + 1 != len(found):
        return Answer(rows, code, "not as many")
    return Answer(rows, code, "whole")


_TIME: Final = re.compile(
    rb"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?Z", re.ASCII
)


def micros(time: int | bytes) -> datetime | None:
    """The time to the microsecond, towards 1970; None of what is no time."""
    if isinstance(time, int):
        return EPOCH + timedelta(microseconds=time // 1000)
    match = _TIME.fullmatch(time)
    if match is None:
        return None
    try:
        whole = datetime(*(int(word) for word in match.groups()[:6]), tzinfo=UTC)
    except ValueError:
        return None
    fraction = (match[7] or b"").ljust(9, b"0")
    up = whole < EPOCH and int(fraction) % 1000 > 0
    return whole + timedelta(microseconds=int(fraction) // 1000 + up)

"""What breaks a sound stream of frames: bytes, sizes, tokens, whole pieces."""

from __future__ import annotations

import random
import re
from typing import Final

NUMBERS: Final = (
    b"0", b"1", b"-1", b"+1", b"1_0", b" 1", b"0x10", b"00012", b"1.5", b"", b"x", b"\xb2",
    b"2147483647", b"2147483648", b"4294967295", b"9223372036854775807", b"9223372036854775808",
    b"18446744073709551616", b"999999999", b"9999999999", b"9" * 30, b"9" * 5000, b"1e3",
    "\u0663".encode(),
)  # fmt: skip
"""What may stand where a number is due."""

PIECES: Final = (
    b"", b" ", b"  ", b"\t", b"\r", b"\n", b"\r\n", b"\x00", b"\xff", b".", b"..", b":", b"MSG ",
    b"HMSG ", b"PING\r\n", b"-ERR 'x'\r\n", b"\r\n\r\n", b"NATS/1.0", b" extra", b"$JS.ACK.",
    b"Nats-Pin-Id: ", b"Nats-Stream: ", b"\xc3", b"\xed\xa0\x80", b"a" * 5000,
)  # fmt: skip
"""What may stand where nothing is due."""

_NUMBER: Final = re.compile(rb"\d+")


def mutated(rng: random.Random, frames: list[bytes]) -> bytes:
    """The frames as one stream, with one to three faults."""
    frames = list(frames)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(frames))
        frames[at] = rng.choice(_WAYS)(rng, frames[at], frames)
    stream = b"".join(frames)
    if rng.random() < 0.1:
        stream = stream[: rng.randrange(len(stream) + 1)]
    return stream


def _flip(rng: random.Random, frame: bytes, _: list[bytes]) -> bytes:
    """Other bytes, some in the line and some anywhere."""
    changed = bytearray(frame)
    limit = rng.choice((80, 300, len(frame)))
    for _ in range(rng.choice((1, 1, 2, 5))):
        if changed:
            at = rng.randrange(min(limit, len(changed)))
            changed[at] = rng.choice((changed[at] ^ (1 << rng.randrange(8)), rng.randrange(256)))
    return bytes(changed)


def _number(rng: random.Random, frame: bytes, _: list[bytes]) -> bytes:
    """Another number: in the line, or in the headers."""
    found = list(_NUMBER.finditer(frame[: rng.choice((100, 400))]))
    if not found:
        return frame
    place = rng.choice(found)
    number = int(place[0][:15])
    near = b"%d" % (number + rng.choice((-2, -1, 1, 2, 100)))
    same = rng.choice((b"0x%x", b"-%d", b"+%d", b"0%d", b"%d ", b"%d.0")) % number
    other = rng.choice((near, same, rng.choice(NUMBERS)))
    return frame[: place.start()] + other + frame[place.end() :]


def _put(rng: random.Random, frame: bytes, _: list[bytes]) -> bytes:
    """Something where nothing is due; a token more, where it is a blank."""
    at = rng.randrange(min(len(frame), rng.choice((60, 300, 10**6))) + 1)
    return frame[:at] + rng.choice(PIECES) + frame[at:]


def _cut(rng: random.Random, frame: bytes, _: list[bytes]) -> bytes:
    """Something is missing."""
    at = rng.randrange(min(len(frame), rng.choice((60, 300, 10**6))) + 1)
    return frame[:at] + frame[at + rng.choice((1, 1, 2, 5, 20, 10**6)) :]


def _blank(rng: random.Random, frame: bytes, _: list[bytes]) -> bytes:
    """Other blanks in the line, or none."""
    line, end, rest = frame.partition(b"\r\n")
    words = line.split(b" ")
    at = rng.randrange(len(words))
    words[at] += rng.choice((b" ", b"\t", b"\t ", b"\v", b"\x00"))
    if rng.random() < 0.3:
        del words[at]
    return rng.choice((b" ", b" ", b"\t", b"  ")).join(words) + end + rest


def _again(rng: random.Random, frame: bytes, frames: list[bytes]) -> bytes:
    """A frame twice, or another one in its place."""
    other = rng.choice(frames)
    return rng.choice((frame + frame, other, frame + other, frame[: len(frame) // 2] + other))


def _lines(rng: random.Random, frame: bytes, _: list[bytes]) -> bytes:
    """Lines in another order, one missing or twice; the sizes stay as they are, mostly."""
    lines = frame.split(b"\r\n")
    at = rng.randrange(len(lines))
    chance = rng.random()
    if chance < 0.4:
        lines[at], lines[-at] = lines[-at], lines[at]
    elif chance < 0.7:
        del lines[at]
    else:
        lines.insert(at, rng.choice(lines))
    return b"\r\n".join(lines)


def _none(rng: random.Random, frame: bytes, _: list[bytes]) -> bytes:
    """Nothing: a frame is missing."""
    return b""


def _stub(rng: random.Random, frame: bytes, frames: list[bytes]) -> bytes:
    """The beginning of another frame before it."""
    return rng.choice(frames)[: rng.randrange(1, 60)] + frame


_WAYS: Final = (
    _flip, _flip, _number, _number, _number, _put, _put, _cut, _blank, _again, _lines, _none, _stub,
)  # fmt: skip

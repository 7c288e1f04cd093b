"""
The NATS client protocol as bytes: frames in, commands out.

Rule 1: no I/O; a caller owns the socket and hands in what it has read.
Rule 2: nothing here knows JetStream's requests; only frames, headers and status lines.

A *frame* is one MSG or HMSG with its payload, or one control line (PING, PONG, INFO, +OK, -ERR).
Many frames of one shape are cut in `fetch.decoding`; this module is the general path.
Protocol: NATS client protocol, https://docs.nats.io/reference/reference-protocols/nats-protocol
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Final, NamedTuple

from ..errors import ProtocolError
from ..foreign import flag, number, read_json, record, text
from ..subjects import subject_fault

CRLF: Final = b"\r\n"
"""Ends every protocol line, header line and payload."""

HEADER_PREAMBLE: Final = b"NATS/1.0"
"""First line of a header block; a status code and a description may follow on it."""

_STATUS_DIGITS: Final = 9
"""More are none; Python refuses to read thousands of them."""

PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"

NO_RESPONDERS: Final = 503
"""Status of a reply that the server made because nobody listens on the subject."""

_SIZE_DIGITS: Final = 9
"""Digits of a size at most: one that fits 32 bits."""

_DIGITS: Final = 19
"""Digits of any other number of a server's: it fits 64 bits."""

_BETWEEN_WORDS: Final = re.compile("[ \t\r\n]")

_MAX_LINE: Final = 1 << 20
"""A control line longer than this is no protocol line (INFO is the longest, some KiB)."""

_INFO: Final = record(
    {},
    {
        "cluster": text,
        "headers": flag,
        "host": text,
        "max_payload": number(1, (1 << 31) - 1),
        "nonce": text,
        "server_id": text,
        "server_name": text,
        "tls_available": flag,
        "tls_required": flag,
        "tls_verify": flag,
        "version": text,
    },
)


class Frame(NamedTuple):
    """One delivered message, as sent: headers and payload still bytes."""

    subject: bytes
    sid: int
    reply: bytes
    headers: bytes
    """The whole header block with its preamble, or b"" for a MSG."""
    data: bytes


class Control(NamedTuple):
    """One control line: `verb` is PING, PONG, INFO, +OK or -ERR."""

    verb: bytes
    argument: bytes


def next_frame(buffer: bytes, pos: int) -> tuple[Frame | Control | None, int]:
    """
    The frame that starts at `pos`, and where the next one starts.

    With an incomplete frame the first element is None and the second says how many more bytes
    are needed at least (1 when that is not known yet).

    Raises:
        ProtocolError: The bytes at `pos` start no frame.
    """
    eol = buffer.find(CRLF, pos)
    if (eol if eol >= 0 else len(buffer)) - pos > _MAX_LINE:
        raise ProtocolError(f"a line of more than {_MAX_LINE} bytes")
    if eol < 0:
        return None, 1
    line = buffer[pos:eol]
    verb, _, argument = line.partition(b" ")
    if b"\t" in verb:
        verb, _, argument = line.partition(b"\t")
    verb = verb.upper()
    if verb not in (b"MSG", b"HMSG"):
        if verb not in (b"PING", b"PONG", b"INFO", b"+OK", b"-ERR"):
            raise ProtocolError(f"unknown protocol line {line[:64]!r}")
        return Control(verb, argument), eol + 2
    # Not at other white space: the server takes and stores subjects with a CR or a vertical tab.
    words = argument.split(b" ")
    if b"" in words or b"\t" in argument:
        words = [word for word in argument.replace(b"\t", b" ").split(b" ") if word]
    try:
        if verb == b"MSG":
            subject, sid, *reply, total = words
            header = b"0"
        else:
            subject, sid, *reply, header, total = words
        if not (sid.isdigit() and header.isdigit() and total.isdigit()):
            raise ValueError("sizes that are no numbers")
        if len(sid) >= _DIGITS or len(header) > _SIZE_DIGITS or len(total) > _SIZE_DIGITS:
            raise ValueError("numbers that no server sends")
        header_size, size = int(header), int(total)
        if len(reply) > 1 or header_size > size:
            raise ValueError("too many words, or sizes that cannot be")
        start = eol + 2
        end = start + size
        if end + 2 > len(buffer):
            return None, end + 2 - len(buffer)
        if not buffer.startswith(CRLF, end):
            raise ValueError("the payload does not end where it should")
        return (
            Frame(
                subject,
                int(sid),
                reply[0] if reply else b"",
                buffer[start : start + header_size],
                buffer[start + header_size : end],
            ),
            end + 2,
        )
    except ValueError as error:
        raise ProtocolError(f"malformed message line {line[:128]!r}") from error


def info_of(said: bytes) -> dict[str, Any]:
    """
    The fields of an INFO.

    Raises:
        ProtocolError: It is no JSON object, or what is read of it is not what it has to be.
    """
    try:
        info: dict[str, Any] = _INFO(read_json(said))
    except ValueError as error:
        raise ProtocolError(f"no INFO of a server ({error}): {said!r:.64}") from None
    return info


def number_of(word: str) -> int:
    """
    A number of the server's: a count or a sequence.

    Raises:
        ProtocolError: It is none.
    """
    if not (word.isascii() and word.isdigit() and len(word) <= _DIGITS):
        raise ProtocolError(f"no number of a server's: {word[:64]!r}")
    return int(word)


def status_of(headers: bytes) -> tuple[int, str]:
    """
    Status code and description on the preamble line; (0, "") where there is none.

    Of a stored message this is not the server's word, but whatever was stored (`blocks`).
    """
    preamble, _, line = headers.partition(CRLF)[0].partition(b" ")
    code, _, description = line.strip().partition(b" ")
    if preamble != HEADER_PREAMBLE or not code.isdigit() or len(code) > _STATUS_DIGITS:
        return 0, ""
    return int(code), description.decode("utf-8", "replace").strip()


def parse_headers(headers: bytes) -> list[tuple[str, str]]:
    """
    Header lines in order, names as sent, values without surrounding blanks.

    Bytes that are no UTF-8 become U+FFFD. A status on the preamble line is left out.
    """
    pairs: list[tuple[str, str]] = []
    for line in headers.split(CRLF)[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            pairs.append(
                (name.decode("utf-8", "replace"), value.strip().decode("utf-8", "replace"))
            )
    return pairs


def header_block(pairs: list[tuple[str, str]]) -> bytes:
    """Preamble, `name: value` lines and the closing empty line."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return b"NATS/1.0\r\n" + lines.encode() + CRLF


def pub(subject: str, data: bytes = b"", reply: str = "", headers: bytes = b"") -> bytes:
    """A PUB, or an HPUB when a header block is given."""
    to = f"{_checked(subject)} {_checked(reply)}" if reply else _checked(subject)
    if headers:
        line = f"HPUB {to} {len(headers)} {len(headers) + len(data)}\r\n"
        return b"".join((line.encode(), headers, data, CRLF))
    return b"".join((f"PUB {to} {len(data)}\r\n".encode(), data, CRLF))


def sub(subject: str, sid: int) -> bytes:
    """A SUB without a queue group."""
    return f"SUB {_checked(subject)} {sid}\r\n".encode()


def _checked(subject: str) -> str:
    """One word of a line: whatever it is made of, it is no line of its own."""
    if _BETWEEN_WORDS.search(subject):
        raise ProtocolError(f"no subject: {subject[:128]!r}")
    return subject


def unsub(sid: int) -> bytes:
    """An UNSUB that takes effect at once."""
    return f"UNSUB {sid}\r\n".encode()


INBOX: Final = "_INBOX"
"""Under which clients make their inboxes unless told otherwise."""


def new_inbox(prefix: str) -> str:
    """A subject under this prefix that nobody else uses, nor can guess."""
    return f"{prefix}.{secrets.token_hex(11)}"


def is_inbox(subject: str, prefix: str) -> bool:
    """Whether replies are awaited on it, by us or another client, and nothing else is there."""
    return subject.startswith((f"{INBOX}.", f"{prefix}.")) and subject_fault(subject) is None

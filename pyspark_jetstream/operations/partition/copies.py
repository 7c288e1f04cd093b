"""
Streams that the server fills from others: the origin of each of their messages.

The server writes into the header `Nats-Stream-Source` of a copied message which stream it was
copied from, its sequence and its subject there; it replaces the one of an earlier hop. It copies
in the order of the source, so in every copy these sequences ascend.

Owns: that header, and the questions about it. Asks stream leaders only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ...client.info import StoredMessage
from ...client.jetstream import JetStream
from ...client.patience import Patience
from ...client.wire import CRLF
from ...errors import CopyMismatchError, CopyStalledError
from ...subjects import REST
from .plan import Feeding

SOURCE_HEADER: Final = "Nats-Stream-Source"
"""`<stream> <sequence> <filter> <transform> <subject> …` (nats-server, JSStreamSource)."""

LONGEST_PAUSE_S: Final = 1.0
"""The longest pause between two looks at how far copies are."""

STALL_S: Final = 60.0
"""For so long nothing may be copied before it is given up."""

Progress = Callable[[str, int, int], None]
"""Told a stream, the sequence that it has reached of what feeds it, and the one it goes up to."""


def settle(
    js: JetStream, links: Mapping[str, Feeding], progress: Progress, stall_s: float = STALL_S
) -> None:
    """
    Waits until each stream has what its feed holds by now; feeds come before their copies.

    Raises:
        CopyStalledError: Nothing came for so long.
    """
    for stream, (feed, filter_) in links.items():
        end, patience = _last_of(js, feed, filter_), Patience(stall_s, longest_s=LONGEST_PAUSE_S)
        while (done := _reached(js, stream)) < end:
            progress(stream, done, end)
            if not patience.progress(done) and patience.over:
                (source, *_) = js.stream_info(stream).sources or [{}]
                error = (source.get("error") or {}).get("description") or "the server names none"
                raise CopyStalledError(
                    stream,
                    f"nothing was copied for {stall_s:.0f}s at sequence {done:,} of {end:,} of its"
                    f" source (error: {error}); see what the server logs, and run this again to go"
                    " on",
                )
            patience.pause()
            # The feed may have lost its last ones before they were copied.
            end = min(end, _last_of(js, feed, filter_))
        progress(stream, end, end)


def copied_from(stream: str, message: StoredMessage) -> int:
    """
    The sequence in its feed that a message of the stream was copied from.

    Raises:
        CopyMismatchError: It was not copied.
    """
    # The server's line is the last, also behind a block that ends in the middle of a line.
    last = message.stored.removesuffix(CRLF).rpartition(CRLF)[2]
    line = last.rpartition(f"{SOURCE_HEADER}: ".encode())
    words = line[2].split(b" ")
    if line[1] and len(words) > 1 and words[1].isdigit():
        return int(words[1])
    raise CopyMismatchError(
        stream,
        f"sequence {message.sequence}, '{message.subject}', is no copy: somebody published it"
        " here, and it is nowhere else; publish it where it belongs, delete it here, then run"
        " this again",
    )


def _reached(js: JetStream, stream: str) -> int:
    """The sequence in its feed of the stream's last message; 0 where it has none."""
    last = _last(js, stream)
    return copied_from(stream, last) if last is not None else 0


def _last_of(js: JetStream, stream: str, filter_: str) -> int:
    """The last sequence of the stream whose subject the filter matches; 0: none."""
    # For `>` the server looks at the last sequence alone, whose message may be deleted.
    query = {"last_by_subj": filter_}
    last = _last(js, stream) if filter_ == REST else js.message_get(stream, **query)
    return last.sequence if last is not None else 0


def _last(js: JetStream, stream: str) -> StoredMessage | None:
    """The last message that is there; nearly always it has the last sequence."""
    info = js.stream_info(stream)
    sequences = range(info.last_seq, info.first_seq - 1, -1) if info.messages else ()
    found = (js.message_get(stream, seq=sequence) for sequence in sequences)
    return next((message for message in found if message is not None), None)

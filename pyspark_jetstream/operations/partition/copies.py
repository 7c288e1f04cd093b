"""
Streams that the server fills from others: the origin of each of their messages.

The server writes into the header `Nats-Stream-Source` of a copied message which stream it was
copied from, its sequence and its subject there; it replaces the one of an earlier hop. It copies
in the order of the source, so in every copy these sequences ascend.

Owns: that header, and the questions about it. Asks stream leaders only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...client.info import StoredMessage, StreamInfo
from ...client.jetstream import JetStream
from ...client.patience import Patience
from ...client.wire import CRLF
from ...errors import CopyMismatchError, CopyStalledError
from ...subjects import REST

SOURCE_HEADER: Final = "Nats-Stream-Source"
"""`<stream> <sequence> <filter> <transform> <subject> …` (nats-server, JSStreamSource)."""

LONGEST_PAUSE_S: Final = 1.0
"""The longest pause between two looks at how far copies are."""

_STEP: Final = 500


@dataclass(frozen=True, slots=True)
class Copied:
    """Progress of one stream."""

    stream: str
    done: int
    """The sequence that it has reached, of what feeds it."""
    end: int
    """The sequence up to which it goes."""


Progress = Callable[[Sequence[Copied]], None]


class Feeding(NamedTuple):
    """The source of a stream."""

    feed: str
    filter: str


class Copies:
    """Questions about copies and what fills them."""

    def __init__(self, js: JetStream) -> None:
        self.js = js

    def last_of(self, stream: str, filter: str) -> int:
        """The last sequence of the stream whose subject the filter matches; 0: none."""
        (message,) = self.js.messages(stream, [{"last_by_subj": filter}])
        if message is not None or filter != REST:
            return message.sequence if message is not None else 0
        # For `>` the server looks at the last sequence alone, whose message may be deleted.
        last = self._last(stream, self.js.stream_info(stream))
        return last.sequence if last is not None else 0

    def reached(self, stream: str) -> int:
        """The sequence in its feed of the stream's last message; 0 where it has none."""
        last = self._last(stream, self.js.stream_info(stream))
        return self.copied_from(stream, last) if last is not None else 0

    def copied_from(self, stream: str, message: StoredMessage) -> int:
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

    def settle(
        self, links: Mapping[str, Feeding], progress: Progress, stall_timeout_s: float
    ) -> None:
        """
        Waits until each stream has what its feed holds by now; feeds come before their copies.

        Raises:
            CopyStalledError: Nothing came for so long.
        """
        before: list[Copied] = []
        for feed in dict.fromkeys(feeding.feed for feeding in links.values()):
            of = {name: feeding for name, feeding in links.items() if feeding.feed == feed}
            ends = {name: self.last_of(feed, feeding.filter) for name, feeding in of.items()}
            patience = Patience(stall_timeout_s, longest_s=LONGEST_PAUSE_S)
            while True:
                looked = [Copied(name, self.reached(name), ends[name]) for name in of]
                progress([*before, *looked])
                behind = [copied for copied in looked if copied.done < copied.end]
                if not behind:
                    break
                if not patience.progress(looked) and patience.over:
                    raise self._stalled(behind[0], stall_timeout_s)
                patience.pause()
                for late in behind:  # the feed may have lost its last ones before they were copied
                    last = self.last_of(feed, of[late.stream].filter)
                    ends[late.stream] = min(late.end, last)
            before += looked

    def _stalled(self, copied: Copied, seconds: float) -> CopyStalledError:
        (source, *_) = self.js.stream_info(copied.stream).sources or [{}]
        error = (source.get("error") or {}).get("description") or "the server names no error"
        return CopyStalledError(
            copied.stream,
            f"nothing was copied for {seconds:.0f}s at sequence {copied.done:,} of"
            f" {copied.end:,} of its source ({error}); see what the server logs, and run this"
            " again to go on",
        )

    def _last(self, stream: str, info: StreamInfo) -> StoredMessage | None:
        """The last message that is there."""
        high = info.last_seq
        while high >= info.first_seq and info.messages:
            sequences = range(high, max(info.first_seq, high - _STEP + 1) - 1, -1)
            # Nearly always the first one is there.
            for some in (sequences[:1], sequences[1:]):
                for message in self.js.messages(stream, [{"seq": sequence} for sequence in some]):
                    if message is not None:
                        return message
            high -= _STEP
        return None


def subject_counts(js: JetStream, stream: str, filter: str) -> Counter[str]:
    """Messages by subject."""
    return Counter(js.subject_counts(stream, [filter])[1])

"""
Streams that the server fills from others: the origin of each of their messages.

The server writes into the header `Nats-Stream-Source` of a copied message which stream it was
copied from, its sequence and its subject there; it replaces the one of an earlier hop. It copies
in the order of the source, so in every copy these sequences ascend, and one sequence of the origin
divides all of its copies, direct or through others, into what came before and what came later.

Owns: that header, and the questions about it. Asks stream leaders only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, NamedTuple

from ..client.info import StoredMessage, StreamInfo, parse_time
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..client.wire import CRLF
from ..errors import CopyMismatchError, CopyStalledError, OptionError

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
    filters: tuple[str, ...]
    is_mirror: bool = False
    """Whether its messages have the sequences that they have in the feed, and no header."""


class Copies:
    """Questions about copies and what fills them."""

    def __init__(self, js: JetStream) -> None:
        self.js = js

    def origin_of(self, streams: Sequence[str]) -> str | None:
        """
        The nearest stream of which all these are copies, or which they are; None where there is no
        such one.
        """
        lines = [self._line(stream) for stream in streams]
        common = set(lines[0]).intersection(*lines)
        return next((name for name in lines[0] if name in common), None)

    def _line(self, stream: str) -> dict[str, Feeding | None]:
        """
        The stream, what feeds it, what feeds that, and so on, as far as the account has them, each
        with what fills it.
        """
        line: dict[str, Feeding | None] = {}
        name: str | None = stream
        while name is not None and name not in line:
            (info,) = self.js.stream_infos_there([name])
            feeding = line[name] = feeding_of(info.config) if info is not None else None
            name = feeding.feed if feeding is not None else None
        return line

    def _links(self, stream: str, origin: str) -> dict[str, Feeding]:
        """
        Streams and what fills them, from the origin's side to `stream`; none for the origin.

        Raises:
            OptionError: The stream is no copy of the origin.
        """
        line = self._line(stream)
        if origin not in line:
            raise OptionError("replaces", f"stream '{stream}' is no copy of '{origin}'")
        between = takewhile(lambda name: name != origin, line)
        fed = [(name, feeding) for name in between if (feeding := line[name]) is not None]
        return dict(fed[::-1])

    def cuts(
        self,
        streams: Sequence[str],
        origin: str,
        cut: int,
        progress: Progress,
        stall_timeout_s: float,
    ) -> dict[str, int]:
        """
        By stream the last sequence that was copied from one up to `cut` of the origin, also of
        those in between; once each has what its feed holds by now.

        Raises:
            OptionError: A stream is no copy of the origin.
            CopyStalledError: Nothing was copied for so long.
            CopyMismatchError: A message was published into a copy, or the cut cannot be found in
                one (`_check_cut`).
        """
        links: dict[str, Feeding] = {}
        for stream in streams:
            links |= self._links(stream, origin)  # whatever feeds a stream comes before it
        self.settle(links, progress, stall_timeout_s)
        cuts = {origin: cut}
        for name, feeding in links.items():
            if feeding.is_mirror:
                cuts[name] = min(cuts[feeding.feed], self.js.stream_info(name).last_seq)
            else:
                cuts[name] = self.position(name, cuts[feeding.feed])
                self._check_cut(name, feeding, cuts)
        return cuts

    def _check_cut(self, stream: str, feeding: Feeding, cuts: Mapping[str, int]) -> None:
        """
        Whether the cut of a copy divides it as that of its feed does.

        Raises:
            CopyMismatchError: The copy does not begin before the cut, and lacks what is behind it;
                or it was filled before its feed was made anew, whose sequences count from 1 again.
        """
        cut = cuts[stream]
        around: list[dict[str, Any]] = [
            {"seq": max(1, cut)}, {"seq": cut + 1, "next_by_subj": ">"},
        ]  # fmt: skip
        at, behind = self.js.messages(stream, around)
        feed, info = self.js.stream_infos([feeding.feed, stream])
        for message in (at, behind):
            if message is not None and parse_time(message.time) < parse_time(feed.created):
                raise CopyMismatchError(
                    stream,
                    f"sequence {message.sequence} was copied at {message.time}, and its source"
                    f" '{feeding.feed}' was made anew at {feed.created}: sequences of the source"
                    " stand here twice. Read this layout to its end with the options that it has,"
                    " then make its streams anew",
                )
        if behind is None or cut >= info.first_seq or not info.loses_the_oldest:
            return
        next_ = [
            (feeding.feed, {"seq": cuts[feeding.feed] + 1, "next_by_subj": filter_})
            for filter_ in feeding.filters
        ]
        wanted = [each.sequence for each in self.js.messages_of(next_) if each is not None]
        begins = self.copied_from(stream, behind)
        if min(wanted, default=begins) < begins:
            raise CopyMismatchError(
                stream,
                f"it begins with a copy of sequence {begins} of its source '{feeding.feed}', and"
                f" what is to be read begins there at {min(wanted)}: what is between them was"
                " removed here, or never copied. Read on with the options that the query had until"
                f" it is beyond {begins - 1}, or make this stream anew",
            )

    def last_of(self, stream: str, filters: Sequence[str]) -> int:
        """The last sequence of the stream whose subject one of the filters matches; 0: none."""
        messages = self.js.messages(stream, [{"last_by_subj": filter_} for filter_ in filters])
        best = max((message.sequence for message in messages if message is not None), default=0)
        if best or filters != (">",):
            return best
        # For `>` the server looks at the last sequence alone, whose message may be deleted.
        last = self._last(stream, self.js.stream_info(stream))
        return last.sequence if last is not None else 0

    def reached(self, stream: str, is_mirror: bool = False) -> int:
        """The sequence in its feed of the stream's last message; 0 where it has none."""
        last = self._last(stream, self.js.stream_info(stream))
        if last is None or is_mirror:
            return last.sequence if last is not None else 0
        return self.copied_from(stream, last)

    def position(self, stream: str, bound: int) -> int:
        """The stream's last sequence that was copied from one up to `bound`."""
        info = self.js.stream_info(stream)
        low, high = max(0, info.first_seq - 1), info.last_seq
        while low < high:
            middle = (low + high + 1) // 2
            message = self.js.messages(stream, [{"seq": middle, "next_by_subj": ">"}])[0]
            if (
                message is None
                or message.sequence > high
                or self.copied_from(stream, message) > bound
            ):
                high = middle - 1
            else:
                low = message.sequence
        return low

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
            ends = {name: self.last_of(feed, feeding.filters) for name, feeding in of.items()}
            patience = Patience(stall_timeout_s, longest_s=LONGEST_PAUSE_S)
            while True:
                looked = [
                    Copied(name, self.reached(name, feeding.is_mirror), ends[name])
                    for name, feeding in of.items()
                ]
                progress([*before, *looked])
                behind = [copied for copied in looked if copied.done < copied.end]
                if not behind:
                    break
                if not patience.progress(looked) and patience.over:
                    raise self._stalled(behind[0], stall_timeout_s)
                patience.pause()
                for late in behind:  # the feed may have lost its last ones before they were copied
                    last = self.last_of(feed, of[late.stream].filters)
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


def feeding_of(config: Mapping[str, Any]) -> Feeding | None:
    """
    The source of a stream with this configuration, or what it is a mirror of; None where it does
    not have exactly one.
    """
    mirror = config.get("mirror")
    sources = config.get("sources") or ([mirror] if mirror else [])
    if len(sources) != 1 or sources[0].get("external"):
        return None
    transforms = sources[0].get("subject_transforms") or []
    filters = tuple(str(transform["src"]) for transform in transforms)
    filters = filters or (sources[0].get("filter_subject") or ">",)
    return Feeding(str(sources[0]["name"]), filters, bool(mirror))

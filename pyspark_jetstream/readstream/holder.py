"""
Who holds the query: the one whose run the metadata of its first seat names.

A run that holds it pulls at its seats, so one of them is pinned or has a pull that waits. Another
query takes a seat over when it has seen neither for `priorityTimeout`, or when a pin that it saw is
gone and nobody pulls; it does so by its name in the metadata of the first seat, before all else.
So whoever finds its own name there, and its pull, has that time before anybody can take its place;
what it settles is settled by then. Of two that took it at once the name that stands there stays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from ..client.info import ConsumerInfo, StreamInfo
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..errors import JetStreamError, OptionError, QueryFencedError, ReadTimeoutError
from ..fetch.durable import Owner
from ..sanitize import get_logger
from .offsets import Offset
from .options import SourceOptions
from .seats import Seats

logger = get_logger(__name__)

_LOOK_S: Final = 0.5
"""Seconds between two looks of one that waits."""

_BLIND_S: Final = 2.5
"""One that did not look for so long may have been cut off with the other: it begins anew."""

_GONE_S: Final = 1.5
"""Seconds that nobody pulls where a pin is gone before its place is taken."""

_TRY_S: Final = 3.0
_TRY_PAUSE_S: Final = 0.02
"""Seconds for which a standby tries a proof, and between tries: a pull may just have ended."""

_LATE_S: Final = 1.0
"""For so long a pin that this run has not heard of may be its own; its message is on the way."""

_YIELD_S: Final = 4.0
"""Seconds that a query with `standby` leaves its seat to others when it was unpinned."""

_SAYS_EVERY_S: Final = 60.0
"""Seconds between two lines of the log of one that waits."""


class Silence:
    """Time for which nobody was at a seat, as one sees it who looks at it again and again."""

    def __init__(self) -> None:
        self.kept_s = 0.0
        """Seconds that the seat is kept for one that is silent."""
        self._since = self._looked = -math.inf
        self._had_pin = False

    def is_free(self, info: ConsumerInfo, now: float) -> bool:
        """Notes a look; whether the one that has it was silent for as long as it is kept."""
        is_held = bool(info.pinned_id or info.num_waiting)
        if is_held or now - self._looked > _BLIND_S:
            self._since = now
            self._had_pin = bool(info.pinned_id)
        self._looked = now
        self.kept_s = float(info.config.get("priority_timeout", 0)) / 1e9
        enough_s = min(self.kept_s, _GONE_S if self._had_pin else math.inf)
        return not is_held and now - self._since >= enough_s

    @property
    def silent_s(self) -> float:
        """Seconds, as of the last look."""
        return max(0.0, self._looked - self._since) if self._since > -math.inf else 0.0


class Holder:
    """Whether this run holds its query, and where it goes on if it took another one's place."""

    def __init__(self, options: SourceOptions, seats: Seats, js: JetStream) -> None:
        self._options = options
        self._seats = seats
        self._js = js
        self._proved: float | None = None
        """
        Time of the last look that showed that nobody can take the seats for a while; None where
        this run has not sat, or was fenced since.
        """
        self._silence = Silence()
        self._other: Owner | None = None
        """The query that had the seats at the last look, if that was another one."""
        self._said = -math.inf
        self._taken: Offset | None = None
        """Where the seats stood when this run sat down with `standby`, until it is there."""

    @property
    def holds(self) -> bool:
        """Whether this run holds the query, for all it knows without asking."""
        return self._proved is not None and self._seats.is_prepared

    @property
    def must_prove(self) -> bool:
        """Whether nothing is planned or settled without a proof."""
        return self._options.standby or self._seats.keeps_messages

    # ── who has sat ──────────────────────────────────────────────────────────────────────────

    def see(self, info: ConsumerInfo, at: float, mine: str) -> None:
        """
        Notes a look at the first seat.

        Args:
            at: time before it.
            mine: the pin before it. One that is dealt meanwhile the answer does not know.

        Raises:
            QueryFencedError: The query is another run's by now.
        """
        owner, me, pins = Owner.of(info.config), self._seats.me, self._seats.pins
        if owner is not None and not owner.is_run(me):
            self._other = owner
            raise QueryFencedError(self._seats.prefix, f"{owner} took the place of {me}")
        if info.pinned_id == mine:
            if (mine or info.num_waiting) and pins.is_fresh(at - self._third_s):
                self._proved = at
        elif not info.pinned_id:
            self._proved = -math.inf
            pins.doubt()
        elif info.pinned_s > _LATE_S:
            self._seats.unpin()  # it is nobody who has a right to it
            pins.trust()
        yields_s = _YIELD_S if self._options.standby else 0.0
        if pins.doubted is not None and time.monotonic() - pins.doubted >= yields_s:
            pins.trust()

    def is_proved(self) -> bool:
        """
        Whether nobody can take this run's place before `priorityTimeout` less two thirds is over;
        asks the server if that is not known. One with `standby` asks again later.

        Raises:
            QueryFencedError: Somebody has.
            ReadTimeoutError: It could not be known for `priorityTimeout` (or `requestTimeout`, if
                that is longer).
            PermissionsError: The user may not pull at the seats.
        """
        now, options = time.monotonic(), self._options
        if self._proved is None or not self._seats.is_prepared:
            return False
        if now - self._proved < self._third_s:
            return True
        first, pins = self._seats.names[0], self._seats.pins
        wait_s = max(options.term_s, options.connection.request_timeout_s)
        tries = Patience(_TRY_S if options.standby else wait_s, None, _TRY_PAUSE_S, _LOOK_S)
        while True:
            if pins.denied is not None:
                raise pins.denied
            now, mine = time.monotonic(), pins.id
            try:
                (info,) = self._seats.quick.consumer_infos([first])
                if info is None:  # it is made anew
                    self._seats.is_prepared = False
                    return False
                self.see(info, now, mine)
            except JetStreamError as error:
                if not error.retryable:
                    raise
            if self._proved == now:
                return True
            if options.standby and pins.doubted is not None:
                return self._wait("its pin was taken away")
            if tries.over:
                break
            tries.pause()
        if options.standby:
            return False
        raise ReadTimeoutError(
            first[0],
            0,
            f"the query could not show for {wait_s:.0f} s that it holds the consumer '{first[1]}'."
            " Is another client pulling by it, or is its leader away?",
        )

    @property
    def _third_s(self) -> float:
        return self._options.term_s / 3

    def prepare(self, start: Offset, resumed: bool, infos: Mapping[str, StreamInfo]) -> bool:
        """
        Once a run, when the offsets are safe: every consumer exists and stands at `start`, and
        what the run before committed but could not settle is settled. Waits for seats of another
        query to fall free.

        Returns:
            Whether this was the time.

        Raises:
            OptionError: A consumer of that name is of another kind, or another query's, which did
                not fall silent within `priorityTimeout`; names the query.
            ReadError: The server refuses to make one.
        """
        seats, began = self._seats, time.monotonic()
        if seats.is_prepared or not seats.layout:
            return False
        while not self._may_sit(start, not resumed, infos):
            if (
                self._other is not None
                and time.monotonic() - began > self._silence.kept_s + _GONE_S
            ):
                raise OptionError(
                    "consumer",
                    f"'{seats.names[0][1]}' is that of {self._other}, which reads: give this query"
                    " another consumer, or both standby=true, and the second one waits for the"
                    " first",
                )
        return True

    def lose(self, error: QueryFencedError) -> None:
        """Another query has the seats: this one gives up all, and waits for its turn."""
        logger.warning("standby: %s; this query waits for its turn again", error.detail)
        self._proved, self._silence = None, Silence()
        self._seats.leave()

    # ── a standby ────────────────────────────────────────────────────────────────────────────

    def take_turn(
        self, own: Offset, is_new: bool, infos: Mapping[str, StreamInfo]
    ) -> Offset | None:
        """
        Start of the next batch of a query with `standby`; None while it waits for its turn.

        Args:
            own: where its checkpoint is.
            is_new: whether it has none yet.
        """
        try:
            if not self.holds and not self._may_sit(own, is_new, infos):
                return None
            if not self.is_proved():
                return None
        except QueryFencedError as error:
            self.lose(error)
            return None
        return self._onward(own)

    def is_past(self, upto: Offset, infos: Mapping[str, StreamInfo]) -> bool:
        """Whether all up to here was committed by the query whose place was taken."""
        if self._taken is None or self._other is None:
            return False
        same = all(infos[name].created == made for name, made in upto.streams.items())
        pairs = zip(self._taken.sequences, upto.sequences, strict=True)
        return same and all(theirs >= mine for theirs, mine in pairs)

    def report(self) -> dict[str, Any]:
        """As the progress shows it: whether this query reads, else who does, how long silent."""
        who = self._other
        if self.holds or who is None:
            return {"active": self.holds}
        return {
            "active": False, "query": who.query, "host": who.host, "pid": who.pid,
            "silent": round(self._silence.silent_s, 1),
        }  # fmt: skip

    def _may_sit(self, own: Offset, is_new: bool, infos: Mapping[str, StreamInfo]) -> bool:
        """One look at the first seat; makes all this run's own if it may."""
        seats, standby = self._seats, self._options.standby
        seats.expect(own)
        first = self._js.consumer_infos(seats.names[:1])[0]
        if standby and first is None and self._proved is None:
            if not is_new and not _has_read(own):
                return self._wait("nobody has made the consumers by which it could see where to go"
                    " on; start the query that read last first, or this one with a new"
                    " checkpointLocation")  # fmt: skip
            if self._other is not None:
                return self._wait(f"they are gone, and {self._other} is to make them anew")
        self._other = other = seats.other(first)
        if first is not None and other is not None:
            if not self._silence.is_free(first, time.monotonic()):
                return self._wait(f"{other} reads")
            if not standby and any(info.retention != "limits" for info in infos.values()):
                raise OptionError(
                    "consumer",
                    f"'{first.name}' is that of {other}, which has another checkpoint: give this"
                    " query another consumer. If that query is not to go on, delete its consumers"
                    f" (`nats consumer rm`); what only it had not read goes then",
                )
            if standby and None in self._js.consumer_infos(seats.names):
                return self._wait(f"{other} is to make its consumers anew")
        stood = seats.sit(own, infos, not is_new and other is None, other)
        if stood is None:
            return self._wait("another query was faster")
        if standby:
            sequences = tuple(
                mine if at is None else max(at, mine) if _has_read(own) else at
                for at, mine in zip(stood, own.sequences, strict=True)
            )
            made = {name: infos[name].created for name in own.streams} if other else own.streams
            self._taken = replace(own, sequences=sequences, streams=made)
        if other is not None:
            logger.warning(
                "consumer=%s: %s reads from now on, in place of %s, of which nothing was heard for"
                " %.1f s",
                seats.prefix, seats.me, other, self._silence.silent_s,
            )  # fmt: skip
        seats.place(self._onward(own), infos)
        self._proved = -math.inf
        return True

    def _onward(self, own: Offset) -> Offset:
        """Where a query goes on: where the seats stood, or further on if it has read further."""
        if self._taken is None:
            return own
        created = self._taken.streams
        sequences = tuple(
            max(theirs, mine)
            if _has_read(own) and own.streams[p.stream] == created[p.stream]
            else theirs
            for p, theirs, mine in zip(
                self._seats.layout, self._taken.sequences, own.sequences, strict=True
            )
        )
        if sequences == own.sequences:
            self._taken = None
            return own
        return replace(own, sequences=sequences, streams=created, marks={}, consumers={})

    def _wait(self, why: str) -> bool:
        """Says now and then why this query waits; a moment goes by."""
        now = time.monotonic()
        if now - self._said >= _SAYS_EVERY_S:
            self._said = now
            logger.info("consumer=%s waits: %s", self._seats.prefix, why)
        time.sleep(_LOOK_S / 2)
        return False

    def close(self) -> None:
        """Lets whoever stands by go on at once; never raises."""
        if self._options.standby and self.holds:
            with suppress(JetStreamError):  # then it falls free by itself
                if self.is_proved():
                    self._seats.unpin()


def _has_read(own: Offset) -> bool:
    """Whether a checkpoint is of a query that has read something."""
    return own.sequences != own.base

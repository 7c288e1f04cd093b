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
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ..client.info import ConsumerInfo, StreamInfo
from ..client.jetstream import JetStream
from ..client.patience import Patience
from ..errors import JetStreamError, OptionError, QueryFencedError, ReadTimeoutError
from ..fetch.owner import Owner
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
"""Seconds for which a proof is tried, and between tries: a pull may just have ended."""

_YIELD_S: Final = 4.0
"""Seconds that a query with `standby` leaves its seat to others when it was unpinned."""

_SAYS_EVERY_S: Final = 60.0
"""Seconds between two lines of the log of one that waits."""


class Silence:
    """Time for which nobody was at a seat, as one sees it who looks at it again and again."""

    def __init__(self) -> None:
        self._since = self._looked = -math.inf
        self._had_pin = False

    def is_free(self, info: ConsumerInfo, now: float, term_s: float) -> bool:
        """
        Notes a look.

        Args:
            term_s: seconds that a seat is kept for one that is silent.
        """
        is_held = bool(info.pinned_id or info.num_waiting)
        if is_held or now - self._looked > _BLIND_S:
            self._since = now
            self._had_pin = bool(info.pinned_id)
        self._looked = now
        return not is_held and now - self._since >= min(
            term_s, _GONE_S if self._had_pin else math.inf
        )

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
        self._held = False
        """Whether this run has sat, and was not fenced since."""
        self._proved = -math.inf
        """Time of the last look that showed that nobody can take the seat for a while."""
        self._unproved: float | None = None
        """Time since which a proof is asked for in vain."""
        self._doubted = 0.0
        """Time when the pin was found gone."""
        self._stranger = ""
        """A pin that is another one's, as of the last look."""
        self._silence = Silence()
        self._waits_for: Owner | None = None
        self._said = -math.inf
        self._theirs: tuple[int, ...] = ()
        """Where the seats stood when this run sat down, if that was with `standby`."""
        self._created: dict[str, str] = {}
        """Creation time of the streams then, by name, if they were another query's."""

    @property
    def holds(self) -> bool:
        """Whether this run holds the query, for all it knows without asking."""
        return self._held and self._seats.is_prepared

    @property
    def must_prove(self) -> bool:
        """Whether nothing is planned or settled without a proof."""
        return self._options.standby or self._seats.keeps_messages

    # ── who has sat ──────────────────────────────────────────────────────────────────────────

    def see(self, info: ConsumerInfo | None, at: float) -> None:
        """
        Notes a look at the first seat.

        Args:
            at: time before it.

        Raises:
            QueryFencedError: The query is another run's by now.
        """
        if info is None:
            return
        owner, me, pins = Owner.of(info.config), self._seats.me, self._seats.pins
        if me is not None and owner is not None and not owner.is_run(me):
            raise QueryFencedError(self._seats.prefix, f"{owner} took the place of {me}")
        now, mine = time.monotonic(), pins.id_of(0)
        if info.pinned_id != mine:
            if info.pinned_id and info.pinned_id == self._stranger:
                self._seats.unpin()  # it is nobody who has a right to it
                pins.trust()
            elif not info.pinned_id and not pins.doubts(0):
                self._doubted = now
                pins.doubt(0)
            self._stranger = info.pinned_id
        elif pins.is_fresh(0, at - self.term_s / 3) and (mine or info.num_waiting):
            self._proved, self._unproved = at, None
        if pins.doubts(0):
            self._doubted = self._doubted or now
            if not self._options.standby or now - self._doubted > _YIELD_S:
                self._doubted = 0.0
                pins.trust()

    def is_proved(self) -> bool:
        """
        Whether nobody can take this run's place before `priorityTimeout` less two thirds is over;
        asks the server if that is not known.

        Raises:
            QueryFencedError: Somebody has.
            ReadTimeoutError: It could not be known for `priorityTimeout`, though nobody else waits.
            PermissionsError: The user may not pull at the seats.
        """
        now = time.monotonic()
        if now - self._proved < self.term_s / 3:
            return True
        if self._seats.pins.denied is not None:
            raise self._seats.pins.denied
        ((stream, name), *_) = self._seats.names
        tries = Patience(_TRY_S, pause_s=_TRY_PAUSE_S)
        while True:
            now = time.monotonic()
            try:
                self.see(self._seats.quick.consumer_infos([(stream, name)])[0], now)
            except JetStreamError as error:
                if not error.retryable:  # else the next look waits for the server
                    raise
            if self._proved == now:
                return True
            if tries.over:
                break
            tries.pause()
        self._unproved = self._unproved or now
        if not self._options.standby and now - self._unproved > self.term_s:
            raise ReadTimeoutError(
                stream,
                0,
                f"the query could not show for {self.term_s:.0f} s (priorityTimeout) that it holds"
                f" the consumer '{name}'. Is another client pulling by it, or is its leader away?",
            )
        return False

    @property
    def term_s(self) -> float:
        """Seconds that a seat is kept for one that is silent."""
        return self._seats.term_s

    def admit(self, first: ConsumerInfo | None, query: str) -> bool:
        """
        Waits until a seat falls free that another query has.

        Returns:
            Whether it has waited.

        Raises:
            OptionError: It did not within `priorityTimeout`; names the query.
        """
        if not _is_others(first, query):
            return False
        began = time.monotonic()
        while first is not None:
            now = time.monotonic()
            owner, name = Owner.of(first.config), first.name
            term_s = max(self.term_s, float(first.config.get("priority_timeout") or 0) / 1e9)
            if self._silence.is_free(first, now, term_s):
                logger.warning("consumer=%s was that of %s, of which nothing is heard", name, owner)
                break
            if now - began > term_s + _GONE_S:
                raise OptionError(
                    "consumer",
                    f"'{name}' is that of {owner}, which reads: give this query another consumer,"
                    " or both standby=true, and the second one waits for the first",
                )
            time.sleep(_LOOK_S)
            first = self._js.consumer_infos(self._seats.names[:1])[0]
        return True

    def sit(self) -> None:
        """Notes that this run has made the seats its own."""
        self._held, self._proved, self._doubted, self._unproved = True, -math.inf, 0.0, None

    def lose(self, error: QueryFencedError) -> None:
        """Another query has them: this one gives up all, and waits for its turn."""
        logger.warning("standby: %s; this query waits for its turn again", error.detail)
        self._held, self._silence, self._waits_for = False, Silence(), None
        self._seats.leave()

    # ── a standby ────────────────────────────────────────────────────────────────────────────

    def take_turn(
        self,
        own: Offset,
        is_new: bool,
        infos: Mapping[str, StreamInfo],
        lost: Callable[[str, int, str], None],
    ) -> Offset | None:
        """
        Start of the next batch of a query with `standby`; None while it waits for its turn.

        Args:
            own: where its checkpoint is.
            is_new: whether it has none yet.
        """
        try:
            if not self.holds and not self._may_sit(own, is_new, infos, lost):
                return None
            if not self.is_proved():
                return None
        except QueryFencedError as error:
            self.lose(error)
            return None
        return self._onward(own)

    def is_past(self, upto: Offset, infos: Mapping[str, StreamInfo]) -> bool:
        """Whether all up to here was committed by the query whose place was taken."""
        same = all(infos[name].created == made for name, made in upto.streams.items())
        pairs = zip(self._theirs, upto.sequences, strict=False)
        return bool(self._created) and same and all(theirs >= mine for theirs, mine in pairs)

    def report(self) -> dict[str, Any]:
        """As the progress shows it: whether this query reads, else who does, how long silent."""
        who = self._waits_for
        if self.holds or who is None:
            return {"active": self.holds}
        silent_s = round(self._silence.silent_s, 1)
        return {
            "active": False, "query": who.query, "host": who.host, "pid": who.pid,
            "silent": silent_s,
        }  # fmt: skip

    def _may_sit(
        self,
        own: Offset,
        is_new: bool,
        infos: Mapping[str, StreamInfo],
        lost: Callable[[str, int, str], None],
    ) -> bool:
        """One look at the first seat; makes all this run's own if it may."""
        seats, now = self._seats, time.monotonic()
        seats.name(own)
        (first,) = self._js.consumer_infos(seats.names[:1])
        if first is None and not (is_new or self._held or _has_read(own)):
            return self._wait("nobody has made the consumers by which it could see where to go on;"
                " start the query that read last first, or this one with a new"
                " checkpointLocation")  # fmt: skip
        if first is None and self._waits_for is not None:
            return self._wait(f"the consumers are gone, and {self._waits_for} is to make them anew")
        others = _is_others(first, own.query)
        if first is not None and others:
            self._waits_for = Owner.of(first.config)
            term_s = max(self.term_s, float(first.config.get("priority_timeout") or 0) / 1e9)
            if not self._silence.is_free(first, now, term_s):
                return self._wait(f"{self._waits_for} reads")
            if None in self._js.consumer_infos(seats.names):
                return self._wait(f"{self._waits_for} is to make its consumers anew")
        taken = seats.sit(own, infos, not is_new and not others, lost)
        if taken is None:
            return self._wait("another query was faster")
        self._theirs = tuple(
            mine if at is None else max(at, mine) if _has_read(own) else at
            for at, mine in zip(taken, own.sequences, strict=True)
        )
        self._created = {name: infos[name].created for name in own.streams} if others else {}
        if others:
            logger.warning(
                "standby: consumer=%s: %s reads from now on, in place of %s, of which nothing was"
                " heard for %.1f s",
                seats.prefix, seats.me, self._waits_for, self._silence.silent_s,
            )  # fmt: skip
        self._waits_for = None
        seats.place(self._onward(own), not is_new, infos)
        self.sit()
        return True

    def _onward(self, own: Offset) -> Offset:
        """Where a query goes on: where the seats stood, or further on if it has read further."""
        created = {**own.streams, **self._created}
        sequences = tuple(
            max(theirs, mine)
            if _has_read(own) and own.streams[p.stream] == created[p.stream]
            else theirs
            for p, theirs, mine in zip(self._seats.layout, self._theirs, own.sequences, strict=True)
        )
        if sequences == own.sequences:
            return own
        return replace(
            own, sequences=sequences, streams=created, idle=frozenset(), resumed=(), marks={},
            consumers={},
        )  # fmt: skip

    def _wait(self, why: str) -> bool:
        """Says now and then why this query waits; a moment goes by."""
        now = time.monotonic()
        if now - self._said >= _SAYS_EVERY_S:
            self._said = now
            logger.info("standby: consumer=%s waits: %s", self._seats.prefix, why)
        time.sleep(_LOOK_S / 2)
        return False

    def close(self) -> None:
        """Lets whoever stands by go on at once; never raises."""
        if self._options.standby and self.holds:
            try:
                if self.is_proved():
                    self._seats.unpin()
            except JetStreamError as error:
                logger.info("the pin was not given back: %s", error)


def _has_read(own: Offset) -> bool:
    """Whether a checkpoint is of a query that has read something."""
    return own.sequences != own.base or bool(own.resumed)


def _is_others(first: ConsumerInfo | None, query: str) -> bool:
    """Whether the first seat is that of another query."""
    owner = Owner.of(first.config) if first is not None else None
    return owner is not None and owner.query not in ("", query)

"""
Reasons to hold rows of a write back: operators, and refusals of the server.

On `throttleSubject` the task listens to operators, and asks them first what is paused
(`operators`). A subject that the server refuses for want of room (10077 of its stream, 10002 of the
account, 10023 of the server) waits in the same way.
What is paused is in `throttle`; who takes rows back from the lanes is the publisher.
"""

from __future__ import annotations

import shlex
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import ranks
from ..client import wire
from ..client.connection import Connection
from ..errors import NotConnectedError, ProducerThrottledError, PublishError, PublishTimeoutError
from ..outbox.limits import TRY_S, SubjectLimits
from ..outbox.messages import Messages
from ..outbox.throttling.operators import Operators
from ..outbox.throttling.throttle import PausedBy
from ..outbox.throttling.throttleprotocol import THROTTLE_SUBJECT, Paused, Reason
from ..sanitize import get_logger
from .context import WriteContext
from .lanes.answers import Refusal
from .sender import SEND_TIMEOUT_S

logger = get_logger(__name__)

ACTIVE: Final = "active"
"""In place of a lane's number: the server's word that no controller listens."""

_TOLD: Final[dict[object, Operators]] = {}
"""By servers and control subject: what this process's last task was told (overload.md B7)."""

_AT_LIMIT: Final = 10077
"""err_code of a message that a limit of its stream keeps out; tries of all subjects are said so."""

_REFUSALS: Final = 1000
"""Subjects whose last refusal is remembered."""

_SHOWN: Final = 32
"""Subjects of whose streams operators are shown the names."""

_SAID: Final = 3
"""Pauses that one line of the log explains."""


class WriterPauses:
    """Pauses of one task, and their reasons."""

    def __init__(self, context: WriteContext) -> None:
        options, now = context.options, context.clock.monotonic()
        subject = options.throttle_subject or THROTTLE_SUBJECT
        told = options.connection, subject
        before = _TOLD.get(told) if options.throttle else None
        origin = context.origin
        self.operators = Operators(subject, origin.producer_id, now, before)
        if options.throttle:
            _TOLD[told] = self.operators
        self.throttle = self.operators.throttle
        self.throttle.writer = self.throttle.writer._replace(
            query=origin.query_name or origin.query_id, host=socket.gethostname()
        )
        self._targets = context.targets
        self._is_on = options.throttle
        self._telemetry = context.telemetry
        self._clock = context.clock
        self._command = options.connection.command
        self._control: set[int] = set()
        """Subscriptions on which operators speak."""
        self._limited = SubjectLimits()
        self._refusals: dict[str, Refusal] = {}
        """The last one of each subject, the last of all last, as far as they are kept."""

    def __repr__(self) -> str:
        return repr(self.throttle)

    # ── operators ────────────────────────────────────────────────────────────────────────────

    def listen(self, connection: Connection, inbox: str) -> None:
        """Subscribes to operators, and asks them what is paused."""
        if self._is_on:
            names = self.operators.listens
            self._control = {connection.subscribe(name, needed=False) for name in names}
            word = self.operators.announce(self._clock.monotonic())
            connection.ask(self.operators.active, f"{inbox}.{ACTIVE}", word)

    def close(self, connection: Connection) -> None:
        """Ends the subscriptions."""
        for sid in self._control:
            connection.unsubscribe(sid)

    def awaits_operators(self, connection: Connection, now: float) -> bool:
        """Whether the first row waits for the operators' answer."""
        return connection.may_ask(self.operators.active) and self.operators.holds(now)

    def on_frame(
        self, name: bytes, frame: wire.Frame, lately: Iterable[Iterable[str]], now: float
    ) -> tuple[bytes | None, bool]:
        """
        Takes a frame that is no lane's.

        Args:
            lately: subjects of the rows that wait.

        Returns:
            What to answer, None for nothing, and whether rows have to come back before that.
        """
        if name == ACTIVE.encode():
            status = wire.status_of(frame.headers)[0] if frame.headers else 0
            if status == wire.NO_RESPONDERS:
                self.operators.nobody()
        if frame.sid not in self._control:
            return None, False  # or a late one of a subscription that has ended
        turn = self.throttle.turn
        lately = list(lately)
        shown = islice(chain(self.operators.subjects, *lately), _SHOWN)
        streams = dict.fromkeys(filter(None, self._targets.names([*shown])))
        self.throttle.writer = self.throttle.writer._replace(streams=tuple(streams))
        command, answer = self.operators.heard(frame.data, now, lately)
        if answer is None:
            return None, False
        if command is not None and (command.rates is None or not command.pause_s):
            self._telemetry.commanded(command.reason, command.subject, command.pause_s, now)
        return answer, self.throttle.active(now) or self.throttle.turn != turn

    def tell(self, connection: Connection, ends: bool = False) -> None:
        """
        Tells operators for which rates rows wait, and counts for how long they do.

        Args:
            ends: whether this is the last time, and may be lost.
        """
        now = self._clock.monotonic()
        word = self.operators.word(now, ends) if self._is_on else None
        for reason, filter, pause_s in self.throttle.waits:
            self._telemetry.commanded(reason, filter, pause_s, now)
        self.throttle.waits.clear()
        if word is None:
            return
        try:
            if connection.tell(self.operators.active, word, SEND_TIMEOUT_S):
                self._telemetry.bypassed()
        except NotConnectedError as error:
            if not ends:
                raise
            logger.info("the last word to operators is lost: %s", error)

    # ── the server ───────────────────────────────────────────────────────────────────────────

    def refuse(self, refusal: Refusal, stream: str, now: float) -> bool:
        """The server refused a publish: its subject waits. True where there is no room for it."""
        subject, outcome, until = refusal
        self._refusals.pop(subject, None)
        if len(self._refusals) >= _REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[subject] = refusal
        if outcome.has_no_room:
            until = self._limited.reached(subject, now)
        pause_s = max(0.0, until - now)
        self.throttle.refused(outcome.err_code, subject, pause_s, now)
        self._telemetry.refused(refusal, pause_s, stream, now)
        return outcome.has_no_room

    def looks(self, now: float) -> Callable[[str], bool]:
        """A function that says whether rows that were sent, of a subject, have to come back."""

        @cache
        def is_paused(subject: str) -> bool:
            # Of refused subjects that are too many to be known, only operators count.
            is_waiting = self._limited.is_waiting(subject, now)
            sources = tuple(PausedBy) if is_waiting else (PausedBy.OPERATOR,)
            return self.throttle.is_paused(subject, now, sources)

        return is_paused

    def untried(self, rows: Messages, now: float) -> pa.Array | None:
        """
        BOOL: rows that wait a little more, as of subjects that were at their limit only some are
        tried; None for none.
        """
        if not len(self._limited):
            return None
        codes = pc.unique(rows.indices)
        subjects = [rows.distinct[code] for code in codes.to_pylist()]
        tried = list(map(self._limited.tries, subjects))
        for subject, count in zip(subjects, tried, strict=True):
            if count is not None:
                self.throttle.refused(_AT_LIMIT, subject, TRY_S, now)
        if all(count is None for count in tried):
            return None
        counts = pa.array(tried, pa.int64()).take(pc.index_in(rows.indices, codes))
        later = pc.greater_equal(ranks(rows.indices), counts).fill_null(False)
        return later if later.true_count else None

    def reasons(self, rows: Counter[str], now: float) -> Iterator[str]:
        """
        For each pause that holds rows back, those with most rows first: who paused what and why,
        how long it lasts, and what ends it.

        Args:
            rows: how many rows wait of each subject.
        """
        counts: Counter[tuple[str, Reason, str]] = Counter()
        latest: dict[tuple[str, Reason, str], Paused] = {}
        for paused in self.throttle.throttled(rows, now):
            is_command = paused.source == PausedBy.OPERATOR.value
            key = paused.source, paused.reason, paused.filter if is_command else ""
            counts[key] += rows[paused.subject]
            latest[key] = paused
        for key, count in counts.most_common(_SAID):
            yield f"{count} of these rows wait: {self._reason(latest[key], now)}"
        if len(counts) > _SAID:
            rest = sum(count for _, count in counts.most_common()[_SAID:])
            yield f"{rest} of these rows wait for {len(counts) - _SAID} more pauses"
        if not counts and self._refusals:
            *_, last = self._refusals.values()
            yield f"the server's last refusal: {_refused(last)}"

    def _reason(self, paused: Paused, now: float) -> str:
        subject, reason, pause_s, filter, source, request_id = paused
        if source == PausedBy.SERVER.value:
            refusal = self._last_refusal(subject)
            detail = reason.name if refusal is None else _refused(refusal)
            return f"the server refuses them ({detail}), and is asked again in {pause_s:.1f}s"
        lift = ["--subject", filter]
        if not reason.is_quota:
            lift += ["--reason", reason.name]
        control = self.operators.listens[0]
        if control != THROTTLE_SUBJECT:
            lift += ["--throttle-subject", control]
        is_paused = self.throttle.is_paused(subject, now, (PausedBy.OPERATOR,))
        what = f"'{filter}'" if reason.is_quota else "the whole writer"
        does = f"paused {what}" if is_paused else f"holds {what} to a rate"
        return (
            f"an operator {does} ({reason.name}, request {request_id}). That ends in"
            f" {pause_s:.1f}s, unless a program renews it each second: then stop that program. Else"
            f" {self._command(f'pyspark-jetstream throttle lift {shlex.join(lift)}')} ends it"
        )

    def explained(
        self, error: PublishTimeoutError | ProducerThrottledError, since: float, now: float
    ) -> PublishError:
        """
        The error with what paused its subject, and what the server answered last.

        Args:
            since: when the row may have been sent first.
        """
        refusal = self._last_refusal(error.subject)
        if isinstance(error, ProducerThrottledError):
            if refusal is None or error.request_id:
                return error
            return error.because(refusal.outcome.detail, refusal.outcome.err_code)
        throttled = self.throttle.error(error.subject, since, now)
        detail, err_code = error.detail, error.err_code
        if refusal is not None and not err_code:  # it is on the wire again
            detail = f"{detail}; last answer: {refusal.outcome.detail}"
            err_code = refusal.outcome.err_code
        if throttled is None:
            return PublishTimeoutError(error.subject, detail, err_code)
        return throttled.because(detail, err_code)

    def _last_refusal(self, subject: str) -> Refusal | None:
        """
        The last refusal of this subject, or of another for a lack of room that all subjects share.
        """
        shared = (
            refusal
            for refusal in self._refusals.values()
            if refusal.outcome.has_no_room and refusal.outcome.err_code != _AT_LIMIT
        )
        return self._refusals.get(subject) or next(shared, None)


def _refused(refusal: Refusal) -> str:
    """The server's refusal, with advice."""
    outcome = refusal.outcome
    return str(PublishTimeoutError(refusal.subject, outcome.detail, outcome.err_code))

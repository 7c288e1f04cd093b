"""
Reasons to hold rows of a write back: operators, and refusals of the server.

On `throttleSubject` the task listens to operators, and asks them first what is paused
(`Operators`). A subject that the server refuses for want of room (10077 of its stream, 10002 of the
account, 10023 of the server) waits in the same way, if others may go on.
What is paused is in `throttle`; who takes rows back from the lanes is the publisher.
"""

from __future__ import annotations

import math
import shlex
import socket
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import ranks
from ..client import wire
from ..client.connection import Connection
from ..errors import ProducerThrottledError, PublishError, PublishTimeoutError
from ..outbox.messages import Messages
from ..outbox.throttling.throttle import PausedBy, Throttle
from ..outbox.throttling.throttleprotocol import (
    LEAST_PATIENCE_S,
    PATIENCE_S,
    THROTTLE_SUBJECT,
    Operators,
    Paused,
    Producer,
)
from .context import WriteContext
from .lanes.answers import Refusal
from .lanes.retries import Retries

ACTIVE: Final = "active"
"""In place of a lane's number: the server's word that no controller listens."""

_PATIENCE: Final[dict[object, float]] = {}
"""By servers and control subject: patience for an answer, where the last task got none."""

_SAID: Final = 3
"""Pauses that one line of the log explains."""


class WriterPauses:
    """Pauses of one task, and their reasons."""

    def __init__(self, context: WriteContext) -> None:
        options, origin = context.options, context.origin
        subject = options.throttle_subject or THROTTLE_SUBJECT
        self._asked = options.connection, subject
        query = origin.query_name or origin.query_id
        writer = Producer(origin.producer_id, True, query=query, host=socket.gethostname())
        patience_s = _PATIENCE.get(self._asked, PATIENCE_S)
        self.throttle = Throttle()
        """What is paused or refused."""
        self.operators = Operators(subject, writer, self.throttle, patience_s)
        """Commands to this writer."""
        self._is_on = options.throttle_subject is not None
        self._targets = context.targets
        self._is_plain = not options.rules.sheddable
        self._max_wait_s = options.rules.throttle_max_wait_s
        self._version = -1
        self.held_until = -math.inf
        """The next time at which what is held may be free, or may have waited for too long."""
        self._clock = context.clock
        self._command = options.connection.command
        self._control: set[int] = set()
        """Subscriptions on which operators speak."""

    # ── operators ────────────────────────────────────────────────────────────────────────────

    def listen(self, connection: Connection, inbox: str) -> None:
        """Subscribes to operators, and asks them what is paused."""
        if self._is_on:
            names = self.operators.listens
            self._control = {connection.subscribe(name, needed=False) for name in names}
            word = self.operators.announce(self._clock.monotonic())
            patience_s = _PATIENCE.get(self._asked, PATIENCE_S)
            _PATIENCE[self._asked] = max(LEAST_PATIENCE_S, patience_s / 2)
            connection.offer(self.operators.active, word, f"{inbox}.{ACTIVE}")

    def close(self, connection: Connection) -> None:
        """Ends the subscriptions."""
        for sid in self._control:
            connection.unsubscribe(sid)

    def awaits_operators(self, connection: Connection, now: float) -> bool:
        """Whether the first row waits for the operators' answer."""
        return connection.permissions.may(self.operators.active) and self.operators.holds(now)

    def on_frame(
        self, name: bytes, frame: wire.Frame, lately: Iterable[Sequence[str]], now: float
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
        answer = None
        version = self.throttle.table.version
        if frame.sid in self._control:  # else a late one of a subscription that has ended
            answer = self.operators.heard(frame.data, now, lately)
        if not self.operators.is_unanswered:
            _PATIENCE.pop(self._asked, None)
        return answer, self.throttle.table.version != version

    # ── the server ───────────────────────────────────────────────────────────────────────────

    def refuse(self, refusal: Refusal, stream: str, now: float) -> bool:
        """
        The server refused a publish. True where there is no room for it, and its subject waits. If
        there is none for any row, their lane tries again by itself, and takes no others meanwhile.
        """
        subject, outcome, until = refusal
        where = f"stream '{stream}': " if stream else ""
        stops_all = outcome.is_push_back and self._is_plain and len(self._targets.streams) == 1
        waits = outcome.has_no_room and not stops_all
        said = outcome.err_code, where + outcome.detail, waits
        self.throttle.refusals.refuse(subject, said, stream, until, now)
        return waits

    def hold(self, again: Retries, now: float) -> None:
        """
        Holds what waits to be sent again to subjects that wait, and frees what was held of others.
        What is held is looked at when it may be free, not each time.

        Raises:
            ProducerThrottledError: Operators pause a row's subject for too long (B14).
        """
        throttle = self.throttle
        if not again.held and not throttle.active(now):
            return
        version = throttle.table.version + throttle.refusals.version
        found = again.hold(lambda subject, tried: throttle.is_paused(subject, now, tried))
        if found or version != self._version or now >= self.held_until:
            again.free(lambda subject, since: self._may_go(subject, since, now))
            self._version = version
            ends = [each.first_sent + self._max_wait_s for each in again.held.values()]
            self.held_until = min([throttle.next_deadline(now), *(at for at in ends if at > now)])

    def _may_go(self, subject: str, since: float, now: float) -> float:
        """How many of the rows that were sent to a subject, the first one then, may go again."""
        if not self.throttle.is_paused(subject, now):
            count = self.throttle.refusals.tries(subject, now)
            return math.inf if count is None else count
        if now >= since + self._max_wait_s and self.throttle.table.matcher(now)(subject):
            raise self.throttle.timed_out(subject, since, now)
        return 0

    def untried(self, rows: Messages, now: float) -> pa.Array | None:
        """
        BOOL: rows that wait a little more, as of subjects that were at their limit only some are
        tried; None for none.
        """
        if not len(self.throttle.refusals):
            return None
        codes = pc.unique(rows.indices)
        subjects = [rows.distinct[code] for code in codes.to_pylist()]
        tried = [self.throttle.refusals.tries(subject, now) for subject in subjects]
        if all(count is None for count in tried):
            return None
        counts = pa.array(tried, pa.int64()).take(pc.index_in(rows.indices, codes))
        later = pc.greater_equal(ranks(rows.indices), counts).fill_null(False)
        return later if later.true_count else None

    def reasons(self, lately: Iterable[Sequence[str]], now: float) -> Iterator[str]:
        """
        For some pauses that hold rows back: who paused what and why, how long it lasts, and what
        ends it. Without such a pause, the server's last refusal.

        Args:
            lately: subjects of the rows that wait.
        """
        waiting = self.throttle.throttled(lately, now)
        commands = (each for each in waiting if each.source == PausedBy.OPERATOR)
        pauses = dict.fromkeys(each._replace(subject="") for each in commands)
        yield from map(self._reason, islice(pauses, _SAID))
        last = self.throttle.refusals.last
        if not pauses and last is not None:
            last_error = PublishTimeoutError(last[0], last[1].detail, last[1].err_code)
            yield f"the server's last refusal: {last_error}"

    def _reason(self, pause: Paused) -> str:
        _, reason, left_s, filter, _, request_id = pause
        lift = ["--subject", filter]
        if not reason.is_quota:
            lift += ["--reason", reason.name]
        control = self.operators.listens[0]
        if control != THROTTLE_SUBJECT:
            lift += ["--throttle-subject", control]
        what = f"'{filter}'" if reason.is_quota else "the whole writer"
        return (
            f"an operator paused {what} ({reason.name}, request {request_id}). That ends in"
            f" {left_s:.1f}s, unless a program renews it each second: then stop that program. Else"
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
        refused = self.throttle.refusals.get(error.subject)
        if isinstance(error, ProducerThrottledError):
            if refused is None or error.request_id:
                return error
            return error.because(refused.detail, refused.err_code)
        throttled = self.throttle.error(error.subject, since, now)
        detail, err_code = error.detail, error.err_code
        if refused is not None and not err_code and refused.until > since:  # it is on its way again
            detail, err_code = f"{detail}; last answer: {refused.detail}", refused.err_code
        if throttled is None:
            return PublishTimeoutError(error.subject, detail, err_code)
        return throttled.because(detail, err_code)

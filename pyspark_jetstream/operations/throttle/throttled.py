"""
Paused subjects of writers, with reason and end: PIP-385's `isThrottled`.

A writer is a task of Spark's, on some executor; so it is asked where operators speak to it, on
`throttleSubject`. Whoever may publish there may ask: from the driver, a notebook, anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from ... import values as value_of
from ...client.connection import Client
from ...client.options import parse_connection
from ...errors import OptionError
from ...outbox.throttling.throttleprotocol import THROTTLE_SUBJECT
from .controller import Controller
from .pauses import Member, Pauses

_SUBJECT: Final = "throttlesubject"


class Throttled(NamedTuple):
    """A subject of a writer that is paused."""

    producer_id: int
    """The writer's number: one attempt of one task."""
    subject: str
    reason: str
    """One of the throttle's five, such as `TopicProduceQuotaExceeded`."""
    until: datetime
    """End of the pause unless it is issued again; an operator's is issued each second."""
    filter: str
    """The paused subjects, of which this is one."""
    source: str
    """`operator`, or `server` where it is a refusal of the server's."""
    request_id: int
    """Number of the operator's command; 0 where there is none."""


def throttled_subjects(options: Mapping[str, str], wait: str = "1s") -> list[Throttled]:
    """
    The paused subjects of all writers: of each up to 32, of those it has rows of or has sent to.

    Args:
        options: those of the write that concern its connection, and `throttleSubject`.
        wait: how long writers may take to answer; where there is none that is known at once.

    Raises:
        OptionError: A mistake in the options.
        NotConnectedError: No server can be reached.
    """
    options = {name.lower(): value for name, value in options.items()}
    try:
        subject = value_of.publish_subject(options.pop(_SUBJECT, THROTTLE_SUBJECT))
    except ValueError as error:
        raise OptionError("throttleSubject", str(error)) from None
    pauses = Pauses(subject)
    with closing(Client(parse_connection(options), at_start=True)) as client:
        Controller(client, pauses).discover(value_of.duration(wait))
    return [throttled for member in pauses.members.values() for throttled in throttled_of(member)]


def is_throttled(options: Mapping[str, str], subject: str | None = None, wait: str = "1s") -> bool:
    """
    Whether any writer has this subject paused; without one, whether any has any.

    Args and errors are those of `throttled_subjects`.
    """
    return any(
        subject in (None, throttled.subject) for throttled in throttled_subjects(options, wait)
    )


def throttled_of(member: Member) -> Iterator[Throttled]:
    """Pauses that this writer has reported and that still hold."""
    ago_s = time.monotonic() - member.heard
    for paused in member.producer.throttled:
        if paused.pause_s > ago_s:
            until = datetime.now(UTC) + timedelta(seconds=paused.pause_s - ago_s)
            number, reason = member.producer.producer_id, paused.reason.name
            of = (paused.filter, paused.source, paused.request_id)
            yield Throttled(number, paused.subject, reason, until, *of)

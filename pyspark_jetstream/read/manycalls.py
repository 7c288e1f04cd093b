"""
Several calls for several messages, under way at one time.

As many as a far server answers in a round trip are sent before the first is answered (`pace`), and
what is on its way is bounded in bytes. Only plain answers of the stream itself are handed on: a
call whose answer is anything else, or is lost with its connection, is left to be asked again, alone
(`DirectCalls.ask`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ..client import wire
from ..client.blocks import direct
from ..client.connection import Client
from ..client.peer import away_s
from ..errors import NotConnectedError
from ..fetch.appetite import appetite_of
from ..fetch.call import DirectCall
from ..fetch.directcalls import Answer, Found
from ..fetch.pace import pace_of
from ..sanitize import get_logger

__all__ = ["MAX_BYTES", "together"]

logger = get_logger(__name__)

MAX_BYTES: Final = 1 << 20
"""What one call may bring, give or take its last message; what it leaves is pending."""


@dataclass(slots=True)
class _Open:
    """A call that is under way, by its place among all."""

    place: int
    found: list[Found] = field(default_factory=list)
    size: int = 0
    whole: bool = True
    """Whether each reply was the stream's own, and followed the one before."""


def together(
    client: Client, stream: str, calls: Sequence[DirectCall]
) -> Iterator[tuple[int, Answer]]:
    """
    The answers that came, each with the place of its call, in any order.

    Nothing else may be asked on the connection before the last one is handed on.
    """
    appetite = appetite_of(client.options)
    connection = client.connection
    pace = pace_of((client.options, stream, "calls"))
    trip_s = away_s(connection)
    inbox = connection.new_inbox()
    sid = connection.subscribe(f"{inbox}.*")
    mine = stream.encode()
    max_bytes = appetite.of(MAX_BYTES)
    waiting = deque(enumerate(calls))
    under_way: dict[bytes, _Open] = {}
    since = 0.0
    try:
        while waiting or under_way:
            most = pace.together(trip_s, max_bytes + connection.max_payload)
            while waiting and len(under_way) < appetite.of(most):
                place, call = waiting.popleft()
                if not under_way:
                    since = time.monotonic() + trip_s
                token = f"{inbox}.{place}"
                under_way[token.encode()] = _Open(place)
                subject, query = replace(call, max_bytes=max_bytes).request(
                    client.options.api_prefix, stream
                )
                connection.send(wire.pub(subject, query, token))
            frame = connection.next_frame(time.monotonic() + client.options.request_timeout_s)
            if frame is None:
                raise NotConnectedError("the server", "a direct get is not answered")
            one = under_way.get(frame.subject) if frame.sid == sid else None
            if one is None:
                continue
            got = direct(frame.headers)
            if got is not None:
                last = one.found[-1].sequence if one.found else 0
                one.whole &= got.batched and got.stream == mine and got.previous == last
                one.found.append(Found(got.subject, got.sequence, got.time, got.stored, frame.data))
                one.size += len(frame.headers) + len(frame.data)
                if got.batched:
                    continue
            del under_way[frame.subject]
            appetite.fed()
            now = time.monotonic()
            pace.answered(len(one.found), len(one.found), one.size, now - since)
            since = now
            answer = _answer(one, frame.headers) if got is None else None
            if answer is not None:
                yield one.place, answer
        connection.unsubscribe(sid)
    except NotConnectedError as error:
        if not error.retryable:
            raise
        logger.info("%d calls are asked again: %s", len(under_way) + len(waiting), error)
        appetite.cut()
        client.drop()


def _answer(one: _Open, headers: bytes) -> Answer | None:
    code, _ = wire.status_of(headers)
    end = dict(wire.parse_headers(headers))
    last = wire.number_of(end.get("Nats-Last-Sequence") or "0")
    if code != 204 or not one.whole or not one.found or last != one.found[-1].sequence:
        return None
    up_to = end.get("Nats-UpTo-Sequence")
    return Answer(
        one.found,
        code,
        wire.number_of(end.get("Nats-Num-Pending") or "0"),
        wire.number_of(up_to) if up_to else None,
    )

"""
Several calls for several messages, under way at one time.

As many as a far server answers in a round trip are sent before the first is answered (`pace`), and
what is on its way is bounded in bytes. A call whose answer does not count, or is lost with its
connection, is left to be asked again, alone (`DirectCalls.ask`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ..client.connection import Client, away_s
from ..client.versions import BATCHED
from ..errors import NotConnectedError, RequestTimeoutError
from ..fetch.call import DirectCall
from ..fetch.directcalls import Page
from ..fetch.gets import ForeignAnswerError, Gets
from ..fetch.pace import appetite_of, pace_of
from ..sanitize import get_logger

logger = get_logger(__name__)

MAX_BYTES: Final = 1 << 20
"""Bytes that one call may bring, give or take its last message; the rest is pending."""


def together(
    client: Client, stream: str, calls: Sequence[DirectCall]
) -> Iterator[tuple[int, Page]]:
    """
    The answers that came, each with the place of its call.

    Nothing else may be asked on the connection before the last one is handed on.
    """
    appetite, pace = appetite_of(client.options), pace_of((client.options, stream, "calls"))
    trip_s = away_s(client.connection)
    max_bytes = appetite.limit(MAX_BYTES)
    most_bytes = max_bytes + client.connection.max_payload
    waiting, under_way = deque(enumerate(calls)), deque[int]()
    gets = Gets(client, stream, needs=BATCHED)
    try:
        while waiting or under_way:
            most = appetite.limit(pace.together(trip_s, most_bytes))
            while waiting and len(under_way) < most:
                place, call = waiting.popleft()
                under_way.append(place)
                gets.ask(replace(call, max_bytes=max_bytes).query())
            try:
                ending = gets.gather(time.monotonic() + client.options.request_timeout_s)
            except ForeignAnswerError:
                under_way.popleft()
                continue
            size, found = gets.kept, gets.take_each()
            appetite.grow()
            pace.answered(len(found), len(found), size, ending.took_s)
            place = under_way.popleft()
            if ending.code == 204 and found:
                yield place, Page(found, ending)
    except (NotConnectedError, RequestTimeoutError) as error:
        if not error.retryable:
            raise
        logger.info("%d calls are asked again: %s", len(under_way) + len(waiting), error)
        appetite.shrink()
        client.drop()
    finally:
        gets.close()

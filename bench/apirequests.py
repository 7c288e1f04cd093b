"""
Requests to the JetStream API, counted where they arrive: at the server.

A subscriber of the account sees each request that any of its clients publishes below `$JS.API`,
also pulls and direct gets, of which the server's own audit (`$JS.EVENT.ADVISORY.API`) says nothing.
While it listens a request that nobody takes gets no "no responders".
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Final
from urllib.request import urlopen

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import DEFAULT_PREFIX
from pyspark_jetstream.client.options import parse_connection

_KINDS: Final = (
    "STREAM.MSG.GET",
    "CONSUMER.MSG.NEXT",
    "DIRECT.GET",
    "CONSUMER.DURABLE.CREATE",
)
"""Calls that are named by more than two tokens, and those that are named by no more."""

_SETTLES_S: Final = 10.0


class ApiRequests:
    """Counts by call, as `STREAM.INFO`; a context manager."""

    def __init__(self, url: str) -> None:
        self._client = Client(parse_connection({"servers": url}))
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> ApiRequests:
        self._client.connection.subscribe(f"{DEFAULT_PREFIX}.>")
        self._client.connection.ping(_SETTLES_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def taken(self) -> Counter[str]:
        """What came since this was asked last, up to now."""
        connection = self._client.connection
        marker = f"{DEFAULT_PREFIX}.COUNTED.{time.monotonic_ns()}"
        connection.tell(marker, b"")
        deadline = time.monotonic() + _SETTLES_S
        while (frame := connection.next_frame(deadline)) is not None:
            subject = frame.subject.decode("utf-8", "replace")
            if subject == marker:
                counts, self._counts = self._counts, Counter()
                return counts
            self._counts[_kind(subject)] += 1
        raise TimeoutError(f"the server does not send what it got within {_SETTLES_S:.0f}s")


def _kind(subject: str) -> str:
    call = subject.removeprefix(f"{DEFAULT_PREFIX}.")
    return next((kind for kind in _KINDS if call.startswith(kind)), ".".join(call.split(".")[:2]))


def connections(monitor_url: str) -> int:
    """How many clients are connected to a server, by its own word."""
    with urlopen(f"{monitor_url}/connz?limit=1", timeout=_SETTLES_S) as answer:
        return int(json.load(answer)["total"])

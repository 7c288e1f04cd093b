"""
Keeps claims alive: says "in progress" for each, before its ack wait runs out.

A thread with a connection of its own in the source process. It ends with the process, and then the
claims return to the consumer's other readers: that is what tells a dead query from a slow one.

The driver's calls and the thread meet in `hold`, `release` and `overdue_s`, under one lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final

from .client import Client
from .errors import JetStreamError
from .options import ConnectionOptions

__all__ = ["ACK", "IN_PROGRESS", "TERM", "Heartbeats", "ack"]

logger = logging.getLogger(__name__)

_CHUNK: Final = 5_000
"""Acks in one write."""

IN_PROGRESS: Final = b"+WPI"
"""ADR-13: the ack wait of the message begins anew."""

ACK: Final = b"+ACK"
TERM: Final = b"+TERM"


def ack(client: Client, prefix: str, sequences: Iterable[int], kind: bytes = ACK) -> None:
    """
    Acknowledges messages of one consumer; returns once the server has taken all.

    With the ack policy `explicit` the server looks only at the stream sequence in an ack's subject,
    and it takes acks from any connection (measured, nats-server 2.15.1). It handles those of a
    connection in their order, so the answer to the last one speaks for all.

    Args:
        prefix: `$JS.ACK.<stream>.<consumer>`.

    Raises:
        RequestTimeoutError: No answer within `requestTimeout`.
        NotConnectedError: No server in that time.
    """
    subjects = [f"{prefix}.1.{sequence}.1.0.0" for sequence in sequences]
    for at in range(0, len(subjects), _CHUNK):
        chunk = subjects[at : at + _CHUNK]
        # Again from the chunk's beginning if the connection breaks: an ack twice is one ack.
        client.publish_then_request([(each, kind) for each in chunk])


class Heartbeats:
    """In-progress acks for what is held, each `interval_s`."""

    def __init__(self, options: ConnectionOptions, interval_s: float) -> None:
        self._client = Client(options)
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._held: dict[str, set[int]] = {}
        self._confirmed = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jetstream-heartbeats", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        with self._lock:
            return f"<Heartbeats of {sum(map(len, self._held.values()))} claims>"

    def hold(self, prefix: str, sequences: Iterable[int]) -> None:
        """From now on these claims are kept; they were delivered, or confirmed, just now."""
        with self._lock:
            if not any(self._held.values()):
                self._confirmed = time.monotonic()
            self._held.setdefault(prefix, set()).update(sequences)

    def release(self, prefix: str, sequences: Iterable[int]) -> None:
        """These need no more heartbeats."""
        with self._lock:
            self._held.get(prefix, set()).difference_update(sequences)

    @property
    def overdue_s(self) -> float:
        """For how long the server has not confirmed the claims that are held; 0 without any."""
        with self._lock:
            held = any(self._held.values())
            return time.monotonic() - self._confirmed if held else 0.0

    def close(self) -> None:
        """Ends the thread; what is held returns to the others after its ack wait."""
        self._stopped.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            pause_s = self._interval_s
            while not self._stopped.wait(pause_s):
                pause_s = self._interval_s if self._beat() else min(1.0, self._interval_s)
        finally:
            self._client.close()

    def _beat(self) -> bool:
        """Whether all that is held is confirmed."""
        with self._lock:
            held = {prefix: sorted(each) for prefix, each in self._held.items() if each}
        began = time.monotonic()
        try:
            for prefix, sequences in held.items():
                ack(self._client, prefix, sequences, IN_PROGRESS)
        except JetStreamError as error:
            logger.warning("heartbeats of claims failed, tried again: %s", error)
            return False
        with self._lock:
            self._confirmed = began
        return True

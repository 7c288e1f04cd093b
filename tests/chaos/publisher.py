"""Publishes numbered messages on every subject, and keeps what was acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nats.aio.client import Client
from nats.errors import Error

_RATE = 250.0
"""Messages a second."""

Key = tuple[int, int]
"""Number and attempt of a message."""


@dataclass
class Sent:
    """A message that was published; what has no PubAck may be stored, now or later, or not."""

    key: Key
    acked: bool = False


def number_of(payload: bytes) -> Key:
    """What a payload says which message it is; one that says nothing is none of ours."""
    number, dot, attempt = payload.partition(b"|")[0].partition(b".")
    return (int(number), int(attempt)) if dot else (-1, 0)


class Publisher:
    """
    One message of a subject at a time: the next number goes out when this one has its PubAck, and
    each attempt at one is another message, so none is stored under another one's id.
    """

    def __init__(self, subjects: Sequence[str], rng: random.Random) -> None:
        self.sent: dict[str, list[Sent]] = defaultdict(list)
        self.nc = Client()
        self._subjects = subjects
        self._pause_s = len(subjects) / _RATE
        self._rng = rng
        self._stopped = False

    @property
    def acked(self) -> int:
        return sum(each.acked for sent in self.sent.values() for each in sent)

    def stop(self) -> None:
        self._stopped = True

    async def run(self) -> None:
        """Publishes until it is stopped."""
        await asyncio.gather(*map(self._speak, self._subjects))
        await self.nc.close()

    async def _speak(self, subject: str) -> None:
        number = attempt = 0
        jetstream = self.nc.jetstream(timeout=2)
        while not self._stopped:
            size = 20_000 if self._rng.random() < 0.02 else self._rng.randrange(200)
            sent = Sent((number, attempt))
            self.sent[subject].append(sent)
            try:
                payload = b"%d.%d|" % sent.key + b"x" * size
                await jetstream.publish(subject, payload, timeout=2)
            except (TimeoutError, Error, OSError):
                attempt += 1
                await asyncio.sleep(0.1)
                continue
            sent.acked = True
            number, attempt = number + 1, 0
            await asyncio.sleep(self._rng.uniform(0.0, 2 * self._pause_s))

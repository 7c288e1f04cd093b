"""
Both ends of the round trip, each a process of its own: who publishes numbers, who checks them off.

The numbers 1 to n are the beginnings of the payloads. The checker holds no more than what is ahead
of the first number that has not come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import Error as JetStreamError

from ..others.bare import Counted
from ..others.child import Child
from ..others.natspy import connect

_DIGITS: Final = 12
_FILLER: Final = b"." * 100
_TICK_S: Final = 0.05
_MOST_AT_ONCE: Final = 1_000
_PATIENCE_S: Final = 120.0
_FETCH: Final = 1_000
_EMPTY_S: Final = 0.5


class Marks:
    """Which of the numbers from 1 on have come."""

    def __init__(self) -> None:
        self.next = 1
        """The first that has not."""
        self.doubled: int = 0
        self.ahead: set[int] = set()

    def note(self, numbers: Iterable[int]) -> None:
        """Numbers that came now, in any order."""
        for number in numbers:
            if number == self.next:
                self.next += 1
                while self.next in self.ahead:
                    self.ahead.remove(self.next)
                    self.next += 1
            elif number < self.next or number in self.ahead:
                self.doubled += 1
            else:
                self.ahead.add(number)

    @property
    def exact(self) -> int:
        """
        How many have come, none twice and none missing among them.

        Raises:
            RuntimeError: One is doubled or missing.
        """
        if self.doubled or self.ahead:
            raise RuntimeError(
                f"{self.doubled} messages doubled; {len(self.ahead)} beyond number {self.next},"
                " which is missing"
            )
        return self.next - 1


def publish(child: Child, url: str, subjects: list[str], rate: int) -> None:
    """Publishes so many messages a second, to the subjects in turn, until told to stop."""

    async def prepare() -> Client:
        return await connect(url)

    async def run(client: Client) -> Counted:
        js = client.jetstream()
        began, sent = time.monotonic(), 0
        while not child.is_stopped():
            due = min(int((time.monotonic() - began) * rate) - sent, _MOST_AT_ONCE)
            await asyncio.gather(
                *(
                    _stored(js, subjects[number % len(subjects)], number)
                    for number in range(sent + 1, sent + due + 1)
                )
            )
            sent += max(0, due)
            await asyncio.sleep(_TICK_S)
        await client.close()
        return Counted(sent)

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(prepare())
    child.run(lambda: loop.run_until_complete(run(client)))


async def _stored(js: JetStreamContext, subject: str, number: int) -> None:
    """Publishes until it is stored; its id keeps it from being stored twice."""
    data = str(number).zfill(_DIGITS).encode() + _FILLER
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            await js.publish(subject, data, timeout=10.0, headers={"Nats-Msg-Id": str(number)})
            return
        except (TimeoutError, NatsError, JetStreamError):
            if time.monotonic() > deadline:
                raise


def check(child: Child, url: str, stream: str, consumer: str) -> None:
    """Checks off what comes, until told to stop and nothing comes any more."""

    async def prepare() -> Client:
        return await connect(url)

    async def run(client: Client) -> Counted:
        js = client.jetstream()
        subscription = await js.pull_subscribe_bind(consumer=consumer, stream=stream)
        marks = Marks()
        while True:
            stopped = child.is_stopped()
            try:
                batch = await subscription.fetch(_FETCH, _EMPTY_S)
            except TimeoutError:
                if stopped:
                    break
                continue
            marks.note(int(message.data[:_DIGITS]) for message in batch)
        await client.close()
        return Counted(marks.exact)

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(prepare())
    child.run(lambda: loop.run_until_complete(run(client)))

"""The same work in nats-py, the way its documentation shows it: `fetch`, `publish_async`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nats.aio.client import Client

from .bare import Counted

_FETCH: Final = 1_000
_TIMEOUT_S: Final = 60.0
_EMPTY_S: Final = 0.2
"""A shared consumer that brings nothing for so long has no more; it is part of the time."""


async def connect(url: str) -> Client:
    """A client with its defaults."""
    client = Client()
    await client.connect(url)
    return client


async def fetch(client: Client, stream: str, consumer: str, count: int) -> Counted:
    """Fetches `count` messages, a thousand at a time, from a consumer that wants no acks."""
    js = client.jetstream()
    subscription = await js.pull_subscribe_bind(consumer=consumer, stream=stream)
    messages = size = 0
    while messages < count:
        for message in await subscription.fetch(min(_FETCH, count - messages), _TIMEOUT_S):
            messages += 1
            size += len(message.data)
    return Counted(messages, size)


async def last(client: Client, stream: str, subjects: Sequence[str]) -> Counted:
    """The last message of each subject, one after another: it has no call for several."""
    js = client.jetstream()
    messages = size = 0
    for subject in subjects:
        message = await js.get_last_msg(stream, subject, direct=True)
        messages += 1
        size += len(message.data or b"")
    return Counted(messages, size)


async def publish(
    client: Client, rows: Sequence[tuple[str, bytes]], ids: str | None, window: int
) -> Counted:
    """Publishes (subject, payload), with ids if given; `window` without a PubAck at most."""
    js = client.jetstream(publish_async_max_pending=window)
    futures = [
        await js.publish_async(
            subject,
            data,
            wait_stall=_TIMEOUT_S,
            headers=None if ids is None else {"Nats-Msg-Id": f"{ids}-{number}"},
        )
        for number, (subject, data) in enumerate(rows)
    ]
    await js.publish_async_completed()
    return Counted(sum(1 for future in futures if future.result().seq), 0)

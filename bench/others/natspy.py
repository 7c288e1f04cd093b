"""The same work in nats-py, the way its documentation shows it: `fetch`, `publish_async`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nats.aio.client import Client

from .bare import Counted

_FETCH: Final = 1_000
_TIMEOUT_S: Final = 60.0


async def fetch(client: Client, stream: str, consumer: str, count: int) -> Counted:
    """Fetches `count` messages, a thousand at a time, from a consumer that wants no acks."""
    js = client.jetstream()
    subscription = await js.pull_subscribe_bind(consumer=consumer, stream=stream)
    messages = 0
    while messages < count:
        messages += len(await subscription.fetch(min(_FETCH, count - messages), _TIMEOUT_S))
    return Counted(messages)


async def last(client: Client, stream: str, subjects: Sequence[str]) -> Counted:
    """The last message of each subject, one after another: it has no call for several."""
    js = client.jetstream()
    for subject in subjects:
        await js.get_last_msg(stream, subject, direct=True)
    return Counted(len(subjects))


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
    return Counted(sum(1 for future in futures if future.result().seq))

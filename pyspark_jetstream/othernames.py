"""
What to write instead of a name that is no option: one that this source had, or that people bring.

Rule 1: none of these is an option of ours; a name that is the same here stays what it is here.
Case, dots and underscores do not count, nor the prefixes `kafka.` and `nats.`.
"""

from __future__ import annotations

import re
from typing import Final

GONE: Final[dict[str, str]] = {
    "readMode": "tasks choose by the length of a range: 'directBelow'",
    "readFrom": "name the mirror as the stream that is read: 'stream'",
    "headerFilter": "use where(headers['name'][0] = 'value') with 'includeHeaders'",
    "claimsLedger": "queries that share a consumer read at least once; leave it out",
    "abandonAfter": "queries that share a consumer read at least once; leave it out",
    "nakDelay": "claims come again after 'ackWait'; leave it out",
    "publishMode": "there is one way to publish, with a PubAck for each row; leave it out",
    "throttleParkStream": "a paused row waits 'throttleMaxWait', then 'onThrottleTimeout'",
    "throttleParkBytes": "a paused row waits 'throttleMaxWait', then 'onThrottleTimeout'",
    "maxCpuPercent": "the window follows what the server says; leave it out",
    "metricsInterval": "reports have one interval; leave it out",
    "priorityStrategies": "their order is fixed: subject, column, function, header, claim",
}
"""An option that went → what takes its place."""

_BROUGHT: Final[tuple[tuple[str, str, str], ...]] = (
    ("stream range sink", "bootstrap.servers url", "it is 'servers' here: nats://host:4222"),
    ("stream range sink", "creds", "it is 'credentialsFile' here, a .creds file"),
    ("stream range", "subscribe", "it is 'stream' here, a stream's name or a comma list"),
    ("stream range", "topic", "it is 'stream' here, with 'subject' for filters of its subjects"),
    ("sink", "topic", "it is 'subject' here, for all rows; or a column subject"),
    ("stream range", "subscribePattern", "it is 'streamPattern' here, such as tenant-*"),
    ("stream range", "filterSubject", "it is 'subject' here, filters such as orders.*.eu"),
    ("stream", "durable group.id", "it is 'consumer' here; a query with a checkpoint needs none"),
    ("stream", "maxOffsetsPerTrigger", "it is 'maxRecordsPerTrigger' here"),
)
"""Where it is given, the name elsewhere, and what it is here."""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_GONE: Final = {_plain(name): f"it went: {said}" for name, said in GONE.items()}

_SAID: Final = {
    (kind, _plain(name)): said
    for kinds, names, said in _BROUGHT
    for kind in kinds.split()
    for name in names.split()
}


def said_of(name: str, kind: str) -> str | None:
    """
    What to write instead; None of a name that nobody knows.

    Args:
        kind: `stream`, `range` or `sink`, where it was given.
    """
    plain = _plain(re.sub(r"^(kafka|nats)\.", "", name.lower()))
    return _SAID.get((kind, plain)) or _GONE.get(plain)

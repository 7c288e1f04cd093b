"""Streams that have the beginning of their names in common, as a pattern takes them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_jetstream.client.jetstream import JetStream

from .streams import publish

_runs = itertools.count()


class Tenants:
    """Streams of one test, with a beginning in common."""

    def __init__(self, js: JetStream) -> None:
        self.js = js
        self.prefix = f"tenant{next(_runs)}"

    def make(self, *names: object, **config: Any) -> None:
        for name in names:
            stream = f"{self.prefix}-{name}"
            own = {"name": stream, "subjects": [f"{stream}.>"], "storage": "memory"}
            self.js.create_stream(own | {"allow_direct": True} | config)

    def fill(self, *names: object, count: int = 3) -> None:
        for name in names:
            stream = f"{self.prefix}-{name}"
            publish(self.js, [(f"{stream}.{i}", b"%d" % i) for i in range(count)])

    def remove(self, *names: object) -> None:
        for name in names:
            self.js.delete_stream(f"{self.prefix}-{name}")

    def name(self, name: object) -> str:
        return f"{self.prefix}-{name}"

    def asked(self) -> int:
        """Requests to JetStream's API so far, but for this one."""
        reply = self.js.client.request(f"{self.js.prefix}.INFO")
        return int(json.loads(reply.data)["api"]["total"])


@pytest.fixture
def tenants(js: JetStream) -> Iterator[Tenants]:
    made = Tenants(js)
    yield made
    for name in js.stream_names():
        if name.startswith(made.prefix):
            js.delete_stream(name)

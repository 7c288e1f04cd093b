"""Streams of a query: one, filters on it, one stream each; and all that a pattern takes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from pyspark_jetstream.client.jetstream import JetStream

from .streams import publish

LAYOUTS = ["one", "filtered", "streams"]


class Place:
    """The streams of a layout, and numbered messages in them."""

    def __init__(self, js: JetStream, layout: str, name: str, **config: Any) -> None:
        self.js, self.layout = js, layout
        self.streams = [f"{name}-0", f"{name}-1"] if layout == "streams" else [name]
        self.published = 0
        self._name, self._config = name, config
        self.make()

    def make(self) -> None:
        """Makes the streams."""
        for stream in self.streams:
            subjects = [f"{stream}.0.*", f"{stream}.1.*"]
            config = {"name": stream, "subjects": subjects, "allow_direct": True}
            self.js.create_stream(config | self._config)

    def remove(self) -> None:
        """Deletes them."""
        for stream in self.streams:
            self.js.delete_stream(stream)

    @property
    def options(self) -> dict[str, Any]:
        """Of a read."""
        if self.layout == "one":
            return {"stream": self._name}
        if self.layout == "streams":
            return {"stream": f"{self._name}-{{partition}}", "partitions": 2}
        subject = f"{self._name}.{{partition}}.*"
        return {"stream": self._name, "partitions": 2, "partitionSubject": subject}

    def publish(self, n: int, size: int = 0) -> list[bytes]:
        """Stores so many more messages, in turn on the partitions; their payloads."""
        numbers = range(self.published, self.published + n)
        self.published += n
        payloads = [b"m%d" % i + b"." * size for i in numbers]
        requests = [
            (f"{self.streams[i % len(self.streams)]}.{i % 2}.x", payload)
            for i, payload in zip(numbers, payloads, strict=True)
        ]
        self.js.client.request("$JS.API.INFO")  # the server may have been away: connected anew
        publish(self.js, requests)
        return payloads


_runs = itertools.count()


class Tenants:
    """Streams of one test, with a beginning in common."""

    def __init__(self, js: JetStream) -> None:
        self.js = js
        self.prefix = f"tenant{next(_runs)}"

    def make(self, *names: object, **config: Any) -> None:
        for name in names:
            stream = self.name(name)
            own = {"name": stream, "subjects": [f"{stream}.>"], "storage": "memory"}
            self.js.create_stream(own | {"allow_direct": True} | config)

    def fill(self, *names: object, count: int = 3) -> None:
        for name in names:
            stream = self.name(name)
            publish(self.js, [(f"{stream}.{i}", b"%d" % i) for i in range(count)])

    def remove(self, *names: object) -> None:
        for name in names:
            self.js.delete_stream(self.name(name))

    def asked(self) -> int:
        """Requests to JetStream's API so far, but for this one."""
        reply = self.js.client.request(f"{self.js.prefix}.INFO")
        return int(json.loads(reply.data)["api"]["total"])

    def name(self, name: object) -> str:
        return f"{self.prefix}-{name}"


@pytest.fixture
def tenants(js: JetStream, clean: None) -> Tenants:
    return Tenants(js)

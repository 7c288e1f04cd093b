"""Layouts of a query: one stream, filters on it, one stream each."""

from __future__ import annotations

from itertools import starmap
from typing import Any

from pyspark_jetstream.client import wire
from pyspark_jetstream.client.jetstream import JetStream

LAYOUTS = ["one", "filtered", "streams"]
MODES = ["auto", "own", "direct"]


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
        streams, client = len(self.streams), self.js.client
        requests = [
            (f"{self.streams[i % streams]}.{i % 2}.x", payload)
            for i, payload in zip(numbers, payloads, strict=True)
        ]
        for low in range(0, n, 2_000):  # so the server is never far behind
            run = requests[low : low + 2_000]
            replies, run = client.requests(run[:streams]), run[streams:]
            if run:
                client.connection.send(b"".join(starmap(wire.pub, run[:-streams])))
                replies += client.requests(run[-streams:])
            for reply in replies:
                assert b'"seq"' in reply.data, reply
        return payloads

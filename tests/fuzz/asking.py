"""
Answers of the JetStream API: what `client.jetstream` makes of a server's JSON, and what others do
with it.

The answers of `answers.json` are real: a cluster of nats-server 2.15.1 gave them. A case has one of
them with faults; it ends in a value or in an error of ours, and whatever reads that value takes it.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from pyspark_jetstream.client.connection import Reply
from pyspark_jetstream.client.info import ConsumerInfo, StreamInfo
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.fetch.durable import Owner
from pyspark_jetstream.fetch.layout import resolve_layout
from pyspark_jetstream.fetch.options import plain_read
from pyspark_jetstream.operations.inspect.findings import Report, add_consumer, add_stream
from pyspark_jetstream.outbox.targets import Target

from ..kits.options import connection_of
from .cases import TYPED, Case, Fault
from .mutations import mutated

ANSWERS: Final = Path(__file__).parent / "answers.json"

CALLS: Final[dict[str, Callable[[JetStream], Any]]] = {
    "stream_info": lambda js: js.stream_info("S"),
    "stream_infos": lambda js: js.stream_infos(["S", "COPY"]),
    "stream_infos_there": lambda js: js.stream_infos_there(["S", "NONE"]),
    "look": lambda js: js.look(["S", "MIRROR"], [("S", "pinned"), ("S", "none")]),
    "stream_of": lambda js: js.stream_of("s.1"),
    "streams_of": lambda js: js.streams_of(["s.1", "none.1"]),
    "stream_names": lambda js: js.stream_names(),
    "streams_listed": lambda js: js.streams_listed(lambda name: name in ("S", "MIRROR")),
    "create_stream": lambda js: js.create_stream({"name": "S2", "subjects": ["s2.>"]}),
    "subject_pages": lambda js: js.subject_pages("S", [(">", 0), ("s.*", 1)]),
    "subject_counts": lambda js: js.subject_counts("S", ["s.>"]),
    "listed": lambda js: list(js.listed("S", ["s.>"])[1]),
    "message_get": lambda js: js.message_get("S", seq=3),
    "messages": lambda js: js.messages("S", [{"seq": 3}, {"seq": 4}, {"seq": 999}]),
    "messages_of": lambda js: js.messages_of([("S", {"seq": 4}), ("S", {"seq": 999})]),
    "last_messages": lambda js: js.last_messages("S", ["s.1", "s.2"]),
    "next_messages": lambda js: js.next_messages(
        [("S", {"seq": 1}), ("S", {"seq": 1, "next_by_subj": "s.none"})]
    ),
    "publish": lambda js: js.publish("s.3", b"x", []),
    "purge": lambda js: js.purge("S", "s.gone", None),
    "consumer_info": lambda js: js.consumer_info("S", "pinned"),
    "consumer_infos": lambda js: js.consumer_infos([("S", "pinned"), ("S", "none")]),
    "consumer_list": lambda js: js.consumer_list("S"),
    "create_consumer": lambda js: js.create_consumer("S", {"durable_name": "c"}),
    "create_consumers": lambda js: js.create_consumers([("S", {"durable_name": "c"})]),
    "pause": lambda js: js.pause("S", "pinned", None),
    "unpins": lambda js: js.unpins([("S", "pinned")], "spark"),
    "resets": lambda js: js.resets([("S", "pinned", 3)]),
    "delete_stream": lambda js: js.delete_stream("S2"),
}
"""Every request of `JetStream`, in an order in which a server can answer all of them."""

_MOST_REQUESTS: Final = 500
"""A call that makes more of them has no end."""


class Asked:
    """A client whose server answers so, whatever is asked; the last answers again and again."""

    def __init__(self, replies: list[list[Reply]]) -> None:
        self.options = SimpleNamespace(
            api_prefix="$JS.API", request_timeout_s=0.0, connect_timeout_s=0.0
        )
        self.connection = SimpleNamespace(version=(2, 15, 1))
        self.unanswered = False
        self._replies = replies
        self._turns = 0

    def request(self, subject: str, data: bytes = b"", headers: bytes = b"") -> Reply:
        """The first of `requests`."""
        return self.requests([(subject, data)])[0]

    def requests(self, requests: Any, max_bytes: float = 0.0) -> list[Reply]:
        """As many as are asked for."""
        replies = self._replies[min(self._turns, len(self._replies) - 1)]
        self._turns += 1
        if self._turns > _MOST_REQUESTS:
            raise Fault(f"asks {_MOST_REQUESTS} times")
        return (replies * len(requests))[: len(requests)]


def recorded() -> dict[str, list[list[Reply]]]:
    """What a real server answered to each call, by turns."""
    calls = json.loads(ANSWERS.read_text())

    def reply(each: dict[str, Any]) -> Reply:
        headers = base64.b64decode(each.get("headers", ""))
        return Reply(each.get("status", 0), "", headers, each["data"].encode("latin-1"))

    return {name: [list(map(reply, turn)) for turn in turns] for name, turns in calls.items()}


def _use(value: Any) -> None:
    """Whatever reads what the API says."""
    if isinstance(value, list | tuple):
        for each in value:
            _use(each)
    elif isinstance(value, StreamInfo):
        for each in ("origin", "retention", "allow_direct"):
            getattr(value, each)
        _ = value.keeps_history
        add_stream(Report("", ""), value, "`{}`".format)
        Target.parse(value.config)
        options = plain_read(connection_of("nats://127.0.0.1"), value.name)
        with suppress(TYPED):
            resolve_layout(options, {value.name: value.config})
    elif isinstance(value, ConsumerInfo):
        Owner.of(value.config)
    elif isinstance(value, dict) and "config" in value and "delivered" in value:
        add_consumer(Report("", ""), "S", value, "`{}`".format)
        Owner.of(value.get("config") or {})


def _replies(case: Case) -> list[list[Reply]]:
    turns = [list(turn) for turn in _RECORDED[case.flags["call"]]]
    turn, at = case.flags["turn"], case.flags["at"]
    part = {"headers" if case.flags["headers"] else "data": case.stream}
    turns[turn][at] = turns[turn][at]._replace(**part)
    return turns


def check(case: Case) -> int:
    """It ends in a value that can be used, or in an error of ours."""
    js: Any = JetStream(Asked(_replies(case)))  # type: ignore[arg-type]
    with suppress(TYPED):
        _use(CALLS[case.flags["call"]](js))
    return 1


def case(rng: random.Random) -> Case:
    """An answer as it came, or with faults in its JSON, its bytes or its header block."""
    call = rng.choice(list(_RECORDED))
    turn = rng.randrange(len(_RECORDED[call]))
    at = rng.randrange(len(_RECORDED[call][turn]))
    reply = _RECORDED[call][turn][at]
    place = {"call": call, "turn": turn, "at": at, "headers": bool(reply.headers)}
    if reply.headers:
        return Case("api", mutated(rng, [reply.headers]), 0, place)
    if not reply.data or rng.random() < 0.2:
        return Case("api", mutated(rng, [reply.data or b"{}"]), 0, place)
    answer = json.loads(reply.data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        answer = _wrong(rng, answer)
    text = json.dumps(answer, ensure_ascii=rng.random() < 0.5)
    return Case("api", text.encode("utf-8", "replace"), 0, place)


def check_recorded() -> None:
    """Every answer as it came is a value, and no error."""
    for call, turns in _RECORDED.items():
        _use(CALLS[call](JetStream(Asked(turns))))  # type: ignore[arg-type]


_INSTEAD: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 0.5, 1e300, float("nan"), float("inf"), 2**31, 2**63 - 1, 2**63,
    2**64, 10**30, "", "x", "0", "-1", "9" * 30, "a b", "a\r\nb", "\x00", "\ud800", "\ufffd",
    ">", "*", "..", "0001-01-01T00:00:00Z", "2026-01-02T03:04:05", "2026-13-02T03:04:05Z",
    "9999-12-31T23:59:59.999999999-14:00", "=", "!!!!", [], [None], ["x"], [1], [[]], [{}], {},
    {"": None}, {"x": {}}, {"code": 404, "err_code": 10059}, {"code": "x"},
)  # fmt: skip
"""What stands where something else is due."""


def _wrong(rng: random.Random, answer: Any) -> Any:
    """The answer with one member left out, put elsewhere, or another in its place."""
    places: list[tuple[Any, Any]] = []
    todo = [answer] if isinstance(answer, dict | list) else []
    while todo:
        inner = todo.pop()
        keys = inner if isinstance(inner, dict) else range(len(inner))
        for key in keys:
            places.append((inner, key))
            if isinstance(inner[key], dict | list):
                todo.append(inner[key])
    if not places or rng.random() < 0.02:
        return deepcopy(rng.choice(_INSTEAD))
    inner, key = rng.choice(places)
    way = rng.random()
    if way < 0.2:
        del inner[key]
    elif way < 0.3:
        other, there = rng.choice(places)
        with suppress(KeyError, IndexError):
            inner[key] = deepcopy(other[there])
    elif way < 0.35 and isinstance(inner, dict):
        inner[rng.choice(("error", "config", "state", "x"))] = inner.pop(key)
    else:
        inner[key] = deepcopy(rng.choice(_INSTEAD))
    return answer


_RECORDED: Final = recorded()

"""Questions to JetStream: listing subjects in pages, while subjects come and go."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from pyspark_jetstream.client import jetstream, patience
from pyspark_jetstream.client.connection import Reply
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import RequestTimeoutError

from ...kits.seeds import fresh

SEEDS = [1, 2, 3, *fresh(__name__)]


@dataclass
class Listed:
    """A client of a server whose subjects change with every question about them."""

    there: set[str]
    page: int
    rng: random.Random
    stayed: set[str] = field(default_factory=set)
    last_seq: int = 7
    is_behind: Callable[[], bool] = lambda: False
    """Whether a server answers that was the leader, and has next to nothing."""

    def __post_init__(self) -> None:
        self.stayed = set(self.there)
        self.options = SimpleNamespace(api_prefix="$JS.API", request_timeout_s=1.0)

    def requests(self, requests: list[tuple[str, bytes]]) -> list[Reply]:
        """Pages as the server makes them: cut by number from what is sorted at that moment."""
        replies = []
        for subject, body in requests:
            assert subject == "$JS.API.STREAM.INFO.S"
            offset = json.loads(body)["offset"]
            cut = sorted(self.there)[offset : offset + self.page]
            state = {"last_seq": self.last_seq, "subjects": dict.fromkeys(cut, 1)}
            answer = {"state": state, "offset": offset, "total": len(self.there)}
            if self.is_behind():
                state |= {"last_seq": 6, "subjects": dict.fromkeys(cut[:1], 1)}
                answer["total"] = min(1, len(cut))
            replies.append(Reply(0, "", b"", json.dumps(answer).encode()))
            for _ in range(self.rng.randrange(8)):
                if self.rng.random() < 0.7 and self.there:
                    gone = self.rng.choice(sorted(self.there))
                    self.there.discard(gone)
                    self.stayed.discard(gone)
                else:
                    self.there.add(f"S.{self.rng.randrange(10**6):06d}")
            self.last_seq += 1
        return replies


@pytest.mark.parametrize("seed", SEEDS)
def test_pages_hide_no_subject(monkeypatch, seed):
    """
    Every subject that is there all the time is listed, however many come and go between pages; the
    sequence is that of the first page.
    """
    rng = random.Random(seed)
    monkeypatch.setattr(jetstream, "_IN_COMMON", 3)
    for _ in range(200):
        names = {f"S.{rng.randrange(10**6):06d}" for _ in range(rng.randrange(120))}
        listed = Listed(names, rng.choice([10, 17, 200]), rng)
        pin, counts = JetStream(listed).subject_counts("S", [">"])

        assert listed.stayed <= set(counts)
        assert pin == 7


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_was_hides_no_subject(monkeypatch, seed):
    """
    Of a server that does not know that another one leads the stream, and has more of it, neither
    the first page counts nor a later one; that nobody has more is an error.
    """
    rng = random.Random(seed)
    monkeypatch.setattr(jetstream, "_IN_COMMON", 3)
    clock = itertools.count()
    times = SimpleNamespace(monotonic=lambda: next(clock) / 100, sleep=lambda s: None)
    monkeypatch.setattr(patience, "time", times)
    for _ in range(100):
        names = {f"S.{rng.randrange(10**6):06d}" for _ in range(rng.randrange(120))}
        listed = Listed(names, rng.choice([10, 17, 200]), rng, is_behind=lambda: rng.random() < 0.3)
        pin, counts = JetStream(listed).subject_counts("S", [">"], 7)

        assert listed.stayed <= set(counts)
        assert pin >= 7
    with pytest.raises(RequestTimeoutError, match="up to 6, where 7 was there"):
        JetStream(Listed({"S.a"}, 10, rng, is_behind=lambda: True)).subject_counts("S", [">"], 7)


def test_a_listing_waits_for_a_leader():
    """
    While a leader is elected (err_code 10008) the page is asked for again.
    """
    busy = {"error": {"code": 503, "err_code": 10008, "description": "not available"}}
    there = {"state": {"last_seq": 3, "subjects": {"a": 2}}, "offset": 0, "total": 1}
    asked = []

    class Electing:
        options = SimpleNamespace(api_prefix="$JS.API", request_timeout_s=5.0)

        def requests(self, requests: list[tuple[str, bytes]]) -> list[Reply]:
            return [self.request(*each) for each in requests]

        def request(self, subject: str, data: bytes) -> Reply:
            asked.append(json.loads(data))
            answer = busy if len(asked) == 1 else there
            return Reply(0, "", b"", json.dumps(answer).encode())

    assert JetStream(Electing()).subject_counts("S", [">"]) == (3, {"a": 2})
    assert asked == [{"subjects_filter": ">", "offset": 0}] * 2


LED = {"name": "c", "raft_group": "S-R3F-x", "leader": "c-n1", "replicas": [{"name": "c-n2"}]}
UNLED = {"name": "c", "raft_group": "S-R3F-x", "replicas": [{"name": "c-n1"}, {"name": "c-n2"}]}


@pytest.mark.parametrize("kind", ["STREAM", "CONSUMER"])
def test_what_a_server_tells_that_knows_of_no_leader_counts_as_none(monkeypatch, kind):
    """
    It stood still, and has next to nothing: it is asked again. That counts after some seconds, as
    where two servers of three are dead.
    """
    monkeypatch.setattr(jetstream, "_LEADER_S", 0.3)
    asked, led = [], True

    class Behind:
        options = SimpleNamespace(api_prefix="$JS.API", request_timeout_s=60.0, connect_timeout_s=1)
        unanswered = False

        def requests(self, requests: list[tuple[str, bytes]]) -> list[Reply]:
            asked.extend(requests)
            answer = {
                "type": f"io.nats.jetstream.api.v1.{kind.lower()}_info_response",
                "cluster": LED if led and len(asked) > 1 else UNLED,
                "alternates": [{"name": "S", "cluster": "c"}],
            }
            return [Reply(0, "", b"", json.dumps(answer, separators=(",", ":")).encode())]

        def request(self, subject: str, data: bytes = b"") -> Reply:
            return self.requests([(subject, data)])[0]

    assert JetStream(Behind()).call(f"{kind}.INFO.S")["cluster"] == LED
    assert len(asked) == 2
    led = False
    assert JetStream(Behind()).call(f"{kind}.INFO.S")["cluster"] == UNLED
    assert len(asked) > 4


def test_a_question_lasts_for_two_timeouts_at_most(monkeypatch):
    """
    What is refused for now is asked again until `requestTimeout` after the first question; the last
    question may take as long again, and no more.
    """
    clock = [0.0]
    refused = Reply(0, "", b"", b'{"error":{"code":503,"err_code":10008}}')

    class Slow:
        """A server that answers at the last moment, and says that it cannot."""

        options = SimpleNamespace(api_prefix="$JS.API", request_timeout_s=5.0)

        def requests(self, requests):
            clock[0] += 4.9
            return [refused for _ in requests]

    times = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda s: clock.append(s))
    monkeypatch.setattr(patience, "time", times)

    assert JetStream(Slow())._replies([("$JS.API.INFO", b"")]) == [refused]
    assert clock[0] == pytest.approx(9.8)


@pytest.mark.parametrize("silent", [0, 1, 255, 256])
@pytest.mark.parametrize("are_listed", [False, True])
def test_pages_of_streams_without_leaders(silent, are_listed):
    """
    Where leaders do not answer, a page of streams has fewer of them, or has them as empty ones: the
    next page begins behind it all the same, and no page is asked for twice.
    """
    names = [f"s{number:04d}" for number in range(600)]
    asked = []

    class Cluster:
        options = SimpleNamespace(api_prefix="$JS.API", request_timeout_s=1.0)

        def requests(self, requests: list[tuple[str, bytes]]) -> list[Reply]:
            return [self.request(*each) for each in requests]

        def request(self, subject: str, data: bytes) -> Reply:
            offset = json.loads(data)["offset"]
            asked.append(offset)
            page = names[offset : offset + 256]
            missing = page[:silent] if offset == 0 else []
            streams = [
                {"config": {"name": name}, "created": "2026-01-01T00:00:00Z", "state": {}}
                for name in page
                if are_listed or name not in missing
            ]
            answer = {"total": len(names), "offset": offset, "limit": 256, "streams": streams}
            body = json.dumps(answer | ({"missing": missing} if missing else {}))
            return Reply(0, "", b"", body.encode())

    js = JetStream(Cluster())
    js._timed = lambda each: each["config"]["name"]
    found = js.streams_listed(lambda name: True)

    assert asked == [0, 256, 512]
    assert found == {name: None if name in names[:silent] else name for name in names}

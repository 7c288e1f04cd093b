"""Questions to JetStream: listing subjects in pages, while subjects come and go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jetstream.client import jetstream, patience
from pyspark_jetstream.client.connection import Reply
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import ProtocolError


@dataclass
class Listed:
    """A client of a server whose subjects change with every question about them."""

    there: set[str]
    page: int
    changes: Iterator[list[int]]
    """Between pages: subjects that come; and places of such that go, -1 for the first."""
    stayed: set[str] = field(default_factory=set)
    last_seq: int = 7

    def __post_init__(self):
        self.stayed = set(self.there)
        self.options = SimpleNamespace(api_prefix="$JS.API", request_timeout_s=1.0)

    def requests(self, requests):
        """Pages as the server makes them: cut by number from what is sorted at that moment."""
        replies = []
        for subject, body in requests:
            assert subject == "$JS.API.STREAM.INFO.S"
            offset = json.loads(body)["offset"]
            cut = sorted(self.there)[offset : offset + self.page]
            state = {"last_seq": self.last_seq, "subjects": dict.fromkeys(cut, 1)}
            answer = {"state": state, "offset": offset, "total": len(self.there)}
            replies.append(Reply(0, "", b"", json.dumps(answer).encode()))
            for change in next(self.changes):
                if change >= 0:
                    self.there.add(f"S.{change:06d}")
                elif self.there:
                    gone = sorted(self.there)[~change % len(self.there)]
                    self.there.discard(gone)
                    self.stayed.discard(gone)
            self.last_seq += 1
        return replies


CHANGES = st.integers(0, 999_999) | st.integers(-120, -1) | st.integers(-9, -1)


@given(
    st.integers(0, 120),
    st.sampled_from([10, 17, 200]),
    st.lists(st.lists(CHANGES, max_size=15), min_size=1),
)
def test_pages_hide_no_subject(monkeypatch, count, page, changes):
    """Every subject that stays is listed, however many come and go between pages."""
    monkeypatch.setattr(jetstream, "_IN_COMMON", 3)
    listed = Listed({f"S.{8000 * n:06d}" for n in range(count)}, page, cycle(changes))
    pin, counts = JetStream(listed).subject_counts("S", [">"])

    assert listed.stayed <= set(counts)
    assert pin == 7


@pytest.mark.parametrize(
    "busy",
    [
        {"error": {"code": 503, "err_code": 10008, "description": "not available"}},
        {
            "state": {"last_seq": 0}, "offset": 0, "total": 0,
            "cluster": {"name": "C", "replicas": [{"name": "n2"}]},
        },
    ],
    ids=["refused", "answered by a replica"],
)  # fmt: skip
def test_a_listing_waits_for_a_leader(busy):
    """While a leader is elected the page is asked for again."""
    there = {"state": {"last_seq": 3, "subjects": {"a": 2}}, "offset": 0, "total": 1}
    asked = []

    class Electing:
        options = SimpleNamespace(api_prefix="$JS.API", request_timeout_s=5.0)

        def requests(self, requests):
            return [self.request(*each) for each in requests]

        def request(self, subject, data):
            asked.append(json.loads(data))
            answer = busy if len(asked) == 1 else there
            return Reply(0, "", b"", json.dumps(answer).encode())

    assert JetStream(Electing()).subject_counts("S", [">"]) == (3, {"a": 2})
    assert asked == [{"subjects_filter": ">", "offset": 0}] * 2


def test_a_question_lasts_for_two_timeouts_at_most(monkeypatch):
    """What is refused for now is asked again until `requestTimeout`, and lasts twice that."""
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
def test_pages_of_streams_without_leaders(silent, are_listed, monkeypatch):
    """Pages go on behind streams without leaders; one that is deleted meanwhile hides no other."""
    names = [f"s{number:04d}" for number in range(600)]
    asked, all_, silents = [], list(names), names[:silent]

    class Cluster:
        options = SimpleNamespace(api_prefix="$JS.API", request_timeout_s=1.0)

        def requests(self, requests):
            replies = [self.request(*each) for each in requests]
            names[:1] = []
            return replies

        def request(self, subject, data):
            offset = json.loads(data)["offset"]
            asked.append(offset)
            page = names[offset : offset + 256]
            missing = [name for name in page if name in silents]
            streams = [
                {"config": {"name": name}, "created": "2026-01-01T00:00:00Z", "state": {}}
                for name in page
                if are_listed or name not in missing
            ]
            answer = {"total": len(names), "offset": offset, "limit": 256, "streams": streams}
            body = json.dumps(answer | ({"missing": missing} if missing else {}))
            return Reply(0, "", b"", body.encode())

    js = JetStream(Cluster())
    monkeypatch.setattr(jetstream, "stream_info_of", lambda each: each["config"]["name"])
    found = js.streams_listed(lambda name: True)

    assert asked == [0, 240, 480]
    assert found == {name: None if name in silents else name for name in all_}


def answering(answer):
    """A client whose server says this to whatever is asked."""
    reply = Reply(0, "", b"", json.dumps(answer).encode())
    options = SimpleNamespace(api_prefix="$JS.API", request_timeout_s=1.0)
    return SimpleNamespace(options=options, request=lambda *_: reply, requests=lambda _: [reply])


def test_a_listing_that_claims_too_many_streams_is_no_answer():
    """A request for each page that it claims would take all memory."""
    streams = [{"config": {"name": "S"}, "created": "2026-01-01T00:00:00Z", "state": {}}]
    js = JetStream(answering({"total": 999_999_999, "limit": 256, "streams": streams}))
    with pytest.raises(ProtocolError, match="1 of 999999999 streams"):
        js.streams_listed(lambda name: False)


def test_a_pause_says_until_when():
    """Or that the consumer is not paused; an answer that says neither is none."""
    until = "2026-01-01T00:00:00Z"
    assert JetStream(answering({"paused": True, "pause_until": until})).pause("S", "c", None)
    assert JetStream(answering({"paused": False})).pause("S", "c", None) == ""
    with pytest.raises(ProtocolError, match="CONSUMER.PAUSE.S.c: the answer lacks 'pause_until'"):
        JetStream(answering({"paused": True})).pause("S", "c", None)

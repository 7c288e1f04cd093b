"""What a snapshot's planner makes of a listing of subjects."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest

from pyspark_jetstream.errors import ReadTimeoutError
from pyspark_jetstream.fetch.directcalls import Page
from pyspark_jetstream.fetch.gets import Ending
from pyspark_jetstream.read import snapshotplanner
from pyspark_jetstream.read.lasts import LastOfEach
from pyspark_jetstream.read.snapshotplanner import Snapshots, _parts


def test_pages_overlap():
    """
    A subject that two pages of a listing or two filters bring counts once, with the larger number
    of messages.
    """
    names = Snapshots._named([{"a": 2, "b": 1}, {"b": 3, "c": 1}, {"b": 2}])

    assert names is not None
    assert list(_parts(names)) == [{"a": 2, "b": 3, "c": 1}]


def test_a_subject_that_is_no_text_has_no_name():
    """U+FFFD in a listing may stand for any bytes."""
    assert Snapshots._named([{"a": 2}, {"b\ufffd": 3}]) is None


@pytest.mark.parametrize("writes", [False, True], ids=["an answerer that lags", "fast writers"])
def test_a_stream_whose_end_is_never_reached_is_an_error(monkeypatch, writes):
    """
    Whoever answers lags, or writers are faster: the wait for the end has a deadline, and pauses.
    """
    asked, pending = count(), Ending(204, "", {"Nats-Num-Pending": "5"})
    message = SimpleNamespace(subject=b"a", sequence=9, lines=None)
    page = Page([message], pending) if writes else Page([], Ending(404, "", {}))

    def ask(_):
        assert next(asked) < 1e6
        return page

    monkeypatch.setattr(snapshotplanner, "read_direct", lambda *_: iter(()))
    snapshots = Snapshots.__new__(Snapshots)
    snapshots._stream = "S"
    snapshots._client = SimpleNamespace(options=SimpleNamespace(request_timeout_s=0.3))
    snapshots._js = SimpleNamespace(message_get=lambda *_, **__: message)
    snapshots._calls = SimpleNamespace(ask=ask)

    with pytest.raises(ReadTimeoutError, match="its end was not reached within"):
        snapshots._add_beyond(5, 8, LastOfEach())
    assert writes or next(asked) < 10

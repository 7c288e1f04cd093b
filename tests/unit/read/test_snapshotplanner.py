"""What a snapshot's planner makes of a listing of subjects."""

from __future__ import annotations

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
    """
    U+FFFD in a listing may stand for any bytes.
    """
    assert Snapshots._named([{"a": 2}, {"b\ufffd": 3}]) is None

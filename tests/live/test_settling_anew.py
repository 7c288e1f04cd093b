"""What is settled late is settled in the stream that it was read from, and in no other."""

from contextlib import nullcontext

import pytest

from pyspark_jetstream.errors import DataLossError

from ..kits.options import BELOW
from ..kits.reading import query

__all__ = ["query"]


NEW = [b"new%d" % i for i in range(8)]


@pytest.fixture
def anew(js, publish):
    """Deletes a stream and makes it again, with other messages."""

    def make(name, retention):
        js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")
        config = {"name": name, "subjects": [f"{name}.>"], "allow_direct": True}
        js.create_stream(config | {"storage": "file", "retention": retention})
        publish([(f"{name}.x", data) for data in NEW])

    return make


@pytest.fixture
def begun(query, publish):
    """Makes queries that have read ten messages, and not settled them."""

    def make(name, **options):
        one = query(stream=name, **options)
        one.plan()
        one.commit()
        publish([(f"{name}.x", b"old%d" % i) for i in range(10)])
        assert one.step() == 10
        return one

    return make


def data(rows):
    return sorted(row["data"] for row in rows)


def test_a_commit_of_a_stream_that_is_no_more(new_stream, begun, anew):
    """A commit settles nothing in a stream made anew: its messages are all read."""
    name = new_stream(retention="workqueue")
    one = begun(name, failOnDataLoss="false")
    anew(name, "workqueue")
    one.plan()  # and Spark commits the batch before

    assert data(one.read()) == NEW


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_restart_over_a_stream_that_is_no_more(js, new_stream, publish, begun, anew, fails):
    """A run that begins with a batch of the run before settles nothing in a stream made anew."""
    name = new_stream(retention="workqueue")
    one = begun(name)
    publish([(f"{name}.x", b"old")])
    one.plan()  # in Spark's log, and not run
    one.die()
    anew(name, "workqueue")
    if fails == "true":
        with pytest.raises(DataLossError, match="made anew"):
            one.restart()
        assert js.stream_info(name).messages == len(NEW)
    else:
        one.restart(failOnDataLoss="false")
        assert len(one.rows) == 10
        one.plan()
        assert data(one.read()) == NEW


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("mode", ["auto", "own", "direct"])
def test_a_stream_made_anew_between_plan_and_tasks(new_stream, publish, begun, anew, mode, fails):
    """A batch of a stream made anew since its plan is noticed by the next plan."""
    name = new_stream()
    one = begun(name, directBelow=BELOW[mode], failOnDataLoss=fails)
    publish([(f"{name}.x", b"old%d" % i) for i in range(5)])
    one.plan()
    anew(name, "limits")
    publish([(f"{name}.x", b"more%d" % i) for i in range(12)])
    said = pytest.raises(DataLossError, match="made anew") if fails == "true" else nullcontext()

    found = one.read()
    with said:
        one.claim()

    assert fails == "true" or found == []

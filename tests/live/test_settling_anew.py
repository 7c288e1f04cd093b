"""What is settled late is settled in the stream that it was read from, and in no other."""

from contextlib import nullcontext

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_jetstream.errors import DataLossError
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.readstream.reader import StreamReader

from ..kits.options import BELOW


class Query:
    """A query, driven as Spark does."""

    def __init__(self, url, **options):
        self.reader = StreamReader(parse_stream({"servers": url} | options))
        self.at = self.reader.initialOffset()

    def look(self):
        """Where the next batch would end."""
        return self.reader.latestOffset(self.at, ReadAllAvailable())

    def batch(self, end):
        """The payloads of the batch that ends here."""
        tasks = self.reader.partitions(self.at, end)
        batches = [batch for task in tasks for batch in self.reader.read(task)]
        self.at = end
        return sorted(data for batch in batches for data in batch.column("data").to_pylist())


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


def begun(url, name, publish, **options):
    """A query that has read ten messages, and not settled them."""
    query = Query(url, stream=name, **options)
    query.batch(query.look())
    publish([(f"{name}.x", b"old%d" % i) for i in range(10)])
    assert len(query.batch(query.look())) == 10
    return query


def test_a_commit_of_a_stream_that_is_no_more(nats_server, js, new_stream, publish, anew):
    """A commit settles nothing in a stream made anew: its messages are all read."""
    name = new_stream(retention="workqueue")
    query = begun(nats_server.url, name, publish, failOnDataLoss="false")
    anew(name, "workqueue")
    before, end = query.at, query.look()
    query.reader.commit(before)

    assert query.batch(end) == NEW
    query.reader.stop()


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_restart_over_a_stream_that_is_no_more(nats_server, js, new_stream, publish, anew, fails):
    """A run that begins with a batch of the run before settles nothing in a stream made anew."""
    name = new_stream(retention="workqueue")
    query = begun(nats_server.url, name, publish)
    publish([(f"{name}.x", b"old")])
    start, end = query.at, query.look()  # in Spark's log, and not run
    query.reader.stop()
    anew(name, "workqueue")
    again = Query(nats_server.url, stream=name, failOnDataLoss=fails)
    again.at = start
    if fails == "true":
        with pytest.raises(DataLossError, match="made anew"):
            again.batch(end)
    else:
        assert again.batch(end) == []
        assert again.batch(again.look()) == NEW
    again.reader.stop()

    assert fails == "false" or js.stream_info(name).messages == len(NEW)


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("mode", ["auto", "own", "direct"])
def test_a_stream_made_anew_between_plan_and_tasks(
    nats_server, js, new_stream, publish, anew, mode, fails
):
    """A batch of a stream made anew since its plan is noticed by the next plan."""
    name = new_stream()
    query = begun(nats_server.url, name, publish, directBelow=BELOW[mode], failOnDataLoss=fails)
    publish([(f"{name}.x", b"old%d" % i) for i in range(5)])
    end = query.look()
    anew(name, "limits")
    publish([(f"{name}.x", b"more%d" % i) for i in range(12)])
    said = pytest.raises(DataLossError, match="made anew") if fails == "true" else nullcontext()

    found = query.batch(end)
    with said:
        query.look()
    query.reader.stop()

    assert fails == "true" or found == []

"""A streaming read as Spark 4.1 asks for it: without a start, and without a limit."""

import pytest

from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.options import parse_stream
from pyspark_jetstream.readstream.earlier import EarlierReader

from ..kits.reading import Query, text

COUNT, LIMIT = 60, 25


class EarlierQuery(Query):
    """Asks like Spark 4.1, which tells a run first where its log ends."""

    def _reader(self):
        return EarlierReader(parse_stream(self.options))

    def claim(self):
        self._doubt_words()
        end = text(self.reader.latestOffset())
        return None if self.planned[-1:] == [end] else end

    def restart(self, **options):
        self.die()
        self.reader = self._reader()
        assert self.reader.partitions(self.planned[-1], self.planned[-1]) == []
        if self.committed < len(self.planned):
            self.commit()


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_each_message_once_over_restarts(nats_server, new_stream, publish, retention):
    """Within the limit, also behind a restart; one comes before each batch is committed."""
    name, sizes = new_stream(retention=retention), []
    query = EarlierQuery(nats_server, stream=name, maxRecordsPerTrigger=LIMIT)
    query.step()
    publish([(f"{name}.{i % 4}", b"%d" % i) for i in range(COUNT)])
    while (before := len(query.rows)) < COUNT:
        assert query.plan()
        query.restart()
        sizes.append(len(query.rows) - before)
        query.restart()
    assert query.plan() is None
    query.reader.stop()

    assert query.data == [b"%d" % i for i in range(COUNT)]
    assert max(sizes) <= LIMIT


def test_a_batch_that_is_asked_for_too_early(nats_server, new_stream):
    """A setting of Spark 4.1 asks for one before the checkpoint is told: it is named."""
    query = EarlierQuery(nats_server, stream=new_stream())
    query.step()
    query.die()
    query.reader = query._reader()
    query.claim()
    with pytest.raises(OptionError, match="triggerAvailableNowWrapper"):
        query.reader.partitions(query.planned[-1], query.planned[-1])
    query.reader.stop()

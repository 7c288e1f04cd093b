"""Several streams in one read, by name or by pattern, against a real server."""

import json

import pytest

from pyspark_jetstream.errors import OptionError, StreamNotFoundError
from pyspark_jetstream.read.ranges import JetStreamRangeReader
from pyspark_jetstream.read.snapshot import JetStreamSnapshotReader

from ..kits.layouts import tenants
from ..kits.reading import batch_reader, rows_of

__all__ = ["tenants"]


@pytest.fixture
def read(nats_server):
    """The rows of a batch read: stream, partition, sequence."""

    def rows(**options):
        kind = JetStreamSnapshotReader if "multiLast" in options else JetStreamRangeReader
        found = rows_of(batch_reader(nats_server, kind, **options))
        found.sort(key=lambda row: (row["stream"], row["sequence"]))
        return [(row["stream"], row["partition"], row["sequence"]) for row in found]

    return rows


def test_a_list_and_a_pattern(tenants, read):
    """Each stream's messages come once, by list or pattern; each is partition 0 of itself."""
    tenants.make("a", "b", "c")
    tenants.fill("a", "c")
    every = [(tenants.name(name), 0, seq) for name in "ac" for seq in (1, 2, 3)]

    assert read(stream=f"{tenants.name('c')},{tenants.name('a')}") == every
    assert read(streamPattern=f"{tenants.prefix}-*") == every
    assert read(streamPattern=f"{tenants.prefix}-*c") == every[3:]


def test_each_stream_has_its_bounds(tenants, read):
    """Offsets by stream bound that stream alone, also where messages are missing in it."""
    tenants.make("a", "b")
    tenants.fill("a", "b", count=6)
    a, b = tenants.name("a"), tenants.name("b")
    tenants.js.client.request(f"{tenants.js.prefix}.STREAM.MSG.DELETE.{b}", b'{"seq": 2}')

    assert read(
        streamPattern=f"{tenants.prefix}-*",
        startingOffsets=json.dumps({a: {"0": 5}}),
        endingOffsets=json.dumps({b: {"0": 3}}),
    ) == [(a, 0, 5), (a, 0, 6), (b, 0, 1), (b, 0, 3)]


def test_streams_have_one_moment(tenants, read):
    """From `startingTimestamp` until `endingTimestamp`, in each."""
    tenants.make("a", "b")
    tenants.fill("a", "b")
    moment = tenants.js.stream_info(tenants.name("a")).now.isoformat()
    tenants.fill("a", "b", count=1)
    both = {"stream": ",".join(tenants.name(name) for name in "ab")}

    assert read(**both, startingTimestamp=moment) == [(tenants.name(n), 0, 4) for n in "ab"]
    assert read(**both, endingTimestamp=moment) == [
        (tenants.name(n), 0, sequence) for n in "ab" for sequence in (1, 2, 3)
    ]


def test_what_is_not_there(tenants, read):
    """A pattern or name without a stream, and a stream without direct get, are named."""
    tenants.make("a")
    with pytest.raises(OptionError, match="streamPattern': there is no stream of such a name"):
        read(streamPattern=f"{tenants.prefix}-none*")
    with pytest.raises(StreamNotFoundError, match=tenants.name("none")):
        read(stream=f"{tenants.name('a')},{tenants.name('none')}")
    tenants.make("old", allow_direct=False)
    with pytest.raises(OptionError, match=f"'{tenants.name('old')}' has direct get off"):
        read(streamPattern=f"{tenants.prefix}-*")


@pytest.mark.parametrize("count", [10, 300])
def test_planning_asks_by_pages(nats_server, tenants, count):
    """How many streams there are costs pages of 256, and no question for each stream."""
    tenants.make(*range(count))
    tenants.fill(0, 7)
    pages = -(-len(tenants.js.stream_names()) // 256)

    pattern = f"{tenants.prefix}-*"
    reader = batch_reader(nats_server, JetStreamRangeReader, streamPattern=pattern)
    before = tenants.asked()
    tasks = reader.partitions()
    asked = tenants.asked() - before - 1

    assert len(tasks) == 2
    assert asked <= 2 * pages + 2


def test_a_snapshot_of_several(tenants, read):
    """The last message of every subject of each stream, by list or by pattern."""
    tenants.make("a", "b", "c")
    tenants.fill("a", "b")
    tenants.fill("b", count=2)
    of_b = [(tenants.name("b"), 0, sequence) for sequence in (3, 4, 5)]
    every = [(tenants.name("a"), 0, sequence) for sequence in (1, 2, 3)] + of_b

    assert read(streamPattern=f"{tenants.prefix}-*", multiLast=">") == every
    assert read(stream=f"{tenants.name('b')},{tenants.name('c')}", multiLast=">") == of_b
    assert read(streamPattern=f"{tenants.prefix}-*", multiLast="*.0") == [every[0], of_b[1]]


def test_a_snapshot_of_several_at_a_moment(tenants, read):
    """`upToTime` is one moment for all streams, each of which has its own sequence then."""
    tenants.make("a", "b")
    tenants.fill("a", "b")
    tenants.fill("b", count=2)
    moment = tenants.js.stream_info(tenants.name("b")).now.isoformat()
    tenants.make("c")
    tenants.fill("a", "b", "c", count=7)

    assert read(streamPattern=f"{tenants.prefix}-*", multiLast=">", upToTime=moment) == [
        *[(tenants.name("a"), 0, sequence) for sequence in (1, 2, 3)],
        *[(tenants.name("b"), 0, sequence) for sequence in (3, 4, 5)],
    ]

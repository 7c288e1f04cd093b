"""What commits note of their target streams, and what is concluded from it."""

from __future__ import annotations

import json

import pytest

from pyspark_jetstream.client.info import stream_info_of
from pyspark_jetstream.errors import TakenBackError, TargetChangedError
from pyspark_jetstream.write.exactlyonce.changes import FoundStream
from pyspark_jetstream.write.exactlyonce.committed import Committed


def seen(end, name="T", created="2026-01-01T00:00:00Z"):
    return FoundStream.of(stream_info_of({
        "config": {"name": name, "retention": "limits"},
        "created": created, "ts": "2026-01-01T00:00:00Z",
        "state": {"first_seq": 1, "last_seq": end, "messages": end, "bytes": end,
                  "last_ts": f"2026-01-01T00:00:00.{end:09}Z"},
    }))  # fmt: skip


def after(batches, *names):
    """The record of so many batches of ten rows to each of these streams."""
    committed = Committed()
    for batch in range(batches):
        found = [seen(10 * (batch + 1), name) for name in names or ("T",)]
        committed = Committed.of(json.loads(json.dumps(committed.content())) if batch else {
            "batch": 0}).followed_by(batch, found)  # fmt: skip
    return committed


def test_a_record_says_what_was_noted():
    """
    What a commit notes is what the next one reads.
    """
    committed = after(3)

    assert Committed.of(json.loads(json.dumps(committed.content()))) == committed
    assert committed.content()["streams"]["T"]["ends"] == ((0, 10), (1, 20), (2, 30))
    assert committed.streams["T"].time == "2026-01-01T00:00:00.000000030Z"


@pytest.mark.parametrize(
    ("end", "batch"), [(29, 2), (21, 2), (20, 2), (19, 1), (10, 1), (9, 0), (0, 0)]
)
def test_the_first_batch_that_is_not_whole(end, batch):
    """
    A stream is taken back to somewhere in a batch, or between two: that one is not whole.
    """
    loss = after(3).loss("q", 3, [seen(end)])

    assert isinstance(loss, TakenBackError)
    assert loss.batch == batch


@pytest.mark.parametrize("end", [30, 31, 1000])
def test_a_stream_that_went_on_is_no_loss(end):
    """
    Others may write; and a stream that is new to the query has nothing to lose.
    """
    assert after(3).loss("q", 3, [seen(end), seen(0, "U")]) is None


def test_the_notes_are_bounded():
    """
    Of one stream a hundred batches are known; beyond, the earliest of these, and that it may be an
    earlier one. Of many streams fewer, of all together no more than two thousand, and the streams
    written to last stay.
    """
    noted = after(150).streams["T"]
    assert (len(noted.ends), noted.ends[0]) == (100, (50, 510))
    loss = after(150).loss("q", 150, [seen(100)])
    assert loss is not None and "from batch 50 on, and maybe of earlier ones" in str(loss)

    names = [f"S{i}" for i in range(500)]
    assert {len(noted.ends) for noted in after(6, *names).streams.values()} == {4}
    many = Committed(0).followed_by(1, [seen(1, f"S{i}") for i in range(1200)])
    assert list(many.streams)[0] == "S200"
    assert len(many.content()["streams"]) == 1000


@pytest.mark.parametrize(
    ("committed", "batch", "gone"), [(3, 4, None), (3, 5, "4"), (3, 7, "4 to 6"), (-1, 7, None)]
)
def test_a_ledger_that_lost_batches(committed, batch, gone):
    """
    Batches count up by one: between the last one that is committed and this one there is none.
    Where nothing is known of the query nothing is concluded.
    """
    loss = Committed(committed).loss("q", batch, [])

    assert (loss is None) is (gone is None)
    if loss is not None:
        assert f"the records of {gone} are gone" in str(loss)
        assert isinstance(loss, TakenBackError) and loss.batch == committed + 1


def test_a_stream_made_anew_begins_anew():
    """
    It is a loss of its own kind; what is noted of the older one goes with the next commit.
    """
    anew = seen(50, created="2026-02-02T00:00:00Z")

    assert isinstance(after(3).loss("q", 3, [anew]), TargetChangedError)
    assert after(3).followed_by(3, [anew]).streams["T"].ends == ((3, 50),)


def test_rewound():
    """
    As after the batch before, and that the next one may be there in part; of a stream that is gone
    or made anew nothing is known, of a message neither.
    """
    committed = after(3, "T", "U", "V")
    there = [seen(25), seen(9, "U", created="2026-02-02T00:00:00Z")]
    rewound = committed.rewound_to(2, there)

    assert (rewound.batch, rewound.rewound, set(rewound.streams)) == (1, True, {"T"})
    assert rewound.streams["T"].ends == ((0, 10), (1, 20))
    assert rewound.streams["T"].time == ""
    assert rewound.loss("q", 2, [seen(25)]) is None
    first = committed.rewound_to(0, there)
    assert Committed.of(json.loads(json.dumps(first.content()))) == first
    assert (first.batch, first.streams["T"].ends) == (-1, ((0, 0),))  # all of it is read
    assert not rewound.followed_by(2, there).rewound


@pytest.mark.parametrize("batch", [0, 2, 3])
def test_a_query_that_ran_idle_while_it_was_rewound(batch):
    """
    Its next batch is told from the one that it was rewound to, from the first batch on.
    """
    rewound = Committed(3).rewound_to(batch, [])

    assert rewound.loss("q", batch, []) is None
    error = rewound.loss("q", 4, [])
    assert isinstance(error, TakenBackError)
    assert error.batch == batch
    assert f"was rewound to batch {batch} while it ran, and goes on with 4" in str(error)

"""A query is rewound: what was taken back is written again, each row once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.client.jetstream import JetStream
from pyspark_jetstream.errors import (
    ApiError,
    LedgerError,
    TakenBackError,
    TargetChangedError,
)
from pyspark_jetstream.operations.console.commands import main
from pyspark_jetstream.write.exactlyonce import ledger as ledger_module
from pyspark_jetstream.write.exactlyonce.ids import of_query
from pyspark_jetstream.write.exactlyonce.ledger import STREAM, Ledger
from pyspark_jetstream.write.exactlyonce.records import TaskName
from pyspark_jetstream.write.sink import JetStreamStreamWriter
from pyspark_jetstream.write.task import write_task

from ..kits.checkpoints import write_checkpoint
from ..kits.schemas import mistakes
from .test_taken_back import SCHEMA, SIZE, Query, place, query

__all__ = ["place", "query"]


@pytest.fixture
def rewind(place, tmp_path, capsys):
    """The command, on a checkpoint of the query `q` with five batches, four of them committed."""
    path = write_checkpoint(tmp_path / "checkpoint", [[{}]] * 5)
    (path / "metadata").write_text('{"id":"q"}')
    (path / "offsets" / ".4.crc").write_bytes(b"crc")

    def run(batch, *words):
        words = ["rewind", "--checkpoint", str(path), "--servers", place.server.url, *words]
        status = main([*words, *(["--batch", str(batch), "--force"] if batch is not None else [])])
        said = capsys.readouterr()
        return status, said.out, said.err, path

    return run


def files(path):
    return sorted(
        f"{file.parent.name}/{file.name}" for file in path.rglob("*") if file.name.isdecimal()
    )


@pytest.mark.parametrize("streams", [["T"], ["T", STREAM]], ids=["target", "both"])
def test_written_again_each_row_is_there_once(place, rewind, streams):
    """
    A server that is taken back to the middle of a batch: the command sets checkpoint and ledger to
    that batch, of which only what is missing goes out, and the ones behind it whole.
    """
    query = Query(place.server.url)
    query.run(2)
    killed = Client(query.options.connection)
    half = query.rows(2).slice(0, SIZE // 2)
    write_task(killed, query.options, [half], TaskName("q", 2, 0), of_query("q", 2))
    killed.close()
    place.copy()
    query.run(4)
    place.take_back(*streams)
    assert place.data() == list(range(2 * SIZE + SIZE // 2))
    with pytest.raises(TakenBackError) as caught:
        query.batch(4)

    status, out, err, path = rewind(caught.value.batch)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "query q: batch 2 is next; 5 files moved to rewound-1",
        "if the query still runs, its next batch fails: stop the query, and run this again",
    ]
    assert files(path) == [
        "commits/0", "commits/1", "commits/2", "commits/3",
        "offsets/0", "offsets/1", "offsets/2", "offsets/3", "offsets/4",
    ]  # fmt: skip
    assert files(path / "rewound-1") == ["commits/2", "commits/3", "offsets/3", "offsets/4"]
    again = query.batch(2)
    assert (again.already_stored, again.acked) == (SIZE // 2, SIZE // 2)
    query.run(5)
    assert place.data() == list(range(5 * SIZE))


def test_a_rewind_is_done_twice_or_interrupted(place, query, rewind, monkeypatch):
    """
    Killed between ledger and checkpoint, or between two files, it is run again and ends as one.
    """
    place.take_back("T")
    rename = Path.rename
    moved = []

    def once(self, target):
        if len(moved) == 2:
            raise OSError("killed")
        moved.append(self)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", once)
    status, _, err, path = rewind(2)
    assert (status, err) == (1, "pyspark-jetstream rewind: killed\n")
    monkeypatch.undo()
    monkeypatch.setattr(ledger_module, "SETTLES_S", 0.2)
    assert rewind(2)[0] == rewind(2)[0] == 0
    assert files(path / "offsets") == ["offsets/0", "offsets/1", "offsets/2"]
    assert files(path / "commits") == ["commits/0", "commits/1"]
    for batch in (2, 3, 4):
        query.batch(batch)
    assert place.data() == list(range(5 * SIZE))


def test_a_rewind_just_before_a_commit(place, query, rewind):
    """
    A batch whose tasks had ended when the query was rewound is not committed: that would undo it.
    """
    published = query.task(4)
    assert rewind(2)[0] == 0
    with pytest.raises(TakenBackError, match="rewound to batch 2 while it ran, and goes on with 4"):
        JetStreamStreamWriter(query.options, SCHEMA).commit([published], 4)
    query.at = 2
    query.run(5)

    anew = list(range(3 * SIZE, 5 * SIZE))  # their ids are others, and nothing was lost here
    assert place.data() == [*range(5 * SIZE), *anew]


def test_a_rewind_with_a_target_made_anew(place, query, rewind):
    """
    Of a stream that was made anew nothing is expected any more.
    """
    place.js.delete_stream("T")
    place.js.create_stream({"name": "T", "subjects": ["T.>"]})
    with pytest.raises(TargetChangedError):
        query.batch(4)

    assert rewind(0)[0] == 0
    query.at = 0
    query.run(5)
    assert place.data() == list(range(5 * SIZE))


def test_what_cannot_be_rewound(place, query, rewind):
    """
    A batch that the checkpoint does not have, or before which the ledger misses some, is refused in
    one line, before anything is changed. What the ledger does not know is said.
    """
    place.take_back(STREAM)
    status, _, err, path = rewind(7)
    assert status == 2
    assert err.startswith(
        "pyspark-jetstream rewind: --batch: the checkpoint does not have it (any more): no file "
    )
    status, _, err, _ = rewind(3)
    assert (status, err) == (
        1,
        "pyspark-jetstream rewind: exactlyOnce, q: the ledger ends with batch 1: write again from"
        " batch 2 on\n",
    )
    assert not (path / "rewound-1").exists()
    place.forget()
    status, out, _, _ = rewind(3)
    assert status == 0
    assert "the ledger knows nothing of this query" in out


def test_what_a_rewind_shows_as_json(place, query, rewind):
    """
    As `--json` says which batch is next, and what was moved; or that the query goes on.
    """
    place.take_back("T")
    done = [
        json.loads(rewind(*words)[1]) for words in ((3, "--json"), (None, "--accept", "--json"))
    ]

    assert [mistakes(each, "rewind") for each in done] == [[], []]
    assert (done[0]["batch"], done[0]["in_ledger"]) == (3, True)


def test_a_rewind_waits_until_ids_are_forgotten(place, query, rewind):
    """
    While a stream still knows ids of batches that will be planned anew it would drop other rows for
    them: refused, with how long it is, before anything is changed.
    """
    ledger = Ledger(place.js)
    with pytest.raises(LedgerError, match=r"stream 'T' was written to \ds ago, and knows .* 120s"):
        ledger.rewind("q", 2)
    query.batch(4)

    assert place.data() == list(range(5 * SIZE))


def test_a_rewind_before_what_is_noted(place, query, rewind):
    """
    Of a stream that has no note of the batch before all is read: no row is stored twice.
    """
    assert rewind(0)[0] == 0
    query.at = 0
    assert query.batch(0).already_stored == SIZE
    assert place.data() == list(range(4 * SIZE))


def test_what_is_planned_anew_has_other_ids(place, query, rewind):
    """
    The batch to which a query is rewound keeps its ids, by which rows that are stored are found;
    those behind it are planned anew, and whoever has seen their ids would know those of rows to
    come.
    """

    def ids():
        info = place.js.stream_info("T")
        found = place.js.messages("T", [{"seq": n + 1} for n in range(info.last_seq)])
        of = {int(each.data): dict(each.headers)["Nats-Msg-Id"] for each in found}
        return {batch: of[batch * SIZE].rpartition("-")[0] for batch in range(len(of) // SIZE)}

    before = ids()
    place.take_back("T")
    assert rewind(2)[0] == 0
    query.at = 2
    query.run(4)
    after = ids()

    assert [before[batch] == after[batch] for batch in range(4)] == [True] * 3 + [False]


def test_a_rewind_while_a_stream_cannot_be_looked_at(place, query, rewind, monkeypatch):
    """
    That is not a stream that is gone: an error, and nothing is changed.
    """

    def away(js, names):
        raise ApiError("STREAM.INFO", 503, 10008, "temporarily unavailable")

    monkeypatch.setattr(JetStream, "stream_infos_there", away)
    status, _, err, path = rewind(2)
    monkeypatch.undo()

    assert (status, err) != (0, "")
    assert not (path / "rewound-1").exists()
    assert query.batch(3) is None  # committed, as before


def test_going_on_with_what_is_there(place, query, rewind):
    """
    `--accept`: no row of committed batches is written again, and the next batch goes out.
    """
    place.take_back("T")
    with pytest.raises(TakenBackError):
        query.batch(4)
    left = place.data()
    status, out, _, path = rewind(None, "--accept")

    assert (status, out) == (0, "query q: goes on with what its streams hold\n")
    assert not (path / "rewound-1").exists()
    query.batch(4)
    assert place.data() == [*left, *range(4 * SIZE, 5 * SIZE)]

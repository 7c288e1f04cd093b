"""The last message of each of any number of subjects, in bounded memory."""

from __future__ import annotations

import random
import tempfile

import pyarrow as pa
import pytest

from pyspark_jetstream.read import lasts
from pyspark_jetstream.read.lasts import LastOfEach, by_sequence

from ...kits.seeds import fresh

SEEDS = [1, 2, *fresh(__name__)]


def batch(pairs) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([subject for subject, _ in pairs], pa.binary()),
            pa.array([sequence for _, sequence in pairs], pa.int64()),
            pa.array([b""] * len(pairs)),
        ],
        names=["subject", "sequence", "data"],
    )


def rows(tables) -> list[tuple]:
    return [row for table in tables for row in zip(*table.to_pydict().values(), strict=True)]


@pytest.fixture(params=[(1, 1, 2), (300, 2, 3), (900, 50, 64), (1 << 30, 1, 1)], ids=str)
def sizes(request, monkeypatch) -> None:
    """How much is held, from one message to all of them."""
    for name, value in zip(("_HELD_BYTES", "_READ_ROWS", "_MOST_RUNS"), request.param, strict=True):
        monkeypatch.setattr(lasts, name, value)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("later", ["sum", "max"])
@pytest.mark.parametrize("before", [0, 60, 200], ids="first at {}".format)
def test_the_last_of_each(sizes, seed, later, before):
    """
    Of each subject that matches there are the highest sequence, its later messages and whether one
    of them is a purge, once, in whatever pieces and order the messages come: those beyond the pin
    from the first on, after some, or not at all.
    """
    rng = random.Random(seed)
    names = [b"a", b"b", b"c\xff", b"c\xfe", b"c\xef\xbf\xbd", b"j", b"\xff", b"e\x00", b"e"]
    names += [b"n.%d" % n for n in range(20)]
    pairs = [(rng.choice(names), sequence) for sequence in range(1, 120)]
    beyond = [(rng.choice(names), rng.randint(1, 9), rng.random() < 0.1) for _ in range(80)]
    beyond = beyond if before < len(pairs) else []
    last = LastOfEach(lambda subject: subject != "j", later)
    shuffled, taken = rng.sample(pairs, len(pairs)), rng.sample(beyond, len(beyond))
    for low in range(0, len(shuffled), 13):
        last.add(batch(shuffled[low : low + 13]))
        if low >= before:
            part, taken = taken[:20], taken[20:]
            last.put_later(*([row[column] for row in part] for column in range(3)))
    assert not taken

    expected = {}
    for subject in {name for name, *_ in [*pairs, *beyond]} - {b"j"}:
        counts = [count for name, count, _ in beyond if name == subject] or [0]
        expected[subject] = (
            max((sequence for name, sequence in pairs if name == subject), default=None),
            sum(counts) if later == "sum" else max(counts),
            any(purged for name, _, purged in beyond if name == subject),
        )
    for _ in range(2):  # as often as you like
        found = rows(last)
        assert sorted(row[0] for row in found) == sorted(expected)
        assert {subject: rest for subject, *rest in map(list, found)} == {
            subject: list(rest) for subject, rest in expected.items()
        }
    assert last.messages == len(pairs)


def test_nothing_is_nothing(sizes):
    """Without messages, or without one that matches, there are no subjects."""
    last = LastOfEach(lambda subject: False)
    last.add(batch([(b"a", 1)]))

    assert rows(LastOfEach()) == rows(last) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_by_sequence(sizes, seed):
    """Rows come back by their sequences, all of them."""
    rng = random.Random(seed)
    numbers = rng.sample(range(10_000), 120)
    schema = pa.schema([("subject", pa.string()), ("sequence", pa.int64())])
    plan = by_sequence(schema)
    for low in range(0, len(numbers), 7):
        part = numbers[low : low + 7]
        plan.add(pa.table([[f"s{number}" for number in part], part], schema=schema))

    assert rows(plan) == [(f"s{number}", number) for number in sorted(numbers)]


def test_ten_times_as_many_subjects_take_no_more_memory(monkeypatch):
    """
    However many subjects there are, no more entries are held while they are taken, no more runs are
    open, and no more are handed on at a time.
    """
    monkeypatch.setattr(lasts, "_HELD_BYTES", 200_000)
    monkeypatch.setattr(lasts, "_READ_ROWS", 500)
    monkeypatch.setattr(lasts, "_MOST_RUNS", 4)
    most_held, most_runs = [], []
    for count in (20_000, 100_000):
        last, held, runs = LastOfEach(), 0, 0
        for low in range(0, count, 500):
            names = [b"subject.%08x" % (n * 2654435761 % 2**32) for n in range(low, low + 500)]
            last.add(batch([(name, low + place + 1) for place, name in enumerate(names)]))
            held = max(held, sum(table.num_rows for table in last._runs._held))
            runs = max(runs, len(last._runs._files))
        parts = [table.num_rows for table in last]
        most_held.append(held)
        most_runs.append(runs)

        assert sum(parts) == count
        assert max(parts) <= (runs + 1) * 500
    assert max(most_held) <= 8_000  # some 40 bytes each
    assert most_held[0] >= most_held[1] // 2
    assert max(most_runs) == 4


def test_no_room_for_files_is_said(monkeypatch, tmp_path):
    """Where no file can be written the error says where, and how to say another place."""
    monkeypatch.setattr(lasts, "_HELD_BYTES", 1)
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))

    with pytest.raises(OSError, match=r"files in .*none, and that failed \(.*TMPDIR"):
        LastOfEach().add(batch([(b"a", 1)]))


def test_files_lie_where_spark_spills(monkeypatch, tmp_path):
    """The first of Spark's directories, if it is there; the files have no names in it."""
    monkeypatch.setattr(lasts, "_HELD_BYTES", 1)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    last = LastOfEach()
    last.add(batch([(b"a", 1)]))
    last.add(batch([(b"a", 2)]))

    assert rows(last) == [(b"a", 2, 0, False)]
    assert list(tmp_path.iterdir()) == []

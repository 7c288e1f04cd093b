"""Rows of paused subjects that the mapping may send elsewhere (B17)."""

import json
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.errors import LedgerError
from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.outbox.targets import Target, Targets
from pyspark_jetstream.outbox.throttling.throttle import Throttle
from pyspark_jetstream.outbox.throttling.throttleprotocol import Reason, ThrottleProducer
from pyspark_jetstream.publish.context import WriteContext
from pyspark_jetstream.write.exactlyonce.ids import TaskName
from pyspark_jetstream.write.exactlyonce.recovery import Recovery
from pyspark_jetstream.write.exactlyonce.tail import Scanned, StoredRows, Tail
from pyspark_jetstream.write.reroutes import Reroutes
from pyspark_jetstream.write.task import _reroutes

from ...kits.encoder import builder
from ...kits.lanes import messages
from ...kits.options import connection_of, sink_of, targets_of

STREAM = Target.parse({"name": "S", "subjects": [">"]})
OPTIONS = sink_of(connection_of("nats://model"))
ROWS = 2_000
SPREAD = {"orders": "orders.{{random(4)}}"}
WEIGHTS = {
    "orders": [
        {"destination": "orders.main", "weight": "90%"},
        {"destination": "orders.canary", "weight": "8%"},
        {"destination": "orders.new.{{random(2)}}", "weight": "2%"},
    ]
}


def mapped(rules: dict[str, object], paused: str | None, **rest) -> list[str]:
    """Where each of the rows goes while these subjects are paused."""
    mapping = SubjectMapping.parse(json.dumps(rules))
    targets = rest.get("targets") or targets_of(lambda subject: STREAM)
    reroutes = Reroutes(mapping, rest.get("weights", False), WriteContext(OPTIONS, targets))
    throttle = Throttle()
    if paused is not None:
        throttle.table.command(
            ThrottleProducer(1, Reason.TopicProduceQuotaExceeded, 9.0, paused), 0.0
        )
    reroutes.context.is_paused = throttle.snapshot(1.0)
    made = builder(
        mapping=mapping,
        require_stream=False,
        id_prefix="t",
        targets=targets,
        reroutes=reroutes,
    )
    batch = pa.record_batch({"subject": pa.array(["orders"] * ROWS), "data": pa.array([""] * ROWS)})
    found = made.build(batch)
    subjects = [found.distinct[code] for code in found.codes]
    if paused is None:
        assert reroutes.rows == 0
    return subjects


def test_b17_random_skips_what_is_paused():
    """B17: rows of the paused subject are spread over the others; no other moves."""
    free, now = mapped(SPREAD, None), mapped(SPREAD, "orders.2")
    moved = [new for old, new in zip(free, now, strict=True) if old == "orders.2"]

    assert len(moved) > ROWS / 6
    assert min(Counter(moved).values()) > len(moved) / 5
    assert set(moved) == {"orders.0", "orders.1", "orders.3"}
    assert all(new == old for old, new in zip(free, now, strict=True) if old != "orders.2")
    assert now == mapped(SPREAD, "orders.2"), "another attempt draws the same"


@pytest.mark.parametrize(
    ("paused", "config"),
    [
        ("orders.*", {}),
        ("another", {}),
        ("orders.2", {"max_msgs_per_subject": 1}),
        ("orders.2", {"allow_rollup_hdrs": True}),
        ("orders.2", None),
    ],
    ids=["all is paused", "nothing is", "few are kept", "rolled up", "no stream"],
)
def test_b17_rows_wait(paused, config):
    """B17: where no other is free, a row may be replaced, or no stream is known."""
    target = config is not None and Target.parse({"name": "S", "subjects": ["orders.*"], **config})
    targets = targets_of(lambda subject: target or None)

    assert mapped(SPREAD, paused, targets=targets) == mapped(SPREAD, None)


def test_b17_weights_stay_unless_asked():
    """B17: weights are somebody's decision; with throttleReroute those that are left hold."""
    free = mapped(WEIGHTS, None)
    assert mapped(WEIGHTS, "orders.main") == free

    now = mapped(WEIGHTS, "orders.main", weights=True)
    counts = Counter(now)
    assert "orders.main" not in counts
    assert 0.7 < counts["orders.canary"] / ROWS < 0.9
    assert all(new == old for old, new in zip(free, now, strict=True) if old != "orders.main")


def test_b17_what_is_lost_stays_lost():
    """B17: nothing that weights lose comes back, and nothing else is lost."""
    rules = {"orders": [{"destination": "orders.a", "weight": "50%"},
                        {"destination": "orders.b", "weight": "20%"}], "orders.x": "y"}  # fmt: skip
    mapping = SubjectMapping.parse(json.dumps(rules))
    reroutes = Reroutes(mapping, True, WriteContext(OPTIONS, targets_of(lambda subject: STREAM)))
    subjects = pa.array(["orders"] * ROWS).dictionary_encode()
    ids = pa.array([b"%d" % row for row in range(ROWS)], pa.binary())
    drawn = mapping.map_rows(subjects, ids).subjects
    reroutes.context.is_paused = lambda subject: subject == "orders.a"
    found = reroutes.of(subjects, ids, drawn)

    assert found.null_count == drawn.null_count
    assert reroutes.rows == Counter(drawn.to_pylist())["orders.a"]
    assert "orders.a" not in found.to_pylist()


@pytest.mark.parametrize("rules", [{"orders": "orders.{{partition(4)}}"}, {"x": "y"}])
def test_b17_what_the_subject_decides_never_moves(rules):
    """B17: a deterministic partition would move its keys."""
    mapping = SubjectMapping.parse(json.dumps(rules | {"z": "z.{{random(2)}}"}))
    reroutes = Reroutes(mapping, True, WriteContext(OPTIONS, targets_of(lambda subject: STREAM)))
    subjects = pa.array(["orders"] * 3).dictionary_encode()
    ids = pa.array([b"a", b"b", b"c"], pa.binary())
    drawn = mapping.map_rows(subjects, ids).subjects
    reroutes.context.is_paused = lambda subject: subject == drawn[0].as_py()

    assert reroutes.of(subjects, ids, drawn) == drawn


def test_b17_rows_keep_their_stream():
    """B17: an id is looked for in the stream where an earlier attempt may have stored it."""
    low = Target.parse({"name": "LOW", "subjects": ["orders.0", "orders.1"]})
    high = Target.parse({"name": "HIGH", "subjects": ["orders.2", "orders.3"]})
    targets = targets_of(lambda subject: low if subject in low.subjects else high)
    free, now = mapped(SPREAD, None), mapped(SPREAD, "orders.2", targets=targets)

    assert {new for old, new in zip(free, now, strict=True) if old == "orders.2"} == {"orders.3"}


def test_a_snapshot_hears_nothing_new():
    """Rows are made on a thread of their own; what is paused meanwhile is for the next block."""
    throttle = Throttle()
    command = ThrottleProducer(1, Reason.TopicProduceQuotaExceeded, 9.0, "a")
    assert throttle.snapshot(0.0) is None
    throttle.table.command(command, 0.0)
    is_paused = throttle.snapshot(1.0)
    throttle.table.command(command._replace(pause_s=0.0), 2.0)
    throttle.table.command(command._replace(subject="b"), 2.0)

    assert (is_paused("a"), is_paused("b")) == (True, False)
    assert throttle.pause("a", 3.0) is None


def test_b17_where_all_is_paused_few_rows_are_drawn_again():
    """B17: rows of many subjects wait cheaply; those that have a way out find it."""
    mapping = SubjectMapping.parse(json.dumps({"o.*": "{{wildcard(1)}}.{{random(4)}}"}))
    asked = []
    reroutes = Reroutes(mapping, False, WriteContext(OPTIONS, targets_of(lambda subject: STREAM)))
    reroutes.context.is_paused = lambda subject: (
        asked.append(subject) or not subject.endswith("x.3")
    )
    names = [f"o.{row}" for row in range(ROWS)]
    for subjects in (["o.x"] * 100 + names, names + ["o.x"] * 100):
        each = pa.array(subjects).dictionary_encode()
        ids = pa.array([b"%d" % row for row in range(len(subjects))], pa.binary())
        reroutes.of(each, ids, mapping.map_rows(each, ids).subjects)
    free = ROWS * 2 * 4

    assert 50 < reroutes.rows < 100, "those ahead"
    assert len(asked) < free / 2


def test_b17_the_next_block_finds_what_is_free_again():
    """B17: what was paused when the last block was made is no matter."""
    mapping = SubjectMapping.parse(json.dumps(SPREAD))
    reroutes = Reroutes(mapping, False, WriteContext(OPTIONS, targets_of(lambda subject: STREAM)))
    subjects = pa.array(["orders"] * ROWS).dictionary_encode()
    ids = pa.array([b"%d" % row for row in range(ROWS)], pa.binary())
    drawn = mapping.map_rows(subjects, ids).subjects
    for paused in ("orders.2", "orders.3"):
        reroutes.context.is_paused = lambda subject, paused=paused: subject == paused
        found = set(reroutes.of(subjects, ids, drawn).to_pylist())
        assert found == {f"orders.{each}" for each in range(4)} - {paused}


@pytest.mark.parametrize("key, weights, known, moves", [
    (None, False, True, True),
    (None, True, False, False),
    (None, False, False, False),
    ("X-Key", True, True, False),
    ("subject", True, True, False),
])  # fmt: skip
def test_b17_rows_of_a_key_belong_together(key, weights, known, moves):
    """B17: which is drawn for all rows of a key alike."""
    options = replace(OPTIONS, rows=replace(OPTIONS.rows, reroutes_weights=weights))
    mapping = SubjectMapping.parse(json.dumps(SPREAD))
    rows = replace(options.rows, mapping=mapping, mapping_key=key)
    options = replace(options, rows=rows)
    targets = targets_of(lambda subject: None) if known else Targets()

    assert (_reroutes(WriteContext(options, targets)) is not None) == moves


@pytest.mark.parametrize("moves", [False, True])
def test_b17_a_row_is_found_on_another_subject(moves):
    """B17: an earlier attempt may have drawn another one; without a draw that is another input."""
    target = Target.parse({"name": "S", "subjects": ["orders.*"]})
    client = Client(connection_of("nats://model"))
    stored = pa.record_batch({
        "subject": pa.array([b"orders.1"]),
        "stored": pa.array([b"NATS/1.0\r\nNats-Msg-Id: t-0-0\r\n"]),
        "data": pa.array([b"x"]),
    })  # fmt: skip
    span, tail = Scanned("", 0, 0), Tail("t")
    tail.note(span, stored)
    recovery = Recovery(client, TaskName("w", 0, 0), [], "t", moves)
    recovery._found = {"S": StoredRows(span.rows, span)}
    row = replace(messages(["orders.2"]), ids=pa.array([b"t-0-0"], pa.binary()))

    if moves:
        assert recovery.missing(row, target).to_pylist() == [False]
    else:
        with pytest.raises(LedgerError, match="stored on 'orders.1'"):
            recovery.missing(row, target)

"""Rows as messages: subjects that are mapped, by weights, or lost."""

import json

import pyarrow as pa
import pytest

from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.outbox.messages import UnfitError

from ...kits.encoder import TEXTS, Encoder, batch, builder, frames, map_one


def test_subjects_are_mapped():
    """The mapping is applied to the column's and to the option's subject."""
    mapping = SubjectMapping.parse('{"flights.*.*": "flights.{{partition(4,1)}}.$1.$2"}')
    rows = batch(2, subject=pa.array(["flights.JFK.LAX", "other"]))
    expected = map_one(mapping, "flights.JFK.LAX").encode()
    of_column = frames(Encoder("IN", mapping=mapping), rows)
    of_option = frames(Encoder("IN", mapping=mapping, subject="flights.JFK.LAX"), batch(1))

    assert [f.split()[1] for f in of_column] == [expected, b"other"]
    assert of_option[0].split()[1] == expected


LOSSY = '{"foo": [{"destination": "foo", "weight": "30%"}, {"destination": "bar", "weight": 30}]}'


def test_rows_the_mapping_loses_are_counted_and_left_out():
    """Rows keep their numbers and ids, whichever of them are lost."""
    encoder = Encoder("IN", subject="foo", mapping=SubjectMapping.parse(LOSSY), id_prefix="P")
    first, second = (encoder.builder.build(batch(500)) for _ in range(2))
    kept = [*first.rows.to_pylist(), *second.rows.to_pylist()]

    assert len(kept) + encoder.builder.lost == encoder.rows == 1000
    assert 300 < encoder.builder.lost < 500
    assert kept == sorted(set(kept))
    assert [int(line.split(b"P-")[1]) for line in first.lines.to_pylist()] == first.rows.to_pylist()


def test_weights_choose_by_the_id_wherever_the_row_stands():
    """A row with an id goes the same way at every place of the input."""
    mapping = SubjectMapping.parse(LOSSY)
    ids = [f"order-{i}" for i in range(200)]

    def routes(ids):
        messages = builder(subject="foo", mapping=mapping).build(
            batch(len(ids), msg_id=pa.array(ids))
        )
        return dict(zip(messages.ids.to_pylist(), messages.subject.to_pylist(), strict=True))

    assert routes(ids) == routes(ids[::-1])
    assert set(routes(ids).values()) == {b"foo", b"bar"}


@pytest.mark.parametrize("key", ["subject", "customer"])
def test_a_key_chooses_instead_of_the_id(key):
    """Rows of one key go one way, whatever their ids."""
    rule = {"o.*": [{"destination": "a.$1", "weight": 50}, {"destination": "b.$1", "weight": 50}]}
    made = builder(mapping=SubjectMapping.parse(json.dumps(rule)), mapping_key=key)
    messages = made.build(
        batch(
            400,
            subject=pa.array([f"o.{i % 20}" for i in range(400)]),
            headers=pa.array([[("customer", str(i % 20))] for i in range(400)], TEXTS),
            msg_id=pa.array([f"m{i}" for i in range(400)]),
        )
    )
    of_key = {(row % 20, s.split(b".")[0]) for row, s in enumerate(messages.subject.to_pylist())}

    assert len(of_key) == 20
    assert {where for _, where in of_key} == {b"a", b"b"}


ALL_LOST = '{"foo.loss": [{"destination": "foo.loss", "weight": 0}]}'


@pytest.mark.parametrize("rejects", [False, True])
def test_a_mapping_that_loses_all_of_a_subject(rejects):
    """Rows of a source whose destination has the weight 0 are lost, and the others go on."""
    made = builder(mapping=SubjectMapping.parse(ALL_LOST), rejects=rejects)
    rows = batch(4, subject=pa.array(["foo.loss", "foo", "foo.loss", "foo"]))
    messages = made.build(rows)

    assert messages.subject.to_pylist() == [b"foo", b"foo"]
    assert messages.rows.to_pylist() == [1, 3]
    assert messages.subjects == ["foo"]
    assert made.lost == 2

    only = made.build(batch(2, subject=pa.array(["foo.loss"] * 2)))

    assert len(only) == 0 and made.lost == 4 and made.rows == 6


def test_a_check_that_finds_nothing_ends(monkeypatch):
    """Rows are looked at again only if a check has taken some away."""
    made = builder(rejects=True)

    def finds_nothing(*args):
        raise UnfitError(pa.nulls(2, pa.string()))

    monkeypatch.setattr(made, "_messages", finds_nothing)
    with pytest.raises(AssertionError, match="names no row"):
        made.build(batch(2, subject=pa.array(["a", "b"])))

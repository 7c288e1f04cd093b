"""Rows as messages: the priority of each, and what decides it."""

import pyarrow as pa
import pytest

from pyspark_jetstream.outbox.priority import Priority

from ...kits.encoder import plain_builder
from ...kits.options import priorities_of


def test_priorities_of_rows():
    """A3 to A7 over a batch: by subject, column, header, claim, the claim of a header, and none."""
    rules = priorities_of(
        subjects=(("vip.>", Priority.CRITICAL),),
        header="X-Priority",
        claim="tenant",
        claim_values=(("free", Priority.NON_CRITICAL),),
    )
    names = ["vip.a", "b", "b", "b", "b", "b"]
    headers = [None, None, [("X-Priority", "critical")], None, [("tenant", "free")], None]
    claims = [None, None, None, [("tenant", "free")], None, [("tenant", "other")]]
    batch = pa.record_batch(
        {
            "subject": pa.array(names),
            "data": pa.array(["x"] * 6),
            "priority": pa.array(["non-critical", "critical", None, None, None, "what?"]),
            "headers": pa.array(headers, pa.map_(pa.string(), pa.string())),
            "claims": pa.array(claims, pa.map_(pa.string(), pa.string())),
        }
    )
    builder = plain_builder(priorities=rules)
    found = builder.build(batch.slice(1)).priorities, builder.build(batch).priorities

    assert found[0].to_pylist() == [0, 0, 2, 2, 1]
    assert found[1].to_pylist() == [0, 0, 0, 2, 2, 1]
    assert builder.unrecognised == 2


def test_a4_the_header_is_forwarded():
    """A4: the header that decides stays a header of the message."""
    batch = pa.record_batch(
        {
            "subject": pa.array(["a"]),
            "data": pa.array(["x"]),
            "headers": pa.array([[("X-Priority", "critical")]], pa.map_(pa.string(), pa.string())),
        }
    )
    found = plain_builder(priorities=priorities_of(header="X-Priority")).build(batch)

    assert found.priorities.to_pylist() == [Priority.CRITICAL]
    assert found.lines.to_pylist() == [b"X-Priority: critical\r\n"]


def test_a_resolver_sees_the_row():
    """A6: a function of the user's gets subject, payload and headers of rows without a priority."""
    seen = []

    def resolve(publish):
        seen.append(publish)
        return "critical" if publish.data == b"urgent" else None

    batch = pa.record_batch(
        {
            "subject": pa.array(["a", "b"]),
            "data": pa.array(["urgent", "not"]),
            "headers": pa.array(
                [[("h", ["1", "2"])], None], pa.map_(pa.string(), pa.list_(pa.string()))
            ),
        }
    )
    found = plain_builder(priorities=priorities_of(resolver=resolve)).build(batch).priorities

    assert found.to_pylist() == [0, 1]
    assert [tuple(each) for each in seen] == [("a", b"urgent", {"h": "1"}), ("b", b"not", {})]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_a_claim_is_found_whatever_form_its_texts_have(text):
    """Spark may send LARGE_STRING; a slice of a batch keeps to its own rows."""
    rows = [[("t", "free")], None, [("x", "free"), ("t", "acme")], [], [("t", None)]]
    batch = pa.record_batch(
        {
            "data": pa.array([b""] * 5),
            "subject": pa.array(["a"] * 5),
            "claims": pa.array(rows, pa.map_(text, text)),
        }
    )
    values = (("acme", Priority.CRITICAL), ("free", Priority.NON_CRITICAL))
    priorities = priorities_of(claim="t", claim_values=values)
    found = [
        plain_builder(priorities=priorities).build(each).priorities
        for each in (batch, batch.slice(1, 3))
    ]

    assert [each.to_pylist() for each in found if each is not None] == [[2, 1, 0, 1, 1], [1, 0, 1]]


@pytest.mark.parametrize("values", [None, []])
def test_a_resolver_does_not_see_headers_without_a_value(values):
    """They go out as no header, too."""
    headers = pa.array([[("h", values)]], pa.map_(pa.string(), pa.list_(pa.string())))
    batch = pa.record_batch({"data": [b""], "subject": ["a"], "headers": headers})
    seen = []
    plain_builder(priorities=priorities_of(resolver=seen.append)).build(batch)

    assert [each.headers for each in seen] == [{}]

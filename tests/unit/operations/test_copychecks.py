"""What the header of a copied message says of where it came from."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pyspark_jetstream.operations.copychecks import _SOURCE


@pytest.mark.parametrize(
    ("words", "subject"),
    [("S 5", ""), ("S 5 > >", ""), ("S 5 > > a.b", "a.b"), ("S 5 > > a.b more", "a.b")],
)
def test_the_header_of_every_server(words, subject):
    """
    Servers before 2.12 do not name the subject; what they copied is a copy all the same.
    """
    block = f"NATS/1.0\r\nA: 1\r\nNats-Stream-Source: {words}\r\n".encode()
    (found,) = pc.extract_regex(pa.array([block], pa.binary()), _SOURCE).to_pylist()

    assert (found["stream"], found["sequence"]) == (b"S", b"5")
    assert (found["subject"] or b"").decode() == subject


def test_a_line_behind_it_is_no_copy():
    """
    The server's line is the last.
    """
    block = b"NATS/1.0\r\nNats-Stream-Source: S 5 > >\r\nA: 1\r\n"

    assert pc.extract_regex(pa.array([block], pa.binary()), _SOURCE).null_count == 1

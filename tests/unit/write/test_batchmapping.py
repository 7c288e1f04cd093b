"""The mapping of a batch as the ledger has it: read again it is the same, and nothing else is."""

from __future__ import annotations

import json
import zlib

import pytest

from pyspark_jetstream.mapping.subjectmapping import SubjectMapping
from pyspark_jetstream.write.batchmapping import BatchMapping, digest

BLOCK = """
mappings {
  "orders.*": [{destination: "v1.$1", weight: 98%}, {destination: "v2.$1", weight: 1%}]
  loss.>: [{destination: loss.>, weight: 50%}]  # hunter2-unmistakable
}
"""


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(BatchMapping(SubjectMapping.parse(BLOCK), "k"), id="all"),
        pytest.param(BatchMapping(SubjectMapping(())), id="no-rules"),
    ],
)
def test_a_note_is_read_again_as_it_was(way):
    """
    What is noted of a mapping makes an equal one, with the same digest.
    """
    found = BatchMapping.of(way.note())

    assert found == way
    assert digest(found.note()) == digest(way.note()) != ""


def test_a_note_holds_rules_alone():
    """
    What else stands in the text is not noted.
    """
    note = zlib.decompress(BatchMapping(SubjectMapping.parse(BLOCK)).note())

    assert b"v1.$1" in note
    assert b"hunter2" not in note


@pytest.mark.parametrize(
    "note",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="not-compressed"),
        pytest.param(zlib.compress(b" " * (17 << 20) + b"{}"), id="too-large"),
        pytest.param(zlib.compress(b"[" * 100_000), id="too-deep"),
        pytest.param(zlib.compress(b'{"mapping":"{}","key":5}'), id="key"),
        pytest.param(BatchMapping(SubjectMapping(())).note() + b"x", id="junk-behind"),
        pytest.param(zlib.compress(b"[]"), id="a-list"),
        pytest.param(zlib.compress(b"\xff"), id="no-text"),
        pytest.param(zlib.compress(b'{"mapping": "{}"}'), id="fields-missing"),
        pytest.param(
            zlib.compress(json.dumps({"mapping": '{"a.*": "{{new(1)}}"}', "key": None}).encode()),
            id="a-rule-of-another-version",
        ),
    ],
)
def test_what_is_no_note_is_refused(note):
    """
    A record that says nothing known is one kind of error.
    """
    with pytest.raises(ValueError, match=r"\w"):
        BatchMapping.of(note)

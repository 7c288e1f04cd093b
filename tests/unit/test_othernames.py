"""Names that are no options, and what is said of them."""

import re

import pytest

from pyspark_jetstream import othernames
from pyspark_jetstream.option import SPARKS_OWN
from pyspark_jetstream.options import all_options
from pyspark_jetstream.othernames import GONE, said_of

from ..kits.options import PARSERS, SECRET, refused

KINDS = list(PARSERS)
ROWS = [
    (kind, name, said)
    for kinds, names, said in othernames._BROUGHT
    for kind in kinds.split()
    for name in names.split()
]


def named(kind):
    """The options of this kind, in lower case."""
    return {option.name.lower() for option in all_options() if kind in option.kinds}


def test_what_is_said_names_options_that_are_there():
    """What an error says of another name exists, and no error has the value."""
    for kind, name, said in ROWS:
        error = refused(kind, {name: SECRET})

        assert name.lower() not in named(kind) | SPARKS_OWN
        assert {each.lower() for each in re.findall(r"'(\w+)'", said)} <= named(kind)
        assert str(error).endswith(f"; {said}")
        assert SECRET not in str(error)


@pytest.mark.parametrize(
    ("kind", "name", "here"),
    [
        ("stream", "kafka.bootstrap.servers", "'servers'"),
        ("stream", "subscribe", "'stream'"),
        ("range", "subscribePattern", "'streamPattern'"),
        ("sink", "topic", "'subject'"),
        ("stream", "kafka.group.id", "'consumer'"),
        ("stream", "maxOffsetsPerTrigger", "'maxRecordsPerTrigger'"),
        ("stream", "nats.url", "'servers'"),
        ("stream", "filter_subject", "'subject'"),
        ("range", "readFrom", "it went: name the mirror as the stream that is read: 'stream'"),
        ("stream", "headerFilter", "where(headers['name'][0] = 'value')"),
    ],
)
def test_what_people_write_first(kind, name, here):
    """Names of Kafka's source, of NATS clients, and of ours that went, with any spelling."""
    assert here in str(refused(kind, {name: "x"}))


def test_a_name_that_went_says_what_takes_its_place():
    """Each is known wherever it is given, unless it still is an option."""
    for name, said in GONE.items():
        assert all(said_of(name, kind) == f"it went: {said}" for kind in KINDS)


def test_a_name_from_nowhere():
    """What nobody knows has no answer."""
    assert [said_of("zzqqxx", kind) for kind in KINDS] == [None] * 3

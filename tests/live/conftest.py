"""Origins of partitions, and a server without what was made of them afterwards."""

from functools import partial

import pytest

from pyspark_jetstream.readstream.shared import claimpulls
from pyspark_jetstream.write.exactlyonce.ledger import Ledger

from ..kits.tls import make_certificates


@pytest.fixture(autouse=True)
def patient_claims(monkeypatch):
    """A server that stands still for a moment leaves no claim empty: tests count on what it has."""
    monkeypatch.setattr(claimpulls, "_QUIET_S", 10.0)


@pytest.fixture
def ledger(js):
    """The ledger of the shared server, made if missing."""
    found = Ledger(js)
    found.ensure()
    return found


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Where certificates are: of a CA, a server and a client of it, and of another CA."""
    home = tmp_path_factory.mktemp("certificates")
    make_certificates(home)
    return home


@pytest.fixture
def clean(js):
    """Removes every stream that the test has made."""
    before = set(js.stream_names())
    yield
    for name in set(js.stream_names()) - before:
        js.client.request(f"{js.prefix}.STREAM.DELETE.{name}")


N = 4
ORIGINS = [f"O{i}" for i in range(12)]


def raw_messages(name):
    """Ten messages on each `<name>.<origin>.<destination>`, interleaved."""
    return [
        (f"{name}.{o}.{d}", b"%d %s" % (i, o.encode()))
        for i in range(10)
        for o in ORIGINS
        for d in ("JFK", "LAX")
    ]


def numbered_messages(name):
    """Ten messages on each `<name>.<partition>.<origin>`, interleaved."""
    return [(f"{name}.{p}.{o}", b"%d" % i) for i in range(10) for o in ORIGINS for p in range(N)]


def _filled(new_stream, publish, messages, **config):
    name = new_stream(**config)
    publish(messages(name))
    return name


@pytest.fixture
def raw(new_stream, publish, clean):
    """A stream `<name>.<origin>.<destination>` with ten messages a subject, interleaved."""

    return partial(_filled, new_stream, publish, raw_messages)


@pytest.fixture
def numbered(new_stream, publish, clean):
    """A stream `<name>.<partition>.<origin>`, ten messages a subject, interleaved."""

    return partial(_filled, new_stream, publish, numbered_messages)

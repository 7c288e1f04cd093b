"""
Checkpoints that earlier versions wrote go on, on the very streams they were written of.

Each directory of `tests/checkpoints` is one that Spark wrote of a query, `store.tar.gz` there the
store of their server (2.15.1): two batches were committed, the third was planned, then the query
was ended. After that twelve more messages came into PARTS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pyspark_jetstream.operations.inspection.checkpoints import LocalDirectory, parse_offsets
from pyspark_jetstream.readstream.offsets import VERSION

from ..kits.checkpoints import OLD, old_store
from ..kits.reading import Query, query
from ..kits.servers import DevServer

__all__ = ["query"]

PARTS = {"stream": "PARTS", "maxRecordsPerTrigger": "12"}
BY_NUMBER = PARTS | {"partitions": "3", "partitionSubject": "parts.{partition}.>"}
SHARED = {"stream": "JOBS", "priorityPolicy": "overflow", "minPending": "1"}
EVERY = range(1, 73)

FORMS = {
    # by name, the keys that came with the form; the options, and what the third batch and the run
    # after it have to bring
    "first": ({"base", "sequences"}, BY_NUMBER, range(25, 37), EVERY[36:]),
    "idle": ({"idle"}, BY_NUMBER, range(25, 37), EVERY[36:]),
    "query": ({"query"}, BY_NUMBER, range(25, 37), EVERY[36:]),
    "filters": (
        {"filters"},
        PARTS | {"subject": "parts.0.>,parts.2.>"},
        [n for n in range(37, 55) if n % 3 != 2],
        [n for n in EVERY[54:] if n % 3 != 2],
    ),
    "split": (
        {"split"},
        BY_NUMBER | {"minPartitions": "5", "readMode": "direct"},
        range(25, 37),
        EVERY[36:],
    ),
    "marks": ({"marks"}, BY_NUMBER | {"minPartitions": "5"}, range(25, 37), EVERY[36:]),
    "consumers": ({"consumers"}, {"stream": "KEPT", "consumer": "kept"}, range(1, 21), []),
    "claims": (
        {"claims"},
        SHARED | {"consumer": "old", "maxRecordsPerTrigger": "10"},
        range(21, 31),
        range(31, 41),
    ),
    "claims-marks": (
        {"claims", "marks"},
        SHARED | {"consumer": "new", "maxRecordsPerTrigger": "10"},
        range(21, 31),
        range(31, 41),
    ),
    "claims-several": (
        {"claims", "several"},
        SHARED | {"stream": "SMALL,LARGE", "consumer": "sizes", "maxRecordsPerTrigger": "10"},
        range(11, 21),
        range(21, 31),
    ),
}


def offsets(form: str) -> list[dict]:
    """What the checkpoint's batches end with."""
    files = LocalDirectory(OLD / form)
    batches = sorted(map(int, files.names("offsets")))
    return [parse_offsets(files.read(f"offsets/{batch}").decode())["0"] for batch in batches]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A server on a copy of the store."""
    with DevServer("", store_dir=old_store(tmp_path_factory.mktemp("old"))) as server:
        yield server


@pytest.mark.parametrize("form", FORMS)
def test_an_old_checkpoint_goes_on(
    server: DevServer, query: Callable[..., Query], form: str
) -> None:
    """
    The batch that was planned is run with the rows it was planned with, and what comes after it is
    read once; what is written then is of the version of today.
    """
    keys, options, planned, later = FORMS[form]
    old = query(server, **options)
    old.planned = offsets(form)
    old.committed = len(old.planned) - 1
    assert keys <= old.planned[-1].keys()
    assert {each["version"] for each in old.planned} == {2 if "several" in keys else 1}

    old.commit()
    assert sorted(old.sequences) == list(planned)
    written = len(old.planned)
    old.drain()

    assert sorted(old.sequences[len(planned) :]) == list(later)
    assert {each["version"] for each in old.planned[written:]} <= {VERSION}


def test_every_form_has_a_fixture() -> None:
    """No directory lies there that is not run."""
    assert {path.name for path in OLD.iterdir() if path.is_dir()} == set(FORMS)

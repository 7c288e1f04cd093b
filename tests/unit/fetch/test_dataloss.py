"""The one gate of `failOnDataLoss`."""

import logging
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from pyspark_jetstream.client.info import StreamInfo
from pyspark_jetstream.errors import DataLossError, SnapshotLossError
from pyspark_jetstream.fetch.dataloss import Sign, check_loss, loss_of, report_loss
from pyspark_jetstream.fetch.layout import Slice

LOSSES = (
    DataLossError("S", 3, "messages 1 to 9 left the stream"),
    SnapshotLossError("S", 0, "2 of 5 messages left the stream", ("a.b", "a.c")),
)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_ends_the_query(loss):
    """With failOnDataLoss=true the error is raised as it is."""
    with pytest.raises(type(loss)) as caught:
        report_loss(loss, True)

    assert caught.value is loss


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_is_logged(loss, caplog):
    """With failOnDataLoss=false the log says what the error would have."""
    with caplog.at_level(logging.WARNING):
        report_loss(loss, False)

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert (
        record.getMessage()
        == f"the query goes on after a data loss, as failOnDataLoss=false says: {loss}"
    )


KEPT, UNKEPT = {"max_msgs": 9}, {"retention": "interest", "max_msgs": 9}


def known(created="t0", config=None):
    """A stream that holds 10 to 20."""
    now = datetime(2026, 11, 21, tzinfo=UTC)
    return StreamInfo("S", created, 10, 20, 11, 99, 7, 0, now, config or {})


@pytest.mark.parametrize(
    ("now", "position", "replaced", "sign"),
    [
        ({}, 20, False, None),
        ({}, 5, False, Sign.REMOVED),
        ({"config": {"max_msgs_per_subject": 1}}, 5, False, None),
        ({"created": "t1"}, 20, False, Sign.ANEW),
        ({"created": "t1"}, 21, True, Sign.ANEW),
        ({}, 21, False, Sign.SHORTER),
        ({}, 21, True, Sign.SHORTER),
        ({}, 20, True, Sign.REPLACED),
        ({"config": KEPT}, 9, False, None),
        ({"config": KEPT}, 8, False, Sign.REMOVED),
        ({"config": KEPT}, 8, True, Sign.REPLACED),
        ({"config": UNKEPT}, 8, False, None),
    ],
)
def test_the_four_signs(now, position, replaced, sign):
    """The worst of four signs is told; what leaves by acks or limits per subject is none."""
    info = known(**now)
    loss = loss_of(info, "t0", position, replaced)

    assert (loss.sign if loss else None) is sign


@pytest.mark.parametrize(
    ("config", "start", "end", "rows", "lost"),
    [
        (KEPT, 5, 20, 10, True),
        (KEPT, 5, 20, 15, False),
        (KEPT, 9, 20, 10, False),
        (KEPT, 9, 21, 10, True),
        (UNKEPT, 5, 20, 10, False),
    ],
)
def test_a_read_that_found_too_few(config, start, end, rows, lost):
    """It is a loss where the stream now begins behind the range's start, or ends before its end."""
    js = SimpleNamespace(stream_info=lambda name: known(config=config))
    read = Slice(0, "S", None, start, end, 15, False, True)
    with pytest.raises(DataLossError, match="5 of 15") if lost else nullcontext():
        check_loss(js, read, rows)

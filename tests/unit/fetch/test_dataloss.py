"""
The one gate of `failOnDataLoss`.
"""

from __future__ import annotations

import logging

import pytest

from pyspark_jetstream.errors import DataLossError, SnapshotLossError
from pyspark_jetstream.fetch.dataloss import report_loss

LOSSES = (
    DataLossError("S", 3, "messages 1 to 9 left the stream"),
    SnapshotLossError("S", 0, "2 of 5 messages left the stream", ("a.b", "a.c")),
)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_ends_the_query(loss):
    """
    With failOnDataLoss=true the error is raised as it is.
    """
    with pytest.raises(type(loss)) as caught:
        report_loss(loss, True)

    assert caught.value is loss


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_is_logged(loss, caplog):
    """
    With failOnDataLoss=false the log says what the error would have.
    """
    with caplog.at_level(logging.WARNING):
        report_loss(loss, False)

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert (
        record.getMessage()
        == f"the query goes on after a data loss, as failOnDataLoss=false says: {loss}"
    )

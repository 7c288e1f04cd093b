"""What an attempt asks over other connections than the one its rows go by."""

from __future__ import annotations

import pytest

from pyspark_jetstream.errors import LedgerError, NotConnectedError, PublishError
from pyspark_jetstream.write.attempt import asking


def test_rows_that_cannot_be_asked_for_fail_the_task():
    """
    They have left the queue; that the ledger's connection broke says nothing of the publishes'.
    """
    with pytest.raises(PublishError, match="whether 3 rows .* cannot be asked: .*other is cut"):
        with asking("whether 3 rows are stored already"):
            raise NotConnectedError("model", "the other is cut")


def test_other_faults_are_what_they_are():
    """
    Such as a record that is none.
    """
    with pytest.raises(LedgerError, match="no record"), asking("whether it is"):
        raise LedgerError("w.0.0", "this is no record")

"""Dead letters as rows again; what they become is in `tests/spark/test_restored.py`."""

from types import SimpleNamespace

import pytest

from pyspark_jetstream import restored
from pyspark_jetstream.errors import ColumnError


def test_a_read_without_headers_is_refused():
    """Where a letter should have gone stands in its headers."""
    with pytest.raises(ColumnError, match="column 'headers': required: .*includeHeaders=true"):
        restored(SimpleNamespace(columns=["subject", "data"]))

"""Versions of a server: what it says it is, and what is said where it is too old."""

import pytest

from pyspark_jetstream.client.peer import OLDEST, require, version_of
from pyspark_jetstream.errors import UnsupportedServerError


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.15.1", (2, 15, 1)),
        ("2.16.0-preview.1", (2, 16, 0)),
        ("v2.15.1+ours", (2, 15, 1)),
        ("2.15", (2, 15, 0)),
        ("", (0, 0, 0)),
        ("a build of ours", (0, 0, 0)),
        ("2.x.1", (0, 0, 0)),
        ("٢.15.1", (0, 0, 0)),
    ],
)
def test_what_a_server_says_it_is(text, version):
    """Suffixes are left out; what is no version is older than whatever needs one."""
    assert version_of(text) == version


def test_what_is_no_version_is_refused_by_what_needs_one():
    """The error names the capability and what is needed, not a number that could not be read."""
    with pytest.raises(UnsupportedServerError, match=r"batches needs nats-server 2\.12 or newer"):
        require(version_of("a build of ours"), OLDEST, "batches")

"""The command `nats` itself, beside which the package's programs, reads and writes are tested."""

from __future__ import annotations

import shutil
import subprocess

import pytest

NATS = shutil.which("nats")

# It is written in Go, and neither PyPI nor Debian has it, so a machine with nothing but what the
# tests install lacks it: there the same steps are tested by the API in the tests beside these.
needs_nats = pytest.mark.skipif(
    NATS is None,
    reason="no command nats on the PATH (go install github.com/nats-io/natscli/nats@v0.3.0)",
)


def nats(url: str, *words: str) -> str:
    """What the command prints, on the server at `url`."""
    assert NATS is not None
    call = [NATS, "--server", url, *words]
    return subprocess.run(call, check=True, timeout=60, capture_output=True, text=True).stdout

"""The processes of a Spark driver's session, by what they do."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def of_session(session: int) -> dict[int, str]:
    """Every process of the session, with its role."""
    pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    return {pid: role_of(pid, session) for pid in pids if _session(pid) == session}


def role_of(pid: int, session: int) -> str:
    """What a process of the session does."""
    command = _command(pid)
    if pid == session:
        return "driver"
    if b"org.apache.spark" in command and command.split(b"\0")[0].endswith(b"java"):
        return "executor" if b"CoarseGrainedExec" in command else "JVM"
    if b"pyspark.daemon" in command:
        return "worker" if b"pyspark.daemon" in _command(_parent(pid)) else "daemon"
    if b"python_streaming_source_runner" in command:
        return "source"
    if b"pyspark.sql.worker" in command or b"python_streaming_sink_runner" in command:
        return "sink"
    return "other"


def send(pid: int, number: signal.Signals) -> bool:
    """Sends a signal; whether somebody was there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _session(pid: int) -> int:
    with suppress(ProcessLookupError):
        if _stat(pid)[0] != "Z":
            return os.getsid(pid)
    return 0


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """State and parent, and what else stands behind the command."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ["Z", "0"]


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""

"""A server whose account loses its JetStream for a while, as an operator's reload does it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pyspark_jetstream.client.connection import Client
from pyspark_jetstream.devserver import DevServer

from .options import connection_of
from .shared import eventually

ACCOUNT = """
accounts {
  A { jetstream: enabled, users: [{user: a, password: a}] }
  SYS { users: [{user: s, password: s}] }
}
system_account: SYS
no_auth_user: a
"""
"""Configuration of a server on which `switch` works."""


def switch(server: DevServer, on: bool) -> None:
    """JetStream of the account on or off; returns once that is so."""
    (conf,) = {Path(each) for each in _arguments(server.pid) if each.endswith("server.conf")}
    was, wanted = ("disabled", "enabled") if on else ("enabled", "disabled")
    text = conf.read_text()
    assert f"A {{ jetstream: {was}" in text
    conf.write_text(text.replace(f"A {{ jetstream: {was}", f"A {{ jetstream: {wanted}"))
    os.kill(server.pid, signal.SIGHUP)
    client = Client(connection_of(server.url))
    try:
        eventually(lambda: (b'"error"' in client.request("$JS.API.INFO").data) != on)
    finally:
        client.close()


def _arguments(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")

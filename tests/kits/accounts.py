"""A server whose account loses its JetStream for a while, as an operator's reload does it."""

from __future__ import annotations

import os
import re
import signal
from contextlib import closing

from pyspark_jetstream.client.connection import Client

from .options import connection_of
from .servers import DevServer
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


_RELOADED = "Reloaded server configuration"
_SETTING = r"A \{ jetstream: .+, users"


def switch(server: DevServer, on: bool) -> None:
    """JetStream of the account on or off; returns once that is so."""
    reload(server, _SETTING, f"A {{ jetstream: {'enabled' if on else 'disabled'}, users")
    with closing(Client(connection_of(server.url))) as client:
        eventually(lambda: (b'"error"' in client.request("$JS.API.INFO").data) != on)


def reload(server: DevServer, pattern: str, text: str) -> None:
    """Has a server take its configuration anew, with this text in place of the pattern's match."""
    conf = server._home / "server.conf"
    conf.write_text(re.sub(pattern, lambda _: text, conf.read_text(), count=1))
    before = server.log.count(_RELOADED)
    os.kill(server.pid, signal.SIGHUP)
    eventually(lambda: server.log.count(_RELOADED) > before)

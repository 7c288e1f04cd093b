"""A server whose streams can be taken back to a copy, as after a restored backup."""

from __future__ import annotations

import shutil
from pathlib import Path

from .servers import DevServer


class Store:
    """A server that keeps its streams in a directory, and a copy of that directory."""

    def __init__(self, home: Path) -> None:
        self.home, self.older = home / "store", home / "older"
        self.server = DevServer(store_dir=self.home).start()

    def copy(self) -> None:
        """Keeps the store as it is now."""
        self.server.stop()
        shutil.rmtree(self.older, ignore_errors=True)
        shutil.copytree(self.home, self.older)
        self.server.restart()

    def take_back(self, *streams: str) -> None:
        """Puts the copies of these streams in place of what they hold."""
        self.server.stop()
        for name in streams:
            (there,) = self.home.glob(f"**/streams/{name}")
            (kept,) = self.older.glob(f"**/streams/{name}")
            shutil.rmtree(there)
            shutil.copytree(kept, there)
        self.server.restart()

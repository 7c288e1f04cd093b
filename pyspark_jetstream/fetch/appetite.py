"""
How much a read asks for at a time: less after it was cut off, more again with care.

The server sends what a request or a pull asks for without flow control, and cuts a connection off
that is more than `max_pending` bytes behind, or takes nothing for `write_deadline` (a slow
consumer). The client sees no more than a connection that broke: so any break in the middle of an
answer counts, and one that had another reason costs a few smaller requests.
"""

from __future__ import annotations

from typing import Final

from ..client.options import ConnectionOptions

__all__ = ["Appetite", "appetite_of"]

_LEAST: Final = 1 / 256
"""Of 2 MiB some 8 KiB; a message is sent whole in any case."""

_SOON: Final = 16
_LATE: Final = 4096
"""After how many whole answers it asks for more: at first, and when that was often too early."""


class Appetite:
    """What one process asks one connection's server for, as a share of the most."""

    def __init__(self) -> None:
        self.share = 1.0
        self._whole = 0
        self._patience = _SOON

    def __repr__(self) -> str:
        return f"<Appetite {self.share:.3f}, {self._whole} of {self._patience} whole answers>"

    def of(self, maximum: int) -> int:
        """How much to ask for where `maximum` is the most."""
        return max(1, int(maximum * self.share))

    def cut(self) -> None:
        """An answer broke off."""
        self.share = max(_LEAST, self.share / 2)
        self._whole = 0
        self._patience = min(2 * self._patience, _LATE)

    def fed(self) -> None:
        """An answer came whole."""
        self._whole += 1
        if self.share < 1 and self._whole >= self._patience:
            self.share = min(1.0, 2 * self.share)
            self._whole = 0
        if self.share == 1:
            self._patience = _SOON


_of_servers: dict[ConnectionOptions, Appetite] = {}


def appetite_of(options: ConnectionOptions) -> Appetite:
    """This process's: a task goes on from what the one before has learned."""
    return _of_servers.setdefault(options, Appetite())

"""How long to try again while nothing moves; what moved gives it all its time again."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["Patience"]

_PAUSE_S: Final = 0.05


class Patience:
    """
    Runs out once nothing was seen to move for `timeout_s`.

    Args:
        seen: how far it is at the beginning.
        pause_s: how long the first pause is; each is twice as long as the one before, up to
            `longest_s`, and all are the same without that.
    """

    def __init__(
        self,
        timeout_s: float,
        seen: object = None,
        pause_s: float = _PAUSE_S,
        longest_s: float | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        """When it runs out, by `time.monotonic`."""
        self._seen = seen
        self._pause_s = pause_s
        self._longest_s = longest_s or pause_s

    def __repr__(self) -> str:
        left_s = self.deadline - time.monotonic()
        return f"<Patience for {left_s:.1f} of {self.timeout_s:.1f}s more, at {self._seen!r}>"

    def progress(self, seen: object) -> bool:
        """Whether something has moved, as far as `seen` is not what was seen last."""
        if seen == self._seen:
            return False
        self._seen = seen
        self.renew()
        return True

    def renew(self) -> None:
        """Gives all its time again: what nothing moved for was meant to stand still."""
        self.deadline = time.monotonic() + self.timeout_s

    @property
    def over(self) -> bool:
        """Whether it has run out."""
        return time.monotonic() >= self.deadline

    def pause(self) -> None:
        """Waits before the next try."""
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._longest_s)

"""What a reader walks through the modules of the package who follows one row."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pyspark_jetstream

_HOUSE = str(Path(pyspark_jetstream.__file__).parent)


class Walk:
    """
    The rooms, which are modules, of the functions that get the row, and what stands on what.

    Args:
        wing: whose floors are counted.
        is_the_row: whether an argument is the row; None where only floors are counted.
    """

    def __init__(self, wing: str, is_the_row: Callable[[object], bool] | None = None) -> None:
        self.stays: list[str] = []
        """Each function counts once; one behind the other in the same room are one stay."""
        self.floors: set[str] = set()
        """The most rooms of the wing that are under way at one time."""
        self._wing = f"{wing}/"
        self._is_the_row = is_the_row
        self._stack: list[str] = []
        self._seen: set[object] = set()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(_HOUSE) or event not in ("call", "return"):
            return
        if event == "return":
            del self._stack[-1:]
            return
        room = code.co_filename[len(_HOUSE) + 1 : -len(".py")]
        self._stack.append(room)
        own = {each for each in self._stack if each.startswith(self._wing)}
        self.floors = max(self.floors, own, key=len)
        if self._is_the_row is None or self._seen & {code}:
            return
        given = [frame.f_locals[name] for name in code.co_varnames[: code.co_argcount]]
        if any(map(self._is_the_row, given)):
            self._seen.add(code)
            if self.stays[-1:] != [room]:
                self.stays.append(room)

    @property
    def returns(self) -> int:
        """Stays in rooms where one was before."""
        return len(self.stays) - len(set(self.stays))


@contextmanager
def followed(walk: Walk) -> Iterator[Walk]:
    """Follows what this thread calls."""
    sys.setprofile(walk)
    try:
        yield walk
    finally:
        sys.setprofile(None)

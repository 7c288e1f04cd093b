"""
A thread that makes the blocks of a task's rows while another serves the connection.

Spark's iterator blocks for as long as Spark computes. Read on a thread of its own, the task's own
thread answers PINGs and operators meanwhile. One block is made at a time, and only when it is asked
for: back-pressure is not to ask.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from typing import Final

from ..outbox.messages import Messages

_JOIN_S: Final = 1.0


class Supply:
    """Blocks, one at a time."""

    def __init__(self, blocks: Iterable[Messages]) -> None:
        self.asked = False
        """Whether a block is on its way."""
        self.ended = False
        """Whether there are no more."""
        self._blocks: Iterator[Messages] = iter(blocks)
        self._made: Messages | BaseException | None = None
        self._is_made = False
        self._wanted = threading.Semaphore(0)
        self._closed = False
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="rows", daemon=True)
        self._thread.start()

    def __enter__(self) -> Supply:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the thread, unless Spark holds it; then it ends with the worker process."""
        self._closed = True
        self._wanted.release()
        os.close(self._reader)
        if not self.asked or self._is_made:
            self._thread.join(_JOIN_S)

    def fileno(self) -> int:
        """Readable when what was asked for is there."""
        return self._reader

    def ask(self) -> None:
        """Has the next block made."""
        self.asked = True
        self._wanted.release()

    def get(self) -> Messages | None:
        """
        Block that was asked for; None if it is not there yet, or if there are no more blocks.

        Raises:
            BaseException: Whatever making the block raised.
        """
        if not self._is_made:
            return None
        os.read(self._reader, 1)
        made, self._made = self._made, None
        self.asked = self._is_made = False
        if isinstance(made, BaseException):
            raise made
        self.ended = made is None
        return made

    def _run(self) -> None:
        try:
            while self._wanted.acquire() and not self._closed:
                try:
                    self._made = next(self._blocks, None)
                except BaseException as error:
                    self._made = error
                self._is_made = True
                os.write(self._writer, b".")
        except BrokenPipeError:
            pass  # nobody waits for it any more
        finally:
            os.close(self._writer)

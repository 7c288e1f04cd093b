"""
Permissions that a server denies to a user, and those that a connection can do without.

The server says so some time after the publish or the subscription, in a line of its own, and names
the subject. Pure: no I/O, no waiting, no clock.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from ..sanitize import get_logger
from .wire import is_inbox

logger = get_logger(__name__)

_FORBIDDEN: Final = re.compile(r'(?i)permissions violation for (subscription|publish) to "([^"]*)')


class Permissions:
    """
    Refused subjects of one connection: those it can do without, and those that are errors.

    Args:
        inbox_prefix: under which inboxes are, beside `_INBOX`.
    """

    def __init__(self, inbox_prefix: str) -> None:
        self._inbox_prefix = inbox_prefix
        self._unneeded: dict[str, int] = {}
        """By subject, level at which the log says that it is forbidden; 0 where it has."""

    def may(self, subject: str, level: int = logging.INFO) -> bool:
        """Whether the server has not forbidden what nobody needs; `subject` is one of a few."""
        return self._unneeded.setdefault(subject, level) > 0

    def forgives(self, text: str) -> bool:
        """Whether the connection can do without what the server forbids by these words."""
        match = _FORBIDDEN.search(text)
        verb, subject = match.groups() if match is not None else ("", "")
        level = self._unneeded.get(subject)
        if level is not None:
            self._unneeded[subject] = 0
        elif verb.lower() == "publish" and is_inbox(subject, self._inbox_prefix):
            level = logging.INFO  # an answer: whatever a stranger has put into the subject
        else:
            return False
        logger.log(level, "forbidden, and left out from now on; the query goes on: %s", text)
        return True

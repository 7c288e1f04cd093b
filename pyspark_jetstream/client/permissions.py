"""
Permissions that a server denies to a user, and those that a connection can do without.

The server says so some time after the publish or the subscription, in a line of its own, and names
the subject. Pure: no I/O, no waiting, no clock.
"""

from __future__ import annotations

import re
from typing import Final

from ..sanitize import get_logger
from .wire import INBOX, is_inbox

logger = get_logger(__name__)

_FORBIDDEN: Final = re.compile(r'(?i)permissions violation for (subscription|publish) to "([^"]*)')


class Permissions:
    """Refused subjects of one connection: those it can do without, and those that are errors."""

    def __init__(self, inbox_prefix: str) -> None:
        """
        Args:
            inbox_prefix: under which inboxes are, beside `_INBOX`.
        """
        self._inbox_prefix = inbox_prefix
        self._answers_refused = False
        self._unneeded: set[str] = set()
        self._told: dict[str, bool] = {}  # and whether they are not forbidden
        self._asked: dict[str, bool] = {}  # likewise

    def unneeded(self, subject: str) -> None:
        """Somebody listens on it, if the user may."""
        self._unneeded.add(subject)

    def may_tell(self, subject: str) -> bool:
        """Whether the server has not forbidden publishing there; `subject` is one of a few."""
        return self._told.setdefault(subject, True)

    def may_ask(self, subject: str) -> bool:
        """Whether the server has not forbidden requests there; `subject` is one of a few."""
        return self._asked.setdefault(subject, True)

    def may_answer(self, subject: str) -> bool:
        """
        Whether whoever asked may be answered on this subject: on inboxes only. The first that is
        none is a warning.
        """
        if is_inbox(subject, self._inbox_prefix):
            return True
        if not self._answers_refused:
            logger.warning(
                "no answer is sent to %r, because it is no inbox. Later requests of this kind get"
                " no answer either, and no further warning",
                subject,
            )
        self._answers_refused = True
        return False

    def forgives(self, text: str) -> bool:
        """Whether the connection can do without what the server forbids by these words."""
        match = _FORBIDDEN.search(text)
        if match is None:
            return False
        verb, subject = match[1].lower(), match[2]
        if verb == "subscription":
            forgiven = subject in self._unneeded
        elif subject in self._told:
            if self._told[subject]:
                logger.warning(
                    "this user may not publish on a subject: %s. This process sends nothing there"
                    " any more; the query goes on",
                    text,
                )
            self._told[subject] = False
            return True
        elif subject in self._asked:
            self._asked[subject] = False
            logger.info("not asking: %s", text)
            return True
        else:  # whatever a stranger has put into the subject behind the prefix
            forgiven = subject.startswith((f"{INBOX}.", f"{self._inbox_prefix}."))
        if forgiven:
            logger.info("not listening, or not answering: %s", text)
        return forgiven

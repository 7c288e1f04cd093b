"""
What the server forbids a user, and which of it a connection can do without.

The server says so some time after the publish or the subscription, in a line of its own, and names
the subject. Pure: no I/O, no waiting, no clock.
"""

from __future__ import annotations

import re
from typing import Final

from ..sanitize import get_logger

__all__ = ["Permissions"]

logger = get_logger(__name__)

_FORBIDDEN: Final = re.compile(r'(?i)permissions violation for (subscription|publish) to "([^"]*)')


class Permissions:
    """Of one connection: subjects that it can do without, and those that are forbidden."""

    def __init__(self, inboxes: tuple[str, ...]) -> None:
        """
        Args:
            inboxes: how the subjects begin that others are answered on, and nothing else goes to.
        """
        self._inboxes = inboxes
        self._unneeded: set[str] = set()
        self._told: dict[str, bool] = {}  # and whether they are not forbidden
        self._asked: dict[str, bool] = {}  # likewise

    def __repr__(self) -> str:
        return f"<Permissions {len(self._told) + len(self._asked)} subjects>"

    def unneeded(self, subject: str) -> None:
        """Somebody listens on it, if the user may."""
        self._unneeded.add(subject)

    def may_tell(self, subject: str) -> bool:
        """
        Whether nothing is known against telling something there; `subject` is one of a few, and a
        last token `*` of it stands for any.
        """
        return self._told.setdefault(subject, True)

    def may_ask(self, subject: str) -> bool:
        """Likewise against asking there."""
        return self._asked.setdefault(subject, True)

    def forgives(self, text: str) -> bool:
        """Whether the connection can do without what the server forbids by these words."""
        match = _FORBIDDEN.search(text)
        if match is None:
            return False
        verb, subject = match[1].lower(), match[2]
        if verb == "subscription":
            forgiven = subject in self._unneeded
        elif (told := self._told_of(subject)) in self._told:
            if self._told[told]:
                logger.warning("nothing is published there any more: %s", text)
            self._told[told] = False
            return True
        elif subject in self._asked:
            self._asked[subject] = False
            logger.info("not asking: %s", text)
            return True
        else:  # whatever a stranger has put into the subject behind the prefix
            forgiven = subject.startswith(self._inboxes)
        if forgiven:
            logger.info("not listening, or not answering: %s", text)
        return forgiven

    def _told_of(self, subject: str) -> str:
        """What `may_tell` was asked of, if it was: the subject, or all that differ in the last."""
        return subject if subject in self._told else f"{subject.rpartition('.')[0]}.*"

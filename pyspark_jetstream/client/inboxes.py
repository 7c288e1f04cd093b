"""Inboxes: subjects on which replies are awaited, and how to tell them from others."""

from __future__ import annotations

import secrets
from typing import Final

from ..subjects import subject_fault

INBOX: Final = "_INBOX"
"""Under which clients make their inboxes unless told otherwise."""


def new_inbox(prefix: str) -> str:
    """A subject under this prefix that nobody else uses, nor can guess."""
    return f"{prefix}.{secrets.token_hex(11)}"


def is_inbox(subject: str, prefix: str) -> bool:
    """Whether replies are awaited on it, by us or another client, and nothing else is there."""
    return subject.startswith((f"{INBOX}.", f"{prefix}.")) and subject_fault(subject) is None

"""Subjects of dead letters: a template, and the subjects on which nothing may go."""

from __future__ import annotations

import re
from typing import Final

from .. import values as value_of
from ..subjects import MAX_SUBJECT_BYTES, reserved, subject_fault

SUBJECT: Final = "{subject}"
"""Placeholder of the row's own subject in the template, allowed once."""

RESERVED: Final = reserved()


def template_fault(template: str, subject: str | None = None) -> str | None:
    """
    Fault of this template for the subjects of dead letters, or None.

    Args:
        subject: of all rows, where it is known.
    """
    if template.count(SUBJECT) > 1:
        return f"{SUBJECT} stands in it more than once"
    if template == SUBJECT:
        return "dead letters would go where their rows should"
    problem = publish_fault(template.replace(SUBJECT, "x"))
    return problem if problem is not None or subject is None else loop_fault(template, subject)


def publish_fault(subject: str, reserved: str = RESERVED) -> str | None:
    """Fault of this subject for a row or a dead letter, or None."""
    problem = subject_fault(subject)
    if problem is not None:
        return f"on {subject!r} nothing can be published: {problem}"
    if re.match(reserved, subject):
        return f"a message on {subject} is a command, an answer, or a record of queries"
    if len(subject.encode()) > MAX_SUBJECT_BYTES:
        return f"the subject is longer than a protocol line: {subject[:40]}…"
    return None


def loop_fault(template: str, subject: str) -> str | None:
    """Fault of a subject for rows: dead letters go on it."""
    before, placeholder, after = template.partition(SUBJECT)
    room = len(subject) - len(before) - len(after)
    if room > 0 if placeholder else room == 0:
        if subject.startswith(before) and subject.endswith(after):
            return f"{subject!r} is a subject of dead letters ({template!r}) itself"
    return None


def dead_letter_subject(value: str) -> str:
    """The subject of dead letters; it may contain the message's own subject."""
    template = value_of.text(value)
    why = template_fault(template)
    if why is not None:
        raise ValueError(f"expected a subject, {SUBJECT} in it or not: {why}")
    return template

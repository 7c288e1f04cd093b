"""
Versions of nats-server, and the error if one is too old for a request.

A cluster may have servers of several versions: the one we are connected to says its own in INFO,
but a request may be answered by an older one, which shows in what its answer lacks.
"""

from __future__ import annotations

import re
from typing import Final

from ..errors import UnsupportedServerError

Version = tuple[int, ...]

OLDEST: Version = (2, 12)
"""
Version since which reads and writes work. Among what they need is how many messages follow the
first of several: 2.11 counts that one, too.
"""

RESETS: Final = (2, 14)
"""Version since which a consumer can be reset (CONSUMER.RESET)."""


_WORDS: Final = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)


def parse(text: str) -> Version:
    """
    Major, minor and patch of what a server says it is, without the suffix of a pre-release.

    Zeros where it says nothing that is a version, as one that somebody built may: it is then too
    old for whatever needs one.
    """
    found = _WORDS.match(text)
    return tuple(int(word or 0) for word in found.groups()) if found else (0, 0, 0)


def require(found: Version, needed: Version, capability: str) -> None:
    """
    Accepts the server of this version.

    Raises:
        UnsupportedServerError: It is older than the capability.
    """
    if found[: len(needed)] < needed:
        raise unsupported(found, needed, capability)


def unsupported(found: Version, needed: Version, capability: str) -> UnsupportedServerError:
    """
    The error for a missing capability. The server's version may be new enough, when another one
    answered for it.
    """
    words = _dotted(found)
    if found[: len(needed)] >= needed:
        words += ", but an older one has answered"
    return UnsupportedServerError(capability, _dotted(needed), words)


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))

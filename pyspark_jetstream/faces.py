"""
The public face of a wing: names that are imported from the modules of the wing when asked for.

Faces are for users, jobs, bench and tests. Importing one imports none of its modules: what does not
read loads no reader, and a slow import stays with who needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["face"]


def face(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562) whose public names are in these of its modules."""

    def attribute(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{places[name]}"), name)

    return attribute

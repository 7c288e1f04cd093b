"""JSON that programs print, held against the schemas of docs/reference/json."""

from __future__ import annotations

import json
from typing import Any

from .places import ROOT

FOLDER = ROOT / "docs" / "reference" / "json"

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}  # fmt: skip
_KNOWN = {
    "$schema", "$defs", "$ref", "title", "description", "type", "properties", "required",
    "additionalProperties", "items", "anyOf", "enum",
}  # fmt: skip


def schema(name: str) -> dict[str, Any]:
    """The schema of a program."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def mistakes(document: Any, name: str) -> list[str]:
    """Where a document is not what the schema of a program says; nothing where it is."""
    whole = schema(name)
    return _mistakes(document, whole, whole, "")


def _mistakes(value: Any, part: dict[str, Any], whole: dict[str, Any], where: str) -> list[str]:
    assert part.keys() <= _KNOWN, part.keys() - _KNOWN
    if "$ref" in part:
        part = whole["$defs"][part["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in part:
        found = [_mistakes(value, each, whole, where) for each in part["anyOf"]]
        return [] if [] in found else min(found, key=len)
    if "enum" in part and value not in part["enum"]:
        return [f"{where}: {value!r}"]
    kinds = part.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [f"{where}: {value!r} is no {' or '.join(kinds)}"]
    if isinstance(value, list):
        items = part.get("items", {})
        wrong = [_mistakes(each, items, whole, f"{where}[{at}]") for at, each in enumerate(value)]
        return [mistake for each in wrong for mistake in each]
    if not isinstance(value, dict):
        return []
    known, more = part.get("properties", {}), part.get("additionalProperties", True)
    wrong = [f"{where}.{name} is missing" for name in part.get("required", ()) if name not in value]
    for name, each in value.items():
        if name in known:
            wrong += _mistakes(each, known[name], whole, f"{where}.{name}")
        elif more is False:
            wrong.append(f"{where}.{name} is unknown")
        elif more is not True:
            wrong += _mistakes(each, more, whole, f"{where}.{name}")
    return wrong


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and not (isinstance(value, bool) and kind != "boolean")

"""
Grafana's published schema of a dashboard, as far as ours uses it: `types.gen.d.ts` of the npm
package `@grafana/schema` 13.2.3 (Apache-2.0), every field of these types with its type.

`!` is behind fields that must be there: those that have no default in the package's own objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TYPES = """
Dashboard: annotations object, description string, editable boolean, fiscalYearStartMonth number,
  gnetId number, graphTooltip 0|1|2, id number, links [Link], liveNow boolean, panels [Panel],
  preload boolean, refresh string, revision number, schemaVersion! number, tags [string],
  templating Templating, time Time, timepicker object, timezone string, title string, uid string,
  version number, weekStart string
Templating: list [Variable]
Time: from! string, to! string
Link: asDropdown boolean, icon string, includeVars boolean, keepTime boolean, placement string,
  tags [string], targetBlank boolean, title! string, tooltip string, type link|dashboards,
  url string
Variable: allValue string, allowCustomValue boolean, current Option, datasource Source,
  description string, hide 0|1|2|3, includeAll boolean, label string, multi boolean, name! string,
  options [Option], query string|object, refresh 0|1|2, regex string, skipUrlSync boolean,
  sort 0|1|2|3|4|5|6|7|8,
  type! query|adhoc|groupby|constant|datasource|interval|textbox|custom|system|snapshot|switch
Option: selected boolean, text! any, value! any
Source: type string, uid string
Panel: datasource Source, description string, fieldConfig Fields, gridPos! Place,
  hideTimeOverride boolean, id number, interval string, links [Link], maxDataPoints number,
  maxPerRow number, options object, pluginVersion string, repeat string, repeatDirection h|v,
  targets [object], timeFrom string, timeShift string, title string, transformations [object],
  transparent boolean, type! string, collapsed boolean, panels [Panel]
Place: h! number, static boolean, w! number, x! number, y! number
Fields: defaults! Field, overrides! [Override]
Override: matcher! Matcher, properties! [Property]
Matcher: id! string, options any, scope series|nested|annotation|exemplar
Property: id! string, value any
Field: actions [object], color Color, custom object, decimals number, description string,
  displayName string, displayNameFromDS string, filterable boolean, links [object],
  mappings [object], max number, min number, noValue string, path string, thresholds Thresholds,
  unit string, writeable boolean
Color: fixedColor string, seriesBy min|max|last,
  mode! fixed|shades|thresholds|palette-classic|palette-classic-by-name
Thresholds: mode! absolute|percentage, steps! [Threshold]
Threshold: color! string, value! number|null
"""
_FIELDS = {
    name: {
        field.rstrip("!"): (kind, field.endswith("!"))
        for field, kind in (part.split() for part in fields.split(","))
    }
    for name, fields in re.findall(r"^(\w+):((?:.*\n)(?:  .*\n)*)", _TYPES, re.MULTILINE)
}
_PLAIN = {"string": str, "number": int | float, "object": dict, "null": type(None)}


def faults(value: Any, kind: str = "Dashboard", at: str = "dashboard") -> Iterator[str]:
    """What of a document is not as the schema says, each with its place."""
    if kind.startswith("["):
        for number, each in enumerate(value if isinstance(value, list) else [None]):
            yield from faults(each, kind.strip("[]"), f"{at}[{number}]")
    elif kind in _FIELDS:
        fields = _FIELDS[kind]
        there = value if isinstance(value, dict) else {}
        yield from (f"{at}.{name}: unknown" for name in there.keys() - fields.keys())
        for name, (of, must) in fields.items():
            if name in there:
                yield from faults(there[name], of, f"{at}.{name}")
            elif must:
                yield f"{at}.{name}: missing"
    elif not any(_fits(value, word) for word in kind.split("|")):
        yield f"{at}: {value!r} is none of {kind}"


def _fits(value: Any, word: str) -> bool:
    if word == "any":
        return True
    if word == "boolean" or isinstance(value, bool):
        return word == "boolean" and isinstance(value, bool)
    return isinstance(value, _PLAIN[word]) if word in _PLAIN else str(value) == word

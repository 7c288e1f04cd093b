"""
Draws the pictures of these pages from their texts: `python docs/drawings/draw.py`.

A text has a line for each box, arrow and note; places are columns and rows of a grid:

    box NAME COLUMN,ROW first line | second line    a box; more columns: COLUMN-COLUMN,ROW
    store NAME COLUMN,ROW ...                       one with a double edge: what survives a crash
    arrow NAME NAME text on the arrow
    note COLUMN,ROW text

A picture follows the reader's light or dark scheme. A test compares pictures and texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
PICTURES = HERE.parent / "_static" / "drawings"

_WIDE, _HIGH, _GAP_X, _GAP_Y, _EDGE, _LINE = 216, 64, 108, 52, 12, 17
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328; text-anchor: middle; }
.small { font-size: 11px; fill: #57606a; }
.box { fill: #f6f8fa; stroke: #57606a; }
.store { fill: #ddf4ff; stroke: #0969da; }
.line { fill: none; stroke: #57606a; stroke-width: 1.4; marker-end: url(#tip); }
.tip { fill: #57606a; }
.under { stroke: #ffffff; stroke-width: 4px; paint-order: stroke; }
.typed { font: 12px ui-monospace, monospace; text-anchor: start; white-space: pre; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9198a1; }
  .box { fill: #212830; stroke: #9198a1; } .store { fill: #0c2d4d; stroke: #4493f8; }
  .line { stroke: #9198a1; } .tip { fill: #9198a1; } .under { stroke: #0d1117; }
}
"""
_TIP = (
    '<marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path class="tip" d="M0 0 8 4 0 8z"/></marker>'
)


@dataclass(frozen=True)
class Box:
    """A box and where it stands, in pixels."""

    kind: str
    x: int
    y: int
    wide: int
    lines: tuple[str, ...]

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.wide / 2, self.y + _HIGH / 2

    def border(self, towards: tuple[float, float]) -> tuple[float, float]:
        """Where a line from the middle to there leaves the box."""
        (x, y), (to_x, to_y) = self.middle, towards
        across, down = to_x - x, to_y - y
        reach = min(
            (self.wide / 2) / abs(across) if across else 1e9,
            (_HIGH / 2) / abs(down) if down else 1e9,
        )
        return x + across * reach, y + down * reach


def _place(text: str) -> tuple[int, int, int]:
    """Left, top and width of `COLUMN,ROW` or `COLUMN-COLUMN,ROW`."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?,(\d+)", text)
    if found is None:
        raise ValueError(f"expected COLUMN,ROW, got '{text}'")
    first, last, row = int(found[1]), int(found[2] or found[1]), int(found[3])
    wide = (last - first) * (_WIDE + _GAP_X) + _WIDE
    return _EDGE + first * (_WIDE + _GAP_X), _EDGE + row * (_HIGH + _GAP_Y), wide


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def _drawn(box: Box) -> list[str]:
    x, y = box.middle
    top = y - (len(box.lines) - 1) * _LINE / 2 + 4
    return [
        f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.wide}" height="{_HIGH}"'
        f' rx="8" stroke-width="{2.5 if box.kind == "store" else 1.2}"/>',
        *(
            _text(x, top + n * _LINE, line, "small" if n else "")
            for n, line in enumerate(box.lines)
        ),
    ]


def _arrow(start: Box, end: Box, words: str) -> list[str]:
    from_x, from_y = start.border(end.middle)
    to_x, to_y = end.border(start.middle)
    parts = [f'<path class="line" d="M{from_x:g} {from_y:g} L{to_x:g} {to_y:g}"/>']
    if words:
        x, y = (from_x + to_x) / 2, (from_y + to_y) / 2
        lift = -6 if from_y == to_y else 4
        parts.append(_text(x, y + lift, words, "small under"))
    return parts


def drawn(text: str, title: str) -> str:
    """The picture of a text, as SVG."""
    boxes: dict[str, Box] = {}
    parts: list[str] = []
    arrows: list[str] = []
    for line in text.splitlines():
        kind, _, rest = line.strip().partition(" ")
        if kind in ("box", "store"):
            name, place, *words = rest.split(" ", 2)
            x, y, wide = _place(place)
            shown = tuple(each.strip() for each in " ".join(words).split("|"))
            boxes[name] = Box(kind, x, y, wide, shown)
            parts += _drawn(boxes[name])
        elif kind == "arrow":
            start, end, *words = rest.split(" ", 2)
            arrows += _arrow(boxes[start], boxes[end], " ".join(words))
        elif kind == "note":
            place, words_ = rest.split(" ", 1)
            x, y, wide = _place(place)
            parts.append(_text(x + wide / 2, y + _HIGH / 2 + 4, words_, "small"))
        elif kind and not kind.startswith("#"):
            raise ValueError(f"expected box, store, arrow or note, got '{line}'")
    wide = max(box.x + box.wide for box in boxes.values()) + _EDGE
    high = max(box.y for box in boxes.values()) + _HIGH + _EDGE
    return _svg(wide, high, title, [f"<defs>{_TIP}</defs>", *arrows, *parts])


def _svg(wide: int, high: int, title: str, parts: list[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}"'
            f' width="{wide}" height="{high}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_STYLE}</style>",
            *parts,
            "</svg>\n",
        ]
    )


def pictures() -> dict[Path, str]:
    """Every picture by its file."""
    return {
        PICTURES / f"{text.stem}.svg": drawn(text.read_text(), text.stem.replace("-", " "))
        for text in sorted(HERE.glob("*.txt"))
    }


if __name__ == "__main__":
    for file, picture in pictures().items():
        file.write_text(picture)

"""Series as a drawing: small panels with lines, SVG as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Final

_COLORS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#555555")
_WIDTH, _HEIGHT = 420, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 40, 22
_POINTS: Final = 80
"""Of a line; each is the median of what lies there."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Some series on one scale, which begins at 0."""

    title: str
    lines: Mapping[str, str]
    """Name of a series → what it is called in the drawing."""


def drawn(panels: Sequence[Panel], samples: Sequence[Mapping[str, float]]) -> str:
    """The panels, two a row, over minutes; a series that no sample has is left out."""
    rows = -(-len(panels) // 2)
    end = max((sample["seconds"] for sample in samples), default=0.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH} {rows * _HEIGHT}"'
        ' font-family="sans-serif" font-size="10">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, panel in enumerate(panels):
        x, y = index % 2 * _WIDTH, index // 2 * _HEIGHT
        parts += [f'<g transform="translate({x},{y})">', *_panel(panel, samples, end), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, samples: Sequence[Mapping[str, float]], end: float) -> list[str]:
    series = {
        called: thinned([(s["seconds"], s[name]) for s in samples if name in s], end)
        for name, called in panel.lines.items()
    }
    series = {called: points for called, points in series.items() if points}
    top = _round(max((value for points in series.values() for _, value in points), default=0.0))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(at: float, value: float) -> str:
        return f"{_LEFT + wide * at / end:.1f},{_TOP + high * (1 - value / top):.1f}"

    parts = [f'<text x="{_LEFT}" y="13" font-weight="bold">{escape(panel.title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = _TOP + high * (1 - share)
        parts.append(
            f'<path d="M{_LEFT},{y:.1f}h{wide}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 4}" y="{y + 3:.1f}" text-anchor="end">{top * share:,g}</text>'
        )
    parts += (
        f'<text x="{_LEFT + wide * share:.1f}" y="{_HEIGHT - 8}"'
        f' text-anchor="{"end" if share == 1.0 else "middle"}">'
        f"{end * share / 60:.3g}{' min' if share == 1.0 else ''}</text>"
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    x = float(_LEFT)
    for (called, points), color in zip(series.items(), _COLORS, strict=False):
        line = " ".join(place(at, value) for at, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.3"/>')
        parts.append(f'<text x="{x:.0f}" y="28" fill="{color}">{escape(called)}</text>')
        x += 5.6 * len(called) + 12
    return parts


def thinned(points: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """So few points that a drawing stays small."""
    if len(points) <= _POINTS:
        return list(points)
    slots: dict[int, list[tuple[float, float]]] = {}
    for at, value in points:
        slots.setdefault(int(at / end * _POINTS), []).append((at, value))
    return [
        (median(at for at, _ in slot), median(value for _, value in slot))
        for slot in slots.values()
    ]


def _round(top: float) -> float:
    """The next number that reads well."""
    if top <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= top:
        power *= 10
    while power > top:
        power /= 10
    return next(power * step for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if power * step >= top)

"""Series as a drawing: small panels with lines, SVG as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Final, NamedTuple

_POINTS: Final = 80
"""Of a line, about."""


class Panel(NamedTuple):
    """Some series on one scale, which begins at 0."""

    title: str
    lines: Mapping[str, str]
    """Name of a series → what it is called in the drawing."""


def drawn(panels: Sequence[Panel], samples: Sequence[Mapping[str, float]]) -> str:
    """The panels, two a row, over minutes; a series that no sample has is left out."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.size": 8}):
        rows = -(-len(panels) // 2)
        figure = Figure(figsize=(8.4, 1.9 * rows), layout="constrained")
        for panel, axes in zip(panels, figure.subplots(rows, 2, squeeze=False).flat, strict=False):
            for name, called in panel.lines.items():
                points = [(s["seconds"] / 60, s[name]) for s in samples if name in s]
                if points:
                    some = points[:: len(points) // _POINTS + 1]
                    axes.plot(*zip(*some, strict=True), label=called, linewidth=1)
            axes.set_title(panel.title, loc="left", fontweight="bold")
            axes.set_ylim(bottom=0)
            if axes.has_data():
                axes.legend(ncols=3, frameon=False)
        figure.supxlabel("minutes")
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()

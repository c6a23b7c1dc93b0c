"""A break-even curve as SVG: ratios over shares, both logarithmic; readable in light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 180, 50, 60
STYLE = """
  .back { fill: #ffffff } text { fill: #24292f; stroke: none !important; font: 13px sans-serif }
  .grid { stroke: #d0d7de } .even { stroke: #24292f; stroke-dasharray: 6 4 }
  .line0 { stroke: #0969da; fill: #0969da } .line1 { stroke: #bc4c00; fill: #bc4c00 }
  .line2 { stroke: #1a7f37; fill: #1a7f37 } .line3 { stroke: #8250df; fill: #8250df }
  polyline { fill: none !important; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117 } text { fill: #e6edf3 }
    .grid { stroke: #30363d } .even { stroke: #e6edf3 }
    .line0 { stroke: #58a6ff; fill: #58a6ff } .line1 { stroke: #f0883e; fill: #f0883e }
    .line2 { stroke: #3fb950; fill: #3fb950 } .line3 { stroke: #bc8cff; fill: #bc8cff }
  }
"""


def break_even(title: str, across: str, up: str, lines: Mapping[str, Sequence[Point]]) -> str:
    """One line for each name. Above 1, which is dashed, the rival takes longer."""
    points = [point for line in lines.values() for point in line]
    x_axis = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([1.0, *(y for _, y in points)], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text x="{LEFT}" y="26" font-weight="bold">{escape(title)}</text>',
    ]
    for value in x_axis.decades():
        x = x_axis.at(value)
        parts += [
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>',
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{_percent(value)}</text>",
        ]
    for value in y_axis.decades():
        y = y_axis.at(value)
        parts += [
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>',
        ]
    even = y_axis.at(1.0)
    parts.append(
        f'<line class="even" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{even:.1f}" y2="{even:.1f}"/>'
    )
    # Names stand at the ends of their lines, and apart from each other.
    free = 0.0
    for number, (name, line) in sorted(
        enumerate(lines.items()), key=lambda item: -item[1][1][-1][1]
    ):
        places = [(x_axis.at(x), y_axis.at(y)) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="line{number % 4}" points="{path}"/>')
        parts += [
            f'<circle class="line{number % 4}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places
        ]
        x, y = places[-1]
        free = max(free + 16, y + 4)
        parts.append(
            f'<text class="line{number % 4}" x="{x + 10:.1f}" y="{free:.1f}">{escape(name)}</text>'
        )
    parts += [
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 16}" text-anchor="middle">'
        f"{escape(across)}</text>",
        f'<text transform="rotate(-90)" x="{-(TOP + HEIGHT - BOTTOM) / 2}" y="18" '
        f'text-anchor="middle">{escape(up)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Axis:
    """Whole decades around the values, from one pixel to another."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self._low = math.floor(math.log10(min(values)) + 1e-9)
        self._high = max(self._low + 1, math.ceil(math.log10(max(values)) - 1e-9))
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._first + share * (self._last - self._first)

    def decades(self) -> list[float]:
        return [10.0**power for power in range(self._low, self._high + 1)]


def _percent(share: float) -> str:
    return f"{100 * share:.10f}".rstrip("0").rstrip(".") + " %"

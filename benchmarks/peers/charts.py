"""Pictures of what was found, as SVG that a page can show: bars for one workload, and one overview.

It knows names, figures and colours, and nothing of where they come from. The background is white,
so that the words can be read on dark pages as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from xml.sax.saxutils import escape

from benchmarks.measure import Spread

WIDTH, BAR, TOP, BOTTOM = 760, 22, 44, 12
LABELS, FIGURES = 210, 100
# Of the overview: as much room for being ahead as for being behind.
HALF = 140
GREY = "#8a949b"


class Kind(Enum):
    """Whose bar it is; the value is its colour."""

    OURS = "#0b6e99"
    PEER = "#b8c4cc"
    LIMIT = "#e6e2d3"
    BEHIND = "#c8643c"


@dataclass(frozen=True)
class Bar:
    """A name, a figure with its quartiles, and what is written behind it."""

    name: str
    value: Spread
    told: str
    kind: Kind


def bars(title: str, shown: Sequence[Bar]) -> str:
    """One bar below the other, in the order given; a thin line goes from quartile to quartile."""
    most = max((bar.value.high for bar in shown), default=1.0)
    scale = (WIDTH - LABELS - FIGURES) / most
    lines = []
    for number, bar in enumerate(shown):
        top = TOP + BAR * number
        end = LABELS + max(2.0, bar.value.median * scale)
        low, high = LABELS + bar.value.low * scale, LABELS + bar.value.high * scale
        lines += [
            _label(bar, top),
            _box(LABELS, top, end - LABELS, bar.kind),
            _line(low, top + 8, high, top + 8),
            _words(max(end, high) + 6, top + 13, bar.told, bar.kind is Kind.OURS),
        ]
    return _picture(title, lines, TOP + BAR * len(shown) + BOTTOM)


def overview(title: str, shown: Sequence[Bar]) -> str:
    """Ratios to the left and to the right of 1, so that twice and half are equally long."""
    # Never less than twice, so that small differences look small.
    reach = max([1.0, *(abs(math.log2(bar.value.median)) for bar in shown)])
    middle = LABELS + HALF
    lines = []
    for number, bar in enumerate(shown):
        top = TOP + BAR * number
        length = math.log2(bar.value.median) / reach * HALF
        begin = min(middle, middle + length)
        lines += [
            _label(bar, top),
            _box(begin, top, max(2.0, abs(length)), bar.kind),
            _words(middle + HALF + 12, top + 13, bar.told, bar.kind is Kind.OURS),
        ]
    bottom = TOP + BAR * len(shown)
    lines.append(_line(middle, TOP - 6, middle, bottom))
    return _picture(title, lines, bottom + BOTTOM)


def _picture(title: str, lines: Sequence[str], height: int) -> str:
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="26" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    return "\n".join([*head, *lines, "</svg>", ""])


def _label(bar: Bar, top: int) -> str:
    return _words(LABELS - 8, top + 13, bar.name, bar.kind is Kind.OURS, "end")


def _box(left: float, top: float, length: float, kind: Kind) -> str:
    size = f'width="{length:.0f}" height="{BAR - 6}"'
    return f'<rect x="{left:.0f}" y="{top}" {size} fill="{kind.value}"/>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}"'
    return f'<line {ends} stroke="{GREY}" stroke-width="1.5"/>'


def _words(x: float, y: float, text: str, is_bold: bool, anchor: str = "start") -> str:
    weight = ' font-weight="bold"' if is_bold else ""
    return f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'

"""A histogram as an SVG within a page, which takes its colours from the page's style."""

from __future__ import annotations

import html
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BINS = 36
_WIDTH, _HEIGHT, _AXIS = 400, 120, 20
# what lies above is in the last bar: a few giants would flatten all others
_TOP = 0.99


def histogram(values: NDArray[Any], title: str, mark: float | None = None) -> str:
    """A figure with a bar a bin, or a bar a number where whole numbers are few; `mark` is a line at a value.

    The last bar also holds what is larger than 99 % of all values, and says so.
    """
    edges = _edges(values, mark)
    last = edges[-1]
    counts = np.histogram(np.minimum(values, last), edges)[0]
    whole = np.issubdtype(values.dtype, np.integer)
    wide = _WIDTH / len(counts)
    bars = "".join(
        f'<rect x="{place * wide:.1f}" y="{_HEIGHT - high:.1f}" width="{wide * 0.86:.1f}" height="{high:.1f}">'
        f"<title>{_span(edges[place], edges[place + 1], whole)}: {count:,}</title></rect>"
        for place, count in enumerate(counts.tolist())
        if (high := _HEIGHT * count / counts.max())
    )
    line = ""
    if mark is not None and edges[0] < mark < last:
        x = _WIDTH * (mark - edges[0]) / (last - edges[0])
        line = f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{_HEIGHT}"/>'
    first, _, end = _span(edges[0], last, whole).partition(" to ")
    beyond = "" if values.max() <= last else " and more"
    ends = f'<text x="0" y="{_HEIGHT + 16}">{first}</text>'
    if end:
        ends += f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" text-anchor="end">{end}{beyond}</text>'
    label = html.escape(title)
    return (
        f'<figure><figcaption class="title">{label}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT + _AXIS}" '
        f'role="img" aria-label="{label}">{bars}{line}{ends}</svg></figure>'
    )


def _edges(values: NDArray[Any], mark: float | None) -> NDArray[Any]:
    low, high = float(values.min()), float(np.quantile(values, _TOP, method="higher"))
    if mark is not None and mark < values.max():
        high = max(high, 1.1 * mark)
    if np.issubdtype(values.dtype, np.integer):
        step = max(1, -(-int(high - low + 1) // _BINS))
        count = max(1, -(-int(high - low + 1) // step))
        return low - 0.5 + step * np.arange(count + 1)
    if high <= low:
        return np.array([low * 0.9, max(low * 1.1, low + 1e-6)])
    return np.linspace(low, high, _BINS + 1)


def _span(low: float, high: float, whole: bool) -> str:
    """A bin as "3 to 5", the bins of whole numbers reaching half a number beyond them."""
    if whole:
        low, high = low + 0.5, high - 0.5
    form = ",.0f" if whole or low >= 100 else ",.2f"
    return f"{low:{form}} to {high:{form}}" if high > low else f"{low:{form}}"

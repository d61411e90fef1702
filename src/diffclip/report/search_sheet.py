"""A contact sheet of what a search found: the query above, then pictures with their rank, name and cosine."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from PIL import Image

from diffclip.data.images import read_image
from diffclip.errors import InputError
from diffclip.report.layout import Block, Pictures
from diffclip.report.style import GRID, MUTED, new_figure, style

MOST = 96
"""Pictures on a sheet."""
_WIDTH = 8.0  # inches
_EDGE, _GAP = 0.2, 0.12
_PIXELS = 480  # of a thumbnail's longer edge
_MOST_AN_INCH = 40  # letters, in any font of a size that can be read


@dataclass(frozen=True)
class Found:
    """A picture that was found, None if it can no longer be read, its name, and its cosine with the query."""

    picture: Pictures | None
    name: str
    score: float


def search_sheet(query: str | Pictures, found: Sequence[Found], searched: str) -> Figure:
    """The sheet for a text, or for a picture [H, W, 3].

    Args:
        query: what was searched for.
        found: the answers, best first; the first `MOST` are shown.
        searched: what was searched, for people: "1,000 pictures in photos, by DiffCLIP".

    Raises:
        InputError: nothing was found.
    """
    if not found:
        raise InputError("nothing was found, so there is nothing to show")
    shown = found[:MOST]
    columns = 4 if len(shown) <= 12 else 6
    cell = (_WIDTH - 2 * _EDGE - (columns - 1) * _GAP) / columns
    row = cell + 0.48
    lines = textwrap.wrap(f"“{query}”", 66, max_lines=4, placeholder=" …”") if isinstance(query, str) else []
    head = 0.5 + 0.24 * len(lines) if lines else 1.35
    height = head + row * math.ceil(len(shown) / columns) + 0.1
    more = f"; the first {MOST} of {len(found)}" if len(found) > MOST else ""
    below = shortened(searched, _WIDTH - 2 * _EDGE - 2.8, 9) + more
    with style():
        figure = new_figure(_WIDTH, height)
        figure.set_layout_engine("none")
        block = Block(figure, 1.0)
        if isinstance(query, str):
            _text(block, _EDGE, 0.15, "\n".join(lines), fontsize=13, va="top", linespacing=1.25)
            _text(block, _EDGE, head - 0.17, below, color=MUTED)
        else:
            block.picture(_EDGE, 0.15, 1.05, query)
            _text(block, _EDGE + 1.2, 0.55, "pictures like this one", fontsize=13)
            _text(block, _EDGE + 1.2, 0.8, below, color=MUTED)
        for rank, one in enumerate(shown):
            x = _EDGE + (rank % columns) * (cell + _GAP)
            _draw(block, x, head + rank // columns * row, cell, rank + 1, one)
        return figure


def thumbnail(file: Path) -> Pictures | None:
    """The picture in `file`, scaled down for a sheet; None if it cannot be read."""
    try:
        return reduced(read_image(file))
    except InputError:
        return None


def reduced(picture: Image.Image) -> Pictures:
    """An RGB picture, scaled down for a sheet."""
    small = picture.copy()
    small.thumbnail((_PIXELS, _PIXELS))
    return np.asarray(small)


def shortened(name: str, inches: float, size: float) -> str:
    """A name no wider than `inches` in letters of `size` points: what is too much goes from its middle."""
    letters, short = len(name), name
    while letters and _inches(short, size) > inches:
        letters = min(letters - 1, int(inches * _MOST_AN_INCH))
        head, tail = (letters + 1) // 2, letters // 2
        short = f"{name[:head]}…{name[len(name) - tail :]}"
    return short


def _inches(text: str, size: float) -> float:
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
    return float(width) / 72


def _draw(block: Block, x: float, y: float, cell: float, rank: int, one: Found) -> None:
    if one.picture is None:
        axes = block.axes(x, y, cell)
        axes.add_patch(Rectangle((0, 0), 1, 1, facecolor=GRID))
        axes.text(0.5, 0.5, "cannot be read", ha="center", va="center", color=MUTED, fontsize=9)
    else:
        # against the lower edge, where the words are
        block.picture(x, y, cell, one.picture).set_anchor("S")
    _text(block, x, y + cell + 0.15, str(rank), weight="bold")
    _text(block, x + cell, y + cell + 0.15, f"{one.score:.3f}", ha="right", color=MUTED)
    _text(block, x, y + cell + 0.3, shortened(one.name, cell, 8), fontsize=8)


def _text(block: Block, x: float, y: float, text: str, **kwargs: Any) -> None:
    # a name or a query may hold dollar signs, which are no formulas here
    block.text(x, y, text, **{"parse_math": False, **kwargs})

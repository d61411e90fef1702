"""A contact sheet of what a search found: the query, then images with rank, cosine and name."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from diffclip.data.images import read_image
from diffclip.errors import InputError
from diffclip.files import printable
from diffclip.report.attention import Cell, grid_figure

if TYPE_CHECKING:
    from diffclip.search import Hit

MOST = 96
"""Images on a sheet."""
_PIXELS = 480  # of a thumbnail's longer edge


def search_sheet(query: str | Image.Image, hits: Sequence[Hit], searched: str) -> Figure:
    """Draw the sheet for a query: an image before all, then the first `MOST` hits.

    `searched` is what was searched: "1,000 images in photos, by DiffCLIP".
    """
    cells = []
    if isinstance(query, Image.Image):
        small = query.convert("RGB")
        small.thumbnail((_PIXELS, _PIXELS))
        cells.append(Cell(np.asarray(small), title="query"))
    cells += [_cell(rank, hit) for rank, hit in enumerate(hits[:MOST], 1)]
    columns = 4 if len(cells) <= 12 else 6
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    more = f"; the first {MOST} of {len(hits)}" if len(hits) > MOST else ""
    figure = grid_figure(rows, _shortened(searched, 70) + more)
    asked = f"“{query}”" if isinstance(query, str) else "images like the first"
    title = textwrap.fill(asked, 66, max_lines=4, placeholder=" …")
    # names and queries may hold dollar signs, which are not formulas here
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, parse_math=False)
    figure.set_figheight(figure.get_figheight() + 0.25 * (title.count("\n") + 1))
    return figure


def _cell(rank: int, hit: Hit) -> Cell:
    name = _shortened(printable(hit.path.name))
    try:
        image = read_image(hit.path)
    except InputError:
        image, name = Image.new("RGB", (8, 8), "white"), f"{name} cannot be read"
    image.thumbnail((_PIXELS, _PIXELS))
    return Cell(np.asarray(image), title=f"{rank}: {hit.score:.3f}", caption=name)


def _shortened(name: str, most: int = 22) -> str:
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most // 2) + 1 :]}"

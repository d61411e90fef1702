"""A contact sheet of what a search found: the query, then images with rank, cosine and name."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from diffclip.data.images import read_image
from diffclip.errors import InputError
from diffclip.files import printable

if TYPE_CHECKING:
    from diffclip.search import Hit

MOST = 96
"""Images on a sheet."""
_WIDTH = 8.0  # inches
_PIXELS = 480  # of a thumbnail's longer edge


def search_sheet(query: str | Image.Image, hits: Sequence[Hit], searched: str) -> Figure:
    """Draw the sheet for a query; the first `MOST` hits are shown.

    Args:
        query: a text or an image. An image is shown first.
        hits: at least one, best first.
        searched: what was searched: "1,000 images in photos, by DiffCLIP".
    """
    more = f"; the first {MOST} of {len(hits)}" if len(hits) > MOST else ""
    asked = f"“{query}”" if isinstance(query, str) else "images like the first"
    title = textwrap.fill(asked, 66, max_lines=4, placeholder=" …")
    below = _shortened(searched, 70) + more
    cells: list[tuple[Image.Image | None, str, str, str]] = []
    if isinstance(query, Image.Image):
        cells.append((query, "query", "", ""))
    for rank, hit in enumerate(hits[:MOST], 1):
        cells.append((_read(hit), f"{rank}", f"{hit.score:.3f}", _shortened(printable(hit.path.name))))
    columns = 4 if len(cells) <= 12 else 6
    rows = math.ceil(len(cells) / columns)
    height = 0.6 + 0.25 * title.count("\n") + rows * (_WIDTH / columns + 0.35)
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    # names and queries may hold dollar signs, which are not formulas here
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, parse_math=False)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for place, (image, left, score, name) in zip(axes, cells, strict=False):
        if image is None:
            place.text(0.5, 0.5, "cannot be read", ha="center", va="center", fontsize=9, color="gray")
        else:
            place.imshow(np.asarray(image))
        place.set_title(left, loc="left", fontsize=9, weight="bold", pad=2)
        place.set_title(score, loc="right", fontsize=9, color="dimgray", pad=2)
        place.text(0, -0.03, name, transform=place.transAxes, va="top", fontsize=7, parse_math=False)
    for place in axes:
        place.set_axis_off()
    figure.supxlabel(below, x=0.01, ha="left", fontsize=9, color="dimgray", parse_math=False)
    return figure


def _read(hit: Hit) -> Image.Image | None:
    """The image of a hit, scaled down; None if it can no longer be read."""
    try:
        image = read_image(hit.path)
    except InputError:
        return None
    image.thumbnail((_PIXELS, _PIXELS))
    return image


def _shortened(name: str, most: int = 22) -> str:
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most // 2) + 1 :]}"

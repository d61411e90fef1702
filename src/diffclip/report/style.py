"""Style of figures: colors for the color-blind, one per variant, and plain axes.

The palette is Okabe and Ito's (jfly.uni-koeln.de/color).
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from diffclip.config import VARIANTS
from diffclip.files import write_atomically
from diffclip.report.labels import variant_in_name

OTHERS = ("#6e7781", "#9a7350", "#4f8585", "#8d6b9c", "#728045", "#a9607c", "#5672a0", "#8a7400", "#56b4e9")
INK, MUTED, GRID = "#24292f", "#6a737d", "#e3e6ea"
WIDTH = 5.4
"""Width of a figure in inches: a page of 1280 px shows two side by side, a phone shows one with readable text."""

_RC: Any = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "white"),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # names may hold dollar signs, which are not formulas
    "axes.labelsize": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "pdf.fonttype": 42,  # TrueType: journals refuse Type 3
    "svg.hashsalt": "diffclip",
}


style = partial(mpl.rc_context, _RC)
"""Draw in the report's look in a block or a decorated function, and leave matplotlib's settings as they were."""


def new_figure(height: float) -> Figure:
    """Make a figure without pyplot, which would keep the figure in memory and ask for a window system."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def colors_of(models: Sequence[str]) -> dict[str, str]:
    """Choose a color for each model by the variant in its name."""
    return dict(zip(models, choose_colors(map(variant_in_name, models)), strict=True))


def choose_colors(variants: Iterable[str]) -> list[str]:
    """Choose colors: the variant's own at its first place, other colors at further places and for other names."""
    chosen: list[str] = []
    others = itertools.cycle(OTHERS)
    for name in variants:
        color = VARIANTS[name].color if name in VARIANTS else None
        chosen.append(next(others) if color is None or color in chosen else color)
    return chosen


def png_of(figure: Figure, dpi: int) -> bytes:
    """Return a figure as a PNG in true colors."""
    drawn = io.BytesIO()
    with style():
        options: dict[str, Any] = {"metadata": {"Software": None}, "pil_kwargs": {"optimize": True}}
        figure.savefig(drawn, format="png", dpi=dpi, facecolor="white", **options)
    return drawn.getvalue()


def write_figure(file: Path, figure: Figure) -> Path:
    """Write a figure whole or not at all, as PNG, SVG or PDF by the ending of the name; return the file."""
    kind = file.suffix[1:]
    with write_atomically(file) as temporary:
        if kind == "png":
            temporary.write_bytes(png_of(figure, dpi=110))
        else:
            with style():  # without a date, so that equal figures are equal files
                dates = {"Date": None} if kind == "svg" else {"CreationDate": None}
                figure.savefig(temporary, format=kind, metadata=dates)
    return file

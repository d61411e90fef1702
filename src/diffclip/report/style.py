"""How figures look: colours for the colour-blind, neutral tones, and what becomes of them on a dark page.

The palette is Okabe and Ito's (jfly.uni-koeln.de/color), one colour a variant in every figure.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

from diffclip.config import ABLATIONS
from diffclip.report.series import Series
from diffclip.report.svg import shortened

LineStyle = Literal["-"] | tuple[float, tuple[float, ...]]

COLOURS = {
    "CLIP": "#0072b2",
    "DiffCLIP": "#d55e00",
    "DiffCLIP-dynamic": "#009e73",
    "DiffCLIP-vision": "#cc79a7",
    "DiffCLIP-v2": "#5b4a9e",
    "DiffCLIP-added": "#e69f00",
    "custom": "#8a7400",
}
# a second series of a variant (another init, another checkpoint) keeps its hue and changes tone
_TONES = {
    "CLIP": ("#56b4e9", "#003d66", "#7a9cc6"),
    "DiffCLIP": ("#f2a673", "#7f3300", "#c98a5e"),
    "DiffCLIP-dynamic": ("#66c2a5", "#00553f", "#a3d9b1"),
    "DiffCLIP-vision": ("#8e4f78", "#e6b3d0", "#5f2f4f"),
    "DiffCLIP-v2": ("#a699e0", "#2f2459", "#c9c0ee"),
    "DiffCLIP-added": ("#f5cf7a", "#8a5f00", "#c4a15a"),
    "custom": ("#b8a038", "#4d4100", "#d9cc8c"),
}
# muted, one an ablation in their order; its next tones are mixed with white and black
_ABLATION_COLOURS = ("#6e7781", "#9a7350", "#4f8585", "#8d6b9c", "#728045", "#a9607c", "#5672a0")
_MIXTURES = ((1.0, 0.45), (0.0, 0.45), (1.0, 0.68))
SEED_STYLES: tuple[LineStyle, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.4)),
    (0, (6, 2, 1, 2)),
)
MARKERS = ("o", "s", "D", "^", "v", "P")

INK, MUTED, GRID, RIGHT = "#24292f", "#6a737d", "#e3e6ea", "#1a9850"
# neutral tones, and those colours too dark for it, on a dark page
_DARK = {
    INK: "#e6e8eb",
    MUTED: "#9aa3ad",
    GRID: "#363b42",
    "#0072b2": "#4aa8e6",
    "#003d66": "#8ec9f0",
    "#cc79a7": "#dd93bb",
    "#5b4a9e": "#a699e0",
}

WIDTH, HEIGHT = 5.4, 3.0
"""Inches of one panel: a page 1280 px wide holds two abreast, a telephone one."""

_RC: Any = {
    "figure.dpi": 100,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9.5,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "path",
    # equal figures become equal files
    "svg.hashsalt": "diffclip",
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the report's look inside this block, and leave matplotlib's settings as they were."""
    with mpl.rc_context(_RC):
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure outside pyplot, so that nothing is kept and no window system is asked for."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def colours_of(series: Sequence[Series]) -> dict[Series, str]:
    """A colour for each series: the variant's own for the first of a variant, other tones for the next."""
    seen: dict[str, int] = {}
    colours = {}
    for one in series:
        position = seen.setdefault(one.variant, 0)
        tones = _tones_of(one.variant)
        colours[one] = tones[position % len(tones)]
        seen[one.variant] += 1
    return colours


def _tones_of(variant: str) -> tuple[str, ...]:
    if variant in COLOURS:
        return COLOURS[variant], *_TONES[variant]
    own = _ABLATION_COLOURS[list(ABLATIONS).index(variant)]
    return own, *(_mixed(own, other, share) for other, share in _MIXTURES)


def _mixed(colour: str, other: float, share: float) -> str:
    """`colour` with so much of the grey `other`, from black 0 to white 1."""
    red, green, blue = (part + share * (other - part) for part in to_rgb(colour))
    return to_hex((red, green, blue))


def svg_of(figure: Figure, ground: str = "none") -> str:
    """The figure as SVG, the same for the same figure whenever it is made; `ground` "none" is transparent."""
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", facecolor=ground, metadata={"Date": None, "Creator": None})
    return shortened(buffer.getvalue())


def png_of(figure: Figure, dpi: int = 144, ground: str = "none") -> bytes:
    """The figure as PNG; `ground` "none" is transparent."""
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format="png", dpi=dpi, facecolor=ground, metadata={"Software": None})
    return buffer.getvalue()


def with_palette(png: bytes) -> bytes:
    """A PNG with the 256 colours that fit it best."""
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def darkened(svg: str) -> str:
    """An SVG of this module's colours, for a dark page."""
    return re.sub("|".join(_DARK), lambda match: _DARK[match.group()], svg)


def dark_rules() -> str:
    """CSS that gives drawings within a page the colours that `darkened` gives to figures."""
    rules = (
        f'[{kind}="{light}"]{{{kind}:{dark}}}' for light, dark in _DARK.items() for kind in ("stroke", "fill")
    )
    return f"@media (prefers-color-scheme: dark){{{''.join(rules)}}}"


def data_uri(content: str | bytes) -> str:
    """SVG text or PNG bytes as a `data:` address."""
    kind, raw = ("svg+xml", content.encode()) if isinstance(content, str) else ("png", content)
    return f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"

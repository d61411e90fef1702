"""The figure of where attention goes: pictures with maps of their patches laid over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diffclip.errors import InputError
from diffclip.report.layout import PICTURES_WIDTH, Block, Pictures
from diffclip.report.style import MUTED, new_figure, style

Maps = npt.NDArray[np.floating[Any]]

_FOOT = 0.5  # inches below the pictures for the scales
_COLOURS = {False: colormaps["inferno"], True: colormaps["RdBu_r"]}


def attention_figure(pictures: Pictures, maps: Mapping[str, Maps]) -> Figure:
    """Pictures and where attention goes in them: a row a picture, a column a map.

    Patches are upsampled smoothly and laid over the grey picture. All maps without a negative value share
    one scale from 0, the others one that is symmetric about 0 (red above, blue below); the scale is beneath
    each column.

    Args:
        pictures: uint8 [N, H, W, 3].
        maps: column's title → float [N, h, w] of h × w patches, in a unit that the columns share.

    Raises:
        InputError: a number of maps that is not N, or a value that is not finite.
    """
    for title, values in maps.items():
        if values.ndim != 3 or len(values) != len(pictures):
            raise InputError(
                f"attention {title!r} has shape {list(values.shape)}, but there are {len(pictures)} pictures"
            )
        if not np.isfinite(values).all():
            raise InputError(f"attention {title!r} holds values that are not finite")
    signed = {title: bool((values < 0).any()) for title, values in maps.items()}
    limits = {
        kind: _limit([values for title, values in maps.items() if signed[title] is kind])
        for kind in (False, True)
    }
    columns = 1 + len(maps)
    cell = max(PICTURES_WIDTH / columns, 0.8)
    head = 0.14 + 0.16 * max(title.count("\n") + 1 for title in maps)
    with style():
        figure = new_figure(cell * columns, head + cell * len(pictures) + _FOOT)
        figure.set_layout_engine("none")
        block = Block(figure, 1)
        for column, title in enumerate(["picture", *maps]):
            block.text((column + 0.5) * cell, head - 0.06, title, ha="center", va="bottom")
        for row, picture in enumerate(pictures):
            y = head + row * cell + 0.03
            block.picture(0.03, y, cell - 0.06, picture)
            for column, (title, values) in enumerate(maps.items(), 1):
                axes = block.axes(column * cell + 0.03, y, cell - 0.06)
                _overlay(axes, picture, values[row], limits[signed[title]], signed[title])
        for column, title in enumerate(maps, 1):
            place = (column * cell + 0.06, head + cell * len(pictures) + 0.1, cell - 0.12)
            _scale(block, place, limits[signed[title]], signed[title])
        return figure


def _limit(maps: list[Maps]) -> float:
    """The end of a scale: the 99.5th percentile of magnitudes, so that one patch does not darken the rest."""
    if not maps:
        return 1.0
    return float(np.quantile(np.concatenate([np.abs(values).ravel() for values in maps]), 0.995)) or 1.0


def _overlay(axes: Axes, picture: Pictures, values: Maps, limit: float, signed: bool) -> None:
    height, width = picture.shape[:2]
    grey = np.asarray(picture, dtype=np.float64).mean(-1) / 255
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent)
    axes.imshow(
        values,
        cmap=_COLOURS[signed],
        vmin=-limit if signed else 0,
        vmax=limit,
        alpha=0.68,
        interpolation="bicubic",
        extent=extent,
    )


def _scale(block: Block, place: tuple[float, float, float], limit: float, signed: bool) -> None:
    x, y, width = place
    axes = block.axes(x, y, width, 0.07)
    axes.imshow(np.linspace(0, 1, 128)[None], cmap=_COLOURS[signed], aspect="auto")
    low = f"−{limit:.2g}" if signed else "0"
    block.text(x, y + 0.12, low, va="top", ha="left", fontsize=7.5, color=MUTED)
    block.text(x + width, y + 0.12, f"{limit:.2g}", va="top", ha="right", fontsize=7.5, color=MUTED)

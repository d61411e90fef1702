"""Placing pictures and text by inches from the top left corner, for figures that are not charts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from diffclip.report.style import INK

Pictures = npt.NDArray[np.uint8]

PICTURES_WIDTH = 5.8
"""Inches; text stays readable when a telephone shows it at 360 px."""


@dataclass(frozen=True)
class Block:
    """A part of a figure over its whole width; `top` is its upper edge, a fraction of the figure's height."""

    figure: Figure
    top: float

    def axes(self, x: float, y: float, width: float, height: float | None = None) -> Axes:
        """Bare axes whose upper left corner lies x, y inches from the block's; square without a height."""
        height = width if height is None else height
        whole, tall = self.figure.get_size_inches()
        axes = self.figure.add_axes((x / whole, self.top - (y + height) / tall, width / whole, height / tall))
        axes.set_axis_off()
        return axes

    def picture(self, x: float, y: float, width: float, picture: Pictures, frame: str | None = None) -> Axes:
        """A picture [H, W, 3] in its own proportions, in a square of `width` inches; `frame` is a colour."""
        axes = self.axes(x, y, width)
        axes.imshow(picture, interpolation="antialiased")
        if frame:
            height, length = picture.shape[:2]
            edge = Rectangle(
                (-0.5, -0.5), length, height, fill=False, edgecolor=frame, linewidth=3.5, clip_on=False
            )
            axes.add_patch(edge)
        return axes

    def text(self, x: float, y: float, text: str, **kwargs: Any) -> None:
        """Text at x, y inches from the block's upper left corner."""
        whole, tall = self.figure.get_size_inches()
        self.figure.text(x / whole, self.top - y / tall, text, **{"fontsize": 9, "color": INK, **kwargs})

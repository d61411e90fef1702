"""matplotlib's SVG in fewer bytes: figures are committed, and no eye sees a hundredth of a point."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d+\.\d+")


def shortened(svg: str) -> str:
    """The same drawing: coordinates to a tenth of a point, without metadata and indentation."""
    # the prologue's DTD is an address on the web, which nothing needs
    svg = re.sub(r"<\?xml.*?(?=<svg)", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' d="([^"]*)"', lambda path: f' d="{_rounded(" ".join(path[1].split()))}"', svg)
    svg = re.sub(r' ([xy])="([^"]*)"', lambda place: f' {place[1]}="{_rounded(place[2])}"', svg)
    return re.sub(r">\s+<", ">\n<", svg)


def _rounded(text: str) -> str:
    return _NUMBER.sub(lambda number: f"{round(float(number[0]), 1):g}", text)

"""Contact sheets: pictures in a grid with their captions beneath, for people to look at."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from diffclip.errors import InputError


def contact_sheet(
    pictures: Sequence[NDArray[np.uint8] | Image.Image],
    captions: Sequence[str | Sequence[str]],
    columns: int = 4,
    edge: int = 192,
) -> Image.Image:
    """Pictures in a grid, each enlarged to `edge` pixels, with one caption or several lines beneath.

    Raises:
        InputError: no pictures, or not one caption entry a picture.
    """
    if not pictures or len(pictures) != len(captions):
        raise InputError(f"a sheet needs one caption a picture: got {len(pictures)} and {len(captions)}")
    font = ImageFont.load_default(12)
    letters = max(10, int(edge / 6.1))
    texts = []
    for entry in captions:
        lines = [entry] if isinstance(entry, str) else list(entry)
        bullet = "- " if len(lines) > 1 else ""
        texts.append([part for line in lines for part in textwrap.wrap(bullet + line, letters)])
    gap, line_height = 14, 15
    rows = -(-len(pictures) // columns)
    heights = [
        edge + 6 + line_height * max(len(t) for t in texts[row * columns : (row + 1) * columns]) + gap
        for row in range(rows)
    ]
    used = min(columns, len(pictures))
    sheet = Image.new("RGB", (gap + used * (edge + gap), gap + sum(heights)), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (picture, text) in enumerate(zip(pictures, texts, strict=True)):
        row, column = divmod(number, columns)
        x, y = gap + column * (edge + gap), gap + sum(heights[:row])
        image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
        sheet.paste(image.convert("RGB").resize((edge, edge), Image.Resampling.BICUBIC), (x, y))
        for line, words in enumerate(text):
            draw.text((x, y + edge + 5 + line * line_height), words, fill=(50, 50, 55), font=font)
    return sheet

"""Texts within a width, and the tokens of a text shaded by their relevance. Widths are inches, sizes points."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch
from matplotlib.textpath import text_to_path

from diffclip.report.layout import Block
from diffclip.report.style import INK

SHADE = "#e69f00"
LINE = 1.45
"""Height of a line, in sizes of the font."""

_NARROW = 0.1  # sizes of the font
_BETWEEN = re.compile(r"[^\S\u00a0\u202f]+")

Words = Sequence[tuple[str, float]]
"""Pieces of a text, a space after the last of each word, with their relevance in any unit."""


@lru_cache(maxsize=4096)
def width_of(text: str, size: float, weight: str = "normal") -> float:
    """How wide `text` is drawn."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    points: float = text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]
    return points / 72


def wrapped(text: str, width: float, size: float, lines: int, weight: str = "normal") -> list[str]:
    """The words of `text` in at most so many lines of at most `width`; what does not fit is left out with "…".

    No-break spaces do not part words; a word wider than a line is cut, after a hyphen if one fits.
    """
    rows = [""]
    for word in _that_fit(_BETWEEN.split(text.strip()), width, size, weight):
        longer = f"{rows[-1]} {word}".strip()
        if not rows[-1] or width_of(longer, size, weight) <= width:
            rows[-1] = longer
        else:
            rows.append(word)
        if len(rows) > lines:
            break
    if len(rows) > lines:
        last = rows[lines - 1]
        while width_of(f"{last} …", size, weight) > width and last:
            # by words where there are several
            last = last.rpartition(" ")[0] or last[:-1]
        rows[lines - 1 :] = [f"{last} …".strip()]
    return rows


def height_of_words(words: Words, width: float, size: float) -> float:
    """How high `draw_words` makes them."""
    return (1 + max((spot.line for spot in _placed(words, width, size)), default=-1)) * LINE * size / 72


def draw_words(block: Block, x: float, y: float, words: Words, width: float, size: float) -> None:
    """Draw the pieces from x, y on, each shaded by its share of the relevance of the strongest."""
    strongest = max((value for _, value in words), default=0.0) or 1.0
    whole, tall = block.figure.get_size_inches()
    line = LINE * size / 72
    for spot in _placed(words, width, size):
        top = y + spot.line * line
        patch = FancyBboxPatch(
            ((x + spot.x) / whole, block.top - (top + 0.92 * line) / tall),
            spot.width / whole,
            0.84 * line / tall,
            boxstyle="square,pad=0",
            transform=block.figure.transFigure,
            facecolor=SHADE,
            alpha=0.85 * spot.value / strongest,
            linewidth=0,
        )
        block.figure.add_artist(patch)
        middle = top + 0.5 * line
        block.text(
            x + spot.x, middle, spot.text, fontsize=size, color=INK, va="center_baseline", parse_math=False
        )


@dataclass(frozen=True)
class _Spot:
    text: str
    value: float
    line: int
    x: float
    width: float


def _placed(words: Words, width: float, size: float) -> Iterator[_Spot]:
    """Where each piece goes: words are kept whole unless they are wider than a line."""
    space = width_of("n n", size) - width_of("nn", size)
    line, x = 0, 0.0
    for word in _whole_words(words):
        length = sum(width_of(text, size) for text, _ in word)
        if x and x + length > width:
            line, x = line + 1, 0.0
        for text, value in word:
            long = width_of(text, size)
            if x and x + long > width:
                line, x = line + 1, 0.0
            yield _Spot(text, value, line, x, long)
            x += long
        x += space


def _whole_words(words: Words) -> Iterator[list[tuple[str, float]]]:
    word: list[tuple[str, float]] = []
    for text, value in words:
        word.append((text.rstrip(), value))
        if text.endswith(" "):
            yield word
            word = []
    if word:
        yield word


def _that_fit(words: Iterable[str], width: float, size: float, weight: str) -> Iterator[str]:
    """The words, cut where one is wider than a line."""
    # hardly a letter is narrower, and what is longer need not be measured
    most = 1 + int(width * 72 / (_NARROW * size))
    for word in words:
        while len(word) > most or (len(word) > 1 and width_of(word, size, weight) > width):
            low, high = 1, min(most, len(word))
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (
                    (middle, high) if width_of(word[:middle], size, weight) <= width else (low, middle - 1)
                )
            hyphen = word.rfind("-", 1, low)
            end = low if hyphen < 0 else hyphen + 1
            yield word[:end]
            word = word[end:]
        yield word

"""Figures of what was retrieved: pictures for captions and captions for pictures.

Shape suffixes: N pictures, M captions, Q queries, K answers a query, H and W pixels.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from diffclip.errors import InputError
from diffclip.report.layout import PICTURES_WIDTH, Block, Pictures
from diffclip.report.style import INK, MUTED, RIGHT, new_figure, style

Indices = npt.NDArray[np.integer[Any]]

_LETTERS = 61  # of a caption, beside the picture
_LABEL = 1.15  # inches for a model's name at the left


def retrieval_examples_figure(
    captions: Sequence[str], pictures: Pictures, top: Mapping[str, Indices], right: Sequence[int] | Indices
) -> Figure:
    """Caption → pictures: for each caption the best pictures of each model, the right one framed in green.

    Args:
        captions: Q queries.
        pictures: uint8 [N, H, W, 3], what was searched.
        top: model's label → int [Q, K], the best pictures, best first.
        right: [Q], the caption's own picture.

    Raises:
        InputError: numbers of queries differ, or an index is not of a picture.
    """
    for label, best in top.items():
        _check(label, best, len(captions), len(pictures))
    answers = max(best.shape[1] for best in top.values())
    cell = (PICTURES_WIDTH - _LABEL) / answers
    queries = [textwrap.wrap(f"“{caption}”", 84) for caption in captions]
    heads = [0.16 + 0.17 * len(lines) for lines in queries]
    heights = [head + len(top) * (cell + 0.06) + 0.16 for head in heads]
    with style():
        figure = new_figure(PICTURES_WIDTH, sum(heights))
        figure.set_layout_engine("none")
        for query, (lines, head) in enumerate(zip(queries, heads, strict=True)):
            block = Block(figure, 1 - sum(heights[:query]) / sum(heights))
            block.text(0.04, head - 0.1, "\n".join(lines), style="italic", va="bottom")
            for row, (label, best) in enumerate(top.items()):
                y = head + row * (cell + 0.06)
                block.text(0.04, y + cell / 2, textwrap.fill(label, 13), va="center", color=MUTED)
                for rank, index in enumerate(best[query]):
                    frame = RIGHT if index == right[query] else None
                    block.picture(_LABEL + rank * cell + 0.04, y, cell - 0.08, pictures[index], frame)
        return figure


def caption_examples_figure(
    pictures: Pictures, captions: Sequence[str], top: Mapping[str, Indices], right: Sequence[Collection[int]]
) -> Figure:
    """Picture → captions: for each picture the best captions of each model, its own in green with a tick.

    Args:
        pictures: uint8 [Q, H, W, 3], the queries.
        captions: M texts, what was searched.
        top: model's label → int [Q, K], the best captions, best first.
        right: Q collections, the captions of the picture itself.

    Raises:
        InputError: numbers of queries differ, or an index is not of a caption.
    """
    for label, best in top.items():
        _check(label, best, len(pictures), len(captions))
    answers = max(best.shape[1] for best in top.values())
    line = 0.185
    height = max(1.5, len(top) * (answers + 1.4) * line) + 0.1
    with style():
        figure = new_figure(PICTURES_WIDTH, height * len(pictures))
        figure.set_layout_engine("none")
        for query, picture in enumerate(pictures):
            block = Block(figure, 1 - query / len(pictures))
            block.picture(0.04, 0.08, 1.35, picture)
            for row, (label, best) in enumerate(top.items()):
                y = 0.08 + row * (answers + 1.4) * line
                block.text(1.6, y, label, va="top", color=MUTED)
                for rank, index in enumerate(best[query]):
                    own = int(index) in right[query]
                    caption = textwrap.shorten(captions[index], _LETTERS, placeholder=" …")
                    block.text(
                        1.6,
                        y + (rank + 1.1) * line,
                        f"{'✓' if own else ' '} {caption}",
                        va="top",
                        fontsize=8,
                        color=RIGHT if own else INK,
                        weight="bold" if own else "normal",
                    )
        return figure


def _check(label: str, best: Indices, queries: int, things: int) -> None:
    if best.ndim != 2 or len(best) != queries:
        raise InputError(
            f"answers of {label!r} have shape {list(best.shape)}, but there are {queries} queries"
        )
    if best.size and not 0 <= best.min() <= best.max() < things:
        raise InputError(
            f"answers of {label!r} run from {best.min()} to {best.max()}, but there are {things}"
        )

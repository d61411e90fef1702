"""Figures of attention: pictures × texts × models, as the paper's Figures 2 and 6, and sheets of many pictures.

All maps of a figure, and of any two figures, have one scale (see `attend_view`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from diffclip.report.attend_view import MOST, Map, Picture, overlaid, scale_strip
from diffclip.report.attend_words import LINE, Words, draw_words, height_of_words, wrapped
from diffclip.report.layout import PICTURES_WIDTH, Block
from diffclip.report.style import MUTED, new_figure, style

_GAP = 0.05  # inches around a picture
_SIDE = 0.3  # at the left for a model's name
_HEAD, _SMALL = 9.0, 7.5  # sizes of type
_SHARP = 200  # pixels an inch of the pictures within an SVG
_SHEET_CELL = 1.15
_UNIT = "Colour: times the average patch of the same map; patches below the average stay grey."


@dataclass(frozen=True)
class Shown:
    """One map [h, w] in any unit over a picture, with lines and a text in shaded pieces below it."""

    picture: Picture
    values: Map
    below: Sequence[str] = ()
    words: Words = field(default_factory=list)


@dataclass(frozen=True)
class Band:
    """One picture with a map for each model and text: `rows` holds those of each model in order of `columns`."""

    columns: Sequence[str]
    rows: Mapping[str, Sequence[Shown]]


@dataclass(frozen=True)
class Strip:
    """One picture of a sheet, with the maps of each model in order of the sheet's texts."""

    name: str
    maps: Mapping[str, Sequence[Shown]]


@dataclass(frozen=True)
class Tile:
    """One picture for one text, with the map of each model; what stands below it names the model."""

    text: str
    maps: Sequence[Shown]


def by_text_figure(bands: Sequence[Band], note: str) -> Figure:
    """The paper's Figure 2: for each picture a row a model, the picture and then a column a text.

    Args:
        bands: one a picture.
        note: what the maps are, beneath the figure.
    """
    columns = 1 + max(len(band.columns) for band in bands)
    cell = min(max((PICTURES_WIDTH - _SIDE) / columns, 1.25), 1.75)
    inner = cell - 2 * _GAP
    heads = [[wrapped(text, inner, _HEAD, 2, "bold") for text in band.columns] for band in bands]
    tops = [0.12 + _lines(max(map(len, head)), _HEAD) for head in heads]
    steps = [[_height(maps, inner) + 0.06 for maps in band.rows.values()] for band in bands]
    heights = [top + sum(step) for top, step in zip(tops, steps, strict=True)]
    with style():
        signed = _signed(shown for band in bands for maps in band.rows.values() for shown in maps)
        block = _new(_SIDE + columns * cell, sum(heights), note, signed)
        y = 0.0
        for band, head, top, step in zip(bands, heads, tops, steps, strict=True):
            y += top
            _centred(block, _SIDE + 0.5 * cell, y - 0.05, ["picture"], color=MUTED)
            for column, lines in enumerate(head, 1):
                _centred(block, _SIDE + (column + 0.5) * cell, y - 0.05, lines, weight="bold")
            for (name, maps), height in zip(band.rows.items(), step, strict=True):
                _sideways(block, y + inner / 2, wrapped(name, inner, _HEAD, 2, "bold"))
                block.picture(_SIDE + _GAP, y, inner, maps[0].picture)
                for column, shown in enumerate(maps, 1):
                    _draw(block, _SIDE + column * cell + _GAP, y, inner, shown, signed)
                y += height
        return block.figure


def sheet_figure(strips: Sequence[Strip], columns: Sequence[str], note: str) -> Figure:
    """A contact sheet: a row a picture; the picture, then for each model a column a text.

    Args:
        strips: one a picture, of the same models.
        columns: the texts; none for maps that are for no text, of which a model has one.
        note: what the maps are, beneath the sheet.
    """
    cell, texts = _SHEET_CELL, max(len(columns), 1)
    inner = cell - 2 * _GAP
    names = list(strips[0].maps)
    labels = [wrapped(name, texts * cell - 2 * _GAP, _HEAD, 2, "bold") for name in names]
    heads = [wrapped(text, inner, _SMALL, 3) for text in columns]
    below = _lines(max(map(len, heads), default=0), _SMALL) + 0.05 * bool(heads)
    top = 0.12 + _lines(max(map(len, labels)), _HEAD) + below
    captions = [wrapped(strip.name, inner, _SMALL, 2) for strip in strips]
    steps = [
        0.06
        + max(
            inner + _lines(len(caption), _SMALL),
            *(_height(maps, inner) for maps in strip.maps.values()),
        )
        for strip, caption in zip(strips, captions, strict=True)
    ]
    with style():
        signed = _signed(shown for strip in strips for maps in strip.maps.values() for shown in maps)
        block = _new((1 + len(names) * texts) * cell + 2 * _GAP, top + sum(steps), note, signed)
        for number, label in enumerate(labels):
            left = (1 + number * texts) * cell + _GAP
            _centred(block, left + texts * cell / 2, top - 0.05 - below, label, weight="bold")
            for column, lines in enumerate(heads):
                _centred(block, left + (column + 0.5) * cell, top - 0.05, lines, fontsize=_SMALL)
        y = top
        for strip, caption, step in zip(strips, captions, steps, strict=True):
            first = strip.maps[names[0]][0]
            block.picture(2 * _GAP, y, inner, first.picture)
            _beneath(block, 2 * _GAP, y + inner, caption)
            for number, name in enumerate(names):
                for column, shown in enumerate(strip.maps[name]):
                    x = (1 + number * texts + column) * cell + 2 * _GAP
                    _draw(block, x, y, inner, shown, signed)
            y += step
        return block.figure


def tiles_figure(tiles: Sequence[Tile], note: str) -> Figure:
    """The paper's Figure 6: pictures, each with its text and the map of every model beside it.

    Args:
        tiles: all of the same models.
        note: what the maps are, beneath the figure.
    """
    cells = 1 + len(tiles[0].maps)
    abreast = 2 if cells <= 3 else 1
    cell = min(PICTURES_WIDTH / (abreast * cells), 1.45)
    inner, gutter = cell - 2 * _GAP, 0.12
    width = cells * cell
    texts = [wrapped(tile.text, width - 2 * _GAP, _SMALL, 2) for tile in tiles]
    heads = [
        0.1 + _lines(max(map(len, texts[i : i + abreast])), _SMALL) for i in range(0, len(tiles), abreast)
    ]
    foot = max(_height(tile.maps, inner) for tile in tiles)
    with style():
        signed = _signed(shown for tile in tiles for shown in tile.maps)
        whole = abreast * width + (abreast - 1) * gutter
        block = _new(whole, sum(heads) + len(heads) * (foot + 0.08), note, signed)
        y = 0.0
        for row, head in enumerate(heads):
            y += head
            for place in range(min(abreast, len(tiles) - row * abreast)):
                tile, lines = tiles[row * abreast + place], texts[row * abreast + place]
                left = place * (width + gutter) + _GAP
                block.text(left, y - 0.05, "\n".join(lines), va="bottom", fontsize=_SMALL, **_PLAIN)
                block.picture(left, y, inner, tile.maps[0].picture)
                for column, shown in enumerate(tile.maps, 1):
                    _draw(block, left + column * cell, y, inner, shown, signed)
            y += foot + 0.08
        return block.figure


_PLAIN: dict[str, Any] = {"parse_math": False}


def _new(width: float, height: float, note: str, signed: bool) -> Block:
    """An empty figure with the scale and the note beneath what is `height` inches high."""
    lines = wrapped(f"{_UNIT} {note}", width - 2 * _GAP, _SMALL, 12)
    figure = new_figure(width, height + 0.38 + _lines(len(lines), _SMALL) + 0.12)
    figure.set_layout_engine("none")
    figure.set_dpi(_SHARP)
    block = Block(figure, 1)
    long = min(width - 2 * _GAP, 3.4)
    y = height + 0.1
    block.axes(_GAP, y, long, 0.1).imshow(scale_strip(signed), aspect="auto")
    for place, label in _ticks(signed):
        side = "left" if place == 0 else "right" if place == 1 else "center"
        block.text(_GAP + place * long, y + 0.13, label, ha=side, va="top", fontsize=_SMALL, color=MUTED)
    _beneath(block, _GAP, y + 0.27, lines)
    return block


def _ticks(signed: bool) -> list[tuple[float, str]]:
    """Places along the scale, 0 … 1, and what stands there."""
    most = round(math.log2(MOST))
    if not signed:
        return [(power / most, f"{'≥ ' * (power == most)}{2**power}×") for power in range(most + 1)]
    above = [(power / most, f"{2**power}×") for power in range(2, most + 1, 2)]
    ends = {1.0: ("≤ −", "≥ ")}
    ticks = [(0.5, "±1×")]
    for share, label in above:
        low, high = ends.get(share, ("−", ""))
        ticks += [(0.5 - share / 2, low + label), (0.5 + share / 2, high + label)]
    return ticks


def _draw(block: Block, x: float, y: float, side: float, shown: Shown, signed: bool) -> None:
    block.picture(x, y, side, overlaid(shown.picture, shown.values, signed))
    lines = _below(shown, side)
    _beneath(block, x, y + side, lines)
    draw_words(block, x, y + side + 0.05 + _lines(len(lines), _SMALL), shown.words, side, _SMALL)


def _height(maps: Iterable[Shown], side: float) -> float:
    """Of the highest of `maps` with what stands below them."""
    return side + max(
        0.06 + _lines(len(_below(shown, side)), _SMALL) + height_of_words(shown.words, side, _SMALL)
        for shown in maps
    )


def _below(shown: Shown, side: float) -> list[str]:
    return [line for text in shown.below for line in wrapped(text, side, _SMALL, 4)]


def _lines(count: int, size: float) -> float:
    return count * LINE * size / 72


def _centred(block: Block, x: float, y: float, lines: Sequence[str], **kwargs: Any) -> None:
    block.text(x, y, "\n".join(lines), ha="center", va="bottom", **{"fontsize": _HEAD, **_PLAIN, **kwargs})


def _sideways(block: Block, y: float, lines: Sequence[str]) -> None:
    block.text(_SIDE / 2, y, "\n".join(lines), rotation=90, ha="center", va="center", weight="bold", **_PLAIN)


def _beneath(block: Block, x: float, y: float, lines: Sequence[str]) -> None:
    block.text(x, y + 0.04, "\n".join(lines), va="top", fontsize=_SMALL, color=MUTED, **_PLAIN)


def _signed(shown: Iterable[Shown]) -> bool:
    return any(bool((one.values < 0).any()) for one in shown)

"""What the page shows of looks and hits, as HTML. Whatever comes from a visitor or a file's name is escaped."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as _escape

from PIL import Image

from diffclip.web.look import METHODS, Look, Map
from diffclip.web.overlay import gradient, is_empty, is_signed, limit_of, map_uri, photo_uri
from diffclip.web.uploads import MAX_BYTES

_TOWERS = {"visual": "vision tower", "text": "text tower"}
_NUMBERS = {
    "entropy": ("Entropy", "0: all on one patch, 1: spread evenly", "{:.2f}"),
    "effective_patches": ("Effective patches", "as spread out as an even look at so many", "{:.1f}"),
    "top10": ("On the ten strongest", "share of what lies on patches", "{:.0%}"),
    "class_token": ("On the class token", "share that lies on no patch", "{:.0%}"),
    "auroc": ("AUROC of the object", "0.5: as good as chance", "{:.2f}"),
    "inside": ("On the object", "share of what is positive", "{:.0%}"),
}
_NOTHING = {True: "Nothing in the picture speaks for this text.", False: "This map is 0 on every patch."}
"""Said of a map of zeros: one of a text, or one of all."""
_NO_MAP = "This model has one map a head: there is no {}."


@dataclass(frozen=True)
class Shown:
    """A model on the page: its name, where its weights are from, its colour on light and on dark ground."""

    name: str
    source: str
    colours: tuple[str, str]


def results(
    models: Sequence[tuple[Shown, Look, Image.Image]],
    texts: Sequence[str],
    method: str,
    opacity: float,
    scene: bool,
) -> str:
    """The models side by side, all their maps in place and those of the first text and of `method` visible.

    Args:
        models: each with what it made of the picture, and the part of the picture that it saw, scaled for the page.
        texts: what was asked.
        method: one of `METHODS`.
        opacity: of the map over the picture, from 0 to 1.
        scene: whether the picture's masks are known.
    """
    cards = "".join(_card(shown, seen, picture, texts, method) for shown, seen, picture in models)
    note = (
        ""
        if scene
        else '<p class="dc-hint">Numbers of the object need its mask: they come with the built-in scenes.</p>'
    )
    return f'<div class="dc-results" style="--dc-opacity:{opacity:.2f}">{cards}</div>{note}'


def readable(text: str) -> str:
    """`text` with a sign in place of each byte of a file's name that is no letter; nothing can be written with it."""
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


def escape(text: str) -> str:
    """`text` as HTML."""
    return _escape(readable(text))


def message(text: str, bad: bool = True) -> str:
    """A line for the visitor."""
    kind = ' class="dc-message dc-bad" role="alert"' if bad else ' class="dc-message" role="status"'
    return f"<p{kind}>{escape(text)}</p>"


def too_large() -> str:
    """The line on a file that is too large to be sent; the page's script shows it."""
    return (
        f'<p class="dc-message dc-bad dc-large" role="alert" data-limit="{MAX_BYTES}" hidden>'
        f"This file is larger than {MAX_BYTES // 2**20} MB: scale it down first</p>"
    )


def gallery(hits: Sequence[tuple[str, float, str | None]]) -> str:
    """Search results: file name, cosine and the thumbnail's address, None where the picture cannot be shown."""
    items = "".join(
        f'<li><span class="dc-thumb">{_thumb(uri, name)}</span>'
        f'<span class="dc-file" title="{escape(name)}">{escape(name)}</span>'
        f'<span class="dc-cosine">cosine {_signed(cosine)}</span></li>'
        for name, cosine, uri in hits
    )
    return f'<ol class="dc-hits">{items}</ol>'


def _thumb(uri: str | None, name: str) -> str:
    return f'<img src="{uri}" alt="{escape(name)}">' if uri else "cannot be read"


def _card(shown: Shown, seen: Look, picture: Image.Image, texts: Sequence[str], method: str) -> str:
    light, dark = shown.colours
    return (
        f'<section class="dc-card" style="--dc-light:{light};--dc-dark:{dark}" aria-label="{escape(shown.name)}">'
        f"<h3>{escape(shown.name)}</h3>"
        f'<p class="dc-source">{escape(shown.source)}</p>'
        f'<div class="dc-look">{_stage(seen, picture, texts, method)}{_numbers(seen, texts, method)}</div>'
        f"{_bars(seen, texts)}{_lambdas(seen)}</section>"
    )


def _stage(seen: Look, picture: Image.Image, texts: Sequence[str], method: str) -> str:
    layers, scales = [], []
    for name in METHODS:
        places: list[int | None] = list(range(len(texts))) if name == "relevance" else [None]
        for place in places:
            found = seen.maps.get((name, place))
            where = _where(name, place, name == method and place in (0, None))
            if found is None:
                layers.append(f'<p class="dc-none"{where}>{_NO_MAP.format(name)}</p>')
                continue
            if is_empty(found.values):
                layers.append(f'<p class="dc-none"{where}>{_NOTHING[place is not None]}</p>')
                continue
            of = f" for “{escape(texts[place])}”" if place is not None else ""
            alt = f"{METHODS[name]}{of}"
            layers.append(f'<img class="dc-map" src="{map_uri(found.values)}" alt="{alt}"{where}>')
            scales.append(_scale(found, where))
    base = f'<img class="dc-picture" src="{photo_uri(picture)}" alt="What the model sees">'
    return f'<div class="dc-left"><div class="dc-stage">{base}{"".join(layers)}</div>{"".join(scales)}</div>'


def _scale(found: Map, where: str) -> str:
    signed, limit = is_signed(found.values), limit_of(found.values)
    low = f"−{limit:.2g}" if signed else "0"
    return (
        f'<div class="dc-scale"{where}><span>{low}</span>'
        f'<i style="background:{gradient(signed)}"></i><span>{limit:.2g}</span></div>'
    )


def _numbers(seen: Look, texts: Sequence[str], method: str) -> str:
    blocks = []
    for name in METHODS:
        by_text = any((name, index) in seen.maps for index in range(len(texts)))
        places: list[int | None] = list(range(len(texts))) if by_text else [None]
        for place in places:
            found = seen.find(name, place)
            if found is not None:
                where = _where(name, place, name == method and place in (0, None))
                blocks.append(f'<dl class="dc-numbers"{where}>{_terms(found)}</dl>')
    return "".join(blocks)


def _terms(found: Map) -> str:
    terms = []
    for name, (title, meaning, form) in _NUMBERS.items():
        if name not in found.numbers:
            continue
        value = form.format(found.numbers[name])
        if name == "effective_patches":
            meaning = f"{meaning} of {found.values.size}"
        if name == "inside":
            meaning = f"{meaning}; it covers {found.numbers['area']:.0%} of the picture"
        terms.append(f"<div><dt>{title}</dt><dd>{value}<small>{meaning}</small></dd></div>")
    return "".join(terms)


def _bars(seen: Look, texts: Sequence[str]) -> str:
    rows = "".join(
        f'<li class="dc-bar{" dc-chosen" if index == 0 else ""}" data-bar="{index}">'
        f'<span class="dc-text">{escape(text)}</span>'
        f'<span class="dc-value">{probability:.1%}</span>'
        f'<span class="dc-track"><i style="width:{probability:.2%}"></i></span>'
        f'<span class="dc-cosine">cosine {_signed(cosine)}</span></li>'
        for index, (text, probability, cosine) in enumerate(
            zip(texts, seen.probabilities, seen.cosines, strict=True)
        )
    )
    return f'<h4>Which text fits</h4><ul class="dc-bars">{rows}</ul>'


def _lambdas(seen: Look) -> str:
    curves = {_TOWERS[tower]: values for tower, values in seen.lambdas.items() if values}
    if not curves:
        return '<h4>λ by layer</h4><p class="dc-hint">This model’s attention is plain: it has no λ.</p>'
    return f"<h4>λ by layer</h4>{_curves(curves)}"


def _curves(curves: dict[str, list[float]]) -> str:
    """A small chart, a line a tower; the numbers are in its description as well."""
    width, height, left, bottom, right = 320.0, 110.0, 34.0, 20.0, 92.0
    values = [value for curve in curves.values() for value in curve]
    low, high = min(0.0, *values), max(1.0, *values)
    layers = max(map(len, curves.values()))

    def x(layer: int) -> float:
        return left + (width - left - right) * (layer / (layers - 1) if layers > 1 else 0.5)

    def y(value: float) -> float:
        return 8 + (height - bottom - 8) * (high - value) / (high - low)

    ticks = "".join(
        f'<path class="dc-grid" d="M{left} {y(value):.1f}H{width - right}"/>'
        f'<text x="{left - 6}" y="{y(value) + 3.5:.1f}" text-anchor="end">{value:.1f}</text>'
        for value in (step / 2 for step in range(math.ceil(low * 2), math.floor(high * 2) + 1))
    )
    marks = sorted({0, layers // 2, layers - 1})
    names = "".join(
        f'<text x="{x(layer):.1f}" y="{height - 6}" text-anchor="middle">{layer + 1}</text>'
        for layer in marks
    )
    lines: list[str] = []
    taken: list[float] = []
    for order, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{x(layer):.1f},{y(value):.1f}" for layer, value in enumerate(curve))
        dots = "".join(
            f'<circle cx="{x(layer):.1f}" cy="{y(value):.1f}" r="2.6"/>' for layer, value in enumerate(curve)
        )
        place = y(curve[-1])
        if taken and abs(place - taken[0]) < 12:
            place = taken[0] + (12 if place >= taken[0] else -12)
        taken.append(place)
        lines.append(
            f'<g class="dc-line dc-line{order}"><polyline points="{points}"/>{dots}'
            f'<text x="{x(len(curve) - 1) + 8:.1f}" y="{place + 3.5:.1f}">{name}</text></g>'
        )
    told = "; ".join(f"{name}: {', '.join(f'{v:.3f}' for v in curve)}" for name, curve in curves.items())
    return (
        f'<svg class="dc-lambda" viewBox="0 0 {width} {height}" role="img" aria-label="λ by layer, {told}">'
        f"<title>{told}</title>{ticks}{names}{''.join(lines)}</svg>"
    )


def _signed(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def _where(method: str, text: int | None, visible: bool) -> str:
    """For which choice an element is shown; the page's script reads it."""
    of = "" if text is None else f' data-text="{text}"'
    return f' data-map="{method}"{of}{"" if visible else " hidden"}'

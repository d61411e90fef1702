"""Looks as HTML. Everything from a visitor or a file's name is escaped, by jinja2 or `escape`."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.cm import ScalarMappable
from PIL import Image

from diffclip.config import variant_of
from diffclip.files import printable
from diffclip.maps.view import METHODS, OF_TEXTS
from diffclip.report.attention import RELEVANCE_FLOOR, draw_map, scale_of
from diffclip.report.style import choose_colors
from diffclip.sources.load import RANDOM, Loaded
from diffclip.web.look import Look, Map

_NUMBERS = {
    "entropy": ("Entropy", "0: all on one patch, 1: spread evenly", "{:.2f}"),
    "effective_patches": (
        "Effective patches",
        "number of equally weighted patches with the same entropy",
        "{:.1f}",
    ),
    "top10": ("On the ten strongest", "share of all patches' total", "{:.0%}"),
    "class_token": ("On the class token", "share on the class token itself", "{:.0%}"),
}
_LOADER = jinja2.FileSystemLoader(Path(__file__).parent)
_TEMPLATE = jinja2.Environment(loader=_LOADER, autoescape=True).get_template("results.html.j2")
_EDGE = 96  # edge of drawn maps in pixels; the browser smooths them further
_TOWERS = {"visual": "vision", "text": "text"}


@dataclass(frozen=True)
class PageModel:
    """A model on the page: its name, the source of its weights, its color."""

    name: str
    source: str
    color: str
    loaded: Loaded


def page_models(models: Sequence[tuple[str, Loaded]]) -> list[PageModel]:
    """Give each model of the pairs (source, model) a name and a color of its own."""
    names = [printable(Path(source).name or source) for source, _ in models]
    if len(set(names)) < len(names):
        names = [f"{printable(source)} ({number})" for number, (source, _) in enumerate(models, 1)]
    named: list[PageModel] = []
    colors = choose_colors(variant_of(loaded.model.config) for _, loaded in models)
    for name, color, (source, loaded) in zip(names, colors, models, strict=True):
        origin = "random weights" if loaded.weights == RANDOM else source
        named.append(PageModel(name, printable(f"{loaded.label} · {origin}"), color, loaded))
    return named


def render_looks(
    looks: Sequence[tuple[PageModel, Look, Image.Image]],
    texts: Sequence[str],
    method: str,
    opacity: float,
    own_scale: bool = False,
) -> str:
    """Put the models side by side, with all their maps; only the maps of the first text and of `method` are visible.

    `looks` has each model with its look and the part of the image that it saw. All maps of one kind share one scale,
    over all texts and, without `own_scale`, over all models. Their `opacity` over the image is from 0 to 1.
    """
    common = _scales([look for _, look, _ in looks])
    cards = []
    for model, look, image in looks:
        card = _card(look, texts, _scales([look]) if own_scale else common)
        cards.append({"model": model, "image": image_uri(image), **card})
    return _TEMPLATE.render(cards=cards, method=method, opacity=opacity)


def _scales(looks: Sequence[Look]) -> dict[str, ScalarMappable]:
    """Choose the scale of each kind of map."""
    scales = {}
    for name in METHODS:
        maps = [entry.values for look in looks for (kind, _), entry in look.maps.items() if kind == name]
        scales[name] = scale_of(maps, RELEVANCE_FLOOR if name == "relevance" else 0.0)
    return scales


def _card(look: Look, texts: Sequence[str], scales: Mapping[str, ScalarMappable]) -> dict[str, Any]:
    """Collect the maps and numbers of one model, each with its `method` and, if it is about one text, `text`."""
    all_texts: list[int | None] = list(range(len(texts)))
    return {
        "layers": [
            {"method": name, "text": text, **_layer(look, name, text, texts, scale)}
            for name, scale in scales.items()
            for text in (all_texts if name in OF_TEXTS else [None])
        ],
        "scales": [{"method": name, **_legend(scale)} for name, scale in scales.items()],
        "numbers": [
            {"method": name, "text": text, "terms": _terms(heatmap)}
            for (name, text), heatmap in look.maps.items()
        ],
        "texts": [
            (text, share, f"{cosine:.3f}".replace("-", "−"))
            for text, share, cosine in zip(texts, look.probabilities, look.cosines, strict=True)
        ],
        "lambdas": [(_TOWERS[tower], values) for tower, values in look.lambdas.items() if values],
    }


def error_message(text: str) -> str:
    """Make a line about an error for the visitor."""
    return f'<p class="dc-message dc-bad" role="alert">{escape(printable(text))}</p>'


def image_uri(image: Image.Image, kind: str = "webp") -> str:
    """Encode an image as a `data:` address, so that the page needs no file that others could request."""
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=88)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _layer(
    look: Look, method: str, text: int | None, texts: Sequence[str], scale: ScalarMappable
) -> dict[str, Any]:
    heatmap = look.maps.get((method, text))
    if heatmap is None:
        return {"uri": None, "alt": f"This model has one map per head: there is no {method}."}
    if not heatmap.values.any():
        reason = "This map is 0 on every patch." if text is None else "No patch speaks for this text."
        return {"uri": None, "alt": reason}
    suffix = "" if text is None else f" for “{texts[text]}”"
    drawn = Image.fromarray(draw_map(heatmap.values, _EDGE, scale))
    return {"uri": image_uri(drawn, "png"), "alt": f"{METHODS[method][0]}{suffix}"}


def _legend(scale: ScalarMappable) -> dict[str, Any]:
    low, high = scale.get_clim()
    colors = scale.cmap([step / 5 for step in range(6)])[:, :3] * 255
    stops = ",".join(f"rgb({r:.0f},{g:.0f},{b:.0f})" for r, g, b in colors)
    return {
        "low": f"{low:.2g}".replace("-", "−", 1),
        "high": f"{high:.2g}",
        "gradient": f"linear-gradient(90deg,{stops})",
    }


def _terms(heatmap: Map) -> list[tuple[str, str, str]]:
    terms = []
    for name, (title, meaning, form) in _NUMBERS.items():
        if name in heatmap.numbers:
            if name == "effective_patches":
                meaning += f", out of {heatmap.values.size}"
            terms.append((title, form.format(heatmap.numbers[name]), meaning))
    return terms

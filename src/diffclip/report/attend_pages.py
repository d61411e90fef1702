"""From what models make of pictures to figures: which kind, and what stands below each map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from diffclip.focus.attend import METHODS, Attended, layers_of
from diffclip.report.attend_figure import Band, Shown, Strip, by_text_figure, sheet_figure
from diffclip.report.attend_view import Picture

PAGE = 20
"""Pictures on one page of a contact sheet."""


def attention_pages(
    found: Mapping[str, Attended],
    views: Mapping[str, Sequence[Picture]],
    names: Sequence[str],
    texts: Sequence[str],
    method: str,
    layers: str | None,
) -> list[Figure]:
    """One picture as the paper's Figure 2, or pages of a contact sheet with a row a picture.

    Args:
        found: what each model makes of P pictures and the texts.
        views: the pictures as each model sees them, P each.
        names: what to call the pictures on a sheet.
        texts: those of `found`.
        method: what the maps are, one of `METHODS`.
        layers: of which layers, as `attend` takes them.
    """
    note = note_on(method, layers, len(texts) > 1, words=len(names) == 1 and bool(texts))
    if len(names) == 1:
        rows = {label: shown_of(one, 0, views[label][0], words=True) for label, one in found.items()}
        return [by_text_figure([Band(list(texts) or [method], rows)], note)]
    strips = [
        Strip(name, {label: shown_of(one, number, views[label][number]) for label, one in found.items()})
        for number, name in enumerate(names)
    ]
    pages = [strips[start : start + PAGE] for start in range(0, len(strips), PAGE)]
    return [sheet_figure(page, texts, note) for page in pages]


def shown_of(one: Attended, number: int, view: Picture, words: bool = False, name: str = "") -> list[Shown]:
    """The maps of picture `number` for each text, with the score below, after the model's `name` if it has one."""
    above = [name] if name else []
    if not one.pieces:
        return [Shown(view, one.maps[number, 0], above)]
    several = len(one.pieces) > 1
    shown = []
    for text, pieces in enumerate(one.pieces):
        # adding 0 makes −0.00 plain 0
        score = f"cosine {round(float(one.cosines[number, text]), 2) + 0:.2f}".replace("-", "−")
        score += f" · {_share(one.probabilities[number, text])}" if several else ""
        spoken = list(zip(pieces, one.spoken[number, text].tolist(), strict=False)) if words else []
        shown.append(Shown(view, one.maps[number, text], [*above, score], spoken))
    return shown


def _share(value: float) -> str:
    if value < 0.005 or value > 0.995:
        return "< 1 %" if value < 0.5 else "> 99 %"
    return f"{100 * value:.0f} %"


def note_on(method: str, layers: str | None, shares: bool, words: bool) -> str:
    """What a figure of `method` shows, in sentences."""
    layers = layers_of(method, layers)
    of = {"last": "last vision layer", "all": "all vision layers"}.get(layers, f"vision layer {layers}")
    what = f"{method[0].upper()}{method[1:]}, {of}: {METHODS[method]}."
    if method == "relevance":
        what += " (∂logit/∂A ⊙ A)⁺, mean over heads."
    if shares:
        what += " Below: cosine, and the share of each text (softmax of the model's logits over the texts)."
    if words:
        what += " Words are shaded by their own relevance, the strongest of a text the darkest."
    return what

"""From what models make of pictures to figures: which kind, and what stands below each map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from diffclip.files import printable
from diffclip.focus.attend import METHODS, Attended, layers_of
from diffclip.report.attend_figure import Band, Shown, Strip, by_text_figure, sheet_figure
from diffclip.report.attend_view import Picture, is_nothing, usual_sum

PAGE = 20
"""Pictures on one page of a contact sheet."""
_NOTHING = "nothing speaks for it"


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
    usual = {label: usual_sum([one.maps]) for label, one in found.items()}
    texts = [one_line(text) for text in texts]
    if len(names) == 1:
        rows = {
            label: shown_of(one, 0, views[label][0], usual[label], words=True) for label, one in found.items()
        }
        return [by_text_figure([Band(texts or [method], rows)], note)]
    strips = [
        Strip(
            printable(name),
            {
                label: shown_of(one, number, views[label][number], usual[label])
                for label, one in found.items()
            },
        )
        for number, name in enumerate(names)
    ]
    pages = [strips[start : start + PAGE] for start in range(0, len(strips), PAGE)]
    return [sheet_figure(page, texts, note) for page in pages]


def one_line(text: str) -> str:
    """A text as it is drawn: as one line, without what would turn or hide it."""
    return printable(" ".join(text.split()))


def shown_of(
    one: Attended, number: int, view: Picture, usual: float, words: bool = False, name: str = ""
) -> list[Shown]:
    """The maps of picture `number` for each text, with the score below, after the model's `name` if it has one.

    A map that is nothing against the `usual` sum (see `attend_view`) is emptied, and for a text that is said below it.
    """
    above = [name] if name else []
    maps = [np.zeros_like(values) if is_nothing(values, usual) else values for values in one.maps[number]]
    if not one.pieces:
        return [Shown(view, maps[0], above)]
    several = len(one.pieces) > 1
    shown = []
    for text, pieces in enumerate(one.pieces):
        # adding 0 makes −0.00 plain 0
        score = f"cosine {round(float(one.cosines[number, text]), 2) + 0:.2f}".replace("-", "−")
        score += f" · {_share(one.probabilities[number, text])}" if several else ""
        below = [*above, score] if maps[text].any() else [*above, score, _NOTHING]
        legible = map(printable, pieces)
        spoken = list(zip(legible, one.spoken[number, text].tolist(), strict=False)) if words else []
        shown.append(Shown(view, maps[text], below, spoken))
    return shown


def _share(value: float) -> str:
    if value < 0.005 or value > 0.995:
        return (
            "<\N{NO-BREAK SPACE}1\N{NO-BREAK SPACE}%"
            if value < 0.5
            else ">\N{NO-BREAK SPACE}99\N{NO-BREAK SPACE}%"
        )
    return f"{100 * value:.0f}\N{NO-BREAK SPACE}%"


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

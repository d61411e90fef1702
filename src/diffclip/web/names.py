"""What the page calls its models, and in which colours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diffclip.config import variant_of
from diffclip.model_source import RANDOM, Loaded
from diffclip.report.style import COLOURS
from diffclip.web.markup import Shown, readable

_DARK = {
    "CLIP": "#4aa8e6",
    "DiffCLIP": "#f08a3c",
    "DiffCLIP-dynamic": "#3cc79a",
    "DiffCLIP-vision": "#dd93bb",
}
_OTHER = ("#7a6400", "#d9c24a")
"""On light and on dark ground, where two models are of one variant, or it has no name."""


def shown_models(models: Sequence[tuple[str, Loaded]]) -> list[tuple[Shown, Loaded]]:
    """Each model, given with its source, with a name and a colour of its own."""
    names = [readable(Path(source).name or source) for source, _ in models]
    if len(set(names)) < len(names):
        names = [readable(source) for source, _ in models]
    named: list[tuple[Shown, Loaded]] = []
    taken: set[str] = set()
    for position, (name, (source, loaded)) in enumerate(zip(names, models, strict=True), start=1):
        if any(other.name == name for other, _ in named):
            name = f"{name} ({position})"
        variant = variant_of(loaded.model.config)
        colours = _OTHER if variant in taken or variant not in _DARK else (COLOURS[variant], _DARK[variant])
        taken.add(variant)
        where = f"{loaded.label} · {'random weights' if loaded.weights == RANDOM else source}"
        named.append((Shown(name, readable(where), colours), loaded))
    return named

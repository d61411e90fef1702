"""The paper's Figures 2 and 6 of a set: where models look in its pictures, for texts of the set itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from diffclip.data.catalog import EvaluationSet
from diffclip.errors import InputError
from diffclip.evaluation.zero_shot import fill_template
from diffclip.focus.attend import Attended, Prepared, attend
from diffclip.model_source import load_for_use
from diffclip.report.attend_figure import Band, Shown, Tile, by_text_figure, tiles_figure
from diffclip.report.attend_pages import note_on, one_line, shown_of
from diffclip.report.attend_view import as_seen, usual_sum
from diffclip.report.page import Extra
from diffclip.report.runs import Run
from diffclip.report.series import Collection, Series

_FEW, _MORE = 2, 8
_SIDE = 288  # pixels of a picture


@dataclass(frozen=True)
class _Example:
    picture: Image.Image
    text: str


def models_of(collection: Collection) -> dict[str, Prepared]:
    """The best (else last) checkpoint of each model, of its lowest seed that has one, by its label.

    The label names the seed where the collection has other runs that could have been meant.

    Raises:
        InputError: no run has weights.
    """
    found: dict[Series, Run] = {}
    for series, run in collection.runs:
        there = any((run.folder / "checkpoints" / name).exists() for name in ("best", "last"))
        if there and (series not in found or _seed(run) < _seed(found[series])):
            found[series] = run
    if not found:
        raise InputError(
            "none of the runs has a checkpoint to look with: name run folders with their weights"
        )
    alone = len(found) == len(collection.runs)
    models = {}
    for series, run in found.items():
        loaded = load_for_use(str(run.folder))
        label = series.label if alone or run.seed is None else f"{series.label}, seed {run.seed}"
        models[label] = (loaded.model, loaded.preprocess, loaded.tokenizer)
    return models


def _seed(run: Run) -> int:
    return -1 if run.seed is None else run.seed


def attention_figures(models: Mapping[str, Prepared], data: EvaluationSet, seed: int = 0) -> dict[str, Extra]:
    """Sections with the paper's Figures 2 and 6 of pictures drawn with `seed`, by the stem of their files.

    Figure 2: two pictures, each for its own text and the other's. Figure 6: up to eight more, each for its own text,
    all models beside each other. A text is the first caption, or the class in the set's first template.

    Raises:
        InputError: the set has not two readable pictures of different texts.
    """
    examples = _drawn(data, seed)
    few: list[_Example] = []
    for example in examples:
        if example.text not in [one.text for one in few]:
            few.append(example)
        if len(few) == _FEW:
            break
    if len(few) < _FEW:
        raise InputError(f"{data.name} has no two pictures of different texts in its {data.split} split")
    more = [example for example, _ in zip(examples, range(_MORE), strict=False)]
    whence = f"of {data.name}, {data.split} split, drawn at random (seed {seed}) so that nobody chose them"
    kind = "caption" if data.captions else "class"
    sections = {
        "figure_2": Extra(
            "Figure 2: what speaks for each text",
            f"Two pictures {whence}, each with its own {kind} and the other's.",
            [_by_text(models, few)],
        )
    }
    if more:
        sections["figure_6"] = Extra(
            "Figure 6: models side by side",
            f"What in a picture speaks for its own {kind}, in {len(more)} more pictures {whence}.",
            [_tiles(models, more)],
        )
    return sections


def _drawn(data: EvaluationSet, seed: int) -> Iterator[_Example]:
    """The set in random order, without broken pictures."""
    for position in np.random.default_rng(seed).permutation(len(data)).tolist():
        try:
            picture = data.source.picture(data.indices[position])
        except InputError:
            continue
        yield _Example(picture, _text(data, position))


def _text(data: EvaluationSet, position: int) -> str:
    if data.captions:
        return data.captions[position][0]
    return fill_template(data.templates[0], data.classnames[data.labels[position]])


def _by_text(models: Mapping[str, Prepared], examples: list[_Example]) -> Figure:
    asked = []
    for example in examples:
        texts = [example.text, *(other.text for other in examples if other is not example)]
        asked.append(texts)
    shown = _shown(models, examples, asked, words=True)
    bands = [Band(list(map(one_line, texts)), rows) for texts, rows in zip(asked, shown, strict=True)]
    return by_text_figure(bands, note_on("relevance", None, shares=True, words=True))


def _tiles(models: Mapping[str, Prepared], examples: list[_Example]) -> Figure:
    shown = _shown(models, examples, [[example.text] for example in examples], named=True)
    tiles = [
        Tile(one_line(example.text), [one for maps in rows.values() for one in maps])
        for example, rows in zip(examples, shown, strict=True)
    ]
    return tiles_figure(tiles, note_on("relevance", None, shares=False, words=False))


def _shown(
    models: Mapping[str, Prepared],
    examples: list[_Example],
    texts: list[list[str]],
    words: bool = False,
    named: bool = False,
) -> list[dict[str, list[Shown]]]:
    """For each example the maps of each model for its own list of `texts`."""
    found = [attend(models, [one.picture], own) for one, own in zip(examples, texts, strict=True)]
    usual = {label: usual_sum([one[label].maps for one in found]) for label in models}

    def shown(example: _Example, label: str, one: Attended) -> list[Shown]:
        view = as_seen(example.picture, models[label][1], _SIDE)
        return shown_of(one, 0, view, usual[label], words, label if named else "")

    return [
        {label: shown(example, label, one) for label, one in own.items()}
        for example, own in zip(examples, found, strict=True)
    ]

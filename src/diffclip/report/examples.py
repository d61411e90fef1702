"""Examples from a set for a page: retrieved images and attention maps."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from PIL import Image

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.zero_shot import true_text
from diffclip.maps.attend import Prepared, attend
from diffclip.maps.view import View
from diffclip.report.attention import RELEVANCE_FLOOR, Cell, grid_figure, model_rows, model_view, own_scales
from diffclip.report.page import Extra

_TOP = 5


def retrieval_examples(models: Mapping[str, Prepared], data: EvaluationSet, count: int) -> Extra:
    """Show for `count` captions, drawn from the whole set with seed 0, the best images of each model."""
    drawn = np.random.default_rng(0).choice(len(data), count, replace=False).tolist()
    queries = [data.captions[image][0] for image in drawn]
    best = {label: _best_images(loaded, data, queries) for label, loaded in models.items()}
    figures = []
    for number, (query, right) in enumerate(zip(queries, drawn, strict=True)):
        rows = []
        for label, loaded in models.items():
            images = {index: model_view(_read_image(data, index), loaded) for index in best[label][number]}
            rows.append([Cell(image, title="right" * (index == right)) for index, image in images.items()])
        figure = grid_figure(rows, labels=list(models))
        figure.suptitle(textwrap.fill(f"“{query}”", 95), x=0.01, ha="left", fontsize=10, parse_math=False)
        figures.append(figure)
    text = (
        f"Queries drawn at random from {data.name}, {data.split} split, and the best of {len(data):,} images."
    )
    return Extra("Retrieved examples", text, figures)


def attention_examples(models: Mapping[str, Prepared], data: EvaluationSet, count: int) -> Extra:
    """Show where the class token of each model's last layer looks in `count` images drawn with seed 1, and in two
    images which patches speak for a text (the paper's Figure 2)."""
    drawn = np.random.default_rng(1).choice(len(data), count, replace=False).tolist()
    images = [_read_image(data, position) for position in drawn]
    maps: dict[tuple[str, str], npt.NDArray[np.float32]] = {}  # by model and name of the map
    for label, loaded in models.items():
        methods = {"attention": "A"}
        if loaded[0].config.vision.is_differential:
            methods = {"A1": "A1", "A2": "A2", "attention": "A1 − λ·A2"}
        for method, name in methods.items():
            attended = attend({label: loaded}, images, view=View(method))[label]
            maps[label, name] = attended.maps[:, 0]
    scales = own_scales({label: [maps[key] for key in maps if key[0] == label] for label in models})
    rows = []
    for row, image in enumerate(images):
        pixels = model_view(image, next(iter(models.values())))
        cells = [Cell(pixels, values[row], "" if row else "\n".join(key)) for key, values in maps.items()]
        rows.append([Cell(pixels, title="" if row else "image"), *cells])
        if scales:
            blank = Cell(np.full_like(pixels, 255))
            rows.append([blank])
            for cell, (label, _) in zip(cells, maps, strict=True):
                scale = scales.get(label)
                note = f"own scale to {scale.get_clim()[1]:.2g}" if scale else ""
                rows[-1].append(cell._replace(title="", scale=scale, caption=note) if scale else blank)
    return Extra(
        "Attention",
        "Attention of the class token in the last vision layer, mean over heads: A1 and A2 are the two maps of "
        "differential attention, and the signed A1 − λ·A2 multiplies the values. Then two images, each with its own "
        "caption and the other's: which patches speak for each.",
        [grid_figure(rows), _two_images(models, data)],
    )


def _two_images(models: Mapping[str, Prepared], data: EvaluationSet) -> Figure:
    """Draw two images with different texts (drawn with seed 1), each with maps for its own text and the other's."""
    pair: dict[str, Image.Image] = {}
    for position in np.random.default_rng(1).permutation(len(data)).tolist():
        if len(pair) < 2:
            pair.setdefault(true_text(data, position), _read_image(data, position))
    labels: list[str] = []
    rows: list[list[Cell]] = []
    for text, image in pair.items():
        texts = [text, *(other for other in pair if other != text)]
        views = {label: model_view(image, loaded) for label, loaded in models.items()}
        more = model_rows(attend(models, [image], texts), views, texts, floor=RELEVANCE_FLOOR)
        labels += more[0]
        rows += more[1]
    return grid_figure(rows, f"{View().resolved(list(pair))}.", labels, RELEVANCE_FLOOR)


def _read_image(data: EvaluationSet, position: int) -> Image.Image:
    return data.source.image(data.indices[position])


def _best_images(loaded: Prepared, data: EvaluationSet, queries: list[str]) -> list[list[int]]:
    """Return the positions of the best images for each query, best first."""
    setting = Setting(*loaded, data, batch_size=256)
    encoded = setting.encoded()
    scores = setting.text_features(queries) @ encoded.embeddings.T
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :_TOP].tolist()
    return [[encoded.positions[index] for index in row] for row in order]

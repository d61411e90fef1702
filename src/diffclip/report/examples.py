"""Examples made by trained models for a page: images that they retrieve, and where their class token looks."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from PIL import Image

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.evaluation.embed import embed_images, embed_texts, evaluating
from diffclip.focus import class_token_maps
from diffclip.focus.attend import Prepared
from diffclip.report.attention import Cell, grid_figure, paper_figures
from diffclip.report.page import Extra
from diffclip.report.style import RIGHT, new_figure, style

_TOP = 5
_WIDTH = 8.0
_SIDE = 128  # pixels of an image


@style()
def retrieval_examples(
    models: Mapping[str, Prepared], data: EvaluationSet, count: int, seed: int = 0
) -> Extra:
    """Show for `count` captions the best images of each model.

    The queries are drawn with `seed` from the whole set, so that nobody chose them.
    """
    drawn = np.random.default_rng(seed).choice(len(data), count, replace=False).tolist()
    queries = [data.captions[image][0] for image in drawn]
    best = {label: _best_images(loaded, data, queries) for label, loaded in models.items()}
    figure = new_figure(_WIDTH, (1.5 * len(models) + 0.35) * count)
    parts = figure.subfigures(count, 1, squeeze=False).ravel()
    for number, (part, query) in enumerate(zip(parts, queries, strict=True)):
        title = textwrap.fill(f"“{query}”", 95)
        part.suptitle(title, fontsize=9.5, x=0.01, ha="left", style="italic")
        grid = part.subplots(len(models), _TOP, squeeze=False)
        for row, (label, found) in zip(grid, best.items(), strict=True):
            for axes, image in zip(row, found[number], strict=True):
                _show(axes, _image(data, image), right=image == drawn[number])
            row[0].set_ylabel(label, fontsize=9)
    return Extra(
        "Retrieved examples",
        f"Queries drawn at random from {data.name}, {data.split} split, {len(data):,} images; the right answer is "
        "framed in green.",
        [figure],
    )


def attention_examples(
    models: Mapping[str, Prepared], data: EvaluationSet, count: int, seed: int = 1
) -> Extra:
    """Show where the class token of each model's last layer looks in `count` images drawn with `seed`, and which
    patches speak for a text in two (the paper's Figure 2)."""
    drawn = np.random.default_rng(seed).choice(len(data), count, replace=False)
    images = [_image(data, int(position)) for position in drawn]
    maps: dict[str, npt.NDArray[np.float32]] = {}
    for label, (model, preprocess, _) in models.items():
        for name, values in class_token_maps(model, torch.stack([preprocess(one) for one in images])).items():
            maps[f"{label}\n{name}"] = values.numpy()
    rows = []
    for row, image in enumerate(images):
        pixels = np.asarray(image.resize((_SIDE, _SIDE)))
        cells = [Cell(pixels, one[row], "" if row else title) for title, one in maps.items()]
        rows.append([Cell(pixels, title="" if row else "image"), *cells])
    return Extra(
        "Attention",
        "Attention of the class token in the last vision layer, mean over heads: A1 and A2 are the two maps of "
        "differential attention, and the signed A1 − λ·A2 multiplies the values. Then two images, each with its own "
        "caption and the other's: which patches speak for each.",
        [grid_figure(rows), paper_figures(models, data, seed)["figure_2"][-1]],
    )


def _best_images(loaded: Prepared, data: EvaluationSet, queries: list[str]) -> list[list[int]]:
    """Return the positions of the best images for each query, best first."""
    model, preprocess, tokenizer = loaded
    positions: list[int] = []
    features = []
    with evaluating(model):
        for batch in data.batches(preprocess, 256):
            positions += batch.positions
            features.append(embed_images(model, batch.images))
        scores = embed_texts(model, tokenizer, queries) @ torch.cat(features).T
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :_TOP].tolist()
    return [[positions[place] for place in row] for row in order]


def _show(axes: Axes, image: Image.Image, right: bool) -> None:
    axes.imshow(image)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=right, edgecolor=RIGHT, linewidth=3)


def _image(data: EvaluationSet, position: int) -> Image.Image:
    """Return the square in the middle of an image."""
    image = data.source.image(data.indices[position])
    side = min(*image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).convert("RGB")

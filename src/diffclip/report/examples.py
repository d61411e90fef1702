"""Examples made by trained models for a page: images that they retrieve, and where their class token looks."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.evaluation.embed import embed_captioned
from diffclip.focus import class_token_maps
from diffclip.focus.attend import Prepared
from diffclip.report.attention import Cell, grid_figure, paper_figures
from diffclip.report.page import Extra
from diffclip.report.style import INK, MUTED, RIGHT, new_figure, style

_TOP = 5
_WIDTH = 8.0
_SIDE = 128  # pixels of an image


def retrieval_examples(
    models: Mapping[str, Prepared], data: EvaluationSet, count: int, seed: int = 0
) -> Extra:
    """Show for `count` captions the best images of each model, and for as many images the best captions.

    The queries are drawn with `seed` from the whole set, so that nobody chose them.
    """
    captions = [text for own in data.captions for text in own]
    owners = np.repeat(np.arange(len(data)), [len(own) for own in data.captions])
    scores = {label: _scores(loaded, data) for label, loaded in models.items()}
    drawn = np.random.default_rng(seed).choice(len(data), 2 * count, replace=False)
    queries = [int(np.flatnonzero(owners == image)[0]) for image in drawn[:count]]
    return Extra(
        "Retrieved examples",
        f"Queries drawn at random from {data.name}, {data.split} split, {len(data):,} images with {len(captions):,} "
        "captions; the right answer is framed or marked in green.",
        [
            _images_for_captions(data, captions, owners, queries, scores),
            _captions_for_images(data, captions, owners, drawn[count:], scores),
        ],
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


@style()
def _images_for_captions(
    data: EvaluationSet,
    captions: Sequence[str],
    owners: npt.NDArray[np.intp],
    queries: Sequence[int],
    scores: Mapping[str, npt.NDArray[np.float32]],
) -> Figure:
    figure = new_figure(_WIDTH, (1.5 * len(scores) + 0.35) * len(queries))
    parts = figure.subfigures(len(queries), 1, squeeze=False).ravel()
    for part, query in zip(parts, queries, strict=True):
        title = textwrap.fill(f"“{captions[query]}”", 95)
        part.suptitle(title, fontsize=9.5, x=0.01, ha="left", style="italic")
        grid = part.subplots(len(scores), _TOP, squeeze=False)
        for row, (label, score) in zip(grid, scores.items(), strict=True):
            for axes, best in zip(row, np.argsort(-score[query], kind="stable")[:_TOP], strict=True):
                _show(axes, _image(data, int(best)), RIGHT if best == owners[query] else None)
            row[0].set_ylabel(label, fontsize=9)
    return figure


@style()
def _captions_for_images(
    data: EvaluationSet,
    captions: Sequence[str],
    owners: npt.NDArray[np.intp],
    drawn: npt.NDArray[np.intp],
    scores: Mapping[str, npt.NDArray[np.float32]],
) -> Figure:
    figure = new_figure(_WIDTH, max(1.4, 1.15 * len(scores)) * len(drawn))
    grid = figure.subplots(len(drawn), 2, squeeze=False, width_ratios=(1, 4))
    for (left, right), image in zip(grid, drawn, strict=True):
        _show(left, _image(data, int(image)))
        right.set_axis_off()
        lines = []
        for label, score in scores.items():
            lines.append((label, MUTED))
            for best in np.argsort(-score[:, image], kind="stable")[:_TOP]:
                own = owners[best] == image
                text = textwrap.shorten(captions[best], 78, placeholder=" …")
                lines.append((f"{'✓' if own else '   '} {text}", RIGHT if own else INK))
        for line, (text, color) in enumerate(lines):
            y = 1 - (line + 0.5) / len(lines)
            right.text(0, y, text, fontsize=8, color=color, va="center", transform=right.transAxes)
    return figure


def _show(axes: Axes, image: Image.Image, frame: str | None = None) -> None:
    axes.imshow(image, cmap="gray" if image.mode == "L" else None)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(frame is not None)
        spine.set_edgecolor(frame or INK)
        spine.set_linewidth(3)


def _scores(loaded: Prepared, data: EvaluationSet) -> npt.NDArray[np.float32]:
    """Return the cosine of every caption with every image, [M, N]."""
    model, preprocess, tokenizer = loaded
    batches = ((batch.images, batch.captions or []) for batch in data.batches(preprocess, 256))
    with torch.inference_mode():
        images, texts, _ = embed_captioned(model, tokenizer, batches)
        scores: npt.NDArray[np.float32] = (texts @ images.T).numpy()
    return scores


def _image(data: EvaluationSet, position: int) -> Image.Image:
    image = data.source.image(data.indices[position])
    side = min(*image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).convert("RGB")

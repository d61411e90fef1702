"""Examples made by trained models for a report: what they retrieve, and where their class token looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from diffclip.data.evaluation_sets import EvaluationSet
from diffclip.evaluation.embed import embed_captioned
from diffclip.focus import class_token_maps
from diffclip.focus.attend import Prepared
from diffclip.report.attention import Cell, grid_figure, paper_figures
from diffclip.report.page import Extra
from diffclip.report.pictures import caption_examples_figure, retrieval_examples_figure

_TOP = 5
_SIDE = 128  # pixels of a picture on the page


def retrieval_examples(
    models: Mapping[str, Prepared], data: EvaluationSet, count: int, seed: int = 0
) -> Extra:
    """For `count` captions the best pictures of each model, and for as many pictures the best captions.

    The queries are drawn with `seed` from the whole set, so that nobody chose them.
    """
    captions = [text for own in data.captions for text in own]
    owners = np.repeat(np.arange(len(data)), [len(own) for own in data.captions])
    scores = {label: _scores(loaded, data) for label, loaded in models.items()}
    drawn = np.random.default_rng(seed).choice(len(data), 2 * count, replace=False)
    queries = [int(np.flatnonzero(owners == picture)[0]) for picture in drawn[:count]]
    to_pictures = {label: _best(score[queries]) for label, score in scores.items()}
    to_captions = {label: _best(score.T[drawn[count:]]) for label, score in scores.items()}
    shown = np.unique(np.concatenate([*map(np.ravel, to_pictures.values()), drawn]))
    pictures = {int(i): _picture(data, int(i)) for i in shown}
    gallery = _stack([pictures.get(i) for i in range(len(data))], next(iter(pictures.values())))
    return Extra(
        "Retrieved examples",
        f"Queries drawn at random from {data.name}, {data.split} split, {len(data):,} pictures with "
        f"{len(captions):,} captions; the right answer is framed or marked in green.",
        [
            retrieval_examples_figure(
                [captions[q] for q in queries], gallery, to_pictures, [int(owners[q]) for q in queries]
            ),
            caption_examples_figure(
                gallery[drawn[count:]],
                captions,
                to_captions,
                [np.flatnonzero(owners == picture).tolist() for picture in drawn[count:]],
            ),
        ],
    )


def attention_examples(
    models: Mapping[str, Prepared], data: EvaluationSet, count: int, seed: int = 1
) -> Extra:
    """Where the class token of each model's last layer looks in `count` pictures drawn with `seed`, and what speaks for
    a text in two (the paper's Figure 2)."""
    drawn = np.random.default_rng(seed).choice(len(data), count, replace=False)
    maps = {}
    for label, (model, preprocess, _) in models.items():
        images = torch.stack([preprocess(_read(data, int(i))) for i in drawn])
        for name, values in class_token_maps(model, images).items():
            maps[f"{label}\n{name}"] = values.numpy()
    rows = []
    for row, position in enumerate(drawn):
        image = _picture(data, int(position))
        cells = [Cell(image, one[row], "" if row else title) for title, one in maps.items()]
        rows.append([Cell(image, title="" if row else "image"), *cells])
    return Extra(
        "Attention",
        "What the class token attends to in the last vision layer, mean over heads. A1 and A2 are the two maps of "
        "differential attention; the signed A1 − λ·A2 is what multiplies the values. Then, what speaks for a text: two "
        "pictures, each with its own caption and the other's.",
        [
            grid_figure(rows),
            paper_figures(models, data, seed)["figure_2"][-1],
        ],
    )


def _scores(loaded: Prepared, data: EvaluationSet) -> npt.NDArray[np.float32]:
    """Cosine of every caption with every picture, [M, N]."""
    model, preprocess, tokenizer = loaded
    batches = ((batch.images, batch.captions or []) for batch in data.batches(preprocess, 256))
    with torch.inference_mode():
        images, texts, _ = embed_captioned(model, tokenizer, batches)
        scores: npt.NDArray[np.float32] = (texts @ images.T).numpy()
    return scores


def _best(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    return np.argsort(-scores, axis=1, kind="stable")[:, :_TOP]


def _read(data: EvaluationSet, position: int) -> Image.Image:
    return data.source.image(data.indices[position])


def _picture(data: EvaluationSet, position: int) -> npt.NDArray[np.uint8]:
    picture = _read(data, position)
    side = min(*picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side))
    return np.asarray(square.resize((_SIDE, _SIDE)))


def _stack(
    pictures: Sequence[npt.NDArray[np.uint8] | None], like: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """[N, H, W, 3]; pictures that nothing shows are left black."""
    blank = np.zeros_like(like)
    return np.stack([blank if picture is None else picture for picture in pictures])

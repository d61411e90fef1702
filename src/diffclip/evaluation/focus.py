"""The task `focus`: attention maps and relevance against masks of the objects that texts name.

Items are pairs of an image and a text, clusters are images. The measures are those of `diffclip.focus.measures`, of
five kinds of map: the text's relevance (of the last layer), rollout, and the class token's rows of what the layers
attend by (`attention`), of A1 and of A2. `A1_minus_A2` holds differences between the two, item by item.

Shapes: n items, L layers, H heads, P patches, B images, S image size, D joint width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffclip.data.masks import MaskedSet
from diffclip.data.transforms import Transform
from diffclip.errors import InputError
from diffclip.evaluation.embed import Progress, Tokenizer, checked, embed_texts, evaluating
from diffclip.evaluation.scores import Score
from diffclip.evaluation.statistics import SHARE, Bounds, mean_intervals
from diffclip.focus import measures
from diffclip.focus.maps import map_correlation
from diffclip.focus.recording import images_at_once, recording
from diffclip.focus.relevance import gradients, image_logits, weighted
from diffclip.focus.rollout import rollout
from diffclip.model import CLIP

DIFFERENCE = "A1_minus_A2"
NOT_SHARES = frozenset({"inside_over_area", "effective_patches", "map_correlation"})
"""Measures that are a count, a ratio or a correlation and not a share in [0, 1]."""

_COMPARED = ("entropy", "inside", "top10")
_CORRELATION = "map_correlation"


class _Key(NamedTuple):
    map: str
    metric: str
    layer: int | None = None
    head: int | None = None


class _Image(NamedTuple):
    """An image of the set: its position, itself [3, S, S], its texts and the coverage of each [texts, h, w]."""

    position: int
    image: Tensor
    texts: list[str]
    coverage: NDArray[np.float64]


def focus(
    model: CLIP,
    tokenizer: Tokenizer,
    preprocess: Transform,
    data: MaskedSet,
    prompt: str | None = None,
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> list[Score]:
    """Measure every map: the headlines first, the relevance's AUROC before all, then layers, then heads.

    Args:
        preprocess: PIL image → [3, S, S] of the model's crop, perhaps corrupted.
        prompt: the text of every item, with its name where `{c}` stands; None: the set's own.
        batch_size: images read at once; maps are made of as many at once as 2 GiB hold.

    Raises:
        InputError: the model has a single patch; fewer than two images are left with an object and a background; an
            embedding is not finite.
    """
    vision = model.config.vision
    grid, edge = vision.image_size // vision.patch_size, model.config.preprocess.resize or vision.image_size
    if grid < 2:
        raise InputError("the model sees an image as a single patch: there is nowhere else to look")
    words = sorted({thing.worded(prompt) for own in data.things for thing in own})
    with evaluating(model):
        features = embed_texts(model, tokenizer, words, progress=progress)
    index = {text: i for i, text in enumerate(words)}
    found: list[dict[_Key, Tensor]] = []
    positions: list[int] = []
    coverages: list[Tensor] = []
    for batch in data.batches(preprocess, batch_size, workers):
        groups: dict[int, list[_Image]] = {}  # images with as many texts each go together
        for image, position in zip(batch.images, batch.positions, strict=True):
            things, coverage = data.coverages(position, vision.image_size, edge, grid)
            texts = [thing.worded(prompt) for thing in things]
            if things:
                groups.setdefault(len(things), []).append(_Image(position, image, texts, coverage))
        for group in _parts(groups.values(), images_at_once(model)):
            asked = features[[index[text] for one in group for text in one.texts]]
            covered = torch.from_numpy(np.concatenate([one.coverage for one in group])).flatten(1)
            images = torch.stack([one.image for one in group]).to(features.device)
            found.append(_measure(model, images, asked.view(len(group), -1, asked.shape[-1]), covered))
            positions += [one.position for one in group for _ in one.texts]
            coverages.append(covered)
        if progress:
            progress("images", len(batch.positions), len(data))
    data.faults = list(dict.fromkeys(data.faults))
    if len(set(positions)) < 2:
        why = f": {data.faults[-1]}" if data.faults else ""
        raise InputError(
            f"{data.name}/{data.split} has {len(set(positions))} images whose mask has an object and a background, "
            f"and two are needed{why}"
        )
    # as in the set, however it was cut into batches: another model's items are paired with these
    order = np.argsort(positions, kind="stable")
    table = {key: torch.cat([one[key] for one in found]).double().numpy()[order] for key in found[0]}
    return _scores(table, np.array(positions)[order], uniform_scores(torch.cat(coverages)))


def uniform_scores(coverage: Tensor) -> dict[str, float]:
    """Return what a map that is the same everywhere reaches in each measure; `coverage` [n, P] of the items."""
    patches = coverage.shape[-1]
    area = float(coverage.mean())
    return {
        "auroc": 0.5,
        "ap": area,
        "inside": area,
        "inside_over_area": 1.0,
        "pointing": area,
        "entropy": 1.0,
        "effective_patches": float(patches),
        "class_token": 1 / (patches + 1),
        "top10": min(1.0, measures.STRONGEST / patches),
        "background10": float(measures.background(coverage.new_ones(patches), coverage).mean()),
    }


def _parts(groups: Iterable[list[_Image]], together: int) -> Iterator[list[_Image]]:
    for group in groups:
        for start in range(0, len(group), together):
            yield group[start : start + together]


def _measure(model: CLIP, images: Tensor, texts: Tensor, coverage: Tensor) -> dict[_Key, Tensor]:
    """Measure the items of images [B, 3, S, S] and texts [B, T, D]: values [B·T] by map, metric, layer and head.

    `coverage` [B·T, P]: how much of each patch the object of each item covers.
    """
    owners = torch.arange(len(images)).repeat_interleave(texts.shape[1])
    with recording(model, "visual", gradients=True) as seen:
        logits = image_logits(model, images, texts)
        checked(logits.detach(), "images")
        rows = []
        for column in logits.unbind(1):
            of = gradients(column, seen)
            rows.append(torch.stack([_class_rows(weighted(*one)) for one in zip(seen, of, strict=True)], 1))
    relevance = torch.stack(rows, dim=1).flatten(0, 1).cpu()[..., 1:]  # [n, L, H, P]
    found = _by_layer("relevance", _patches(relevance.mean(2), coverage), _patches(relevance, coverage))
    flow = rollout(seen)[:, 0, 1:].cpu().float()[owners]
    found |= {_Key("rollout", name): one for name, one in _patches(flow, coverage).items()}
    found |= _by_head("attention", _of_heads([one.combined for one in seen], owners, coverage))
    second = [one.second for one in seen if one.second is not None]
    if len(second) == len(seen):
        a1 = _of_heads([one.first for one in seen], owners, coverage)
        a2 = _of_heads(second, owners, coverage)
        found |= _by_head("A1", a1) | _by_head("A2", a2)
        found |= _by_head(DIFFERENCE, {name: a1[name] - a2[name] for name in _COMPARED})
        correlation = torch.stack([map_correlation(one).detach() for one in seen], dim=1)
        found |= _by_head("A1", {_CORRELATION: correlation.cpu()[owners]})
    return found


def _class_rows(full: Tensor) -> Tensor:
    """The class token's rows of maps [B, H, N, N]: [B, H, N]."""
    return full.detach()[:, :, 0].float()


def _of_heads(maps: Sequence[Tensor], owners: Tensor, coverage: Tensor) -> dict[str, Tensor]:
    """Measure the class token's rows of maps [B, H, N, N] of each layer: [n, L, H] by metric."""
    rows = torch.stack([_class_rows(one) for one in maps], dim=1).cpu()[owners]
    return _patches(rows[..., 1:], coverage) | {"class_token": measures.class_token_share(rows)}


def _patches(rows: Tensor, coverage: Tensor) -> dict[str, Tensor]:
    """Apply every measure to rows over patches, [n, …, P] → [n, …]."""
    covered = coverage.reshape(len(rows), *[1] * (rows.ndim - 2), -1)
    inside = measures.inside(rows, covered)
    return {
        "auroc": measures.auroc(rows, covered),
        "ap": measures.average_precision(rows, covered),
        "inside": inside,
        "inside_over_area": inside / covered.mean(-1),
        "pointing": measures.pointing(rows, covered),
        "entropy": measures.entropy(rows),
        "effective_patches": measures.effective_patches(rows),
        "top10": measures.top(rows),
        "background10": measures.background(rows, covered),
    }


def _by_head(map: str, heads: Mapping[str, Tensor]) -> dict[_Key, Tensor]:
    """Key values [n, L, H]; a layer is the mean over its heads, the headline the mean over layers."""
    layers = {name: one.mean(2) for name, one in heads.items()}
    headlines = {_Key(map, name): one.mean(1) for name, one in layers.items()}
    return headlines | _by_layer(map, layers, heads, headline=False)


def _by_layer(
    map: str, layers: Mapping[str, Tensor], heads: Mapping[str, Tensor], headline: bool = True
) -> dict[_Key, Tensor]:
    """Key values of layers [n, L] and heads [n, L, H]; the headline is the last layer."""
    found = {_Key(map, name): one[:, -1] for name, one in layers.items()} if headline else {}
    for name, of_layers in layers.items():
        for layer, one in enumerate(of_layers.unbind(1), 1):
            found[_Key(map, name, layer)] = one
            for head, own in enumerate(heads[name][:, layer - 1].unbind(1), 1):
                found[_Key(map, name, layer, head)] = own
    return found


def _scores(
    table: Mapping[_Key, NDArray[np.float64]], images: NDArray[np.int64], uniform: Mapping[str, float]
) -> list[Score]:
    """Score each column; headlines have outcomes, for a paired comparison."""
    keys = sorted(table, key=lambda key: (key.layer is not None, key.head is not None))
    values = np.stack([table[key] for key in keys], axis=1)
    intervals = mean_intervals(values, images, [_bounds(key) for key in keys]).tolist()
    scores = []
    for key, column, (low, high) in zip(keys, values.T, intervals, strict=True):
        # between two uniform maps there is no difference
        chance = 0.0 if key.map == DIFFERENCE or key.metric == _CORRELATION else uniform[key.metric]
        hits = np.ascontiguousarray(column) if key.layer is None else None
        scores.append(
            Score(
                metric=key.metric,
                value=float(column.mean()),
                count=len(column),
                low=low,
                high=high,
                chance=chance,
                hits=hits,
                clusters=None if hits is None else images,
                map=key.map,
                layer=key.layer,
                head=key.head,
            )
        )
    return scores


def _bounds(key: _Key) -> Bounds:
    if key.map == DIFFERENCE or key.metric == _CORRELATION:
        return -1.0, 1.0
    return None if key.metric in NOT_SHARES else SHARE

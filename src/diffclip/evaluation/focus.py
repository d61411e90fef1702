"""The task `focus`: attention maps and relevance against masks of the objects that texts name.

Items are pairs of an image and a text, clusters are images. docs/protocols.md defines the maps (the field `map`);
`diffclip.maps.measures` has the measures.

Shapes: n items, L layers, H heads, P patches, B images, T texts per image, S image size, D joint width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffclip.data.masks import MaskedSet
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting, check_embeddings
from diffclip.evaluation.scores import DIFFERENCE, MapMetric, Score, by_layer, map_scores, with_facts
from diffclip.maps import measures
from diffclip.maps.attention_maps import map_correlation, patch_grid, patch_part, rollout
from diffclip.maps.recording import images_at_once, recording
from diffclip.maps.relevance import gradients, image_logits, image_relevances, weight_by_gradient
from diffclip.model import CLIP

OWN_MINUS_OTHER = "own minus other text"
IN_GRAPH = "relevance, norm in the graph"
CENTER_PRIOR, UNTRAINED = "centre prior", "untrained"
_SEED = 0
_COMPARED = ("entropy", "inside", "top10")
_CORRELATION = "map_correlation"


def focus(setting: Setting[MaskedSet]) -> list[Score]:
    """Measure every map. Headlines come first, with the AUROC of the primary map at the top, then layers, then heads.

    The primary map is `own minus other text`. A set with a single text has no such map.
    """
    model, data, prompt = setting.model, setting.data, setting.prompt
    grid, all_texts = patch_grid(model), distinct_texts(setting)
    untrained = CLIP(model.config, init=setting.init, seed=_SEED).to(model.logit_scale)
    features, fresh = (replace(setting, model=clip).text_features(all_texts) for clip in (model, untrained))
    index = {text: i for i, text in enumerate(all_texts)}
    # shuffled, because neighbors in the alphabet are similar: "a red ring", "a red star"
    circle = [all_texts[i] for i in np.random.default_rng(_SEED).permutation(len(all_texts))]
    tables: list[dict[MapMetric, Tensor]] = []
    positions: list[int] = []
    coverages: list[Tensor] = []
    for part in _parts(setting, grid):
        part_positions, pixels, part_texts, shares = zip(*part, strict=True)
        own_texts = torch.tensor([[index[text] for text in texts] for texts in part_texts])
        other_texts = [[index[other_text(text, texts, circle)] for text in texts] for texts in part_texts]
        covered = torch.from_numpy(np.concatenate(shares)).flatten(1)
        images = torch.stack(pixels).to(features.device)
        contrast = features[torch.tensor(other_texts)] if len(all_texts) > 1 else None
        maps = _text_maps(model, images, features[own_texts], contrast)
        blind = image_relevances(untrained, images, fresh[own_texts], methods=["relevance"])["relevance"]
        maps[UNTRAINED] = blind.flatten(2).flatten(0, 1).cpu()
        maps[CENTER_PRIOR] = measures.center_prior(grid).expand(len(covered), -1)
        headlines: dict[MapMetric, Tensor] = {}
        for kind, rows in maps.items():
            headlines |= {MapMetric(kind, name): own for name, own in _patches(rows, covered).items()}
        primary = {key: values for key, values in headlines.items() if key.map == OWN_MINUS_OTHER}
        tables.append(primary | _measure(model, images, features[own_texts], covered) | headlines)
        positions += np.repeat(part_positions, own_texts.shape[1]).tolist()
        coverages.append(covered)
    data.faults = list(dict.fromkeys(data.faults))
    if len(set(positions)) < 2:
        reason = f": {data.faults[-1]}" if data.faults else ""
        raise InputError(
            f"{data.name}/{data.split} has {len(set(positions))} images whose mask has an object and a background, "
            f"and two are needed{reason}"
        )
    # in the order of the set, whatever the batches were, because items are paired with those of another model
    order = np.argsort(positions, kind="stable")
    table = {key: torch.cat([values[key] for values in tables]).double()[order] for key in tables[0]}
    covered = torch.cat(coverages)
    blank = _patches(torch.ones_like(covered), covered)
    uniform = {name: float(values.mean()) for name, values in blank.items()}
    uniform["class_token"] = 1 / (1 + model.config.vision.registers + grid * grid)

    def chance(key: MapMetric) -> float:
        # between two uniform maps there is no difference
        return 0.0 if key.map == DIFFERENCE or key.metric == _CORRELATION else uniform[key.metric]

    scores = map_scores(table, chance, np.array(positions)[order])
    wording = "texts of the set" if prompt is None else f"text {prompt!r}"
    if setting.words:
        wording += f" ({', '.join(map(': '.join, setting.words.items()))})"
    method = (
        f"{grid}×{grid} patches, each as object by how much the mask covers; ties count half; {wording}; relevance "
        "(Chefer et al., norm of heads held constant unless the map's name says otherwise) and Grad-ECLIP of the last "
        "layer, LeGrad and rollout of all layers, mean over layers and heads of the others"
    )
    return with_facts(scores, protocol=method)


def _parts(setting: Setting[MaskedSet], grid: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the images with an object in view, in parts with equal numbers of texts whose maps fit into memory. Each is
    a position, an image [3, S, S], texts, and the coverage of the object of each text [texts, h, w]."""
    limit = images_at_once(setting.model)
    for batch in setting.batches():
        groups: dict[int, list[tuple[Any, ...]]] = {}  # by number of texts
        for image, position in zip(batch.images, batch.positions, strict=True):
            texts, coverage = texts_in_view(setting, position, grid)
            if texts:
                groups.setdefault(len(texts), []).append((position, image, texts, coverage))
        for group in groups.values():
            yield from (group[start : start + limit] for start in range(0, len(group), limit))


def distinct_texts(setting: Setting[Any]) -> list[str]:
    """List the different texts of the objects of a `MaskedSet`."""
    objects = (item for in_image in setting.data.objects for item in in_image)
    return sorted({item.worded(setting.prompt, setting.words) for item in objects})


def texts_in_view(setting: Setting[Any], position: int, grid: int) -> tuple[list[str], NDArray[np.float64]]:
    """Return the texts of the objects that the model sees in an image, and their coverage [texts, grid, grid]."""
    size, resize = setting.model.config.vision.image_size, setting.model.config.preprocess.resize
    objects, coverage = setting.data.coverages(position, size, resize or size, grid)
    return [item.worded(setting.prompt, setting.words) for item in objects], coverage


def other_text(text: str, own_texts: Sequence[str], set_texts: Sequence[str]) -> str:
    """Choose the next other text of the image, in a circle; if it has none, the next of the set's distinct texts."""
    start = own_texts.index(text)
    candidates = [candidate for candidate in (*own_texts[start:], *own_texts[:start]) if candidate != text]
    return candidates[0] if candidates else set_texts[(set_texts.index(text) + 1) % len(set_texts)]


def _text_maps(model: CLIP, images: Tensor, texts: Tensor, contrast: Tensor | None) -> dict[str, Tensor]:
    """Make the maps of texts [B·T, P] of images [B, 3, S, S] for `texts`, some minus `contrast`; both [B, T, D]."""
    all_texts = texts if contrast is None else torch.cat([texts, contrast], dim=1)
    found = image_relevances(model, images, all_texts)
    in_graph = image_relevances(model, images, texts, norm="graph", methods=["relevance"])["relevance"]
    count = texts.shape[1]
    maps = {}
    if contrast is not None:
        for name, values in found.items():
            full = OWN_MINUS_OTHER if name == "relevance" else f"{name}, {OWN_MINUS_OTHER}"
            maps[full] = values[:, :count] - values[:, count:]
    maps[IN_GRAPH] = in_graph
    maps |= {name: values[:, :count] for name, values in found.items() if name != "relevance"}
    return {name: values.flatten(2).flatten(0, 1).cpu() for name, values in maps.items()}


def _measure(model: CLIP, images: Tensor, texts: Tensor, coverage: Tensor) -> dict[MapMetric, Tensor]:
    """Measure the items of images [B, 3, S, S] and texts [B, T, D], whose objects cover `coverage` [B·T, P]."""
    owners = torch.arange(len(images)).repeat_interleave(texts.shape[1])
    with recording(model, "visual", gradients=True) as maps:
        logits = image_logits(model, images, texts)
        check_embeddings(logits.detach(), "images")
        rows = []
        for column in logits.unbind(1):
            slopes = gradients(column, maps)
            weighted = [weight_by_gradient(*pair)[:, :, 0].float() for pair in zip(maps, slopes, strict=True)]
            rows.append(torch.stack(weighted, 1))
    relevance = patch_part(torch.stack(rows, dim=1).flatten(0, 1).cpu())  # [n, L, H, P]
    table = _by_head("relevance", _patches(relevance, coverage))
    # of the mean map, and the last layer first
    for name, layers in _patches(relevance.mean(2), coverage).items():
        table |= by_layer("relevance", name, layers) | {MapMetric("relevance", name): layers[:, -1]}
    flow = patch_part(rollout(maps)[:, 0]).cpu().float()[owners]
    table |= {MapMetric("rollout", name): values for name, values in _patches(flow, coverage).items()}
    table |= _by_head("attention", _measure_heads([layer.combined for layer in maps], owners, coverage))
    second = [layer.second for layer in maps if layer.second is not None]
    if len(second) == len(maps):
        a1 = _measure_heads([layer.first for layer in maps], owners, coverage)
        a2 = _measure_heads(second, owners, coverage)
        correlation = torch.stack([map_correlation(layer).detach() for layer in maps], dim=1)
        table |= _by_head("A1", a1 | {_CORRELATION: correlation.cpu()[owners]}) | _by_head("A2", a2)
        table |= _by_head(DIFFERENCE, {name: a1[name] - a2[name] for name in _COMPARED})
    return table


def _measure_heads(maps: Sequence[Tensor], owners: Tensor, coverage: Tensor) -> dict[str, Tensor]:
    """Measure the class token's rows of maps [B, H, N, N] of each layer: [n, L, H] by metric."""
    rows = torch.stack([layer.detach()[:, :, 0].float() for layer in maps], dim=1).cpu()[owners]
    return _patches(patch_part(rows), coverage) | {"class_token": measures.class_token_share(rows)}


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


def _by_head(map: str, values: Mapping[str, Tensor]) -> dict[MapMetric, Tensor]:
    """Key values [n, L, H] by metric, and their means over heads and layers, by `MapMetric`."""
    return {key: own for name, heads in values.items() for key, own in by_layer(map, name, heads).items()}

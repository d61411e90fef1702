"""The task `mechanics`: sinks, spread and the effect of the second map in the vision tower, by layer and head.

docs/protocols.md defines the measures and names their sources. Sink ratios are averaged as logarithms, because a head
that looks at few tokens has a median near 0. `gradient_cosine` compares the gradients of ⟨G, A1⟩ and ⟨G, A2⟩ with
G = ∂y/∂(A1 − λ·A2) held constant, because ∂y/∂A2 itself is −λ·∂y/∂A1 in any model.

Signed maps are measured by magnitude. Shapes: B images, S image size, L layers, H heads, N tokens, D joint width.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffclip.attention.module import AttentionMaps
from diffclip.data.evaluation_set import EvaluationSet
from diffclip.evaluation.embed import Setting, check_embeddings
from diffclip.evaluation.scores import MapMetric, Score, by_layer, map_scores, with_facts
from diffclip.evaluation.zero_shot import true_texts
from diffclip.maps import measures
from diffclip.maps.attention_maps import map_correlation, patch_grid, patch_part
from diffclip.maps.recording import collecting, images_at_once, recording

HIGH_NORM = 3.0
NOISE = 0.1
"""Standard deviation of the noise for `noise_correlation`, in pixel values from 0 to 1."""
SINK_RATIO = "sink_ratio"
_BY_HEAD = (("attention", SINK_RATIO), (None, "map_correlation"), (None, "noise_correlation"))
_UNIFORM = {
    **dict.fromkeys((SINK_RATIO, "sink_value_norm", "entropy", "head_redundancy"), 1.0),
    **dict.fromkeys(("map_correlation", "noise_correlation"), 0.0),
}
_Measures = dict[tuple[str | None, str], Tensor]  # by map and metric; map None: it belongs to no single map


def mechanics(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure each image. Means over layers and heads come first, then layers, then for some measures heads.

    Maps are made for as many images at once as fit into 2 GiB. Chance is the value of a uniform map.
    """
    model = setting.model
    patch_grid(model)
    has_texts = getattr(model, "has_texts", True)
    features, numbers = true_texts(setting) if has_texts else (torch.empty(0), [])
    measured: dict[tuple[str | None, str], list[Tensor]] = defaultdict(list)
    limit, stds = images_at_once(model), torch.tensor(setting.preprocess.preprocess.std)[:, None, None]
    for batch in setting.batches():
        texts = features[[numbers[position] for position in batch.positions]].clone() if has_texts else None
        for start in range(0, len(batch.images), limit):
            images = batch.images[start : start + limit].to(model.logit_scale)
            table = _measure(model, images, None if texts is None else texts[start : start + limit])
            if model.config.vision.is_differential:
                generators = map(torch.Generator().manual_seed, batch.positions[start : start + limit])
                draws = [torch.randn(2, *images.shape[1:], generator=generator) for generator in generators]
                noise = NOISE * torch.stack(draws) / stds
                table[None, "noise_correlation"] = _noise_correlation(model, images, noise.to(images))
            for key, values in table.items():
                measured[key].append(values.detach().double().cpu())
    metrics: dict[MapMetric, Tensor] = {}
    for key, batches in measured.items():
        metrics |= by_layer(*key, torch.cat(batches), with_heads=key in _BY_HEAD)
    scores = [_ratio(score) for score in map_scores(metrics, lambda key: _UNIFORM.get(key.metric))]
    method = (
        "vision tower, all tokens; means over layers and heads unless one is named; high norm: above "
        f"{HIGH_NORM:g} times the median patch; gradients of the cosine of image and own text; noise: "
        f"Gaussian, {NOISE:g} of the pixel range, two draws an image"
    )
    return with_facts(scores, protocol=method)


def _measure(model: Any, images: Tensor, texts: Tensor | None) -> _Measures:
    """Measure images [B, 3, S, S] with a text [B, D] each: [B, L, H], or [B, L] for measures without heads. Without
    texts there is no `gradient_cosine`.

    Sink ratios are given as logarithms.
    """
    differential = model.config.vision.is_differential and texts is not None
    blocks = model.visual.blocks
    projections = [block.attn.out_proj for block in blocks]
    with (
        # the heads' outputs side by side [B, N, C], with the weight of the projection that follows them
        collecting(projections, lambda layer, given, _: (given[0].detach(), layer.weight.detach())) as sums,
        collecting(blocks) as tokens,
        recording(model, "visual", gradients=differential, norm="graph") as maps,
        torch.set_grad_enabled(differential),
    ):
        images = images.requires_grad_(differential)
        embedded = model.encode_image(images, normalize=True)
        check_embeddings(embedded.detach(), "images")
        alignment = None
        if texts is not None and differential:
            alignment = _gradient_cosine((embedded * texts).sum(), maps, images)
    measured: dict[tuple[str | None, str], list[Tensor]] = defaultdict(list)
    for layer, (side_by_side, weight), outputs in zip(maps, sums, tokens, strict=True):
        second = {} if layer.second is None else {"A1": layer.first, "A2": layer.second}
        for name, full in {"attention": layer.combined, **second}.items():
            received = full.abs().mean(-2)
            median = received.median(-1).values.clamp_min(1e-12)
            measured[name, SINK_RATIO].append((received.amax(-1) / median).log())
            measured[name, "entropy"].append(measures.entropy(full).mean(-1))
        if layer.values is not None:
            lengths = layer.values.detach().float().norm(dim=-1)  # [B, H, N]
            sink = layer.combined.abs().mean(-2).argmax(-1, keepdim=True)
            measured[None, "sink_value_norm"].append(lengths.gather(-1, sink)[..., 0] / lengths.mean(-1))
        if (count := layer.combined.shape[1]) > 1:
            measured[None, "head_redundancy"].append(_mean_cosine(layer.combined.detach().flatten(2)))
            # what each head adds to the residual stream, as the outputs of heads have no common basis
            per_head = side_by_side.float().reshape(*side_by_side.shape[:2], count, -1)
            columns = weight.float().reshape(len(weight), count, -1)
            added = torch.einsum("bnhe,che->bnhc", per_head, columns)
            measured[None, "output_redundancy"].append(_mean_cosine(added).mean(-1))
        patches = patch_part(outputs.detach().float().norm(dim=-1))
        high = patches > HIGH_NORM * patches.median(-1, keepdim=True).values
        measured[None, "high_norm_share"].append(high.double().mean(-1))
        if second:
            size = layer.combined.abs().sum((-2, -1))
            negative = layer.combined.clamp_max(0).abs().sum((-2, -1)) / size
            measured[None, "negative_weight"].append(negative)
            measured[None, "map_correlation"].append(map_correlation(layer))
    table = {key: torch.stack(layers, dim=1) for key, layers in measured.items()}
    return table if alignment is None else {**table, (None, "gradient_cosine"): alignment}


def _gradient_cosine(y: Tensor, maps: Sequence[AttentionMaps], images: Tensor) -> Tensor:
    """Compute for each layer the cosine [B, L] of the pixel gradients of ⟨G, A1⟩ and ⟨G, A2⟩, G = ∂y/∂(A1 − λ·A2)."""
    weights = torch.autograd.grad(y, [layer.combined for layer in maps], retain_graph=True)
    cosines = []
    for layer, weight in zip(maps, weights, strict=True):
        assert layer.second is not None
        first, second = (
            torch.autograd.grad((weight * part).sum(), images, retain_graph=True)[0].flatten(1)
            for part in (layer.first, layer.second)
        )
        cosines.append(F.cosine_similarity(first, second, dim=-1, eps=1e-30))
    return torch.stack(cosines, dim=1)


def _mean_cosine(vectors: Tensor) -> Tensor:
    """Compute the mean cosine of all pairs of the vectors [..., H, D]: [...]."""
    unit = F.normalize(vectors, dim=-1)
    count = vectors.shape[-2]
    # the sum of the cosines of all pairs, both orders and each vector with itself, is |Σ unit|²
    return (unit.sum(-2).square().sum(-1) - unit.square().sum((-2, -1))) / (count * (count - 1))


def _noise_correlation(model: Any, images: Tensor, noise: Tensor) -> Tensor:
    """Compute the correlation of the changes of A1 and of A2 from one disturbance `noise` [B, 2, 3, S, S] of the images
    [B, 3, S, S] to another: [B, L, H]. Rows of a change have the sum 0, so the correlation is a cosine.

    What A1 and A2 share is mostly the image. Only what changes with the noise is noise that the subtraction can cancel.
    """
    with recording(model, "visual") as maps:
        for draw in range(2):
            model.encode_image(images + noise[:, draw])
    layers = len(maps) // 2
    cosines = []
    for first, second in zip(maps[:layers], maps[layers:], strict=True):
        assert first.second is not None
        assert second.second is not None
        changes = (first.first - second.first).flatten(2), (first.second - second.second).flatten(2)
        cosines.append(F.cosine_similarity(*changes, dim=-1, eps=1e-30))
    return torch.stack(cosines, dim=1)


def _ratio(score: Score) -> Score:
    """Turn the mean logarithm of sink ratios into a geometric mean."""
    if score.metric != SINK_RATIO:
        return score
    assert score.low is not None
    assert score.high is not None
    value, low, high = map(math.exp, (score.value, score.low, score.high))
    return replace(score, value=value, low=low, high=high)

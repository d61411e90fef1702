"""The task `mechanics`: sinks, spread and the effect of the second map in the vision tower, by layer and head.

docs/protocols.md defines the measures and names their sources. Sink ratios are averaged as logarithms, because a head
that looks at few tokens has a median near 0. `gradient_cosine` compares the gradients of ⟨G, A1⟩ and ⟨G, A2⟩ with
G = ∂y/∂(A1 − λ·A2) held constant, because ∂y/∂A2 itself is −λ·∂y/∂A1 in any model.

Signed maps are measured by magnitude. Shapes: B images, S image size, L layers, H heads, N tokens, D joint width.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from diffclip.attention.heads import by_head
from diffclip.attention.module import AttentionMaps
from diffclip.data.evaluation_set import EvaluationSet
from diffclip.evaluation.embed import Setting, check_embeddings
from diffclip.evaluation.scores import MapMetric, Score, by_layer, map_scores, with_facts
from diffclip.evaluation.statistics import SHARE, Bounds
from diffclip.evaluation.zero_shot import true_texts
from diffclip.maps import measures
from diffclip.maps.attention import map_correlation, patch_grid, patch_part
from diffclip.maps.recording import images_at_once, recording
from diffclip.model import CLIP

HIGH_NORM = 3.0
SINK_RATIO = "sink_ratio"
_BY_HEAD = (("attention", SINK_RATIO), (None, "map_correlation"))
_UNIFORM = {SINK_RATIO: 1.0, "sink_value_norm": 1.0, "entropy": 1.0, "map_correlation": 0.0}
_BOUNDS: dict[str, Bounds] = {
    **dict.fromkeys(("entropy", "high_norm_share", "negative_weight"), SHARE),
    **dict.fromkeys(("map_correlation", "gradient_cosine"), (-1.0, 1.0)),
}

_Measures = dict[tuple[str | None, str], Tensor]  # by map and metric; map None: it belongs to no single map


def mechanics(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure each image. Means over layers and heads come first, then layers, then for some measures heads.

    Maps are made for as many images at once as fit into 2 GiB. Chance is the value of a uniform map.
    """
    model = setting.model
    patch_grid(model)
    features, numbers = true_texts(setting)
    measured: dict[tuple[str | None, str], list[Tensor]] = defaultdict(list)
    limit = images_at_once(model)
    for batch in setting.batches():
        texts = features[[numbers[position] for position in batch.positions]].clone()
        for images, text in zip(torch.split(batch.images, limit), torch.split(texts, limit), strict=True):
            for key, values in _measure(model, images.to(text), text).items():
                measured[key].append(values.detach().double().cpu())
    table: dict[MapMetric, Tensor] = {}
    for key, parts in measured.items():
        values = torch.cat(parts)
        layers = values.mean(2) if values.ndim == 3 else values
        table |= by_layer(*key, values.flatten(1).mean(1), layers, values if key in _BY_HEAD else None)
    uniform, bounds = (lambda key: _UNIFORM.get(key.metric)), (lambda key: _BOUNDS.get(key.metric))
    scores = [_ratio(score) for score in map_scores(table, uniform, bounds)]
    method = (
        "vision tower, all tokens; means over layers and heads unless one is named; high norm: above "
        f"{HIGH_NORM:g} times the median patch; gradients of the cosine of image and own text"
    )
    return with_facts(scores, protocol=method)


def _measure(model: CLIP, images: Tensor, texts: Tensor) -> _Measures:
    """Measure images [B, 3, S, S] with a text [B, D] each: [B, L, H], or [B, L] for measures without heads.

    Sink ratios are given as logarithms.
    """
    differential = model.config.vision.is_differential
    with (
        _watching(model) as (projected, tokens),
        recording(model, "visual", gradients=differential, norm="graph") as maps,
        torch.set_grad_enabled(differential),
    ):
        images = images.requires_grad_(differential)
        embedded = model.encode_image(images, normalize=True)
        check_embeddings(embedded.detach(), "images")
        alignment = _gradient_cosine((embedded * texts).sum(), maps, images) if differential else None
    measured: dict[tuple[str | None, str], list[Tensor]] = defaultdict(list)
    for layer, qkv, outputs in zip(maps, projected, tokens, strict=True):
        second = {} if layer.second is None else {"A1": layer.first, "A2": layer.second}
        for name, full in {"attention": layer.combined, **second}.items():
            received = full.abs().mean(-2)
            median = received.median(-1).values.clamp_min(1e-12)
            measured[name, SINK_RATIO].append((received.amax(-1) / median).log())
            measured[name, "entropy"].append(measures.entropy(full).mean(-1))
        values = qkv.detach().float().chunk(3, dim=-1)[2]
        lengths = by_head(values, layer.combined.shape[1]).norm(dim=-1)  # [B, H, N]
        sink = layer.combined.abs().mean(-2).argmax(-1, keepdim=True)
        measured[None, "sink_value_norm"].append(lengths.gather(-1, sink)[..., 0] / lengths.mean(-1))
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


@contextmanager
def _watching(model: CLIP) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Collect the queries, keys and values [B, N, 3·C] of each layer, and the tokens after it [B, N, C]."""
    projected: list[Tensor] = []
    tokens: list[Tensor] = []
    with ExitStack() as hooks:
        for block in model.visual.blocks:
            hooks.enter_context(
                block.attn.qkv.register_forward_hook(lambda _, __, out: projected.append(out))
            )
            hooks.enter_context(block.register_forward_hook(lambda _, __, out: tokens.append(out)))
        yield projected, tokens


def _ratio(score: Score) -> Score:
    """Turn the mean logarithm of sink ratios into a geometric mean; drop `hits`: paired tests need a plain mean."""
    if score.metric != SINK_RATIO:
        return score
    assert score.low is not None
    assert score.high is not None
    value, low, high = map(math.exp, (score.value, score.low, score.high))
    return replace(score, value=value, low=low, high=high, hits=None)

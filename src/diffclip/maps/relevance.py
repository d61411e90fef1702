"""Relevance of patches for a text, and of tokens for an image, by three methods that take gradients of the maps.

`relevance`: gradient-weighted attention of Chefer, Gur and Wolf, "Generic Attention-model Explainability" (ICCV 2021),
with their settings for CLIP: y is the pair's logit, and Ā is the mean over heads of (∂y/∂A ⊙ A)⁺. R starts as the
identity, and each chosen layer sets R ← R + Ā·R. DiffCLIP's Figure 2 shows the class token's row for the last layer.
`grad-eclip`: see `grad_eclip_of`. `legrad`: see `_legrad`, which takes all layers.

In a differential layer, A is A1 − λ·A2, the map that multiplies the values. Its entries are signed, and so are their
derivatives. A patch with a negative entry and a negative derivative has a positive product: it speaks for the text.

RMSNorm ignores the scale of a head's output. With the head norm in the graph (`norm="graph"`), Euler's theorem
therefore makes every row of ∂y/∂A ⊙ A sum to 0, and maps are not comparable with those of heads without a norm.
`norm="detached"`, the default, takes the norm's denominator as a constant (Ali et al. 2022, "XAI for Transformers",
arXiv:2202.07304, Section 3.2). A row then sums to the first-order contribution of its head to y, as in plain attention.
The LayerNorms of the blocks and the division by the embedding's length stay in the graph: they normalize the sum of
all heads, the MLPs and the input, and are the same in plain and differential towers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from diffclip.attention.module import AttentionMaps
from diffclip.errors import InputError
from diffclip.maps.attention_maps import as_patches, patch_part
from diffclip.maps.recording import Norm, collecting, recording
from diffclip.maps.view import LEGRAD, OF_TEXTS
from diffclip.model import CLIP

Explain = Callable[[Sequence[AttentionMaps], Sequence[Tensor], Tensor, Tensor, int | None], Tensor]


def image_relevances(
    model: CLIP,
    images: Tensor,
    texts: Tensor,
    norm: Norm = "detached",
    methods: Sequence[str] = OF_TEXTS,
    layers: range | None = None,
    head: int | None = None,
    name: str = "this model",
) -> dict[str, Tensor]:
    """Compute the relevance of each patch for each text by each of `methods`: ≥ 0, [B, T, h, w].

    Args:
        images: [B, 3, S, S] as the model takes them.
        texts: unit-length text features: [T, D] for all images, or [B, T, D] if each image has its own.
        norm: the rule for gradients through a head norm, see `Norm`.
        layers: the vision layers to use, neighbors, counted from 0; None: the last, for `legrad` all.
        head: one head of these layers, counted from 0; None: all.
        name: the model's, for error messages.

    Raises:
        InputError: the layers have no such head, or maps without the queries and keys that `grad-eclip` reads.
    """
    depth = range(model.config.vision.layers)
    others = [name for name in methods if name != LEGRAD]
    found: dict[str, Tensor] = {}
    if others:
        chosen = depth[-1:] if layers is None else layers
        with recording(model, "visual", chosen.start, gradients=True, norm=norm) as recorded:
            logits = image_logits(model, images, texts)
            maps = recorded[: len(chosen)]
            check_head(maps, head, name)
            rows = [_patch_rows(maps, gradients(logit, maps), others, head) for logit in logits.unbind(1)]
        found = {name: torch.stack([row[name] for row in rows], dim=1) for name in others}
    if LEGRAD in methods:
        chosen = depth if layers is None else layers
        found[LEGRAD] = _image_legrad(model, images, texts, chosen, head, norm, name)
    return {name: as_patches(patch_part(found[name])) for name in methods}


def _patch_rows(
    maps: Sequence[AttentionMaps], grads: Sequence[Tensor], methods: Sequence[str], head: int | None
) -> dict[str, Tensor]:
    """Compute the relevance of all tokens for the class token by each of `methods`: [B, N] ≥ 0."""
    positions = torch.arange(maps[0].first.shape[-1], device=grads[0].device)
    patches = positions >= len(positions) - patch_part(positions).shape[-1]
    class_tokens = torch.zeros(len(grads[0]), dtype=torch.int64, device=grads[0].device)
    mask = patches.expand(len(grads[0]), -1)
    return {name: _METHODS[name](maps, grads, class_tokens, mask, head) for name in methods}


def image_logits(model: CLIP, images: Tensor, texts: Tensor) -> Tensor:
    """Compute the logit of each image with each text, [B, T], with a graph to the recorded maps; `texts` as in
    `image_relevances`."""
    return _logits(model, model.encode_image(_usable(images), normalize=True), texts)


def _logits(model: CLIP, features: Tensor, others: Tensor) -> Tensor:
    """Compute the logits [B, T] of unit-length features [B, D] with those of the other tower, [T, D] or [B, T, D]."""
    others = _usable(others.detach()).to(features.dtype).expand(len(features), -1, -1)
    return model.logit_scale.detach().exp() * (others @ features[..., None])[..., 0]


def text_relevance(
    model: CLIP, tokens: Tensor, images: Tensor, first_layer: int = -1, method: str = "relevance"
) -> Tensor:
    """Compute the relevance of each token for each image: ≥ 0, [T, I, L]; 0 at the start token and from the end on.

    Args:
        tokens: ids [T, L], each text with its start and end token.
        images: unit-length image features [I, D].
        first_layer: the first layer that counts: −1, as in the papers, for the last layer alone, 0 for all layers.
    """
    ends = tokens.argmax(-1)
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    blocks = model.transformer.resblocks[first_layer:]
    with recording(model, "text", first_layer, gradients=True) as layer_maps, collecting(blocks) as outputs:
        logits = _logits(model, model.encode_text(tokens, normalize=True), images)
        if method == LEGRAD:

            def logits_of(x: Tensor) -> Tensor:
                ended = model.ln_final(x)[torch.arange(len(x), device=x.device), ends]
                return _logits(model, F.normalize(ended @ model.text_projection, dim=-1), images)

            found = _legrad(layer_maps, outputs, logits_of, ends)
        else:
            readable = positions <= ends[:, None]
            rows = [
                _METHODS[method](layer_maps, gradients(logit, layer_maps), ends, readable, None)
                for logit in logits.unbind(1)
            ]
            found = torch.stack(rows, dim=1)
    inside = (positions > 0) & (positions < ends[:, None])
    return found * inside[:, None]


def _image_legrad(
    model: CLIP, images: Tensor, texts: Tensor, layers: range, head: int | None, norm: Norm, name: str
) -> Tensor:
    """Compute LeGrad of the class token for all tokens of the images: [B, T, N] ≥ 0."""
    blocks = model.visual.blocks[layers.start :]
    with (
        recording(model, "visual", layers.start, gradients=True, norm=norm) as maps,
        collecting(blocks) as outputs,
    ):
        model.encode_image(_usable(images))
        check_head(maps, head, name)
        class_tokens = torch.zeros(len(images), dtype=torch.int64, device=outputs[0].device)

        def logits_of(x: Tensor) -> Tensor:
            features = model.visual.norm(x)[:, 0] @ model.image_projection
            return _logits(model, F.normalize(features, dim=-1), texts)

        count = len(layers)
        return _legrad(maps[:count], outputs[:count], logits_of, class_tokens, head)


def check_head(maps: Sequence[AttentionMaps], head: int | None, name: str) -> None:
    """Raise `InputError` unless the layers of the model `name` have the `head`, counted from 0; None is all heads."""
    heads = maps[0].first.shape[1]
    if head is not None and not 0 <= head < heads:
        raise InputError(f"{name} has no head {head + 1}: its vision layers have heads 1 to {heads}")


def _legrad(
    maps: Sequence[AttentionMaps],
    outputs: Sequence[Tensor],
    logits_of: Callable[[Tensor], Tensor],
    rows: Tensor,
    head: int | None = None,
) -> Tensor:
    """Compute LeGrad of Bousselham et al. (arXiv:2404.03214, Section 3) for the tokens `rows` [B]: [B, T, N] ≥ 0.

    Each layer l has a score of its own: the logit of the token after that layer, through the model's final norm and
    projection. The map is (∂score_l/∂A_l)⁺ in the token's row, averaged over heads (or of one `head`) and layers. In a
    differential layer A is A1 − λ·A2.

    Args:
        maps, outputs: of each layer, and the tokens after it [B, N, C].
        logits_of: tokens [B, N, C] → logits [B, T].
    """
    samples, found = torch.arange(len(rows), device=rows.device), []
    for layer, tokens in zip(maps, outputs, strict=True):
        for logit in logits_of(tokens).unbind(1):
            slope = torch.autograd.grad(logit.sum(), layer.combined, retain_graph=True)[0]
            row = slope[samples, :, rows].clamp_min(0)
            found.append(row.mean(1) if head is None else row[:, head])
    layers = torch.stack(found)  # [L·T, B, N]
    return layers.view(len(maps), -1, *layers.shape[1:]).mean(0).transpose(0, 1)


def gradients(logits: Tensor, maps: Sequence[AttentionMaps]) -> tuple[Tensor, ...]:
    """Compute ∂(sum of `logits` [B])/∂A of each layer, [B, H, N, N]: each image's own, because images do not mix."""
    return torch.autograd.grad(logits.sum(), [layer.combined for layer in maps], retain_graph=True)


def weight_by_gradient(maps: AttentionMaps, gradient: Tensor) -> Tensor:
    """(∂y/∂A ⊙ A)⁺ of one layer, [B, H, N, N]."""
    return (gradient * maps.combined.detach()).clamp_min(0)


def relevance_of(
    maps: Sequence[AttentionMaps], grads: Sequence[Tensor], rows: Tensor, mask: Tensor, head: int | None
) -> Tensor:
    """Compute R from the layers `maps` and their gradients `grads`; return the row of each token of `rows` [B]: [B, N].

    Ā is the mean over heads, or that of one `head`. `mask` is not used: all methods have the same arguments.
    """
    tokens = maps[0].first.shape[-1]
    relevance = torch.eye(tokens, dtype=grads[0].dtype, device=grads[0].device).expand(len(grads[0]), -1, -1)
    for layer, gradient in zip(maps, grads, strict=True):
        positive = weight_by_gradient(layer, gradient)
        relevance = relevance + (positive.mean(1) if head is None else positive[:, head]) @ relevance
    return relevance[torch.arange(len(rows), device=rows.device), rows]


def grad_eclip_of(
    maps: Sequence[AttentionMaps], grads: Sequence[Tensor], rows: Tensor, mask: Tensor, head: int | None
) -> Tensor:
    """Compute H [B, N] ≥ 0 from the layers `maps` and their gradients `grads`; 0 outside `mask`.

    Zhao et al., "Gradient-based Visual Explanation for CLIP" (ICML 2024) and "Grad-ECLIP" (arXiv:2502.18816). In the
    last layer, o is the class token's output before the output projection, v_i and k_i are the value and key of patch
    i, q is the class token's query, y the pair's logit, and Φ scales the patches of an image to [0, 1]:

        H_i = ReLU(Σ_c w_c · λ_i · v_ic),   w = ∂y/∂o,   λ_i = Φ(cos(q, k_i)),

    with the cosine over the channels of all heads. The sum of w_c·v_ic over the channels of head h is ∂y/∂A_h,i, so
    H_i = ReLU(λ_i · Σ_h ∂y/∂A_h,i). The values are those that attention sums, and the gate of a gated layer is in w.

    In a differential head A = A1 − λ·A2, and o is the output before the head norm. The weight λ_i is
    Φ(cos(q1, k1_i) − λ·cos(q2, k2_i)). If λ differs by head or token (V2), each head's part of the second cosine has
    its own λ. The sums of several layers are added before the ReLU, as the authors do for texts. The authors' code
    uses a single head and sends queries and keys through the output projection; the paper's formula does neither.
    """
    samples = torch.arange(len(rows), device=rows.device)
    total = torch.zeros_like(mask, dtype=grads[0].dtype)
    for layer, gradient in zip(maps, grads, strict=True):
        row = gradient[samples, :, rows]
        channels = row.sum(1) if head is None else row[:, head]
        total = total + spatial_weights(layer, rows, mask) * channels
    return total.clamp_min(0) * mask


def spatial_weights(maps: AttentionMaps, rows: Tensor, mask: Tensor) -> Tensor:
    """Compute the spatial weights Φ(cos(q, k_i)) for the queries of the tokens `rows` [B]: [B, N], scaled to [0, 1]
    over the tokens in `mask` [B, N]; 1 if all are equal."""
    if maps.queries is None or maps.keys is None:
        raise InputError(
            "Grad-ECLIP needs the queries and keys of a layer: give them to AttentionMaps (docs/plugin.md)"
        )
    samples = torch.arange(len(rows), device=rows.device)
    query, keys = maps.queries.detach()[samples, :, rows].float(), maps.keys.detach().float()
    products = (keys @ query[..., None])[..., 0]  # [B, heads, N]
    lengths = keys.square().sum(-1)
    if maps.second is None or maps.lam is None:
        cosines = _cosine(products, query, lengths).sum(1)
    else:
        lam = maps.lam.detach()
        lam = lam if lam.ndim == 0 else lam.expand(*maps.first.shape[:3], 1)[samples, :, rows]
        first, second = (_cosine(products[:, i::2], query[:, i::2], lengths[:, i::2]) for i in (0, 1))
        cosines = (first - lam * second).sum(1)
    low = cosines.masked_fill(~mask, torch.inf).amin(-1, keepdim=True)
    high = cosines.masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)
    return torch.where(high > low, (cosines - low) / (high - low), 1.0)


def _cosine(products: Tensor, query: Tensor, lengths: Tensor) -> Tensor:
    """Each head's part [B, H, N] of the cosine over the channels of all heads."""
    norms = query.square().sum((1, 2)).sqrt()[:, None] * lengths.sum(1).sqrt()
    return products / norms.clamp_min(1e-12)[:, None]


_METHODS: dict[str, Explain] = {"relevance": relevance_of, "grad-eclip": grad_eclip_of}
"""The methods that take gradients of the last logit, by name. Arguments: the maps [B, H, N, N] of some layers, the
gradients of y with respect to them, the token to explain [B], the tokens that may explain it [B, N] and a head (None:
all). Result: [B, N] ≥ 0."""


def _usable(tensor: Tensor) -> Tensor:
    """Copy a tensor that was made in inference mode, because autograd cannot keep it in a graph."""
    return tensor.clone() if tensor.is_inference() else tensor

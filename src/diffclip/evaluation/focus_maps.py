"""What the maps of a batch of pictures come to: every measure of every map, by layer and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffclip.evaluation.embed import checked
from diffclip.focus import measures
from diffclip.focus.maps import map_correlation
from diffclip.focus.recording import recording
from diffclip.focus.relevance import gradients, image_logits, weighted
from diffclip.focus.rollout import rollout
from diffclip.model import CLIP

_COMPARED = ("entropy", "inside", "top10")


@dataclass(frozen=True)
class ByLayer:
    """One measure of items: `headline` [n], and of every layer [n, L] and head [n, L, H] where there are such."""

    headline: Tensor
    layers: Tensor | None = None
    heads: Tensor | None = None

    def minus(self, other: ByLayer) -> ByLayer:
        """The differences, item by item."""
        layers = None if self.layers is None or other.layers is None else self.layers - other.layers
        heads = None if self.heads is None or other.heads is None else self.heads - other.heads
        return ByLayer(self.headline - other.headline, layers, heads)

    @classmethod
    def joined(cls, parts: Sequence[ByLayer]) -> ByLayer:
        """The items of several batches, one after the other."""
        layers = [one.layers for one in parts if one.layers is not None]
        heads = [one.heads for one in parts if one.heads is not None]
        return cls(
            torch.cat([one.headline for one in parts]),
            torch.cat(layers) if layers else None,
            torch.cat(heads) if heads else None,
        )


def measure(
    model: CLIP, images: Tensor, texts: Tensor, owners: Tensor, coverage: Tensor
) -> dict[str, ByLayer]:
    """Every measure of n items, pairs of a picture and a text, by name.

    Args:
        model: whose vision tower is looked into; evaluated, and left as it was.
        images: [B, 3, S, S] on the model's device.
        texts: unit-length text features [n, D] there.
        owners: the picture of each item, rising, int64 [n].
        coverage: how much of each patch the object of each item covers, float64 [n, P].

    Raises:
        InputError: an embedding is not finite.
    """
    with recording(model, "visual", gradients=True) as seen:
        slots = _slots(owners)
        padded = texts.new_zeros(len(images), int(slots.max()) + 1, texts.shape[-1])
        padded[owners, slots] = texts
        logits = image_logits(model, images, padded)
        checked(logits.detach(), "pictures")
        heads, tokens = seen[0].combined.shape[1:3]
        relevance = torch.empty(len(owners), len(seen), heads, tokens)
        for slot in range(logits.shape[1]):
            chosen = slots == slot
            of = gradients(logits[:, slot], seen)
            for layer, (maps, gradient) in enumerate(zip(seen, of, strict=True)):
                relevance[chosen, layer] = _rows(weighted(maps, gradient))[owners[chosen]].cpu()
    found = _named("relevance", _of_relevance(relevance[..., 1:], coverage))
    flow = rollout(seen)[:, 0, 1:].cpu().float()[owners]
    found |= _named("rollout", {name: ByLayer(one) for name, one in _patches(flow, coverage).items()})
    found |= _named("attention", _of_heads([one.combined for one in seen], owners, coverage))
    seconds = [one.second for one in seen if one.second is not None]
    if len(seconds) == len(seen):
        first = _of_heads([one.first for one in seen], owners, coverage)
        second = _of_heads(seconds, owners, coverage)
        found |= _named("A1", first) | _named("A2", second)
        found |= _named("A1_minus_A2", {name: first[name].minus(second[name]) for name in _COMPARED})
        correlation = torch.stack([map_correlation(one).detach() for one in seen], dim=1)
        found["A1_A2_correlation"] = _over_heads(correlation.cpu().double()[owners])
    return found


def _slots(owners: Tensor) -> Tensor:
    """Which of its picture's items each is."""
    places = torch.arange(len(owners))
    return places - torch.searchsorted(owners, owners)


def _rows(full: Tensor) -> Tensor:
    """The class token's rows of maps [B, H, N, N]: [B, H, N]."""
    return full.detach()[:, :, 0].float()


def _of_heads(maps: Sequence[Tensor], owners: Tensor, coverage: Tensor) -> dict[str, ByLayer]:
    """The measures of the class token's rows, head by head; maps [B, H, N, N] of each layer."""
    rows = torch.stack([_rows(one) for one in maps], dim=1).cpu()[owners]
    found = _patches(rows[..., 1:], coverage) | {"class_token": measures.class_token_share(rows)}
    return {name: _over_heads(one) for name, one in found.items()}


def _of_relevance(heads: Tensor, coverage: Tensor) -> dict[str, ByLayer]:
    """The measures of each layer's mean over heads, and of each head; heads [n, L, H, P]."""
    layers, single = _patches(heads.mean(2), coverage), _patches(heads, coverage)
    return {name: ByLayer(one[:, -1], one, single[name]) for name, one in layers.items()}


def _over_heads(heads: Tensor) -> ByLayer:
    layers = heads.mean(2)
    return ByLayer(layers.mean(1), layers, heads)


def _patches(rows: Tensor, coverage: Tensor) -> dict[str, Tensor]:
    """Every measure of rows over patches, [n, …, P] → [n, …]."""
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


def _named(kind: str, found: Mapping[str, ByLayer]) -> dict[str, ByLayer]:
    return {f"{kind}_{name}": one for name, one in found.items()}

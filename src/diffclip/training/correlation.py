"""How alike the two maps of each differential layer are, on a few pictures and captions: what training tells of it.

Near 1 both maps look at the same places, and the difference cancels what they share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from diffclip.attention import AttentionMaps
from diffclip.focus import map_correlation, pearson, recording
from diffclip.model import CLIP

# all maps of a tower are kept for so many inputs at once: 90 MB for ViT-B-16
_AT_ONCE = 4


def image_correlations(model: CLIP, images: Tensor) -> Tensor:
    """Pearson's correlation of A1 with A2 in the class token's row over the patches of `images` [n, 3, S, S]: float64
    [n, layers] on the CPU, the mean over heads; [n, 0] of a plain tower. The model and all random numbers are left
    as they were."""
    return _correlations(model, "visual", images, model.encode_image, lambda maps, _: map_correlation(maps))


def text_correlations(model: CLIP, tokens: Tensor) -> Tensor:
    """`image_correlations` of the text tower for `tokens` [n, L]: in the row of the end of each text over the tokens
    that it sees, the start and itself included."""

    def of_end(maps: AttentionMaps, own: Tensor) -> Tensor:
        return text_map_correlation(maps, own.argmax(-1))

    return _correlations(model, "text", tokens, model.encode_text, of_end)


def text_map_correlation(maps: AttentionMaps, ends: Tensor) -> Tensor:
    """Pearson's correlation of the two maps [B, H, L, L] of a causal layer in the row of the end of each text, whose
    place is `ends` [B], over the tokens up to it: [B, H]; 0 where a map is constant.

    Raises:
        ValueError: the layer is plain and has one map.
    """
    if maps.second is None:
        raise ValueError("a plain layer has one map")
    texts = torch.arange(len(ends), device=ends.device)
    first, second = maps.first[texts, :, ends], maps.second[texts, :, ends]
    seen = torch.arange(first.shape[-1], device=ends.device) <= ends[:, None, None]
    return pearson(first, second, seen)


def mean_of_first(places: Sequence[int], values: Tensor, most: int) -> list[float]:
    """The mean of `values` [n, layers] over the `most` inputs with the least `places`, in their order: the same
    number, to the bit, in whatever order they come."""
    order = torch.tensor(places).argsort()[:most]
    means: list[float] = values[order].mean(0).tolist()
    return means


def _correlations(
    model: CLIP,
    tower: str,
    inputs: Tensor,
    encode: Callable[[Tensor], Tensor],
    of: Callable[[AttentionMaps, Tensor], Tensor],
) -> Tensor:
    if getattr(model.config, "vision" if tower == "visual" else "text").attention == "softmax":
        return torch.empty(len(inputs), 0, dtype=torch.float64)
    device = next(iter(model.parameters())).device
    found = []
    # blocks would be compiled once more for the recorded way
    with torch.compiler.set_stance("force_eager"):
        for part in torch.split(inputs.to(device), _AT_ONCE):
            with recording(model, tower) as seen:
                encode(part)
            found.append(torch.stack([of(maps, part).mean(-1) for maps in seen], dim=-1))
    return torch.cat(found).cpu()

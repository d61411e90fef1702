"""Image models of timm as they are, with pooled features and without texts.

In a ViT whose attention is timm's `Attention` (also gated) or `DiffAttention`, the layers are replaced by the same
formulas as `SelfAttention`, so that `mechanics` can record their maps.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import Attention, DiffAttention
from torch import Tensor, nn

from diffclip.attention.heads import split_heads
from diffclip.attention.module import AttentionMaps, OutputAndMaps, SelfAttention
from diffclip.config import parse_config
from diffclip.errors import explain_errors, unknown_name
from diffclip.sources.conversion import WAY_OUT, silence_warnings
from diffclip.sources.hub import check_reachable
from diffclip.sources.wrapped import LibraryTransform, WrappedModel
from diffclip.tensors import read_tensors

_SCHEMAS = ("hf-hub:", "hf_hub:", "local-dir:")
_TOLERANCE = 1e-4  # relative to the largest feature


def read_timm(name: str) -> tuple[WrappedModel, LibraryTransform, None]:
    """Read a model of timm; no code that comes with weights is run.

    Args:
        name: `vit_base_patch16_224.augreg_in1k` (a file may follow after `/` or `:`), `hf-hub:OWNER/NAME` or
            `local-dir:FOLDER`.

    Raises:
        InputError: no such model, or weights that cannot be read or do not fit.
    """
    source, file = f"timm:{name}", ""
    if not name.startswith(_SCHEMAS):
        name, file = (*re.split("[/:]", name, maxsplit=1), "")[:2]
        if not timm.is_model(name):
            names, advice = timm.list_models(), "timm.list_models() has the names"
            raise unknown_name("model of timm", name.partition(".")[0], names, advice)
    with silence_warnings(), explain_errors(f"{source} cannot be read", WAY_OUT):
        weights = None if file or name.startswith(_SCHEMAS) else timm.models.get_pretrained_cfg(name)
        if weights is not None and weights.hf_hub_id:
            repository = weights.hf_hub_id.partition("@")[0]
            check_reachable(
                repository, source, weights.hf_hub_filename or "model.safetensors", "pytorch_model.bin"
            )
        model = timm.create_model(name, pretrained=not file)
        keys = set(model.state_dict())
        model.reset_classifier(0)
        if file:
            head = keys - set(model.state_dict())  # the file's may be for other classes
            values = {key: value for key, value in read_tensors(Path(file))[0].items() if key not in head}
            model.load_state_dict(values)
    data = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**data, is_training=False)
    preprocess = LibraryTransform(transform, (data["mean"], data["std"]), repr(transform))
    size = preprocess.image_size
    return _with_maps(model.eval(), source, size) or WrappedModel(model, source, model), preprocess, None


class TimmModel(WrappedModel):
    """A ViT of timm whose attention maps can be recorded; `config` has its sizes."""

    def __init__(self, model: Any, source: str, image_size: int) -> None:
        super().__init__(model, source, model)
        self.visual = model
        first = model.blocks[0].attn
        vision = {
            "image_size": image_size,
            "patch_size": model.patch_embed.patch_size[0],
            "width": model.embed_dim,
            "layers": len(model.blocks),
            "heads": first.num_heads,
            "attention": "differential" if first.is_differential else "softmax",
            "registers": model.num_prefix_tokens - 1,
        }
        self.config = parse_config({"embed_dim": model.embed_dim, "vision": vision}, source)

    def attention_layers(self) -> dict[str, list[SelfAttention]]:
        """Return the layers in order of depth, as `CLIP` does; there is no text tower."""
        return {"visual": [block.attn for block in self.visual.blocks], "text": []}


class _TimmAttention(SelfAttention):
    """timm's `Attention`, gated or not, or `DiffAttention`, with its parameters, through its maps."""

    def __init__(self, theirs: Any) -> None:
        nn.Module.__init__(self)
        self.theirs, self.qkv, self.out_proj = theirs, theirs.qkv, theirs.proj
        self.is_differential = isinstance(theirs, DiffAttention)
        self.num_heads, self.head_dim = theirs.num_heads * (2 if self.is_differential else 1), theirs.head_dim
        self.backend, self.proj_drop = "eager", 0.0

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        return self.attend_through_maps(x, causal)[0]

    def attend_through_maps(self, x: Tensor, causal: bool, detach_norm: bool = False) -> OutputAndMaps:
        theirs = self.theirs
        q, k, v = split_heads(self.qkv(x), self.num_heads, theirs.num_heads)
        q, k = theirs.q_norm(q), theirs.k_norm(k)
        maps = AttentionMaps.of(q, k, v, causal, theirs._compute_lambda() if self.is_differential else None)
        heads = maps.combined.to(v.dtype) @ v
        if self.is_differential:
            heads = theirs.sub_norm(heads) * (1 - theirs.lambda_init)
        out: Tensor = theirs.norm(heads.transpose(1, 2).flatten(2))
        gate = getattr(theirs, "gate", None)
        return out if gate is None else out * gate(x).sigmoid(), maps


@torch.no_grad()
def _with_maps(model: Any, source: str, image_size: int) -> TimmModel | None:
    """Replace the attention layers of a ViT; None, and `model` unchanged, if they are of another kind."""
    blocks = getattr(model, "blocks", None)
    # maps are read by the row of the first token, which must be no patch
    if not isinstance(blocks, nn.Sequential) or getattr(model, "num_prefix_tokens", 0) < 1:
        return None
    layers: list[Any] = [getattr(block, "attn", None) for block in blocks]
    if any(type(layer) not in (Attention, DiffAttention) for layer in layers):
        return None
    images = torch.randn(1, 3, image_size, image_size, generator=torch.Generator().manual_seed(0))
    before = model(images)
    for block, layer in zip(blocks, layers, strict=True):
        block.attn = _TimmAttention(layer)
    gap = float((model(images) - before).abs().max())
    if not gap <= _TOLERANCE * float(before.abs().max()):
        for block, layer in zip(blocks, layers, strict=True):
            block.attn = layer
        return None
    return TimmModel(model, source, image_size)

"""The models whose steps are compared: OpenCLIP's own, our CLIP, and DiffCLIP with each way to attend."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffclip.attention import DifferentialAttention
from diffclip.attention.heads import split_heads
from diffclip.attention.module import HEAD_NORM_EPS
from diffclip.benchmarking.operators import timm_arrangement
from diffclip.benchmarking.timing import reason
from diffclip.config import CLIPConfig, named_config, variant_config
from diffclip.model import CLIP
from diffclip.training.recipe import read_recipe

REFERENCE, OPENCLIP, OURS = "CLIP", "OpenCLIP", "DiffCLIP auto"
TIMM, PUBLISHED, SDPA = "DiffCLIP timm", "DiffCLIP eager", "DiffCLIP sdpa"


class TimmAttention(DifferentialAttention):
    """Our layer, attending as timm's `DiffAttention` does: two fused calls, their difference, an RMS norm, a factor."""

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        q, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads // 2)
        out = timm_arrangement(q, k, v, self.current_lambda(), causal)
        out = F.rms_norm(out, (v.shape[-1],), self.diff_norm.weight, HEAD_NORM_EPS) * (1 - self.lambda_init)
        return out.transpose(1, 2).flatten(2)


def config_of(variant: str, size: str | None) -> CLIPConfig:
    """The configuration of `variant` in a named size, or in that of the Flickr8k recipe."""
    if size:
        return named_config(f"{variant}-{size}")
    return variant_config(variant, read_recipe("flickr8k_cpu").architecture or {})


def make_models(size: str | None) -> Iterator[tuple[str, nn.Module | str]]:
    """Names with models on the CPU, the same weights in every DiffCLIP; or why one cannot be made."""
    yield REFERENCE, CLIP(config_of("CLIP", size), seed=0)
    try:
        yield OPENCLIP, _openclip(size)
    except Exception as error:  # it is a yardstick: the others are compared without it
        yield OPENCLIP, reason(error)
    ours = CLIP(config_of("DiffCLIP", size), seed=0)
    # those that a target names first; "auto" on a GPU is "triton", and without a GPU that is not there
    for backend in ("auto", "eager"):
        yield f"DiffCLIP {backend}", _with_backend(ours, backend)
    timm = copy.deepcopy(ours)
    for layers in timm.attention_layers().values():
        for layer in layers:
            layer.__class__ = TimmAttention
    yield TIMM, timm
    yield SDPA, _with_backend(ours, "sdpa")


def _with_backend(model: CLIP, backend: str) -> CLIP:
    model = copy.deepcopy(model)
    model.set_attention_backend(backend)
    return model


def _openclip(size: str | None) -> nn.Module:
    """OpenCLIP's model of the same size, with random weights."""
    import open_clip

    if size:
        model: nn.Module = open_clip.create_model(size, output_dict=True)
        return model
    config = config_of("CLIP", None)
    vision, text = config.vision, config.text
    return open_clip.model.CLIP(
        config.embed_dim,
        open_clip.model.CLIPVisionCfg(
            layers=vision.layers,
            width=vision.width,
            head_width=vision.width // vision.heads,
            patch_size=vision.patch_size,
            image_size=vision.image_size,
        ),
        open_clip.model.CLIPTextCfg(
            context_length=text.context_length,
            vocab_size=text.vocab_size,
            width=text.width,
            heads=text.heads,
            layers=text.layers,
        ),
        output_dict=True,
    )


def compile_model(model: nn.Module, what: str) -> None:
    """Compile a model in place: the "whole" of it, or its "blocks".

    Blocks share what is compiled, which is much sooner done, as long as all layers have one `lambda_init`.
    """
    # every model and batch size is a version of the same code, more than are kept by default
    torch._dynamo.config.recompile_limit = 256
    if what == "whole":
        model.compile(dynamic=False)
        return
    vision = model.visual
    for block in [*(vision.blocks if isinstance(model, CLIP) else vision.transformer.resblocks)]:
        block.compile(dynamic=False)
    for block in model.transformer.resblocks:
        block.compile(dynamic=False)

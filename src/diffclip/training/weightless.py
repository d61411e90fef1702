"""A model without weights: shapes and types alone, which is all that counting parameters, operations and bytes takes.

Nothing is allocated and nothing computed (torch's fake tensors), so that a model and a batch of any size cost about a
second. Where a CPU can hold them, storages and sizes are those of a real pass (tests/training/test_memory.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from diffclip.attention import (
    AddedDifferentialAttention,
    DifferentialAttention,
    DifferentialAttentionV2,
    PairedAttention,
    SelfAttention,
    triton,
)
from diffclip.attention.heads import split_heads
from diffclip.attention.lambdas import per_head
from diffclip.attention.module import HEAD_NORM_EPS, LAMBDA_VECTORS
from diffclip.config import CLIPConfig
from diffclip.model import CLIP


@contextmanager
def weightless(
    config: CLIPConfig, attention_backend: str, grad_checkpointing: bool = False
) -> Iterator[CLIP]:
    """The model of `config` in training mode; tensors made within the context have no values either.

    "auto" and "triton" stand for what a GPU would run: the fused differential kernel, which keeps queries, keys,
    values, its output and three numbers a row, and torch's fused plain attention. "sdpa" is the form that it has on a
    CPU, which keeps somewhat less than two fused calls do on a GPU.
    """
    with torch.device("meta"):
        model = CLIP(config, seed=0)
    model.train()
    model.set_grad_checkpointing(grad_checkpointing)
    # device types other than the CPU's have no autocast where their hardware is missing, so fake CPU tensors it is
    with FakeTensorMode():
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(
                        torch.empty(parameter.shape, dtype=parameter.dtype)
                    )
        if attention_backend in ("auto", "triton"):
            model.set_attention_backend("sdpa")
            _fuse(model)
        else:
            model.set_attention_backend(attention_backend)
        yield model


def make_batch(config: CLIPConfig, samples: int) -> tuple[Tensor, Tensor]:
    """Normalised pictures [samples, 3, S, S] and tokens [samples, L] of the sizes that training has."""
    size = config.vision.image_size
    tokens = torch.zeros(samples, config.text.context_length, dtype=torch.int64)
    return torch.zeros(samples, 3, size, size), tokens


def parameters_by_part(model: CLIP) -> dict[str, int]:
    """Numbers of parameters; the parts add up to all of them."""
    parts = dict.fromkeys(
        ("vision tower", "text tower", "token embedding", "projections", "λ", "head norms", "logit scale"), 0
    )
    for name, parameter in model.named_parameters():
        parts[_part_of(name)] += parameter.numel()
    return parts


def _part_of(name: str) -> str:
    *_, layer, leaf = ("", *name.split("."))
    if leaf in LAMBDA_VECTORS:
        return "λ"
    if layer == "diff_norm":
        return "head norms"
    if name in ("logit_scale", "logit_bias"):
        return "logit scale"
    if leaf.endswith("_projection"):
        return "projections"
    if layer == "token_embedding":
        return "token embedding"
    return "vision tower" if name.startswith("visual.") else "text tower"


class _Fused(DifferentialAttention):
    """A layer that runs the fused kernel whatever device its tensors claim to be on."""

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        qkv = self.qkv(x)
        values = split_heads(qkv, self.num_heads, self.num_heads // 2)[2]
        lam = per_head(self.current_lambda(), values)
        out = triton.differential_packed(
            qkv, self.num_heads, lam, causal, self.norm_weight, HEAD_NORM_EPS, self.out_scale
        )
        return out.transpose(1, 2).flatten(2)


class _FusedPairs(PairedAttention):
    """The same for two maps a value."""

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        q, k, v, lam = self.project(x)
        out = triton.differential(q, k, v, per_head(lam, v), causal, None, HEAD_NORM_EPS, 1.0)
        return out.transpose(1, 2).flatten(2)


class _FusedV2(_FusedPairs, DifferentialAttentionV2):
    pass


class _FusedAdded(_FusedPairs, AddedDifferentialAttention):
    pass


_FUSED: dict[type[SelfAttention], type[SelfAttention]] = {
    DifferentialAttention: _Fused,
    DifferentialAttentionV2: _FusedV2,
    AddedDifferentialAttention: _FusedAdded,
}


def _fuse(model: CLIP) -> None:
    """Use the kernels where they can be used on a GPU: Triton is here, and the heads are not too large."""
    for layer in (layer for layers in model.attention_layers().values() for layer in layers):
        fused = _FUSED.get(type(layer))
        if fused is not None:
            size = layer.head_dim
            value = 2 * size if fused is _Fused else size
            q, v = (
                torch.empty(1, 2, 1, width, device="cuda", dtype=torch.bfloat16) for width in (size, value)
            )
            if triton.unfusable(q, v) is None:
                layer.__class__ = fused

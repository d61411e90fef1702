"""One table of backends, and the two public operators that choose from it.

Differential attention: DiffCLIP (TMLR 2025) Section 3.2, after Differential Transformer, arXiv:2410.05258.
"""

from __future__ import annotations

from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from diffclip.attention import eager, sdpa
from diffclip.attention.lambdas import per_head
from diffclip.errors import InputError, unknown

BACKENDS: dict[str, ModuleType] = {"eager": eager, "sdpa": sdpa}

# On a CPU the maps are cheap while rows are short. There a fused call costs differential attention a second product
# with V, and plain attention its speed in half precision. Up to so many tokens `auto` makes the maps:
# benchmarks/attention.py.
_CPU_EAGER_UP_TO_TOKENS = {"softmax": 128, "differential": 768}


def check_backend(name: str) -> str:
    """`name`, if it is "auto" or a backend.

    Raises:
        InputError: it is neither; the nearest one is offered.
    """
    if name != "auto" and name not in BACKENDS:
        raise unknown("attention backend", name, ["auto", *BACKENDS])
    return name


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, backend: str = "auto") -> Tensor:
    """Plain attention, softmax(Q·Kᵀ/√d)·V, for q, k, v [B, heads, N, d]; returns [B, heads, N, d].

    Raises:
        InputError: unknown backend.
    """
    out: Tensor = _choose(backend, "softmax", q).softmax(q, k, v, causal)
    return out


def differential_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: float | Tensor,
    causal: bool = False,
    backend: str = "auto",
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-5,
    out_scale: float = 1.0,
) -> Tensor:
    """Differential attention, (softmax(Q1·K1ᵀ/√d) − λ·softmax(Q2·K2ᵀ/√d))·V, with the head norm and factor after it.

    Args:
        q, k: [B, 2·H, N, d]; heads 2i and 2i+1 are a pair.
        v: [B, H, N, e]; e = 2·d in DiffCLIP, any in general. The output has its type.
        lam: λ as a number, a 0-dim tensor, [H], or [B, H, N]; gradients flow to it. Used in float32 (float64
            where the inputs are).
        causal: token n sees tokens 0 … n.
        backend: "auto", "eager" (the formula) or "sdpa" (torch's fused attention).
        norm_weight: [e], the gain of the RMS norm over each head's output, or None for no norm.
        norm_eps: the norm's epsilon.
        out_scale: factor after the norm, (1 − λ_init) in DiffCLIP.

    Returns:
        [B, H, N, e].

    Raises:
        InputError: shapes that do not fit together, or an unknown backend.
    """
    _check_shapes(q, k, v, norm_weight)
    lam = per_head(lam, v)
    out: Tensor = _choose(backend, "differential", q).differential(q, k, v, lam, causal).to(lam.dtype)
    if norm_weight is not None:
        out = F.rms_norm(out, (v.shape[-1],), norm_weight.to(lam.dtype), norm_eps)
    return (out * out_scale if out_scale != 1.0 else out).to(v.dtype)


def _choose(backend: str, kind: str, q: Tensor) -> ModuleType:
    if check_backend(backend) == "auto":
        short = q.device.type == "cpu" and q.shape[-2] <= _CPU_EAGER_UP_TO_TOKENS[kind]
        fused_is_quicker = kind == "softmax" and q.dtype == torch.float32
        backend = "eager" if short and not fused_is_quicker else "sdpa"
    return BACKENDS[backend]


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, norm_weight: Tensor | None) -> None:
    if not q.ndim == k.ndim == v.ndim == 4 or q.shape != k.shape:
        raise InputError(
            f"q {list(q.shape)} and k {list(k.shape)} must both be [B, 2·H, N, d], and v [B, H, N, e]"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise InputError(f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}: give them one type")
    if q.shape[1] % 2:
        raise InputError(f"q has {q.shape[1]} heads: differential attention pairs heads, give an even number")
    if v.shape[:3] != (q.shape[0], q.shape[1] // 2, q.shape[2]):
        raise InputError(
            f"v is {list(v.shape)} where q is {list(q.shape)}: v must be [B, H, N, e] for q [B, 2·H, N, d]"
        )
    if norm_weight is not None and norm_weight.shape != v.shape[3:]:
        raise InputError(
            f"norm_weight has shape {list(norm_weight.shape)}: it must be [{v.shape[3]}], v's last size"
        )

"""The table of attention backends, and the operators that choose from it.

Differential attention: DiffCLIP (TMLR 2025) Section 3.2, after Differential Transformer, arXiv:2410.05258.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from diffclip.attention import eager, fused, sdpa
from diffclip.attention.heads import finish_heads
from diffclip.attention.lambdas import per_head
from diffclip.errors import say_once, unknown_name

BACKENDS: dict[str, ModuleType] = {"eager": eager, "sdpa": sdpa, "triton": fused}

# Up to this many MiB of one map (in float32, for the whole batch) "auto" makes whole maps on a CPU: in a forward pass
# alone, and with a backward pass. The backward pass of blocks computes the maps again, so that whole maps are as fast
# until the allocator returns their pages to the system after each use, from 32 MiB on. AVX2 and AVX512 agree
# (benchmarks/attention.py, docs/performance.md).
_CPU_MAP_MIB = {torch.float32: (6, 32)}
_CPU_HALF_MAP_MIB = (16, 32)
# Plain attention in float32 has no entry, because its fused call is never slow.
_CPU_PLAIN_EAGER_UP_TO_TOKENS = {torch.bfloat16: 320, torch.float16: 128}


def check_backend(name: str) -> str:
    """Return `name` if it is "auto" or a backend, or raise `InputError`, which offers the nearest one."""
    if name != "auto" and name not in BACKENDS:
        raise unknown_name("attention backend", name, ["auto", *BACKENDS])
    return name


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, backend: str = "auto") -> Tensor:
    """Plain attention, softmax(Q·Kᵀ/√d)·V, for q, k, v [B, heads, N, d]; returns [B, heads, N, d]. An unknown backend
    raises `InputError`."""
    if check_backend(backend) == "auto":
        backend = _choose_softmax(q)
    return BACKENDS[backend].softmax(q, k, v, causal)


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
        q: [B, 2·H, N, d]; heads 2i and 2i+1 are a pair.
        k: as `q`.
        v: [B, H, N, e]; e = 2·d in DiffCLIP, any in general. The output has the dtype of v.
        lam: λ as a number, a 0-dim tensor, [H], or [B, H, N]; gradients flow to it. Used in float32 (float64
            for float64 inputs).
        causal: token n sees tokens 0 … n.
        backend: "auto", "eager" (the formula), "sdpa" (torch's fused attention; blocks of rows on a CPU) or "triton"
            (one fused kernel, on a GPU).
        norm_weight: [e], the gain of the RMS norm over each head's output, or None for no norm.
        norm_eps: the norm's epsilon.
        out_scale: factor after the norm, (1 − λ_init) in DiffCLIP.

    Returns:
        [B, H, N, e].

    Raises:
        ValueError: shapes or dtypes that do not fit together.
        InputError: an unknown backend.
    """
    _check_shapes(q, k, v, norm_weight)
    lam = per_head(lam, v)
    chosen = choose_backend(backend, q, v)
    if chosen == "triton":
        return fused.differential(q, k, v, lam, causal, norm_weight, norm_eps, out_scale)
    out = BACKENDS[chosen].differential(q, k, v, lam, causal)
    return finish_heads(out, lam.dtype, norm_weight, norm_eps, out_scale).to(v.dtype)


def choose_backend(backend: str, q: Tensor, v: Tensor) -> str:
    """Return the backend for differential attention of q [B, 2·H, N, d] and v [B, H, N, e]."""
    if check_backend(backend) == "auto":
        if q.device.type == "cpu":
            batch, heads, tokens, _ = v.shape
            limit = _CPU_MAP_MIB.get(q.dtype, _CPU_HALF_MAP_MIB)[torch.is_grad_enabled() and q.requires_grad]
            is_short = tokens < sdpa.BLOCKED_FROM_TOKENS  # for shorter rows, sdpa takes two fused calls
            return "eager" if is_short or 4 * batch * heads * tokens**2 <= limit * 2**20 else "sdpa"
        return "triton" if fused.why_not_faster(q, v) is None else "sdpa"
    # ask only if needed: the first call of `why_not_fused` launches a kernel
    if backend == "triton" and (reason := fused.why_not_fused(q, v)) is not None:
        say_once(f'attention backend "triton" is not used, "eager" takes its place: {reason}')
        return "eager"
    return backend


def _choose_softmax(q: Tensor) -> str:
    """Return the backend for plain attention of q [B, heads, N, d]."""
    is_short = q.device.type == "cpu" and q.shape[-2] <= _CPU_PLAIN_EAGER_UP_TO_TOKENS.get(q.dtype, 0)
    return "eager" if is_short else "sdpa"


def resolve_backend(
    shape: tuple[int, int, int, int], is_differential: bool, device: torch.device, dtype: torch.dtype
) -> tuple[str, str]:
    """Return the backend that "auto" stands for in a training step, and the reason in a few words. `shape` is that of
    the queries, [batch, heads, tokens, size of a head]; differential heads are in pairs, with values twice as wide."""
    probe = torch.empty(1, device=device, dtype=dtype, requires_grad=True)
    batch, heads, tokens, size = shape
    q, v = probe.expand(shape), probe.expand(batch, heads // 2, tokens, 2 * size)
    reason = f"for {batch} × {tokens} tokens in {str(dtype).removeprefix('torch.')}"
    if not is_differential:
        return _choose_softmax(q), reason
    if device.type == "cuda":
        reason = fused.why_not_faster(q, v) or "measured to be right and faster on this GPU"
    return choose_backend("auto", q, v), reason


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, norm_weight: Tensor | None) -> None:
    if not q.ndim == k.ndim == v.ndim == 4 or q.shape != k.shape:
        raise ValueError(
            f"q {list(q.shape)} and k {list(k.shape)} must both be [B, 2·H, N, d], and v [B, H, N, e]"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}: give them one type")
    if q.shape[1] % 2:
        raise ValueError(f"q has {q.shape[1]} heads: differential attention pairs heads, give an even number")
    if v.shape[:3] != (q.shape[0], q.shape[1] // 2, q.shape[2]):
        raise ValueError(
            f"v is {list(v.shape)} where q is {list(q.shape)}: v must be [B, H, N, e] for q [B, 2·H, N, d]"
        )
    if norm_weight is not None and norm_weight.shape != v.shape[3:]:
        raise ValueError(
            f"norm_weight has shape {list(norm_weight.shape)}: it must be [{v.shape[3]}], v's last size"
        )

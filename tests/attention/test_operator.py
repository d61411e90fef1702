"""Compare every backend and kind of layer with its formula written out, and with timm's layer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from parity import DEVICE, draw
from timm.layers import DiffAttention
from torch import Tensor

from diffclip import InputError, differential_attention
from diffclip.attention.added import AddedDifferentialAttention
from diffclip.attention.differential import DifferentialAttention
from diffclip.attention.dispatch import BACKENDS, choose_backend, resolve_backend, softmax_attention
from diffclip.attention.gated import GatedAttention, OpenGatedAttention
from diffclip.attention.grouped import GroupedDifferentialAttention
from diffclip.attention.head_norm import FewerQueriesAttention
from diffclip.attention.one_map import FirstMapAttention, HalfHeadsAttention, HalfHeadsNormAttention
from diffclip.attention.softmax import SoftmaxAttention
from diffclip.attention.v2 import DifferentialAttentionV2
from diffclip.config import variant_config

SETTINGS: list[dict[str, Any]] = [
    {"head_norm": False},
    {"factor": False},
    {"head_norm": False, "factor": False},
]


def by_hand(q: Tensor, k: Tensor, v: Tensor, lam: float, causal: bool) -> np.ndarray:
    """Compute (A1 − λ·A2)·V in NumPy's float64, head by head."""
    q, k, v = (t.detach().double().numpy() for t in (q, k, v))
    batch, heads, tokens, _ = v.shape
    out = np.zeros(v.shape)
    for b in range(batch):
        for h in range(heads):
            maps = []
            for head in (2 * h, 2 * h + 1):
                scores = q[b, head] @ k[b, head].T / np.sqrt(q.shape[-1])
                if causal:
                    scores[np.triu_indices(tokens, 1)] = -np.inf
                exp = np.exp(scores - scores.max(axis=1, keepdims=True))
                maps.append(exp / exp.sum(axis=1, keepdims=True))
            out[b, h] = (maps[0] - lam * maps[1]) @ v[b, h]
    return out


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("tokens", "d", "e"), [(1, 8, 16), (33, 16, 16), (600, 8, 16), (600, 16, 8)])
def test_every_backend_matches_the_formula(backend: str, causal: bool, tokens: int, d: int, e: int) -> None:
    if backend == "triton" and tokens == 600:
        pytest.skip("seconds in the interpreter: test_kernels.py has long rows")
    q, k, v = draw(2, 3, tokens, d, e, device="cpu").qkv
    out = differential_attention(q, k, v, 0.7, causal=causal, backend=backend)
    np.testing.assert_allclose(out.detach().numpy(), by_hand(q, k, v, 0.7, causal), atol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lambda_may_be_a_number_a_scalar_or_vary_by_head_or_token(backend: str) -> None:
    q, k, v = draw(2, 3, 5, 8, 16, device="cpu").qkv
    lambdas = [0.4, torch.tensor(0.4), torch.full((3,), 0.4), torch.full((2, 3, 5), 0.4)]
    first, *outputs = (differential_attention(q, k, v, lam, backend=backend) for lam in lambdas)
    for output in outputs:
        torch.testing.assert_close(output, first)
    by_head = torch.tensor([0.1, 0.5, 0.9], requires_grad=True)
    out = differential_attention(q, k, v, by_head, backend=backend)
    for head, lam in enumerate((0.1, 0.5, 0.9)):
        torch.testing.assert_close(
            out[:, head], differential_attention(q, k, v, lam, backend=backend)[:, head]
        )
    # the output is linear in λ, so the difference of two calls is its slope
    grads = torch.autograd.grad(out.sum(), by_head)[0]
    slope = differential_attention(q, k, v, 1.0) - differential_attention(q, k, v, 0.0)
    torch.testing.assert_close(grads, slope.sum((0, 2, 3)), rtol=1e-4, atol=1e-4)


def test_lambda_is_not_rounded_to_the_inputs_type() -> None:
    # with equal maps the output is (1 − λ)·A·V: a λ rounded to bfloat16 (0.99609375) would make it 1.56 times as large
    q, _, v = draw(1, 1, 4, 8, 8, torch.bfloat16, device="cpu").qkv
    pair = q[:, :1].expand(1, 2, 4, 8)
    out = differential_attention(pair, pair, v, 0.9975, backend="sdpa")
    attended = softmax_attention(pair[:, :1], pair[:, :1], v, backend="sdpa")
    torch.testing.assert_close(out.float(), 0.0025 * attended.float(), rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda q, k, v: (q[:, :3], k[:, :3], v, 0.5), "3 heads"),
        (lambda q, k, v: (q, k, v[:, :1], 0.5), "v is [2, 1, 5, 16]"),
        (lambda q, k, v: (q, k, v, torch.zeros(4)), "lam has shape [4]"),
        (lambda q, k, v: (q, k, v.bfloat16(), 0.5), "torch.bfloat16: give them one type"),
        (lambda q, k, v: (q, k, v, 0.5, False, "spda"), "'sdpa'"),
    ],
)
def test_invalid_inputs_are_named_in_the_error(change, words: str) -> None:
    with pytest.raises(ValueError) as error:
        differential_attention(*change(*draw(2, 2, 5, 8, 16).qkv))
    assert words in str(error.value)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_layer_agrees_with_timm(backend: str, causal: bool) -> None:
    torch.manual_seed(0)
    oracle = DiffAttention(64, num_heads=4, qkv_bias=True)
    oracle.lambda_init = 0.8
    layer = DifferentialAttention(64, 8)
    layer.backend = backend
    names = {"sub_norm": "diff_norm", "proj": "out_proj"}
    state = oracle.state_dict().items()
    layer.load_state_dict({".".join(names.get(part, part) for part in key.split(".")): t for key, t in state})
    x = torch.randn(2, 19, 64)
    expected = oracle(x, is_causal=causal)
    torch.testing.assert_close(layer(x, is_causal=causal), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("batch", "tokens", "dtype", "forward", "trained"),
    [
        (256, 26, torch.float32, "eager", "eager"),
        (8, 197, torch.float32, "sdpa", "eager"),
        (64, 197, torch.float32, "sdpa", "sdpa"),
        (1, 197, torch.float32, "eager", "eager"),
        (2, 577, torch.float32, "sdpa", "eager"),
        (1, 2305, torch.float32, "sdpa", "sdpa"),
        (8, 197, torch.bfloat16, "eager", "eager"),
    ],
)
def test_auto_makes_whole_maps_on_a_cpu_while_memory_allows(batch, tokens, dtype, forward, trained) -> None:
    q = torch.empty(1, dtype=dtype).expand(batch, 12, tokens, 64)
    assert choose_backend("auto", q, q[:, :6]) == forward
    assert choose_backend("auto", q.clone().requires_grad_(), q[:, :6]) == trained
    assert resolve_backend((batch, 12, tokens, 64), True, q.device, dtype)[0] == trained


def test_unsupported_layer_options_raise_input_error() -> None:
    with pytest.raises(InputError, match="the model CLIP decides that"):
        variant_config("CLIP", {"vision": {"registers": 4}})
    with pytest.raises(InputError, match="odd"):
        DifferentialAttention(33, 3)
    with pytest.raises(InputError, match="qk_norm"):
        DifferentialAttention(32, 4, qk_norm=True)
    with pytest.raises(ValueError, match="attn_mask"):
        SoftmaxAttention(32, 4)(torch.zeros(1, 2, 32), attn_mask=torch.zeros(2, 2))


def layer_by_hand(layer: Any, x: Tensor, causal: bool) -> Tensor:
    """Compute a layer's output head by head and map by map."""
    tokens, width = x.shape[1:]
    size = width // layer.num_heads
    if isinstance(layer, FewerQueriesAttention):
        rows = layer.part_qkv(x)
        kept = (rows.shape[-1] - width) // 2
        q, k, v = rows.split([kept, kept, width], -1)
    else:
        q, k, v = layer.qkv(x).chunk(3, -1)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1) & causal

    def attend(q: Tensor, k: Tensor, own: slice, values: slice | None = None) -> Tensor:
        scores = q[..., own] @ k[..., own].mT / size**0.5
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[..., values or own]

    def part(head: int) -> slice:
        return slice(head * size, (head + 1) * size)

    def finish(out: Tensor) -> Tensor:
        if layer.head_norm:
            out = out / (out.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.diff_norm.weight
        return out * (1 - layer.lambda_init) if layer.factor else out

    if isinstance(layer, (FewerQueriesAttention, HalfHeadsNormAttention)):
        heads = []
        for pair in range(layer.num_heads // 2):
            values = slice(2 * pair * size, 2 * (pair + 1) * size)
            if isinstance(layer, HalfHeadsNormAttention):
                scores = q[..., values] @ k[..., values].mT / (2 * size) ** 0.5
                out = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[..., values]
            else:
                out = attend(q, k, part(pair), values)
            if isinstance(layer, GroupedDifferentialAttention):
                noise = part(layer.num_heads // 2 + pair // 3)
                out = out - layer.current_lambda() * attend(q, k, noise, values)
            heads.append(finish(out))
        return layer.out_proj(torch.cat(heads, -1))
    heads = []
    for head in range(layer.num_heads):
        columns = slice(head * size, (head + 1) * size)
        if isinstance(layer, DifferentialAttention):
            if head % 2:
                continue
            second, pair = slice(columns.stop, columns.stop + size), slice(columns.start, columns.stop + size)
            out = attend(q, k, columns, pair) - layer.current_lambda() * attend(q, k, second, pair)
            heads.append(finish(out))
            continue
        out = attend(q, k, columns)
        if isinstance(layer, GatedAttention):
            bias = layer.gate_proj.bias[columns] if layer.has_bias else 0
            out = out * torch.sigmoid(x @ layer.gate_proj.weight[columns].T + bias)
        elif isinstance(layer, DifferentialAttentionV2):
            lam = torch.sigmoid(x @ layer.lambda_proj.weight[head])[..., None]
            out = out - lam * attend(layer.q2_proj(x), k, columns)
        else:
            out = out - layer.current_lambda() * attend(layer.q2_proj(x), layer.k2_proj(x), columns)
        heads.append(out)
    return layer.out_proj(torch.cat(heads, -1))


@pytest.mark.parametrize(
    ("backend", "tokens", "causal"),
    [("eager", 9, False), ("eager", 9, True), ("sdpa", 9, False), ("sdpa", 150, True), ("triton", 9, True)],
)
@pytest.mark.parametrize(
    "make",
    [
        # an odd number of heads is allowed: no pair of heads shares a value
        *(partial(kind, 24, 3) for kind in (AddedDifferentialAttention, DifferentialAttentionV2)),
        *(partial(kind, 24, 3) for kind in (GatedAttention, OpenGatedAttention)),
        *(partial(kind, 24, 4) for kind in (FirstMapAttention, HalfHeadsNormAttention)),
        partial(GroupedDifferentialAttention, 24, 8),  # of four pairs, three share a second map
        partial(FirstMapAttention, 24, 4, head_norm=False, factor=False),
        *(partial(DifferentialAttention, 24, 4, **settings) for settings in SETTINGS),
    ],
)
def test_a_layer_matches_its_formula_forward_and_backward(
    make: Callable[[], Any], backend: str, tokens: int, causal: bool
) -> None:
    torch.manual_seed(0)
    dtype, limits = torch.float64, {}
    if backend == "triton":  # the kernels have no float64
        dtype, limits = torch.float32, {"rtol": 1e-4, "atol": 1e-5}
    layer = make().to(DEVICE, dtype)
    layer.backend = backend
    for name, vector in layer.named_parameters():
        if name.startswith(("lambda_", "diff_norm")):  # an added map starts with λ at 0, the gain at 1
            vector.data.normal_()
    x = torch.randn(2, tokens, 24, dtype=dtype, device=DEVICE, requires_grad=True)
    out, wanted = layer(x, is_causal=causal), layer_by_hand(layer, x, causal)
    torch.testing.assert_close(out, wanted, **limits)
    weights, inputs = torch.randn_like(out), [x, *layer.parameters()]
    grads, expected = (torch.autograd.grad((y * weights).sum(), inputs) for y in (out, wanted))
    for grad, want in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, want, **limits)
    layer.backend = "eager"  # the kernels make no maps
    attended, maps = layer.attend_through_maps(x, causal)
    torch.testing.assert_close(layer.out_proj(attended), wanted, **limits)
    assert (maps.second is not None) == layer.is_differential


def test_half_heads_is_plain_attention_with_half_the_heads() -> None:
    half, plain = HalfHeadsAttention(24, 4), SoftmaxAttention(24, 2)
    half.load_state_dict(plain.state_dict())
    x = torch.randn(2, 9, 24)
    assert torch.equal(half(x), plain(x))
    with pytest.raises(InputError, match="heads 3 is odd"):
        HalfHeadsAttention(24, 3)

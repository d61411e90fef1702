"""Compare outputs and gradients of the fused kernels with the formula in float64, for many shapes and layouts."""

import pytest
import torch
from parity import DEVICE, KERNEL_TYPES, TOLERANCES, assert_near, draw, error, exact, fused
from torch import Tensor

from diffclip import differential_attention
from diffclip.attention.heads import split_heads
from diffclip.attention.kernels import launch
from diffclip.attention.kernels import plan as plans
from diffclip.attention.kernels.plan import WHOLE_ROW_TOKENS, Blocks, Plan

# an error, because a case that falls back to eager would compare the formula with itself
pytestmark = pytest.mark.filterwarnings("error:attention backend")


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use large blocks and whole short rows without a GPU: the interpreter's time grows with the number of blocks."""
    if DEVICE == "cuda":
        return
    large = Blocks(128, 64, 4, 1)

    def plan_for(q: Tensor, v: Tensor) -> Plan:
        plan = plans.plan_for(q, v)
        forward = large if q.shape[-2] > WHOLE_ROW_TOKENS else Blocks(64, 0, 4, 1)
        return Plan(forward, plan.rows, plan.keys) if q.shape[-2] < 50 else Plan(forward, large, large)

    monkeypatch.setattr(launch, "plan_for", plan_for)


@pytest.mark.parametrize(
    ("tokens", "d", "e", "causal", "dtype"),
    [
        (33, 64, 64, False, torch.float32),
        (33, 80, 160, True, torch.float16),
        (33, 128, 256, False, torch.float32),
        (33, 24, 40, True, torch.float32),
        *((77, 64, 128, True, dtype) for dtype in KERNEL_TYPES),
        *((290, 64, 128, False, dtype) for dtype in KERNEL_TYPES),
    ],
)
def test_head_sizes_match_the_formula(tokens: int, d: int, e: int, causal: bool, dtype: torch.dtype) -> None:
    inputs = draw(1, 2 if e == 40 else 1, tokens, d, e, dtype)
    assert_near(fused(inputs, causal, 0.2), exact(inputs, causal, 0.2), TOLERANCES[dtype])


@pytest.mark.parametrize(
    ("tokens", "causal", "norm"),
    [
        (2, False, True),
        (16, False, False),
        (17, True, True),
        (50, False, False),
        (77, True, True),
        (197, False, True),
        (257, False, False),
        (257, False, True),
        (290, True, True),
    ],
)
def test_sequence_lengths_match_the_formula(tokens: int, causal: bool, norm: bool) -> None:
    inputs = draw(1, 1, tokens, 16, 32, norm=norm)
    assert_near(fused(inputs, causal), exact(inputs, causal), 1e-5)


@pytest.mark.parametrize(
    ("smallest", "tokens", "out_scale"), [(0.0, 40, 0.2), (1e-5, 40, 1.0), (2e-3, 40, 0.2), (0.0, 260, 0.2)]
)
def test_a_gain_near_zero_matches_the_formula(smallest: float, tokens: int, out_scale: float) -> None:
    inputs = draw(1, 2, tokens, 16, 24)
    assert inputs.gain is not None
    inputs.gain.data[5] = smallest
    assert_near(fused(inputs, True, out_scale), exact(inputs, True, out_scale), 1e-5)


@pytest.mark.parametrize(
    ("dtype", "offset", "tolerance"), [(torch.float32, 150.0, 2e-4), (torch.float16, -40.0, 0.02)]
)
@pytest.mark.parametrize(("tokens", "causal"), [(19, False), (19, True), (261, False)])
def test_scores_far_from_zero_match_the_formula(
    tokens: int, causal: bool, dtype: torch.dtype, offset: float, tolerance: float
) -> None:
    # an offset of all scores leaves a softmax unchanged; the zeros that pad the last block of keys must not count
    inputs = draw(1, 1, tokens, 16, 16, dtype)
    with torch.no_grad():
        inputs.q[..., -1], inputs.k[..., -1] = abs(offset) ** 0.5, 4 * offset / abs(offset) ** 0.5
    assert_near(fused(inputs, causal), exact(inputs, causal), tolerance)


def test_noncontiguous_inputs_and_gains_match_the_formula() -> None:
    inputs = draw(2, 1, 30, 16, 32)
    inputs.gain = torch.linspace(0.5, 1.5, 64)[::2].to(DEVICE).detach().requires_grad_()
    inputs.q = inputs.q.detach().mT.contiguous().mT.requires_grad_()
    inputs.v = inputs.v.detach().repeat_interleave(2, -1)[..., ::2].requires_grad_()
    inputs.k = inputs.k.detach()[:, :1].expand(2, 2, 30, 16).requires_grad_()
    assert inputs.q.stride(-1) == 30
    assert inputs.v.stride(-1) == 2
    assert_near(fused(inputs, True), exact(inputs, True), 1e-5)


@pytest.mark.parametrize("shape", ["sum", "transposed"])
def test_output_gradients_of_any_layout_match_the_formula(shape: str) -> None:
    inputs = draw(1, 1, 35, 16, 32)
    inputs.grad = {
        "sum": torch.ones((), device=DEVICE).expand(1, 1, 35, 32),
        "transposed": inputs.grad.mT.contiguous().mT,
    }[shape]
    assert_near(fused(inputs, False, 0.2), exact(inputs, False, 0.2), 1e-5)


def test_views_of_one_projection_match_the_formula() -> None:
    qkv = torch.randn(2, 30, 3 * 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    inputs = draw(2, 2, 30, 16, 32)
    inputs.q, inputs.k, inputs.v = (x.requires_grad_() for x in split_heads(qkv, 4, 2))
    assert_near(fused(inputs, False, 0.2), exact(inputs, False, 0.2), 1e-5)


@pytest.mark.parametrize("only", ["q", "k", "v", "lam", "gain"])
def test_a_single_gradient_alone_matches_the_formula(only: str) -> None:
    inputs = draw(1, 2, 20, 16, 16)
    expected = exact(inputs, True)[only]
    for name, leaf in inputs.leaves().items():
        leaf.requires_grad_(name == only)
    leaf = inputs.leaves()[only]
    out = differential_attention(inputs.q, inputs.k, inputs.v, inputs.lam, True, "triton", inputs.gain)
    assert error(torch.autograd.grad(out, leaf, inputs.grad)[0], expected) < 1e-5


@pytest.mark.parametrize(("batch", "tokens"), [(0, 20), (2, 0)])
def test_empty_inputs_give_empty_outputs(batch: int, tokens: int) -> None:
    tensors = fused(draw(batch, 1, tokens, 16, 32, torch.float16), False)
    assert tensors["out"].shape == tensors["v"].shape == (batch, 1, tokens, 32)
    assert not tensors["gain"].any()


def test_a_large_lambda_stays_finite_in_float16() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, 200, d, generator=generator) for h, d in ((2, 32), (2, 32), (1, 64)))
    q[:, 0] = 0  # the first map is flat and the second peaked: their sums are far apart
    q[:, 1] *= 20
    half = [x.half() for x in (q, k, v)]
    output, reference = (
        differential_attention(*inputs, 3000.0, backend=backend)
        for inputs, backend in ((half, "triton"), ([x.double() for x in half], "eager"))
    )
    assert (output.double() - reference).norm() < 1e-2 * reference.norm()

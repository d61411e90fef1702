"""Compare the blocked attention for CPUs with the formula in float64, for every way to split heads and rows."""

import pytest
import torch
from torch import Tensor

from diffclip.attention import blocked, eager

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def results(function, tensors: list[Tensor], grad: Tensor, causal: bool) -> dict[str, Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = function(*leaves, causal)
    grads = torch.autograd.grad(out, leaves, grad.to(out.dtype))
    return dict(zip(("out", "q", "k", "v", "lam"), (out.detach(), *grads), strict=True))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lam_shape", [(), (1, 6, 1, 1), (2, 6, 53, 1)])
# first: uneven blocks of one head; second: 4 of the 6 heads would fit, and a block takes 3, a divisor of 6
@pytest.mark.parametrize("elements", [53 * 20, 53 * 53 * 4])
def test_blocked_attention_matches_the_formula(
    monkeypatch: pytest.MonkeyPatch,
    elements: int,
    lam_shape: tuple[int, ...],
    causal: bool,
    dtype: torch.dtype,
) -> None:
    monkeypatch.setattr(blocked, "_BLOCK_ELEMENTS", elements)
    generator = torch.Generator().manual_seed(elements % 1000 + len(lam_shape))
    q, k = (torch.randn(2, 12, 53, 8, generator=generator).to(dtype) for _ in range(2))
    v, grad = (torch.randn(2, 6, 53, 16, generator=generator).to(dtype) for _ in range(2))
    lam = torch.rand(lam_shape, generator=generator).to(torch.promote_types(dtype, torch.float32)) + 0.2
    actual = results(blocked.differential, [q, k, v, lam], grad, causal)
    wide = [x.double() for x in (q, k, v, lam)]
    expected = results(eager.differential, wide, grad.double(), causal)
    # the gradient of λ is a sum whose terms may cancel: its error is relative to the size of the terms
    terms = [*wide[:3], wide[3].expand(2, 6, 53, 1)]
    size = {"lam": results(eager.differential, terms, grad.double(), causal)["lam"].norm()}
    for name, want in expected.items():
        distance = (actual[name].double() - want).norm() / size.get(name, want.norm())
        assert distance < TOLERANCES[dtype], name
        assert actual[name].dtype == (lam.dtype if name == "lam" else dtype)


def test_blocked_attention_is_deterministic_and_keeps_torchs_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 4, 300, 16, generator=generator) for _ in range(2))
    v, grad = (torch.randn(2, 2, 300, 32, generator=generator) for _ in range(2))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        runs = [results(blocked.differential, [q, k, v, torch.tensor(0.5)], grad, True) for _ in range(3)]
        assert torch.get_num_threads() == 3
        with torch.inference_mode():
            inferred = blocked.differential(q, k, v, torch.tensor(0.5), True)
    finally:
        torch.set_num_threads(before)
    expected = results(eager.differential, [q, k, v, torch.tensor(0.5)], grad, True)
    for name, want in expected.items():
        assert all(torch.equal(run[name], runs[0][name]) for run in runs), name
        torch.testing.assert_close(runs[0][name], want, rtol=1e-4, atol=1e-4)
    assert torch.equal(inferred, runs[0]["out"])

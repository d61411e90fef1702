"""Blocks of rows on a CPU against the formula in float64, for every way of cutting heads and rows."""

from __future__ import annotations

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
# a row of one head; uneven blocks of one head; 4 of 6 heads fit and 3 divide them; everything in one block
@pytest.mark.parametrize("elements", [1, 53 * 20, 53 * 53 * 4, 10**9])
def test_blocks_are_the_formula(
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
    found = results(blocked.differential, [q, k, v, lam], grad, causal)
    wide = [x.double() for x in (q, k, v, lam)]
    expected = results(eager.differential, wide, grad.double(), causal)
    # a sum of terms may cancel: its error is measured by the size of its terms
    terms = [*wide[:3], wide[3].expand(2, 6, 53, 1)]
    size = {"lam": results(eager.differential, terms, grad.double(), causal)["lam"].norm()}
    for name, want in expected.items():
        distance = (found[name].double() - want).norm() / size.get(name, want.norm())
        assert distance < TOLERANCES[dtype], name
        assert found[name].dtype == (lam.dtype if name == "lam" else dtype)


@pytest.mark.parametrize(
    ("elements", "groups", "rows"), [(53 * 20, 6, [18, 18, 17]), (53 * 53 * 4, 2, [53]), (1, 6, [1] * 53)]
)
def test_blocks_cover_every_row_of_every_head_once(
    monkeypatch: pytest.MonkeyPatch, elements: int, groups: int, rows: list[int]
) -> None:
    monkeypatch.setattr(blocked, "_BLOCK_ELEMENTS", elements)
    q, v, lam = torch.zeros(1, 12, 53, 8), torch.zeros(1, 6, 53, 16), torch.zeros(1, 6, 53, 1)
    walked = list(blocked._walk(q, q, v, lam, True, buffers=2))
    assert len(walked) == groups
    for _, blocks, scratch in walked:
        assert [block.stop - block.start for block, _ in blocks] == rows
        assert [keys for _, keys in blocks] == [block.stop for block, _ in blocks]
        assert all(buffer.numel() <= max(elements, 53) for buffer in scratch)

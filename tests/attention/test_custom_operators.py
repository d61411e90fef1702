"""The operators with torch's own tools: opcheck, compilation, checkpointing and sharded parameters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import DEVICE, draw, error
from tiny import SIZES, TOKENS
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from diffclip import CLIP
from diffclip.attention import eager
from diffclip.attention.blocked import _backward_of, _forward
from diffclip.attention.differential import DifferentialAttention
from diffclip.attention.kernels import launch, plan
from diffclip.attention.kernels.operator import fused_attention, fused_attention_backward
from diffclip.config import variant_config

pytestmark = pytest.mark.filterwarnings("error:attention backend")
WITHOUT_AUTOGRAD = ("test_schema", "test_faketensor")


@pytest.mark.parametrize(("tokens", "dtype"), [(9, torch.float32), (11, torch.float16)])
def test_fused_attention_passes_opcheck(
    tokens: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (launch, plan):
        monkeypatch.setattr(module, "WHOLE_ROW_TOKENS", 10)  # of a longer row, A2·V is kept
    q, k, v, lam, gain, grad = vars(draw(1, 1, tokens, 16, 16, dtype, norm=tokens == 9)).values()
    torch.library.opcheck(fused_attention, (q, k, v, lam, gain, True, 1e-5, 0.2, True))
    plain = [x if x is None else x.detach() for x in (q, k, v, lam, gain)]
    torch.library.opcheck(fused_attention, (*plain, True, 1e-5, 0.2, False), test_utils=WITHOUT_AUTOGRAD)
    saved = fused_attention(*plain, True, 1e-5, 0.2, True)
    torch.library.opcheck(
        fused_attention_backward, (grad, *plain, *saved, True, 1e-5, 0.2), test_utils=WITHOUT_AUTOGRAD
    )


def test_blocked_attention_passes_opcheck() -> None:
    inputs = draw(2, 2, 9, 8, 16)
    q, k, v, lam, grad = (
        x.cpu().detach() for x in (inputs.q, inputs.k, inputs.v, inputs.lam[..., None], inputs.grad)
    )
    leaves = [x.clone().requires_grad_() for x in (q, k, v, lam)]
    torch.library.opcheck(_forward, (*leaves, True))
    torch.library.opcheck(_backward_of, (grad, q, k, v, lam, True), test_utils=WITHOUT_AUTOGRAD)


def tiny(backend: str, image_size: int = 32) -> tuple[CLIP, Tensor, Tensor]:
    """Create a small DiffCLIP, images and tokens. 96 pixels per side give 145 tokens, which a CPU handles in blocks.
    The kernels get one layer with one pair of heads, because their interpreter is slow."""
    few = {"layers": 1, "heads": 2} if backend == "triton" else {"layers": 2}
    vision, text = (SIZES[tower] | few for tower in ("vision", "text"))
    sizes = SIZES | {"vision": vision | {"image_size": image_size}, "text": text}
    model = CLIP(variant_config("DiffCLIP", sizes), attention_backend=backend, seed=0).to(DEVICE)
    images = torch.randn(2, 3, image_size, image_size, generator=torch.Generator().manual_seed(1))
    return model, images.to(DEVICE), TOKENS.to(DEVICE)


def gradients(model: nn.Module, images: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    out = model(images, tokens)
    logits = out["logit_scale"] * out["image_features"] @ out["text_features"].T
    loss = (logits * torch.arange(4.0, device=DEVICE).view(2, 2)).sum()
    model.zero_grad()
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name.removeprefix("_orig_mod."): grad.clone() for name, grad in grads.items()} | {
        "loss": loss.detach()
    }


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], lambda_limit: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    assert any("lambda_q1" in name for name in found)
    errors = {name: error(found[name].double(), expected[name].double()) for name in expected}
    too_far = {
        name: gap for name, gap in errors.items() if gap > (lambda_limit if ".lambda_" in name else 1e-5)
    }
    assert not too_far


@pytest.mark.parametrize(("backend", "image_size"), [("triton", 32), ("sdpa", 96)])
def test_checkpointing_and_compilation_keep_gradients(backend: str, image_size: int) -> None:
    torch._dynamo.reset()
    model, images, tokens = tiny(backend, image_size)
    expected = gradients(model, images, tokens)
    model.set_grad_checkpointing(True)
    assert_same(gradients(model, images, tokens), expected)
    model.set_grad_checkpointing(False)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(gradients(compiled, images, tokens), expected)


@pytest.mark.slow
def test_compiled_gradients_are_as_exact_as_float32_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """λ is one number for a layer, so its gradient is a sum over all entries of its maps, whose terms cancel. A float32
    sum of n terms in any order is off by about √n·2⁻²⁴·Σ|term| (Higham, Accuracy and Stability, Section 4.2)."""
    torch._dynamo.reset()
    model, images, tokens = tiny("auto", 96)
    compiled = gradients(torch.compile(model, fullgraph=True), images, tokens)
    formula, by_row = eager.differential, []

    def with_a_lambda_for_each_row(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *rest: Any) -> Tensor:
        by_row.append(lam.expand(*v.shape[:3], 1).clone())
        by_row[-1].retain_grad()
        return formula(q, k, v, by_row[-1], *rest)

    monkeypatch.setattr(eager, "differential", with_a_lambda_for_each_row)
    model.set_attention_backend("eager")
    exact = gradients(model.double(), images.double(), tokens)
    condition = max(float(lam.grad.abs().sum() / lam.grad.sum().abs()) for lam in by_row)
    terms = max(lam.numel() * lam.shape[2] for lam in by_row)
    assert_same(compiled, exact, lambda_limit=condition * terms**0.5 * 2**-24)


def test_a_sharded_layer_has_the_same_gradients(tmp_path: Path) -> None:
    plain, sharded = (DifferentialAttention(32, 4).to(DEVICE) for _ in range(2))
    plain.backend = sharded.backend = "sdpa"
    sharded.load_state_dict(plain.state_dict())
    x = torch.randn(2, 130, 32, device=DEVICE)
    plain(x, is_causal=True).square().sum().backward()
    torch.distributed.init_process_group(
        "nccl" if DEVICE == "cuda" else "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        fully_shard(sharded, mesh=init_device_mesh(DEVICE, (1,)), reshard_after_forward=True)
        sharded(x, is_causal=True).square().sum().backward()
        expected = {name: p.grad for name, p in plain.named_parameters()}
        for name, parameter in sharded.named_parameters():
            assert parameter.grad is not None, name
            torch.testing.assert_close(parameter.grad.full_tensor(), expected[name])
    finally:
        torch.distributed.destroy_process_group()

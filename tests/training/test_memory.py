"""Memory of a step: a model without weights against a real one, against torch's own profiler, and against formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from diffclip import CLIP
from diffclip.attention import triton
from diffclip.config import CLIPConfig
from diffclip.training.losses import make_criterion
from diffclip.training.memory import (
    LiveBytes,
    input_memory,
    loss_memory,
    measure_pass,
    run_pass,
    state_memory,
)
from diffclip.training.recipe import Recipe, parse_recipe
from diffclip.training.weightless import make_batch, parameters_by_part, weightless

ARCHITECTURE: dict[str, Any] = {
    "embed_dim": 32,
    "vision": {"image_size": 64, "patch_size": 8, "width": 64, "layers": 3, "heads": 4},
    "text": {"context_length": 24, "width": 64, "layers": 2, "heads": 4},
}


def recipe(model: str = "DiffCLIP", **changes: Any) -> Recipe:
    fields = {"model": model, "epochs": 1, "batch_size": 8, "data": {"train": "nowhere"}}
    return parse_recipe(fields | {"architecture": ARCHITECTURE} | changes, "test")


def real(config: CLIPConfig, backend: str, again: bool) -> CLIP:
    model = CLIP(config, attention_backend=backend, seed=0)
    model.train()
    model.set_grad_checkpointing(again)
    return model


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("model", "backend"), [("CLIP", "sdpa"), ("DiffCLIP", "eager"), ("DiffCLIP", "sdpa")]
)
def test_a_model_without_weights_needs_what_a_real_one_needs(
    model: str, backend: str, precision: str, again: bool
) -> None:
    config = recipe(model).config()
    model_here = real(config, backend, again)
    for samples in (2, 4, 8):
        measured = run_pass(model_here, *make_batch(config, samples), precision)
        with weightless(config, backend, again) as made_up:
            planned = run_pass(made_up, *make_batch(config, samples), precision)
        assert planned == measured, samples


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_kept_is_what_is_alive_after_the_forward_pass(precision: str) -> None:
    """By the account of torch's profiler, which sees every allocation."""
    config = recipe().config()
    model = real(config, "eager", False)
    for samples in (2, 4, 8):
        images, tokens = make_batch(config, samples)
        kept, _ = run_pass(model, images, tokens, precision)
        with (
            profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found,
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
        ):
            out = model(images, tokens)
        alive = sum(event.self_cpu_memory_usage for event in found.key_averages())
        assert out["image_features"].requires_grad
        # the features themselves, and small tensors that are alive and not saved
        assert kept <= alive < 1.02 * kept + 10_000, samples
        del out  # or it would be freed under the next profiler's eyes


def test_parts_of_a_pass_add_up_and_grow_with_the_samples() -> None:
    chosen = recipe(attention_backend="eager", precision="bf16")
    config = chosen.config()
    measured = {n: measure_pass(chosen, n) for n in (1, 2, 3, 4, 8)}
    for samples, found in measured.items():
        kept, most = run_pass(real(config, "eager", False), *make_batch(config, samples), "bf16")
        assert found.copies + found.activations == kept
        assert found.copies + found.activations + found.working == most
    matrices = [p for p in real(config, "eager", False).parameters() if p.ndim > 1]
    lookups = sum(p.numel() for p in matrices if p.shape[0] in (49408, 1) or p.shape == (24, 64))
    copies = {found.copies for found in measured.values()}
    assert len(copies) == 1
    # every weight of a product, and the biases of its layer, in two bytes; embeddings are looked up as they are
    products = sum(p.numel() for p in matrices) - lookups
    assert 2 * products <= copies.pop() <= 2 * 1.06 * products
    assert measured[8].activations == 2 * measured[4].activations == 4 * measured[2].activations


def test_without_autocast_no_weight_is_copied() -> None:
    assert measure_pass(recipe(attention_backend="eager", precision="fp32"), 4).copies < 2000  # causal maps


@pytest.mark.skipif(not triton._INSTALLED, reason="Triton is not installed")
def test_a_block_with_the_fused_kernel_keeps_what_a_formula_gives() -> None:
    def activations(layers: int) -> int:
        vision = ARCHITECTURE["vision"] | {"layers": layers}
        changed = recipe(architecture=ARCHITECTURE | {"vision": vision}, precision="bf16")
        return measure_pass(changed, 4).activations // 4

    tokens, width, pairs = 65, 64, 2
    # bytes a token: two residuals in float32, the inputs of QKV and of the MLP, Q, K, V, the kernel's output, and both
    # sides of the GELU in bfloat16; mean and deviation of two norms; three numbers a pair of heads
    each = 2 * 4 * width + 2 * (2 + 3 + 1 + 4 + 4) * width + 2 * 2 * 4 + 3 * 4 * pairs
    assert activations(3) - activations(2) == tokens * each


def test_eager_maps_cost_more_than_the_kernel_and_checkpointing_less() -> None:
    kept = {
        (backend, again): measure_pass(
            recipe(attention_backend=backend, grad_checkpointing=again, precision="bf16"), 8
        ).activations
        for backend, again in (("auto", False), ("eager", False), ("auto", True))
    }
    assert kept["auto", True] < 0.4 * kept["auto", False]
    assert kept["auto", False] < 0.9 * kept["eager", False]


def test_state_is_sixteen_bytes_a_parameter_and_is_shared_out() -> None:
    config = recipe().config()
    count = sum(p.numel() for p in CLIP(config, seed=0).parameters())
    whole = state_memory(config, world=4, sharded=False, in_parts=True)
    assert (whole.weights, whole.gradients, whole.optimiser, whole.gathered) == (
        4 * count,
        4 * count,
        8 * count,
        0,
    )
    shared = state_memory(config, world=4, sharded=True, in_parts=False)
    assert shared.weights == shared.gradients == 4 * -(-count // 4)
    assert shared.optimiser == 2 * shared.weights
    assert 0 < shared.gathered < 3 * 4 * count
    # gradients are brought together after the last part
    assert state_memory(config, world=4, sharded=True, in_parts=True).gradients == 4 * count


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_the_loss_needs_what_a_real_one_needs(kind: str) -> None:
    samples, width = 96, 20
    features = [torch.randn(samples, width, requires_grad=True) for _ in range(2)]
    scalars = {"logit_scale": torch.ones((), requires_grad=True)}
    if kind == "siglip":
        scalars["logit_bias"] = torch.zeros((), requires_grad=True)
    live = LiveBytes()
    with live:
        make_criterion(kind, True)(
            image_features=features[0], text_features=features[1], **scalars
        ).backward()
    planned = sum(loss_memory(kind, samples, 1, width))
    # labels are left out; for siglip the worst moments of features and logits do not meet
    assert 0.98 * live.most < planned < 1.1 * live.most


def test_logits_are_a_process_own_rows_and_features_are_everybodys() -> None:
    one = loss_memory("clip", 64, 1, 32)
    eight = loss_memory("clip", 64, 8, 32)
    assert eight[1] == 8 * one[1]
    # own features and gradients of both kinds; of all eight processes besides
    assert one[0] == 2 * 2 * 64 * 32 * 4
    assert eight[0] == one[0] * (1 + 8)


def test_pictures_are_counted_as_they_come_and_normalised() -> None:
    config = recipe().config()
    images, tokens = make_batch(config, 4)
    came = torch.zeros(images.shape, dtype=torch.uint8)
    assert input_memory(config, 4, 4) == sum(t.untyped_storage().nbytes() for t in (images, tokens, came))


@pytest.mark.parametrize("model", ["CLIP", "DiffCLIP", "DiffCLIP-dynamic", "DiffCLIP-vision"])
def test_parts_of_the_parameters_are_all_parameters(model: str) -> None:
    config = recipe(model).config()
    with weightless(config, "auto") as made_up:
        parts = parameters_by_part(made_up)
    names = dict(CLIP(config, seed=0).named_parameters())
    assert sum(parts.values()) == sum(p.numel() for p in names.values())
    assert parts["λ"] == sum(p.numel() for name, p in names.items() if ".lambda_" in name)
    assert parts["vision tower"] == sum(
        p.numel()
        for name, p in names.items()
        if name.startswith("visual.") and ".lambda_" not in name and ".diff_norm." not in name
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_plan_holds_on_a_gpu() -> None:
    chosen = recipe("DiffCLIP", precision="bf16")
    config = chosen.config()
    model = real(config, "auto", False).cuda()
    images, tokens = (t.cuda() for t in make_batch(config, 512))
    for _ in range(2):  # the first pass makes gradients and workspaces
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", torch.bfloat16):
            out = model(images, tokens)
        (out["image_features"].sum() + out["text_features"].sum()).backward()
    planned = measure_pass(chosen, 512)
    total = planned.copies + planned.activations + planned.working
    assert torch.cuda.max_memory_allocated() - before == pytest.approx(total, rel=0.1)

"""The plan of a run: real numbers of parameters, hours and cost by hand, what fits, and what is said where not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diffclip import CLIP, InputError
from diffclip.config import named_config
from diffclip.training.gpus import GPUS, find_gpu
from diffclip.training.memory import measure_pass
from diffclip.training.plan import UTILISATION, OnGPU, Plan, plan_run
from diffclip.training.recipe import Recipe, parse_recipe
from diffclip.training.weightless import parameters_by_part, weightless

GIB = 2**30
TINY: dict[str, Any] = {
    "embed_dim": 32,
    "vision": {"image_size": 64, "patch_size": 8, "width": 64, "layers": 3, "heads": 4},
    "text": {"context_length": 24, "vocab_size": 49408, "width": 64, "layers": 2, "heads": 4},
}
DEEP = TINY | {"vision": TINY["vision"] | {"layers": 12}}


def tiny(**changes: Any) -> Recipe:
    fields = {"model": "DiffCLIP", "architecture": TINY, "epochs": 3, "batch_size": 64, "precision": "bf16"}
    return parse_recipe(fields | {"data": {"train": "nowhere"}} | changes, "test")


def paper(**changes: Any) -> Recipe:
    data = {"train": "nowhere", "expected_samples": 7_900_000}
    fields = {
        "model": "DiffCLIP-ViT-B-16",
        "epochs": 40,
        "batch_size": 4096,
        "precision": "bf16",
        "data": data,
    }
    return parse_recipe(fields | changes, "test")


def total(plan: Plan) -> int:
    return sum(plan.memory.values())


def test_parameters_are_those_of_the_model() -> None:
    chosen = tiny(model="DiffCLIP-vision")
    plan = plan_run(chosen)
    model = CLIP(chosen.config(), seed=0)
    assert sum(plan.parameters.values()) == sum(p.numel() for p in model.parameters())
    assert plan.parameters["token embedding"] == model.token_embedding.weight.numel()
    assert plan.model.startswith("DiffCLIP-vision-")


@pytest.mark.parametrize(("variant", "more"), [("DiffCLIP", 9216), ("DiffCLIP-vision", 4608), ("CLIP", 0)])
def test_parameters_of_the_papers_models(variant: str, more: int) -> None:
    with weightless(named_config(f"{variant}-ViT-B-16"), "auto") as model:
        parts = parameters_by_part(model)
    # of the published file; "roughly 0.003 %" more (Section 4.1) is λ and the head norms of the vision tower
    assert sum(parts.values()) == 149_629_185 - 9216 + more
    assert parts["λ"] + parts["head norms"] == more


def test_steps_and_samples() -> None:
    schedule = plan_run(tiny(warmup_epochs=0.5, data={"train": "x", "expected_samples": 6_500})).schedule
    assert schedule is not None
    assert (schedule.samples_per_epoch, schedule.steps_per_epoch, schedule.dropped) == (6_500, 101, 36)
    assert (schedule.epochs, schedule.steps, schedule.samples) == (3, 303, 303 * 64)
    assert schedule.warmup_steps == 50
    # what was counted goes before what the recipe expects
    counted = plan_run(tiny(data={"train": "x", "expected_samples": 6_500}), samples=640).schedule
    assert counted is not None
    assert counted.steps_per_epoch == 10


def test_hours_and_cost_are_operations_over_the_rate() -> None:
    plan = plan_run(paper(), devices=8, gpu="a100-80gb", price=2.0, utilisation=0.5)
    on = plan.on_gpu
    assert on is not None
    assert plan.schedule is not None
    seconds = plan.schedule.samples * plan.flops.training / (8 * 312e12 * 0.5)
    assert on.hours == pytest.approx(seconds / 3600)
    assert on.gpu_hours == pytest.approx(8 * seconds / 3600)
    assert on.cost == pytest.approx(2.0 * 8 * seconds / 3600)
    assert on.samples_per_second == pytest.approx(plan.schedule.samples / seconds)
    # the paper gives about 10 GPU days for this run (Section 5.2), which is a utilisation of about 0.14
    slow = plan_run(paper(), devices=8, gpu="a100-80gb", utilisation=0.14).on_gpu
    assert slow is not None
    assert slow.gpu_hours is not None
    assert 9 < slow.gpu_hours / 24 < 11


@pytest.mark.parametrize("model", ["CLIP", "DiffCLIP"])
def test_a_batch_of_4096_fits_one_gpu_of_80_gb(model: str) -> None:
    plan = plan_run(paper(model=f"{model}-ViT-B-16", micro_batch=512), gpu="a100-80gb")
    assert plan.on_gpu is not None
    assert plan.on_gpu.fits
    assert total(plan) < 60 * GIB
    assert (plan.world, plan.share, plan.passes) == (1, 4096, 8)
    # the price is one more forward pass
    assert plan.flops.features_first == plan.flops.forward


def test_what_does_not_fit_is_offered_a_micro_batch_that_does() -> None:
    def on_l4(**changes: Any) -> OnGPU:
        on = plan_run(tiny(batch_size=2**14, architecture=DEEP, **changes), gpu="l4").on_gpu
        assert on is not None
        return on

    on = on_l4()
    assert not on.fits
    assert on.advice == f"does not fit into 22 GiB: micro_batch={on.largest_micro_batch} does"
    assert on_l4(micro_batch=on.largest_micro_batch).fits
    # but for the factor that equal parts may cost, it is the largest
    assert not on_l4(micro_batch=2 * on.largest_micro_batch).fits


def test_advice_where_it_fits() -> None:
    def advice(**changes: Any) -> str | None:
        on = plan_run(tiny(**changes), gpu="l4").on_gpu
        assert on is not None
        assert on.fits
        return on.advice

    assert advice() is None
    assert advice(micro_batch=64) is None
    assert "micro_batch=null" in (advice(micro_batch=16) or "")
    assert "fits as well, in fewer passes" in (
        advice(batch_size=2**14, architecture=DEEP, micro_batch=64) or ""
    )


def test_what_never_fits_is_offered_other_ways() -> None:
    def advice(devices: int, **changes: Any) -> str:
        on = plan_run(tiny(**changes), devices, gpu="l4").on_gpu
        assert on is not None
        assert (on.fits, on.largest_micro_batch) == (False, 0)
        return on.advice or ""

    wide = TINY | {"vision": TINY["vision"] | {"width": 16384, "layers": 1, "heads": 128}}
    said = advice(2, architecture=wide, batch_size=2)
    assert "the largest part is optimiser" in said
    assert "try grad_checkpointing=true, --strategy fsdp, a smaller batch_size, more or larger GPUs" in said
    # a single process holds the logits of the whole batch
    said = advice(1, batch_size=2**17, grad_checkpointing=True)
    assert "the largest part is logits, 256.0 GiB: try a smaller batch_size, more or larger GPUs" in said


def test_the_memory_of_a_pass_is_in_the_plan() -> None:
    chosen = tiny(micro_batch=16)
    measured = measure_pass(chosen, 16)
    plan = plan_run(chosen)
    assert plan.memory["activations"] == measured.activations
    assert plan.memory["backward pass"] == measured.working
    assert plan.memory["weights"] == 4 * sum(plan.parameters.values())


def test_sharding_and_checkpointing_take_less_memory() -> None:
    whole = plan_run(tiny(), devices=8)
    shared = plan_run(tiny(), devices=4, nodes=2, strategy="fsdp")
    assert (whole.strategy, shared.strategy, shared.world) == ("ddp", "fsdp", 8)
    assert shared.memory["optimiser"] == -(-sum(shared.parameters.values()) // 8) * 8
    assert shared.memory["gathered weights"] > 0 == whole.memory["gathered weights"]
    again = plan_run(tiny(grad_checkpointing=True), devices=8)
    assert again.memory["activations"] < 0.4 * whole.memory["activations"]
    assert again.flops.backward > whole.flops.backward


def test_a_plan_is_json() -> None:
    plan = plan_run(tiny(), gpu="h100", samples=1000).as_json()
    again = json.loads(json.dumps(plan))
    assert again == plan
    assert again["parameters"]["total"] == sum(
        n for part, n in again["parameters"].items() if part != "total"
    )
    assert again["memory"]["total"] > again["memory"]["activations"]
    assert again["on_gpu"]["gpu"]["name"] == "h100"
    assert again["on_gpu"]["utilisation"] == UTILISATION


def test_without_a_number_of_samples_there_are_no_hours() -> None:
    plan = plan_run(tiny(), gpu="h100")
    assert plan.schedule is None
    assert plan.on_gpu is not None
    assert plan.on_gpu.hours is plan.on_gpu.cost is None
    assert plan.on_gpu.samples_per_second > 0
    assert plan_run(tiny()).on_gpu is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpu": "h1000"}, "did you mean 'h100'"),
        ({"devices": 3}, "batch_size 64 does not divide by 3 processes"),
        ({"devices": 0}, "must be at least 1"),
        ({"strategy": "dpp"}, "unknown strategy 'dpp'"),
        ({"samples": 10}, "10 samples are fewer than batch_size 64"),
        ({"utilisation": 1.5}, "utilisation 1.5"),
        ({"price": -1.0}, "price -1.0"),
        ({"gpu": "v100"}, "v100 has no bfloat16"),
    ],
)
def test_what_cannot_be_planned_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_run(tiny(), **options)


def test_gpus_have_what_a_plan_needs() -> None:
    for name, gpu in GPUS.items():
        assert find_gpu(name.upper()) is gpu
        assert gpu.tflops("fp32") < (gpu.bf16_tflops or float("inf"))
        assert 10 * GIB < gpu.memory < 200 * GIB
        assert 0 < gpu.price < 20
        year, month = gpu.month.split("-")
        assert 2024 < int(year) < 2100
        assert 1 <= int(month) <= 12
    assert plan_run(tiny(precision="fp32"), gpu="v100").on_gpu is not None

"""The program of two processes: a training step of each case and validations, with DDP and FSDP, one file per rank."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from diffclip.config import variant_config
from diffclip.data.open_set import caption_set
from diffclip.errors import DiffCLIPError
from diffclip.model import CLIP
from diffclip.training.accumulate import backward_in_parts
from diffclip.training.distributed import average_small, clip_gradients, make_fabric, mean_over_processes
from diffclip.training.launch import Hardware
from diffclip.training.losses import accuracy_of, collect_logits, make_criterion
from diffclip.training.recipe import parse_recipe
from diffclip.training.validation import validate

BATCH = 12
# the first of two processes has short texts alone, and cuts them
LENGTHS = [3, 8, 5, 4, 6, 8, 12, 3, 4, 7, 10, 5]
# loss, whether features are gathered with gradients, samples in a forward pass (0: all);
# "siglip yes 4" uses gradient checkpointing
CASES = ("clip yes 0", "clip yes 4", "siglip yes 0", "siglip yes 4", "clip no 0", "clip no 4")


def made_model(loss: str = "clip", drop_path: float = 0.0) -> CLIP:
    tower = {"width": 32, "layers": 2, "heads": 4}
    vision = {"image_size": 32, "patch_size": 16, "drop_path": drop_path, **tower}
    text = {"context_length": 12, "vocab_size": 50, **tower}
    sizes = {"embed_dim": 16, "vision": vision, "text": text, "logit_bias": loss == "siglip"}
    return CLIP(variant_config("DiffCLIP", sizes), seed=3)


def made_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(1, 48, (BATCH, 12), generator=generator)
    for row, length in zip(tokens, LENGTHS, strict=True):
        row[length - 1], row[length:] = 49, 0
    return torch.randn(BATCH, 3, 32, 32, generator=generator), tokens


def gradients_of(model: CLIP) -> dict[str, torch.Tensor]:
    """Return the full gradients by name, also for sharded parameters."""
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: (g.full_tensor() if hasattr(g, "full_tensor") else g).clone() for name, g in grads.items()}


def main(output: Path, val: Path, broken: Path) -> None:
    results: dict[str, Any] = {}
    for strategy in ("ddp", "fsdp"):
        fabric = make_fabric(Hardware(strategy=strategy, accelerator="cpu").resolved(), "fp32")
        fabric.launch()
        results[strategy] = {case: one_step(fabric, *case.split()) for case in CASES}
        results[strategy]["validation"] = validated(fabric, val)
        results[strategy]["broken"] = validated(fabric, broken)
    torch.save(results, output / f"{fabric.global_rank}.pt")


def one_step(fabric: Any, loss: str, with_grad: str, micro: str) -> dict[str, Any]:
    model = made_model(loss)
    model.set_grad_checkpointing(micro != "0" and loss == "siglip")
    rank, world = fabric.global_rank, fabric.world_size
    wrapped = fabric.setup_module(model)
    images, tokens = (part.chunk(world)[rank] for part in made_batch())
    lengths = LENGTHS[rank * len(images) :][: len(images)]
    criterion = make_criterion(loss, with_grad == "yes", rank, world)
    parts = (int(micro) or None, partial(fabric.no_backward_sync, wrapped))
    with collect_logits(criterion) as logits:
        value, _ = backward_in_parts(wrapped, criterion, images, tokens, lengths, fabric.backward, *parts)
    average_small(fabric, model)
    accuracy = accuracy_of(loss, logits, rank)
    loss_value, accuracy_value = mean_over_processes(fabric, [value.item(), accuracy.item()])
    result = {"loss": loss_value, "accuracy": accuracy_value, "gradients": gradients_of(model)}
    result["norm"] = clip_gradients(fabric, model, 10)
    return result | {"clipped": gradients_of(model)}


def validated(fabric: Any, val: Path) -> dict[str, Any]:
    """Run a validation that succeeds and a validation that fails."""
    model = made_model()
    wrapped = fabric.setup_module(model)
    wrapped(torch.zeros(2, 3, 32, 32), torch.ones(2, 12, dtype=torch.int64))  # as a training step does
    data = caption_set("validation", "val", val)
    fields = {"model": "DiffCLIP-ViT-Ti-16", "epochs": 1, "batch_size": 8, "data": {"train": str(val)}}
    recipe = parse_recipe(fields, "test")

    def tokenizer(texts: list[str]) -> torch.Tensor:
        sums = (sum(ord(letter) * position for position, letter in enumerate(text, 1)) for text in texts)
        return torch.tensor([[1 + number % 40] * 11 + [49] for number in sums])

    def failing(texts: list[str]) -> torch.Tensor:
        raise DiffCLIPError("no tokens today")

    outcome = validate(fabric, model, data, tokenizer, recipe)
    result = {"scores": outcome.scores, "correlation": outcome.map_correlation, "faults": len(outcome.faults)}
    try:
        validate(fabric, model, data, failing, recipe)
    except DiffCLIPError as error:
        result["error"] = str(error)
    # the model is still usable: another training step works
    out = wrapped(torch.zeros(2, 3, 32, 32), torch.ones(2, 12, dtype=torch.int64))
    fabric.backward(out["image_features"].sum() + out["text_features"].sum())
    return result | {"finite": bool(out["image_features"].isfinite().all())}

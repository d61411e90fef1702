"""What a stage takes before anything is here: parameters, sequences, memory, steps, hours and cost.

Operations and the memory of a pass are measured over a model without values (torch's fake tensors), as those of
`diffclip train` are (diffclip.training.plan); what the tower keeps is nothing, as no gradient goes there.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from diffclip.errors import InputError
from diffclip.training.gpus import GIB, GPU, find_gpu
from diffclip.training.memory import CONTEXT, FLOAT, SLACK, run_pass
from diffclip.training.plan import UTILISATION
from diffclip.vlm.conversations import read_conversations
from diffclip.vlm.lengths import Lengths, assumed_lengths, count_lengths
from diffclip.vlm.llava import compute_again
from diffclip.vlm.recipe import StageRecipe, VLMRecipe
from diffclip.vlm.sizes import fake_model
from diffclip.vlm.start import freeze

_PIXEL = 4
_TOKEN = 8


@dataclass(frozen=True)
class StagePlan:
    """A planned stage. Memory is in bytes for one process; `parameters` maps a part to (all, trained).

    `samples_known` says that the JSON was there to be counted. Operations are for a sample that is padded to the
    longest of its pass; memory is for a pass with the longest sample of all.
    """

    recipe: str
    stage: int
    precision: str
    parameters: dict[str, tuple[int, int]]
    picture_tokens: int
    lengths: Lengths
    max_length: int
    samples: int
    samples_known: bool
    epochs: float
    steps: int
    warmup: int
    batch_size: int
    per_device: int
    devices: int
    passes: int
    flops: int
    memory: dict[str, int]
    gpu: GPU
    utilisation: float
    fits: bool
    advice: str | None
    samples_per_second: float
    hours: float
    price: float
    cost: float

    def as_json(self) -> dict[str, Any]:
        """The plan with its sums, as plain numbers and names."""
        plan = asdict(self)
        plan["parameters"] = {
            part: {"all": number, "trained": trained} for part, (number, trained) in self.parameters.items()
        }
        return plan | {"memory": {**self.memory, "total": sum(self.memory.values())}}


def plan_stage(
    recipe: VLMRecipe,
    stage: int,
    devices: int = 1,
    gpu: str = "a100-80gb",
    price: float | None = None,
    utilisation: float = UTILISATION,
) -> StagePlan:
    """The plan of `stage` on `devices` GPUs. Neither pictures nor weights are needed, and the hub is not asked.

    Args:
        price: dollars for an hour of one GPU; None: a usual one.
        utilisation: share of the GPU's rate for dense matrices that training reaches.

    Raises:
        InputError: unknown GPU, numbers that make no sense, a batch that does not divide by the GPUs, parts that
            nothing is known of, or neither the JSON nor `expected_samples`.
    """
    part = recipe.stage(stage)
    if devices < 1:
        raise InputError(f"--devices {devices}: it must be at least 1")
    if not 0 < utilisation <= 1:
        raise InputError(f"utilisation {utilisation} must be a share: above 0, at most 1")
    if price is not None and not 0 <= price < math.inf:
        raise InputError(f"price {price} must be a number of dollars, 0 or more")
    card = find_gpu(gpu)
    accumulate = part.passes(devices)
    with fake_model(recipe, "eager") as model:
        freeze(model, stage)
        parameters, trained = _parameters(model), _trained(model)
        picture = _picture_tokens(model)
        if recipe.max_length <= picture:
            raise InputError(
                f"max_length {recipe.max_length} leaves no room for words: a picture alone has {picture} tokens"
            )
        samples, known, lengths = _data(part, stage, picture, recipe.max_length)
        padded, longest = (
            max(picture + 2, math.ceil(length)) for length in (lengths.padded, lengths.longest)
        )
        flops = _flops(model, recipe, picture, padded)
    steps = part.steps(samples)
    memory = _memory(recipe, part, stage, picture, longest, trained, devices > 1)
    rate = card.tflops(recipe.precision) * 1e12 * utilisation * devices / flops
    hours = samples * part.epochs / rate / 3600
    price = card.price if price is None else price
    fits = sum(memory.values()) <= card.memory
    return StagePlan(
        recipe=f"{recipe.connector} connector, {recipe.vision} and {recipe.language_model}",
        stage=stage,
        precision=recipe.precision,
        parameters=parameters,
        picture_tokens=picture,
        lengths=lengths,
        max_length=recipe.max_length,
        samples=samples,
        samples_known=known,
        epochs=part.epochs,
        steps=steps,
        warmup=part.warmup_steps(steps),
        batch_size=part.batch_size,
        per_device=part.per_device_batch_size,
        devices=devices,
        passes=accumulate,
        flops=flops,
        memory=memory,
        gpu=card,
        utilisation=utilisation,
        fits=fits,
        advice=None if fits else _advise(recipe, part, card, memory),
        samples_per_second=rate,
        hours=hours,
        price=price,
        cost=hours * devices * price,
    )


class _Pass(nn.Module):
    """Forward pass and loss of a batch in which every sample has a picture and is `length` tokens long."""

    def __init__(self, model: Any, picture: int) -> None:
        super().__init__()
        self.model, self.picture = model, picture

    def forward(self, pixels: Tensor, words: Tensor) -> dict[str, Tensor]:
        inner = self.model.model
        embedded = inner.get_input_embeddings()(words)
        if pixels.shape[0]:
            features = torch.stack(list(inner.get_image_features(pixels, return_dict=True).pooler_output))
            embedded = torch.cat([features.to(embedded.dtype), embedded[:, self.picture :]], dim=1)
        hidden = inner.language_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden)
        loss = self.model.loss_function(logits=logits, labels=words, vocab_size=logits.shape[-1])
        return {
            "image_features": loss,
            "text_features": loss.detach(),
        }  # by the names that `run_pass` looks for


def _batch(model: Any, samples: int, length: int) -> tuple[Tensor, Tensor]:
    vision = model.config.vision_config
    pixels = torch.zeros(samples, vision.num_channels, vision.image_size, vision.image_size)
    return pixels, torch.zeros(samples, length, dtype=torch.int64)


def _flops(model: Any, recipe: VLMRecipe, picture: int, length: int) -> int:
    """Operations of a sample, forward and backward."""
    if recipe.gradient_checkpointing:
        compute_again(model)
    counted = 2  # enough that no size is 1, which some operations treat apart
    with FlopCounterMode(display=False) as counter:
        _Pass(model, picture)(*_batch(model, counted, length))["image_features"].backward()
    return int(counter.get_total_flops()) // counted


def _memory(
    recipe: VLMRecipe, part: StageRecipe, stage: int, picture: int, length: int, trained: int, several: bool
) -> dict[str, int]:
    """Bytes by part; their worst moments do not quite meet, so the sum is on the safe side."""
    samples = part.per_device_batch_size
    with fake_model(recipe, "sdpa") as model:
        freeze(model, stage)
        if recipe.gradient_checkpointing:
            compute_again(model)
        saved, most = run_pass(_Pass(model, picture), *_batch(model, samples, length), recipe.precision)
        weights = FLOAT * sum(parameter.numel() for parameter in model.parameters())
        size = model.config.vision_config.image_size
    parts = {
        "weights": weights,
        "gradients": FLOAT * trained,
        "gradients being exchanged": FLOAT * trained if several else 0,
        "optimiser": 2 * FLOAT * trained,
        "activations, weights in bfloat16" if recipe.precision == "bf16" else "activations": saved,
        "backward pass": max(0, most - saved),
        "input batch": samples * (3 * size**2 * _PIXEL + 3 * length * _TOKEN),
    }
    moving = sum(parts.values()) - weights - 3 * FLOAT * trained
    return parts | {"allocator's slack": int(SLACK * moving), "CUDA and libraries": CONTEXT}


def _parameters(model: Any) -> dict[str, tuple[int, int]]:
    """(all, trained) by part; an output layer that shares the embedding's weights counts once."""
    parts = {"vision tower": [0, 0], "connector": [0, 0], "language model": [0, 0]}
    names = {"vision_tower": "vision tower", "multi_modal_projector": "connector"}
    for name, parameter in model.named_parameters():
        inner = name.removeprefix("model.").partition(".")[0]
        counts = parts[names.get(inner, "language model")]
        counts[0] += parameter.numel()
        counts[1] += parameter.numel() * parameter.requires_grad
    return {part: (number, trained) for part, (number, trained) in parts.items()}


def _trained(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _picture_tokens(model: Any) -> int:
    vision = model.config.vision_config
    return int((vision.image_size // vision.patch_size) ** 2)


def _data(part: StageRecipe, stage: int, picture: int, most: int) -> tuple[int, bool, Lengths]:
    """The number of samples, whether it was counted, and how long they are."""
    if Path(part.json_file).exists():
        conversations = read_conversations(part.json_file, part.images, check_pictures=False)
        lengths = count_lengths(conversations, part.template, picture, most, part.per_device_batch_size)
        return len(conversations), True, lengths
    if part.expected_samples is None:
        raise InputError(
            f"{part.json_file} does not exist: give stage{stage}.json, or stage{stage}.expected_samples to plan "
            "without it"
        )
    return part.expected_samples, False, assumed_lengths(part.template, picture, most)


def _advise(recipe: VLMRecipe, part: StageRecipe, gpu: GPU, memory: dict[str, int]) -> str:
    """What to change where a stage does not fit."""
    lasting = sum(memory[name] for name in ("weights", "gradients", "optimiser"))
    ways = [] if recipe.gradient_checkpointing else ["gradient_checkpointing=true"]
    if part.per_device_batch_size > 1 and lasting < gpu.memory:
        ways.insert(0, f"a per_device_batch_size below {part.per_device_batch_size}")
    ways += ["DeepSpeed (deepspeed=FILE)"] if recipe.deepspeed is None else []
    return f"does not fit into {gpu.memory / GIB:.0f} GiB: try {', or '.join([*ways, 'a larger GPU'])}"

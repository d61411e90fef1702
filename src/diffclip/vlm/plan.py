"""Plan a stage without its data and weights: parameters, lengths, memory, steps and hours.

Operations and activations are measured over a model of fake tensors, which have shapes and types and no values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, Qwen2Config

from diffclip.config import MODEL_NAMES, named_config
from diffclip.errors import InputError
from diffclip.integrations.transformers import DiffCLIPVisionConfig
from diffclip.loading import HUB_PREFIX, read_config
from diffclip.model import CLIP
from diffclip.model_source import find_model
from diffclip.training.plan import GIB, UTILIZATION, find_gpu
from diffclip.vlm.dataset import open_conversations
from diffclip.vlm.files import UNREADABLE, check_causal, line_of
from diffclip.vlm.llava import CONNECTORS, enable_checkpointing, freeze
from diffclip.vlm.quiet import quiet
from diffclip.vlm.recipe import StageRecipe, VLMRecipe

# the towers and the language model of the paper's recipes (huggingface.co/hammh0a, config.json of huggingface.co/Qwen)
_TOWERS = {"hf-hub:hammh0a/DiffCLIP_ViTB16_CC12M": "DiffCLIP-ViT-B-16"}
_LANGUAGE_MODELS = {
    "Qwen/Qwen2.5-0.5B-Instruct": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    }
}
# tokens of the text alone (mean, longest of a pass, longest of all), assumed for LLaVA's two sets: captions of about
# ten words, and the mix of one-word answers and long conversations that are cut off at max_length
_ASSUMED = {"plain": (16, 20, 120), "chat": (220, 240, 10_000)}
_FLOAT = 4  # bytes
# CUDA's context and the workspaces of cuBLAS, cuDNN and NCCL: an assumption, in practice 0.7 to 1.5 GiB
_CONTEXT = int(1.25 * GIB)


@dataclass(frozen=True)
class StagePlan:
    """A planned stage.

    Attributes:
        parameters: (all, trained) of each part of the model.
        memory: bytes of one process by part, for a pass of the longest samples; `available` is the GPU's.
        run: other facts by name. Tokens are of a sample with its image, `flops` of a sample in forward and backward.
        is_counted: whether samples and lengths were counted in the JSON; else they are assumed.
        advice: how to make the stage fit; None if it does.
    """

    parameters: dict[str, tuple[int, int]]
    memory: dict[str, int]
    available: int
    run: dict[str, Any]
    is_counted: bool
    advice: str | None


def plan_stage(recipe: VLMRecipe, stage: int, devices: int = 1, gpu: str = "a100-80gb") -> StagePlan:
    """Plan `stage` on `devices` GPUs, without images, weights and network.

    Raises:
        InputError: unknown GPU, a batch that does not divide by the GPUs, models of unknown size, or neither the JSON
            nor `expected_samples`.
    """
    part = recipe.stage(stage)
    if devices < 1:
        raise InputError(f"--devices {devices}: it must be at least 1")
    card = find_gpu(gpu)
    passes = part.passes(devices)
    with _fake_model(recipe) as model:
        freeze(model, stage)
        if recipe.gradient_checkpointing:
            enable_checkpointing(model)
        vision = model.config.vision_config
        image = (vision.image_size // vision.patch_size) ** 2
        if recipe.max_length <= image:
            raise InputError(
                f"max_length {recipe.max_length} leaves no room for text: an image alone has {image} tokens"
            )
        samples, is_counted, tokens = _lengths(part, stage, image, recipe.max_length)
        padded, longest = (max(image + 2, math.ceil(length)) for length in tokens[1:])
        parameters = _parameters(model)
        flops = _measure(model, image, 2, padded, recipe.precision)[0] // 2
        activations = _measure(model, image, part.per_device_batch_size, longest, recipe.precision)[1]
        logits = part.per_device_batch_size * longest * model.config.text_config.vocab_size
    trained = sum(count for _, count in parameters.values())
    memory = {
        "weights": _FLOAT * sum(count for count, _ in parameters.values()),
        "gradients": _FLOAT * trained,
        "gradients, copy for the exchange": _FLOAT * trained if devices > 1 else 0,
        "optimizer": 2 * _FLOAT * trained,
        "activations": activations,
        "logits in the backward pass": 2 * _FLOAT * logits,
        "CUDA and libraries": _CONTEXT,
    }
    steps = part.steps(samples)
    rate = card.tflops(recipe.precision) * 1e12 * UTILIZATION * devices / flops
    run = {
        "image tokens": image,
        "tokens of a sample, mean": tokens[0],
        "tokens of a sample, with padding": tokens[1],
        "tokens of a sample, longest": tokens[2],
        "samples": samples,
        "epochs": part.epochs,
        "batch size": part.batch_size,
        "GPUs": devices,
        "samples of a GPU in a pass": part.per_device_batch_size,
        "passes of a step": passes,
        "steps": steps,
        "warm-up steps": part.warmup_steps(steps),
        "GFLOP of a sample": flops / 1e9,
        "assumed TFLOP/s of a GPU": UTILIZATION * card.tflops(recipe.precision),
        "samples a second": rate,
        "hours": samples * part.epochs / rate / 3600,
    }
    advice = None
    if sum(memory.values()) > card.memory:
        ways = [f"a per_device_batch_size below {part.per_device_batch_size}", "gradient_checkpointing=true"]
        advice = f"the stage does not fit into {card.name}: try {', '.join(ways)}, DeepSpeed, or a larger GPU"
    return StagePlan(parameters, memory, card.memory, run, is_counted, advice)


def vision_config(source: str) -> DiffCLIPVisionConfig:
    """Return the configuration of a tower: a run or saved folder, a published file, a model's or a known hub name.

    Raises:
        InputError: its size cannot be told without fetching it.
    """
    name = _TOWERS.get(source, source)
    path = None if name in MODEL_NAMES else find_model(name)
    if path is not None and path.startswith(HUB_PREFIX):
        raise InputError(
            f"vision {source}: its size is not known without fetching it; plan with a folder, or with a model's name, "
            "vision=DiffCLIP-ViT-B-16"
        )
    config = named_config(name) if path is None else read_config(path)
    with torch.device("meta"):
        return DiffCLIPVisionConfig.of(CLIP(config, seed=0).config)  # the model resolves what is left open


def language_config(source: str) -> Any:
    """Return the configuration of a language model: the paper's, a folder's, or one on the hub.

    Raises:
        InputError: none of these.
    """
    if source in _LANGUAGE_MODELS and not Path(source).is_dir():
        made: Any = Qwen2Config
        return made(**_LANGUAGE_MODELS[source])
    try:
        with quiet():
            return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except UNREADABLE as error:
        raise InputError(
            f"language_model {source} has no usable config.json ({line_of(error)}): give a folder, or OWNER/NAME on "
            "the hub"
        ) from None


@contextmanager
def _fake_model(recipe: VLMRecipe) -> Iterator[Any]:
    """Make the recipe's model in training mode of fake tensors; tensors made within the block are fake too."""
    vision, language = vision_config(recipe.vision), language_config(recipe.language_model)
    check_causal(language, recipe.language_model)
    kind = CONNECTORS[recipe.connector]
    tied = bool(language.tie_word_embeddings)
    config = kind.config_class(vision_config=vision, text_config=language, tie_word_embeddings=tied)
    with quiet(), torch.device("meta"):
        model = kind(config).train()
        model.model.vision_tower.eval()
    # on the CPU, since autocast exists there wherever one plans
    with FakeTensorMode():
        fakes: dict[int, Any] = {}  # tensors that modules share stay shared
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and id(tensor) not in fakes:
                        fake = torch.empty(tensor.shape, dtype=tensor.dtype)
                        fakes[id(tensor)] = nn.Parameter(fake) if isinstance(tensor, nn.Parameter) else fake
                    tensors[name] = None if tensor is None else fakes[id(tensor)]
        yield model


def _measure(model: Any, image_tokens: int, samples: int, length: int, precision: str) -> tuple[int, int]:
    """Count the operations of a pass, and the bytes of activations that it keeps for its backward pass.

    All samples are `length` tokens long, their image's `image_tokens` included.
    """
    vision = model.config.vision_config
    pixels = torch.zeros(samples, vision.num_channels, vision.image_size, vision.image_size)
    words = torch.zeros(samples, length, dtype=torch.int64)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter:
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
        ):
            inner = model.model
            features = torch.stack(list(inner.get_image_features(pixels, return_dict=True).pooler_output))
            embedded = inner.get_input_embeddings()(words)
            embedded = torch.cat([features.to(embedded.dtype), embedded[:, image_tokens:]], 1)
            hidden = inner.language_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
            logits = model.lm_head(hidden)
            loss = model.loss_function(logits=logits, labels=words, vocab_size=logits.shape[-1])
        loss.backward()
    model.zero_grad()
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage()._cdata, None)
    return int(counter.get_total_flops()), sum(kept.values())


def _parameters(model: Any) -> dict[str, tuple[int, int]]:
    """Count parameters as (all, trained) by part; an output layer that shares the embedding counts once."""
    parts = {"vision tower": [0, 0], "connector": [0, 0], "language model": [0, 0]}
    names = {"vision_tower": "vision tower", "multi_modal_projector": "connector"}
    for name, parameter in model.named_parameters():
        counts = parts[names.get(name.removeprefix("model.").partition(".")[0], "language model")]
        counts[0] += parameter.numel()
        counts[1] += parameter.numel() * parameter.requires_grad
    return {part: (count, trained) for part, (count, trained) in parts.items()}


def _lengths(
    part: StageRecipe, stage: int, image_tokens: int, max_length: int
) -> tuple[int, bool, tuple[float, float, float]]:
    """Return the samples, whether they were counted, and their tokens: mean, longest of a pass (mean), longest."""
    if Path(part.json_file).exists():
        counts = open_conversations(part.json_file, None).token_counts(
            part.template, image_tokens, max_length
        )
        return len(counts), True, (float(counts.mean()), _padded(counts, part), float(counts.max()))
    if part.expected_samples is None:
        raise InputError(
            f"{part.json_file} does not exist: give stage{stage}.json, or stage{stage}.expected_samples to plan "
            "without it"
        )
    mean, padded, longest = (min(max_length, image_tokens + text) for text in _ASSUMED[part.template])
    return part.expected_samples, False, (mean, padded, longest)


def _padded(counts: NDArray[np.float64], part: StageRecipe) -> float:
    """Return the mean over passes of the longest sample, when batches are drawn at random and sorted by length."""
    order = np.random.default_rng(0).permutation(len(counts))
    longest = []
    for start in range(0, len(counts), part.batch_size):
        batch = np.sort(counts[order[start : start + part.batch_size]])[::-1]
        longest.append(batch[:: part.per_device_batch_size].mean())
    return float(np.mean(longest))

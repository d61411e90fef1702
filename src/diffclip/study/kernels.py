"""Whether fused attention holds on this GPU: seen before a grid depends on it, and compiled once for all its processes.

Each attention layer that a study has is put through a step with what "auto" takes there, and with torch's own attention
in the same precision and in float32. What "auto" takes may be as far from float32 as torch's is, and a little more.
"""

from __future__ import annotations

import multiprocessing
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from diffclip.model import CLIP
from diffclip.study.recipe import Study
from diffclip.training.distributed import native_precision
from diffclip.training.recipe import Recipe

FALLBACK = "sdpa"
_PAIRS = 256  # pictures with texts, as a batch has them: Triton compiles for sizes
_ROOM = 1.5, 2e-2
"""How many times torch's error is allowed, and how much beside it; relative to the norm of what is compared."""
_EVALUATED = 1e-3  # of features in float32


def fault_of_kernels(study: Study, device: str, seconds: float) -> str | None:
    """Why fused attention is not to be used in this study on `device`, in a line; None where nothing is wrong with it.
    Each kind of model is tried in a process of its own, all at once; they are given so many seconds."""
    context = multiprocessing.get_context("spawn")
    deadline = time.monotonic() + seconds
    trials = []
    for recipe in kinds_of(study):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_tell, args=(theirs, recipe, device), daemon=True)
        process.start()
        theirs.close()
        trials.append((recipe, ours, process))
    faults = []
    for recipe, ours, process in trials:
        found = f"it took more than {seconds:.0f} s"
        try:
            if ours.poll(max(0.0, deadline - time.monotonic())):
                found = ours.recv()
        except EOFError:
            process.join(1)
            found = f"the process that tried it died (exit code {process.exitcode})"
        finally:
            process.kill()
            process.join()
            ours.close()
        if found:
            faults.append(f"{recipe.model}: {found}")
    return "; ".join(faults) or None


def kinds_of(study: Study) -> list[Recipe]:
    """The recipes of those arms that differ in what their attention layers compute, plain ones left out."""
    kinds: list[tuple[object, Recipe]] = []
    for arm in study.arms.values():
        recipe = study.training(arm.change)
        config = recipe.config()
        kind = config.model_dump(exclude={"lambda_init"})
        plain = config.vision.attention == config.text.attention == "softmax"
        if not plain and all(kind != other for other, _ in kinds):
            kinds.append((kind, recipe))
    return [recipe for _, recipe in kinds]


def _tell(connection: Connection, recipe: Recipe, device: str) -> None:
    torch.set_num_threads(1)
    try:
        told = fault_of_layers(recipe, torch.device(device)) or ""
    except Exception as error:  # whatever a compiler or a driver says
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    with suppress(OSError):
        connection.send(told)


def fault_of_layers(recipe: Recipe, device: torch.device, pairs: int = _PAIRS) -> str | None:
    """How far attention by "auto" is off in the recipe's model, with towers of one block, if that is too far."""
    config = recipe.config()
    config.vision.layers = config.text.layers = 1
    model = CLIP(config, init=recipe.init, seed=recipe.seed).to(device)
    generator = torch.Generator().manual_seed(recipe.seed)
    size, text = config.vision.image_size, config.text
    images = torch.randn(pairs, 3, size, size, generator=generator).to(device)
    tokens = torch.randint(1, text.vocab_size - 1, (pairs, text.context_length), generator=generator)
    tokens[:, -1] = text.vocab_size - 1  # the end of the text
    tokens = tokens.to(device)

    exact = _step(model, FALLBACK, images, tokens, None)
    half = torch.bfloat16 if native_precision(recipe.precision, device.type) == "bf16" else None
    usual = _step(model, FALLBACK, images, tokens, half)
    fused = _step(model, "auto", images, tokens, half)
    times, beside = _ROOM
    for what, reference in exact.items():
        error, allowed = _off(fused[what], reference), times * _off(usual[what], reference) + beside
        if not error <= allowed:
            return f"{what} off by {error:.2g}, where torch's own attention is by {_off(usual[what], reference):.2g}"
    for length in {text.context_length, text.context_length // 2 + 1}:  # evaluation leaves out padding
        short = tokens[:, -length:]
        features = [_features(model, backend, images, short) for backend in (FALLBACK, "auto")]
        error = _off(features[1], features[0])
        if not error <= _EVALUATED:
            return f"features in float32 off by {error:.2g}"
    return None


def _step(
    model: CLIP, backend: str, images: Tensor, tokens: Tensor, half: torch.dtype | None
) -> dict[str, Tensor]:
    """The features of a batch, and the gradients of what they agree on, by what they are of."""
    model.set_attention_backend(backend)
    model.zero_grad()
    with torch.autocast(images.device.type, half, enabled=half is not None):
        out = model(images, tokens)
    logits = out["logit_scale"] * out["image_features"].float() @ out["text_features"].float().T
    own = torch.arange(len(logits), device=logits.device)
    torch.nn.functional.cross_entropy(logits, own).backward()  # type: ignore[no-untyped-call]
    found = {"features": torch.cat([out["image_features"], out["text_features"]]).detach().float()}
    for tower, layers in model.attention_layers().items():
        grads = [
            p.grad.float().flatten() for layer in layers for p in layer.parameters() if p.grad is not None
        ]
        found[f"gradients of the {tower} tower"] = torch.cat(grads)
    return found


@torch.inference_mode()
def _features(model: CLIP, backend: str, images: Tensor, tokens: Tensor) -> Tensor:
    model.set_attention_backend(backend)
    return torch.cat([model.encode_image(images, normalize=True), model.encode_text(tokens, normalize=True)])


def _off(found: Tensor, reference: Tensor) -> float:
    return float((found - reference).norm() / reference.norm())

"""Convert ViT CLIPs of other libraries to our plain `CLIP`, and a plain `CLIP` to a differential one: equal outputs.

A part that ours lacks shows in weights that ours does not have, or in different outputs of the two models.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diffclip.config import parse_config
from diffclip.errors import InputError
from diffclip.model import CLIP, empty_model
from diffclip.published import from_published
from diffclip.weights import Weights, put_weights

WAY_OUT = "check the name, the files and the connection"
_Encode = Callable[[Tensor], Any]
# relative to the largest feature; float32 sums in another order differ by about 1e-6
_TOLERANCE = 1e-4


def assemble(
    fields: dict[str, Any], theirs: Mapping[str, Tensor], names: Sequence[tuple[str, str]], source: str
) -> CLIP:
    """Build a model of the configuration `fields` in float32 on the CPU, in evaluation mode, from the weights `theirs`.

    `names` are patterns of the original's names and their replacements, applied in order.
    """
    state: dict[str, Tensor] = {}
    for name, value in theirs.items():
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        state[name] = value.detach().float().cpu()
    state = from_published(state)  # joins queries, keys and values
    state["visual.cls_token"] = state["visual.cls_token"].reshape(1, 1, -1)
    state["visual.pos_embed"] = state["visual.pos_embed"][None]
    model = empty_model(parse_config(fields, source))
    states = model.state_dict(), state
    ours, loaded = ({(name, t.shape) for name, t in tensors.items()} for tensors in states)
    if odd := sorted(name for name, _ in ours ^ loaded):
        raise refuse(source, f"weights that differ from ours ({', '.join(odd[:3])})")
    return put_weights(model, Weights(state), source).eval()


@torch.no_grad()
def check_outputs(
    model: CLIP, original: nn.Module, image: _Encode, text: _Encode, source: str, end: int | None = None
) -> None:
    """Check that `model` and the encoders `image` and `text` of the `original` agree on random images and texts.

    Texts end with the id `end`, by default the last of the vocabulary.
    """
    generator = torch.Generator().manual_seed(0)
    size, length = model.config.vision.image_size, model.config.text.context_length
    end = model.config.text.vocab_size - 1 if end is None else end
    images = torch.randn(2, 3, size, size, generator=generator)
    tokens = torch.randint(1, end, (2, length), generator=generator)
    tokens[0, -1], tokens[1, length // 2] = end, end
    tokens[1, length // 2 + 1 :] = 0
    original.eval()
    pairs = {
        "image": (model.encode_image(images), image(images)),
        "text": (model.encode_text(tokens), text(tokens)),
    }
    for tower, (ours, theirs) in pairs.items():
        gap = float((ours - theirs.float()).abs().max())
        if not gap <= _TOLERANCE * float(theirs.abs().max()):
            raise refuse(
                source, f"a part that is not looked for: its {tower} features would differ by {gap:.2g}"
            )


def to_differential(model: CLIP, seed: int = 0) -> CLIP:
    """Copy a plain `model` and add a second map to every layer of both towers; outputs stay the same.

    The published differential attention would destroy a pretrained CLIP: the queries and keys of half the heads lose
    their values, and a head norm rescales the output. Here every head keeps all its weights and gets a second map. The
    λ of this map starts at exactly 0 and learns from the first step on (`attention/added.py`).

    Args:
        model: a CLIP with plain attention in both towers.
        seed: the seed of the second queries and keys, and of λ's vectors.

    Raises:
        InputError: a tower is differential already.
    """
    config = model.config.model_copy(deep=True)
    if kinds := {config.vision.attention, config.text.attention} - {"softmax"}:
        raise InputError(f"the model has {' and '.join(sorted(kinds))} attention already: give a plain CLIP")
    config.vision.attention = config.text.attention = "differential-added"
    config.lambda_init = 0.0
    copy = CLIP(config, seed=seed).to(device=model.logit_scale.device, dtype=model.logit_scale.dtype)
    copy.load_state_dict(copy.state_dict() | model.state_dict())
    return copy.train(model.training)


def refuse(source: str, part: str) -> InputError:
    """Make the error for a part that has no counterpart here."""
    return InputError(
        f"{source} has {part}, which cannot be converted: use a ViT CLIP with class-token pooling, GELU or "
        "QuickGELU and plain attention"
    )


def activation_of(module: nn.Module | str, source: str) -> str:
    """Return the name of an activation in our config; raise `InputError` unless it is GELU or QuickGELU."""
    name = module if isinstance(module, str) else type(module).__name__
    if isinstance(module, nn.GELU) and module.approximate != "none":
        name = f"GELU approximated by {module.approximate}"
    known = {"GELU": "gelu", "gelu": "gelu", "QuickGELU": "quick_gelu", "quick_gelu": "quick_gelu"}
    if name not in known:
        raise refuse(source, f"the activation {name}")
    return known[name]


@contextmanager
def silence_warnings() -> Iterator[None]:
    """Drop the warnings and logs of other libraries, which are about their internals."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)

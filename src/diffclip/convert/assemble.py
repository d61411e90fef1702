"""Build our CLIP from the weights of another library's model, and compare the outputs of both."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diffclip.config import VOCABULARY, parse_config
from diffclip.errors import InputError
from diffclip.model import CLIP
from diffclip.published import from_published

_Encode = Callable[[Tensor], Any]
# of the largest feature; float32 sums in another order differ by about 1e-6
_TOLERANCE = 1e-4
END_OF_TEXT = VOCABULARY - 1
"""The largest id that the core's tokenizer gives."""


def assemble(
    fields: dict[str, Any], theirs: Mapping[str, Tensor], names: Sequence[tuple[str, str]], source: str
) -> CLIP:
    """Build a model from a configuration and weights, in float32, on the CPU, in evaluation mode.

    Args:
        fields: of our `CLIPConfig`.
        theirs: weights under the names of `source`.
        names: patterns of those names and what replaces them, in order.
        source: names the original in errors.

    Raises:
        InputError: the configuration or the weights are not those of a CLIP that we have.
    """
    state: dict[str, Tensor] = {}
    for name, value in theirs.items():
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        state[name] = value.detach().float().cpu()
    state = from_published(state)  # joins queries, keys and values
    state["visual.cls_token"] = state["visual.cls_token"].reshape(1, 1, -1)
    state["visual.pos_embed"] = state["visual.pos_embed"][None]
    model = CLIP.unfilled(parse_config(fields, source)).eval()
    ours, given = (
        {(name, t.shape) for name, t in tensors.items()} for tensors in (model.state_dict(), state)
    )
    if odd := sorted(name for name, _ in ours ^ given):
        raise refuse(source, f"weights that differ from ours ({', '.join(odd[:3])})")
    model.load_state_dict(state)
    return model


@torch.no_grad()
def check_outputs(
    model: CLIP, original: nn.Module, image: _Encode, text: _Encode, source: str, end: int | None = None
) -> None:
    """Compare `model` with the encoders `image` and `text` of the `original` on random images and texts.

    Texts end with the id `end`, by default the last of the vocabulary.

    Raises:
        InputError: they differ: the original has another pooling, mask, normalization …
    """
    generator = torch.Generator().manual_seed(0)
    size, length = model.config.vision.image_size, model.config.text.context_length
    end = model.config.text.vocab_size - 1 if end is None else end
    images = torch.randn(2, 3, size, size, generator=generator)
    tokens = torch.randint(1, end, (2, length), generator=generator)
    tokens[0, -1], tokens[1, length // 2] = end, end
    tokens[1, length // 2 + 1 :] = 0
    was_training = original.training
    original.eval()
    try:
        pairs = {
            "image": (model.encode_image(images), image(images)),
            "text": (model.encode_text(tokens), text(tokens)),
        }
    finally:
        original.train(was_training)
    for what, (ours, theirs) in pairs.items():
        gap = float((ours - theirs.float()).abs().max())
        if not gap <= _TOLERANCE * float(theirs.abs().max()):
            raise refuse(
                source, f"a part that is not looked for: its {what} features would differ by {gap:.2g}"
            )


def check_end_of_text(end: int | None, vocabulary: int, source: str) -> None:
    """Refuse a text tower that is not read at its largest id, as ours is.

    The id `end` is the last of a vocabulary, or the tokenizer's, which gives no larger one.

    Raises:
        InputError: `end` is another id.
    """
    if not (end in (None, vocabulary - 1) or END_OF_TEXT == end < vocabulary):
        raise InputError(
            f"{source} takes the text features at the id {end}, not at the largest of its {vocabulary} ids: give a "
            f"model whose end of text is {vocabulary - 1} or the tokenizer's {END_OF_TEXT}"
        )


def refuse(source: str, part: str) -> InputError:
    """Make the error for a part that has no counterpart here."""
    return InputError(
        f"{source} has {part}, which cannot be converted: use a ViT CLIP with class-token pooling, GELU or "
        "QuickGELU and plain attention"
    )


def activation_of(module: nn.Module | str, source: str) -> str:
    """Return the name of an activation in our configuration.

    Raises:
        InputError: it is neither GELU nor QuickGELU.
    """
    name = module if isinstance(module, str) else type(module).__name__
    if isinstance(module, nn.GELU) and module.approximate != "none":
        name = f"GELU approximated by {module.approximate}"
    known = {"GELU": "gelu", "gelu": "gelu", "QuickGELU": "quick_gelu", "quick_gelu": "quick_gelu"}
    if name not in known:
        raise refuse(source, f"the activation {name}")
    return known[name]


@contextmanager
def quiet() -> Iterator[None]:
    """Drop the warnings and logs of other libraries, which are about their internals."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)

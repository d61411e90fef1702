"""Make a trained plain CLIP differential without a change of its outputs, for further training.

Replacing the attention of a pretrained CLIP by the published differential attention destroys the model: the queries and
keys of half the heads lose their values, and a head norm rescales the output. Here every head keeps all its weights and
gets a second map. The λ of this map starts at exactly 0 and learns from the first step on (`attention/variants.py`).
"""

from __future__ import annotations

from diffclip.errors import InputError
from diffclip.model import CLIP


def to_differential(model: CLIP, seed: int = 0) -> CLIP:
    """Copy a plain `model` and add a second map to every layer of both towers; outputs stay the same.

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

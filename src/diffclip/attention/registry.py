"""The kinds of attention by name: `attention` in a tower's configuration names one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from diffclip.attention.module import SelfAttention
from diffclip.errors import InputError, unknown_name
from diffclip.plugins import find_registered

Layer = TypeVar("Layer", bound=type[SelfAttention])

OPTIONS = {"lambda_init", "head_norm", "factor"}
"""The names that `SelfAttention.options` may have."""
ATTENTION_LAYERS: dict[str, type[SelfAttention]] = {}
"""The layer for each value of `attention` in a tower's configuration."""


def register_attention(name: str) -> Callable[[Layer], Layer]:
    """Register a subclass of `SelfAttention` as the kind of attention `name`. Another class, unknown `options`, or a
    name that is taken raises `InputError`."""
    if not isinstance(name, str):
        raise InputError(f'@register_attention has no name: write @register_attention("NAME") above {name}')

    def register(layer: Layer) -> Layer:
        if not issubclass(layer, SelfAttention):
            raise InputError(
                f"{layer.__name__} is no subclass of diffclip.attention.SelfAttention: derive it"
            )
        for option in layer.options - OPTIONS:
            raise unknown_name(f"option of {layer.__name__}", option, sorted(OPTIONS))
        if (known := ATTENTION_LAYERS.get(name)) is not None:
            raise InputError(f"attention {name!r} is {known.__qualname__} already: choose another name")
        ATTENTION_LAYERS[name] = layer
        return layer

    return register


def attention_layer(name: str) -> type[SelfAttention]:
    """Return the layer of the kind of attention `name`; raise `InputError` if there is none."""
    if not find_registered(lambda: name in ATTENTION_LAYERS):
        error = unknown_name("attention", name, ATTENTION_LAYERS)
        raise InputError(f"{error} (an attention of your own needs --plugin)")
    return ATTENTION_LAYERS[name]

"""Convert weights between the layout of the published checkpoints and ours.

Our layout has one fused `qkv` and an `out_proj` in every attention layer. The published files have, by kind of layer:
differential `{q,k,v,out}_proj`; plain vision `qkv`, `proj`; plain text `in_proj_{weight,bias}`, `out_proj`. All other
names are the same. Sources: the released DiffCLIP code and SLIP's CLIP, its baseline.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from diffclip.attention import ATTENTION_LAYERS
from diffclip.config import (
    CLIPConfig,
    Differential,
    mlp_ratio,
    model_names,
    name_of,
    named_config,
    parse_config,
)
from diffclip.errors import InputError

State = Mapping[str, Tensor]
_SPLIT = re.compile(r"(.*\.attn\.)[qkv]_proj\.(weight|bias)$")
_ONLY_PUBLISHED = re.compile(r"\.attn\.([qkv]_proj|proj)\.|\.attn\.in_proj_(weight|bias)$")


def is_published(state: State) -> bool:
    """Return whether the names in `state` (without a `module.` prefix) are those of a published checkpoint."""
    return any(_ONLY_PUBLISHED.search(name) for name in state)


def from_published(state: State) -> dict[str, Tensor]:
    """Convert published names to ours; other names stay, so that the strict check reports them."""
    converted: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if match := _SPLIT.match(name):
            prefix, kind = match.groups()
            parts = [state.get(f"{prefix}{letter}_proj.{kind}") for letter in "qkv"]
            present = [part for part in parts if part is not None and part.ndim]
            if len(present) < 3 or len({part.shape[1:] for part in present}) > 1:
                converted[name] = tensor
            elif f"{prefix}qkv.{kind}" not in converted:
                converted[f"{prefix}qkv.{kind}"] = torch.cat(present)
        elif name.endswith((".attn.in_proj_weight", ".attn.in_proj_bias")):
            converted[name.replace(".in_proj_", ".qkv.")] = tensor
        else:
            converted[name.replace(".attn.proj.", ".attn.out_proj.")] = tensor
    return converted


def to_published(state: State, config: CLIPConfig) -> dict[str, Tensor]:
    """Convert our names to the published ones, also for gradients or other tensors that are keyed like parameters."""
    images, texts = config.vision, config.text
    unpublished = {
        "attention": None in (images.layer.published_names, texts.layer.published_names),
        "differential": config.differential != Differential(),
        "activations": (images.activation, texts.activation) != ("gelu", "quick_gelu"),
        "pre_norm": images.pre_norm,
        "patch_bias": not images.patch_bias,
        "registers": images.registers,
        "logit_bias": config.logit_bias,
    }
    if parts := [part for part, differs in unpublished.items() if differs]:
        raise InputError(
            f"{name_of(config)} has no published layout because of its {', '.join(parts)}: save a folder instead"
        )
    published: dict[str, Tensor] = {}
    for name, tensor in state.items():
        tower = "vision" if name.startswith("visual.") else "text"
        names = getattr(config, tower).layer.published_names[tower]
        block, _, inner = name.partition(".attn.")
        ours = next((prefix for prefix in names if inner.startswith(prefix)), None)
        if ours is None:
            published[name] = tensor
            continue
        theirs, leaf = names[ours], inner.removeprefix(ours)
        for prefix, piece in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            published[f"{block}.attn.{prefix}{leaf}"] = piece.clone() if len(theirs) > 1 else piece
    return published


def infer_config(state: State) -> CLIPConfig:
    """Infer the configuration of weights with our names from their names and shapes.

    The weights do not show λ_init: a differential model is assumed to have 0.8. They do not show the number of heads of
    a plain tower either: it is taken from the named model whose tower has the same width and layers.
    """
    try:
        patch = state["visual.patch_embed.proj.weight"]
        grid = math.isqrt(state["visual.pos_embed"].shape[1] - 1)
        vocab, text_width = state["token_embedding.weight"].shape
        towers: dict[str, dict[str, Any]] = {
            "vision": _infer_tower(state, "visual.blocks", "mlp.fc1", patch.shape[0])
            | {"image_size": grid * patch.shape[-1], "patch_size": patch.shape[-1]},
            "text": _infer_tower(state, "transformer.resblocks", "mlp.c_fc", text_width)
            | {"vocab_size": vocab, "context_length": state["positional_embedding"].shape[0]},
        }
        embed_dim = state["image_projection"].shape[1]
    except InputError:
        raise
    except (KeyError, ValueError, IndexError, ZeroDivisionError) as error:
        fault = "a tensor has an unexpected name or shape"
        if isinstance(error, KeyError):
            fault = f"{error} is missing"
        raise InputError(
            f"these are not the weights of a CLIP with two transformer towers ({fault}): give such a file, or "
            "open_clip:NAME/FILE for one of open_clip"
        ) from None
    for key, tower in towers.items():
        if tower["heads"] is None:
            sizes = (tower["width"], tower["layers"])
            named = (getattr(named_config(name), key) for name in model_names())
            heads = [config.heads for config in named if (config.width, config.layers) == sizes]
            if not heads:
                raise InputError(f"the weights do not tell the heads of a plain {key} tower: name the model")
            tower["heads"] = heads[0]
    if "visual.norm_pre.weight" in state or "visual.patch_embed.proj.bias" not in state:
        raise InputError("the weights do not tell the activation of a converted model: save it as a folder")
    added = "differential-added" in (tower["attention"] for tower in towers.values())
    fields = {
        "embed_dim": embed_dim,
        "logit_bias": "logit_bias" in state,
        "lambda_init": 0.0 if added else 0.8,
    }
    return parse_config(fields | towers, "weights")


def _infer_tower(state: State, blocks: str, hidden: str, width: int) -> dict[str, Any]:
    indices = {int(name[len(blocks) + 1 :].split(".")[0]) for name in state if name.startswith(f"{blocks}.")}
    first = f"{blocks}.0.attn."
    shapes = {name[len(first) :]: value.shape for name, value in state.items() if name.startswith(first)}
    fitting = _fitting_kinds(width, shapes)
    if not fitting or "visual.reg_token" in state:
        raise InputError(
            "the weights do not tell which parts of attention there are: give a folder with its config.json"
        )
    kind = min(fitting, key=lambda name: ATTENTION_LAYERS[name].published_names is None)
    return {
        "width": width,
        "layers": max(indices) + 1,
        "heads": fitting[kind][0] if len(fitting[kind]) == 1 else None,
        "attention": kind,
        "mlp_ratio": mlp_ratio(width, state[f"{blocks}.0.{hidden}.weight"].shape[0]),
    }


def _fitting_kinds(width: int, shapes: Mapping[str, torch.Size]) -> dict[str, list[int]]:
    """Return the kinds of attention whose layers have parameters of these names and shapes, each with its possible
    numbers of heads."""
    fitting: dict[str, list[int]] = {}
    for kind, layer in ATTENTION_LAYERS.items():
        for heads in (heads for heads in range(1, width + 1) if width % heads == 0):
            try:
                state = layer(width, heads, device=torch.device("meta")).state_dict()
            except InputError:  # this kind pairs the heads
                continue
            if {name: value.shape for name, value in state.items()} == dict(shapes):
                fitting.setdefault(kind, []).append(heads)
    return fitting

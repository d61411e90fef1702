"""Weights of ours as timm takes them: the vision tower of a CLIP, with what its configuration says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from timm.layers import resample_abs_pos_embed
from torch import nn

from diffclip.attention import DifferentialAttention, settings_of
from diffclip.config import CLIPConfig, VisionConfig, name_of
from diffclip.errors import InputError
from diffclip.initialisation import published_norm_eps
from diffclip.loading import locate
from diffclip.published import from_published, is_published
from diffclip.weights import read_weights

if TYPE_CHECKING:
    from diffclip.integrations.timm.tower import DiffVisionTransformer


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: DiffVisionTransformer) -> dict[str, Any]:
    """The vision tower in `state_dict`, a whole CLIP of ours (saved or published) or a tower, as `model` takes it.

    Positions are resampled to its image size, the final norm goes where its pooling wants it, and the projection
    becomes its head where that has as many outputs; any other head keeps its values. Published weights of differential
    attention set their epsilon.

    Raises:
        InputError: a CLIP whose vision tower is of another kind, or has other parts.
    """
    state = state_dict.get("state_dict", state_dict)
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    if is_published(state):
        state = from_published(state)
        if isinstance(model.blocks[0].attn, DifferentialAttention):
            model.set_norm_eps(published_norm_eps(VisionConfig(attention="differential")))
    tower = {
        name.removeprefix("visual."): value for name, value in state.items() if name.startswith("visual.")
    }
    if tower and "patch_embed.proj.weight" not in tower:
        raise InputError(
            "these weights hold another kind of vision tower: run diffclip convert on them first"
        )
    fresh = model.state_dict()
    if tower:
        projection = state.get("image_projection")
        if isinstance(model.head, nn.Linear):
            fits = projection is not None and projection.shape[1] == model.head.out_features
            tower["head.weight"] = projection.T if fits else fresh["head.weight"]
            tower["head.bias"] = fresh["head.bias"] * 0 if fits else fresh["head.bias"]
        tower |= {name: value for name, value in fresh.items() if name.startswith("attn_pool.")}
        if "patch_embed.proj.bias" in fresh:  # towers of OpenAI's kind may have none
            tower.setdefault("patch_embed.proj.bias", fresh["patch_embed.proj.bias"] * 0)
    whole = bool(tower)
    tower = tower or state
    if isinstance(model.norm, nn.Identity) and "norm.weight" in tower and "fc_norm.weight" in fresh:
        for part in ("weight", "bias"):
            tower[f"fc_norm.{part}"] = tower.pop(f"norm.{part}")
    # timm passes over any difference once the head is another
    if whole and (differing := sorted(tower.keys() ^ fresh.keys())):
        raise InputError(
            f"the vision tower is of another kind: {len(differing)} names differ, such as {differing[0]}; "
            "attention= and pre_norm= say which kind it is"
        )
    positions = tower.get("pos_embed")
    if positions is not None and not model.no_embed_class and positions.shape != model.pos_embed.shape:
        tower["pos_embed"] = resample_abs_pos_embed(
            positions, new_size=model.patch_embed.grid_size, num_prefix_tokens=model.num_prefix_tokens
        )
    return tower


def sizes_of(vision: VisionConfig) -> dict[str, Any]:
    """The sizes of a tower in timm's words."""
    return {
        "patch_size": vision.patch_size,
        "embed_dim": vision.width,
        "depth": vision.layers,
        "num_heads": vision.heads,
        "mlp_ratio": vision.mlp_ratio,
    }


def read_for_timm(
    source: str, asked: Mapping[str, Any], names: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read `source`, as additions to timm's `pretrained_cfg`, and the arguments that make its tower.

    Args:
        source: what `diffclip.load` takes.
        asked: the arguments that the tower is to be made with, which a configuration in `source` must not contradict.
        names: the names of our towers in timm, and of the sizes that they have.

    Raises:
        InputError: no weights of a CLIP of ours, or of another tower than the one asked for.
    """
    weights = read_weights(locate(source))
    state, config = weights.state, weights.config
    if "visual.pos_embed" not in state or "image_projection" not in state:
        raise InputError(f"{source} holds no CLIP of ours: run diffclip convert on it first")
    overlay: dict[str, Any] = {
        "state_dict": {
            name: value
            for name, value in state.items()
            if name.startswith("visual.") or name == "image_projection"
        },
        "num_classes": state["image_projection"].shape[1],
    }
    told: dict[str, Any] = {}
    side = math.isqrt(state["visual.pos_embed"].shape[1] - 1) * asked["patch_size"]
    if config is not None:
        side = config.vision.image_size
        given = config.preprocess
        overlay |= {"mean": given.mean, "std": given.std, "interpolation": given.interpolation}
        overlay["crop_pct"] = side / given.resize if isinstance(given.resize, int) else 1.0
        overlay["crop_mode"] = "squash" if given.resize == "squash" else "center"
        told = _arguments(config, source, asked, names)
    elif weights.published:
        told["norm_eps"] = published_norm_eps(VisionConfig(attention=asked.get("attention", "differential")))
    return overlay | {"input_size": (3, side, side)}, told


def _arguments(
    config: CLIPConfig, source: str, asked: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, Any]:
    vision = config.vision
    if settings_of(vision.attention, config.differential):
        raise InputError(
            f"{source} holds {name_of(config)}, which lacks a part of differential attention that our towers in timm "
            "all have: use diffclip.load(…)[0].visual"
        )
    told: dict[str, Any] = {"attention": vision.attention, "pre_norm": vision.pre_norm}
    if vision.registers:
        told["reg_tokens"] = vision.registers
    if vision.attention == "differential":
        told["lambda_init"] = config.lambda_init
    if vision.norm_eps is not None:
        told["norm_eps"] = vision.norm_eps
    if vision.activation != "gelu":
        told["act_layer"] = vision.activation
    facts = sizes_of(vision) | told
    wrong = {key: value for key, value in facts.items() if asked.get(key, value) != value}
    if wrong:
        needed = ", ".join(f"{key}={value!r}" for key, value in wrong.items())
        fitting = [name for name, size in names.items() if name_of(config).endswith(f"-{size}")]
        way = f"create {fitting[0]}" if fitting else f"give {needed}"
        raise InputError(f"{source} holds the tower of {name_of(config)}, with {needed}: {way}")
    return told

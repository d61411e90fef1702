"""A `CLIPModel` of transformers as a plain `CLIP` of ours: the same numbers under our names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diffclip.config import STATISTICS
from diffclip.convert.assemble import activation_of, assemble, check_end_of_text, check_outputs, refuse
from diffclip.model import CLIP
from diffclip.towers.text import TEXT_NORM_EPS

# configurations from before transformers 4.31 have it whatever the tokenizer says; the largest id is then read
_OLD_END = 2


def from_transformers(model: nn.Module, source: str = "the model") -> CLIP:
    """`model`, a `transformers.CLIPModel`, as one of ours, in float32 on the CPU.

    Raises:
        InputError: it is of another kind, or has a part that ours lacks, which is named.
    """
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) != "clip":
        raise refuse(
            source, f"the kind {getattr(config, 'model_type', type(model).__name__)!r} instead of 'clip'"
        )
    vision, text = config.vision_config, config.text_config
    if text.layer_norm_eps != TEXT_NORM_EPS:
        raise refuse(source, f"a text tower whose norms have the epsilon {text.layer_norm_eps}")
    if text.eos_token_id != _OLD_END:
        check_end_of_text(text.eos_token_id, text.vocab_size, source)
    theirs = {name: value for name, value in model.state_dict().items() if not name.endswith("position_ids")}
    fields: dict[str, Any] = {
        "embed_dim": config.projection_dim,
        "preprocess": dict(zip(("mean", "std"), STATISTICS["openai"], strict=True))
        | {"interpolation": "bicubic"},
        "vision": _sizes(vision, source)
        | {
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "norm_eps": vision.layer_norm_eps,
            "pre_norm": True,
            "patch_bias": False,
        },
        "text": _sizes(text, source)
        | {"context_length": text.max_position_embeddings, "vocab_size": text.vocab_size},
    }
    converted = assemble(fields, _renamed(theirs, vision.num_hidden_layers, text.num_hidden_layers), source)
    was_training = model.training
    model.eval()

    def encode_text(tokens: Tensor) -> Tensor:
        pooled: Tensor = _call(model, "text_model", input_ids=tokens).pooler_output
        projected: Tensor = pooled @ theirs["text_projection.weight"].T
        return projected

    def encode_image(images: Tensor) -> Tensor:
        pooled: Tensor = _call(model, "vision_model", pixel_values=images).pooler_output
        projected: Tensor = pooled @ theirs["visual_projection.weight"].T
        return projected

    try:
        end = text.eos_token_id
        check_outputs(converted, encode_image, encode_text, source, None if end == _OLD_END else end)
    finally:
        model.train(was_training)
    return converted


def _call(model: nn.Module, part: str, **inputs: Tensor) -> Any:
    return getattr(model, part)(**inputs)


def _sizes(tower: Any, source: str) -> dict[str, Any]:
    return {
        "width": tower.hidden_size,
        "layers": tower.num_hidden_layers,
        "heads": tower.num_attention_heads,
        "mlp_ratio": tower.intermediate_size / tower.hidden_size,
        "activation": activation_of(tower.hidden_act, source),
    }


def _renamed(theirs: dict[str, Tensor], vision_layers: int, text_layers: int) -> dict[str, Tensor]:
    vision, text = "vision_model", "text_model"
    state = {
        "logit_scale": theirs["logit_scale"],
        "visual.cls_token": theirs[f"{vision}.embeddings.class_embedding"].view(1, 1, -1),
        "visual.pos_embed": theirs[f"{vision}.embeddings.position_embedding.weight"][None],
        "visual.patch_embed.proj.weight": theirs[f"{vision}.embeddings.patch_embedding.weight"],
        "image_projection": theirs["visual_projection.weight"].T,
        "text_projection": theirs["text_projection.weight"].T,
        "token_embedding.weight": theirs[f"{text}.embeddings.token_embedding.weight"],
        "positional_embedding": theirs[f"{text}.embeddings.position_embedding.weight"],
    }
    for kind in ("weight", "bias"):
        state |= {
            # the published name has this spelling
            f"visual.norm_pre.{kind}": theirs[f"{vision}.pre_layrnorm.{kind}"],
            f"visual.norm.{kind}": theirs[f"{vision}.post_layernorm.{kind}"],
            f"ln_final.{kind}": theirs[f"{text}.final_layer_norm.{kind}"],
        }
        for tower, layers, prefix, names in (
            (vision, vision_layers, "visual.blocks", ("norm1", "norm2", "mlp.fc1", "mlp.fc2")),
            (text, text_layers, "transformer.resblocks", ("ln_1", "ln_2", "mlp.c_fc", "mlp.c_proj")),
        ):
            for i in range(layers):
                block, ours = f"{tower}.encoder.layers.{i}", f"{prefix}.{i}"
                qkv = [theirs[f"{block}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
                state[f"{ours}.attn.qkv.{kind}"] = torch.cat(qkv)
                state[f"{ours}.attn.out_proj.{kind}"] = theirs[f"{block}.self_attn.out_proj.{kind}"]
                parts = ("layer_norm1", "layer_norm2", "mlp.fc1", "mlp.fc2")
                state |= {
                    f"{ours}.{name}.{kind}": theirs[f"{block}.{part}.{kind}"]
                    for name, part in zip(names, parts, strict=True)
                }
    return state

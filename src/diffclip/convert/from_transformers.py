"""Convert a `CLIPModel` of transformers to our plain `CLIP` with the same outputs."""

from __future__ import annotations

from typing import Any

from torch import nn

from diffclip.config import STATISTICS, mlp_ratio
from diffclip.convert.assemble import activation_of, assemble, check_end_of_text, check_outputs, refuse
from diffclip.model import CLIP

_NAMES = (
    (r"^vision_model\.embeddings\.class_embedding$", "visual.cls_token"),
    (r"^vision_model\.embeddings\.position_embedding\.weight$", "visual.pos_embed"),
    (r"^vision_model\.embeddings\.patch_embedding\.", "visual.patch_embed.proj."),
    (r"^vision_model\.pre_layrnorm\.", "visual.norm_pre."),  # the published name has this spelling
    (r"^vision_model\.post_layernorm\.", "visual.norm."),
    (r"^vision_model\.encoder\.layers\.(\d+)\.layer_norm", r"visual.blocks.\1.norm"),
    (r"^vision_model\.encoder\.layers\.", "visual.blocks."),
    (r"^text_model\.embeddings\.position_embedding\.weight$", "positional_embedding"),
    (r"^text_model\.embeddings\.", ""),
    (r"^text_model\.final_layer_norm\.", "ln_final."),
    (r"^text_model\.encoder\.layers\.(\d+)\.layer_norm", r"transformer.resblocks.\1.ln_"),
    (r"^text_model\.encoder\.layers\.", "transformer.resblocks."),
    (r"^(transformer\.resblocks\.\d+\.mlp)\.fc1\.", r"\1.c_fc."),
    (r"^(transformer\.resblocks\.\d+\.mlp)\.fc2\.", r"\1.c_proj."),
    (r"\.self_attn\.", ".attn."),
    (r"^visual_projection\.weight$", "image_projection"),
    (r"^text_projection\.weight$", "text_projection"),
)
# configurations from before transformers 4.31 have it whatever the tokenizer says; the largest id is then read
_OLD_END = 2


def from_transformers(model: nn.Module, source: str = "the model") -> CLIP:
    """Convert a `transformers.CLIPModel` to ours, in float32 on the CPU.

    Raises:
        InputError: it is of another kind, or has a part that ours lacks.
    """
    their: Any = model
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    if kind != "clip":
        raise refuse(source, f"the kind {kind!r} instead of 'clip'")
    vision, text = config.vision_config, config.text_config
    end = None if text.eos_token_id == _OLD_END else text.eos_token_id
    check_end_of_text(end, text.vocab_size, source)
    mean, std = STATISTICS["openai"]
    fields: dict[str, Any] = {
        "embed_dim": config.projection_dim,
        "preprocess": {"mean": mean, "std": std, "interpolation": "bicubic"},
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
    theirs = {
        name: value.T if name.endswith("_projection.weight") else value
        for name, value in model.named_parameters()
    }
    converted = assemble(fields, theirs, _NAMES, source)

    check_outputs(
        converted,
        model,
        lambda images: their.get_image_features(images).pooler_output,
        lambda tokens: their.get_text_features(tokens).pooler_output,
        source,
        end,
    )
    return converted


def _sizes(tower: Any, source: str) -> dict[str, Any]:
    return {
        "width": tower.hidden_size,
        "layers": tower.num_hidden_layers,
        "heads": tower.num_attention_heads,
        "mlp_ratio": mlp_ratio(tower.hidden_size, tower.intermediate_size),
        "activation": activation_of(tower.hidden_act, source),
    }

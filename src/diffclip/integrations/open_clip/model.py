"""`diffclip.CLIP` with what open_clip's functions and its trainer ask of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from diffclip.config import CLIPConfig, parse_config
from diffclip.errors import InputError
from diffclip.model import CLIP
from diffclip.weights import CONFIG_KEY, check_same


class OpenCLIPModel(CLIP):
    """A model of ours for open_clip: the parameters and their names are those of `diffclip.CLIP`.

    Its state dict carries the configuration in its metadata, which torch saves and no reader of tensors sees: weights
    tell neither λ_init nor the heads of a plain tower, and open_clip's trainer keeps nothing else.
    """

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__(config)
        self.output_dict = False
        self.context_length = config.text.context_length
        self.vocab_size = config.text.vocab_size
        self.visual.image_size = (config.vision.image_size,) * 2
        if not config.logit_bias:
            self.register_parameter("logit_bias", None)
        module: Any = self  # these two of its methods have no types
        module.register_state_dict_post_hook(_note_config)
        module.register_load_state_dict_pre_hook(_check_config)

    def set_image_size(self, image_size: int) -> None:
        """See `diffclip.CLIP.set_image_size`."""
        super().set_image_size(image_size)
        self.visual.image_size = (image_size,) * 2

    def set_grad_checkpointing(self, enable: bool = True, impl: str = "inline") -> None:
        """See `diffclip.CLIP.set_grad_checkpointing`; `impl`, an argument of open_clip 4.2, is always "inline"."""
        super().set_grad_checkpointing(enable)

    def forward(  # type: ignore[override]  # open_clip's names, and either input alone
        self, image: Tensor | None = None, text: Tensor | None = None
    ) -> dict[str, Tensor | None] | tuple[Tensor | None, ...]:
        """Return unit-length features [B, embed_dim] of each input, the logit scale after exp (0-dim) and a bias where
        there is one: by name if `output_dict` is set, else a tuple."""
        out = {
            "image_features": None if image is None else self.encode_image(image, normalize=True),
            "text_features": None if text is None else self.encode_text(text, normalize=True),
            "logit_scale": self.logit_scale.exp(),
        }
        if self.config.logit_bias:
            out["logit_bias"] = self.logit_bias
        return out if self.output_dict else tuple(out.values())

    def lock_image_tower(self, unlocked_groups: int = 0, freeze_bn_stats: bool = False) -> None:
        """Freeze the vision tower except for its last groups. From the end these are the projection, the last block
        with the norm, each other block, and the embeddings. There are no batch norms for `freeze_bn_stats`."""
        visual = self.visual
        stem = [visual.patch_embed, visual.cls_token, visual.pos_embed, visual.norm_pre]
        stem += [] if visual.reg_token is None else [visual.reg_token]
        _lock(stem, visual.blocks, visual.norm, self.image_projection, unlocked_groups)

    def lock_text_tower(self, unlocked_layers: int = 0, freeze_layer_norm: bool = True) -> None:
        """Freeze the text tower except for its last groups, as in `lock_image_tower`."""
        if not freeze_layer_norm:
            raise InputError("norms are locked like other weights: give freeze_layer_norm=True")
        stem = [self.token_embedding, self.positional_embedding]
        _lock(stem, self.transformer.resblocks, self.ln_final, self.text_projection, unlocked_layers)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that timm's optimizers leave without decay, beside all vectors."""
        return {"positional_embedding", *(f"visual.{name}" for name in self.visual.no_weight_decay())}


def _lock(
    stem: list[Any], blocks: Iterable[nn.Module], norm: nn.Module, projection: nn.Parameter, free: int
) -> None:
    *first, last = blocks
    groups: list[list[Any]] = [stem, *([block] for block in first), [last, norm], [projection]]
    for group in groups[: max(0, len(groups) - free)]:
        for part in group:
            part.requires_grad_(False)


def _note_config(module: CLIP, state: object, prefix: str, metadata: dict[str, Any]) -> None:
    metadata[CONFIG_KEY] = module.config.model_dump_json()


def _check_config(module: CLIP, state: object, prefix: str, metadata: dict[str, Any], *_: object) -> None:
    """Refuse weights of another model whose shapes are the same."""
    if CONFIG_KEY in metadata:
        saved = parse_config(json.loads(metadata[CONFIG_KEY]), "the checkpoint")
        check_same(module.config, saved, "the checkpoint")

"""The vision tower as a model of transformers, alone and with its projection."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.clip.modeling_clip import CLIPVisionModelOutput

from diffclip.errors import InputError
from diffclip.integrations.transformers.base import DiffCLIPPreTrainedModel, HiddenStates, set_lambda_inits
from diffclip.integrations.transformers.configuration import DiffCLIPVisionConfig
from diffclip.towers.vision import build_vision

_OTHER_PARTS = [r"^text_model\.", r"^text_projection\.", r"^logit_(scale|bias)$"]


class DiffCLIPVisionModel(DiffCLIPPreTrainedModel):  # type: ignore[no-untyped-call]
    """`hidden_states[0]` is what enters the first block, `hidden_states[i]` what block i gives, not normed."""

    config_class = DiffCLIPVisionConfig
    base_model_prefix = "vision_model"
    main_input_name = "pixel_values"
    input_modalities = "image"
    _keys_to_ignore_on_load_unexpected = [*_OTHER_PARTS, r"^visual_projection\."]  # noqa: RUF012

    def __init__(self, config: DiffCLIPVisionConfig) -> None:
        super().__init__(config)
        core = config.core()
        self.visual = build_vision(core.vision)
        set_lambda_inits(self.visual.blocks, core)
        self.gradient_checkpointing = False
        self.post_init()  # type: ignore[no-untyped-call]

    def core_parameters(self) -> dict[str, Tensor]:
        return {f"visual.{name}": parameter for name, parameter in self.visual.named_parameters()}

    def get_input_embeddings(self) -> nn.Module:
        patches: nn.Module = self.visual.patch_embed.proj
        return patches

    def forward(
        self,
        pixel_values: Tensor | None = None,
        output_hidden_states: HiddenStates = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        interpolate_pos_encoding: bool = False,
        **others: Any,
    ) -> BaseModelOutputWithPooling | tuple[Any, ...]:
        """Normalised pictures [B, 3, S, S] to the last block's output and, as `pooler_output`, its normed class token.

        `output_hidden_states` may be numbers of states: the others are then None. Attentions are what multiplies the
        values, A or A1 − λ·A2, [B, heads, N, N]; layers are patched while they are made, so not in several threads.
        `interpolate_pos_encoding` takes pictures [B, 3, H, W] of whole patches and resamples the position embeddings.
        `others` have no effect: transformers' Llava passes on here what its language model is asked.

        Raises:
            InputError: no pictures, or pictures of another size.
        """
        if pixel_values is None:
            raise InputError("pixel_values are missing: this model takes pictures")
        tower = self.visual
        x = self._embedded(pixel_values, interpolate_pos_encoding)
        x = tower.norm_pre(tower.patch_drop(x))
        passed = self._pass_through(x, tower.blocks, output_hidden_states, output_attentions)
        # the norm is each token's own
        pooled = tower.forward_head(tower.norm(passed.last[:, :1]))
        out = BaseModelOutputWithPooling(
            last_hidden_state=passed.last,
            pooler_output=pooled,
            hidden_states=passed.hidden_states,
            attentions=passed.attentions,
        )
        return out if self.wants_dict(return_dict) else out.to_tuple()

    def _embedded(self, pixel_values: Tensor, interpolate: bool) -> Tensor:
        """[B, 3, H, W] to class token and patches with their positions [B, N, width]."""
        tower, patch = self.visual, self.config.patch_size
        size = self.config.image_size
        pixels = pixel_values.to(tower.patch_embed.proj.weight.dtype)
        shape = tuple(pixels.shape)
        if len(shape) == 4 and shape[1:] == (3, size, size):
            embedded: Tensor = tower._pos_embed(tower.patch_embed(pixels))
            return embedded
        if not interpolate:
            raise InputError(f"pixel_values are {list(shape)}: this model takes [B, 3, {size}, {size}]")
        if len(shape) != 4 or shape[1] != 3 or min(shape[2:]) < patch or shape[2] % patch or shape[3] % patch:
            raise InputError(
                f"pixel_values are {list(shape)}: give [B, 3, H, W], sides a multiple of {patch}"
            )
        patches = tower.patch_embed.proj(pixels)
        positions: Tensor = resample_abs_pos_embed(
            tower.pos_embed, list(patches.shape[2:]), num_prefix_tokens=1
        )
        classes = tower.cls_token.expand(len(patches), -1, -1)
        return torch.cat([classes, patches.flatten(2).transpose(1, 2)], dim=1) + positions


class DiffCLIPVisionModelWithProjection(DiffCLIPPreTrainedModel):  # type: ignore[no-untyped-call]
    """The vision tower with its projection into the joint space."""

    config_class = DiffCLIPVisionConfig
    base_model_prefix = "vision_model"
    main_input_name = "pixel_values"
    input_modalities = "image"
    _keys_to_ignore_on_load_unexpected = _OTHER_PARTS

    def __init__(self, config: DiffCLIPVisionConfig) -> None:
        super().__init__(config)
        self.vision_model = DiffCLIPVisionModel(config)
        self.visual_projection = nn.Linear(config.hidden_size, config.projection_dim, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def core_parameters(self) -> dict[str, Tensor]:
        return {"image_projection": self.visual_projection.weight.T}

    def get_input_embeddings(self) -> nn.Module:
        return self.vision_model.get_input_embeddings()

    def forward(
        self,
        pixel_values: Tensor | None = None,
        output_hidden_states: HiddenStates = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        interpolate_pos_encoding: bool = False,
        **others: Any,
    ) -> CLIPVisionModelOutput | tuple[Any, ...]:
        """As `DiffCLIPVisionModel`; `image_embeds` [B, projection_dim] are not of unit length."""
        passed: Any = self.vision_model(
            pixel_values,
            output_hidden_states,
            output_attentions,
            return_dict=True,
            interpolate_pos_encoding=interpolate_pos_encoding,
        )
        out = CLIPVisionModelOutput(
            image_embeds=self.visual_projection(passed.pooler_output),
            last_hidden_state=passed.last_hidden_state,
            hidden_states=passed.hidden_states,
            attentions=passed.attentions,
        )
        return out if self.wants_dict(return_dict) else out.to_tuple()

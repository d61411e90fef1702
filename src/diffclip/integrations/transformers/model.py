"""The whole model: `CLIPModel`'s conventions over the core's towers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.clip.modeling_clip import CLIPOutput

from diffclip.errors import InputError
from diffclip.integrations.transformers.base import DiffCLIPPreTrainedModel, HiddenStates
from diffclip.integrations.transformers.configuration import DiffCLIPConfig
from diffclip.integrations.transformers.text import DiffCLIPTextModel
from diffclip.integrations.transformers.vision import DiffCLIPVisionModel


class DiffCLIPModel(DiffCLIPPreTrainedModel):  # type: ignore[no-untyped-call]
    """Both towers with their projections, the logit scale, and a bias of the logits where the configuration has one."""

    config_class = DiffCLIPConfig
    base_model_prefix = "diffclip"
    input_modalities = ["image", "text"]  # noqa: RUF012

    def __init__(self, config: DiffCLIPConfig) -> None:
        super().__init__(config)
        config.core()  # whether the towers fit together
        self.vision_model = DiffCLIPVisionModel(config.vision_config)
        self.text_model = DiffCLIPTextModel(config.text_config)
        vision, text = config.vision_config.hidden_size, config.text_config.hidden_size
        self.visual_projection = nn.Linear(vision, config.projection_dim, bias=False)
        self.text_projection = nn.Linear(text, config.projection_dim, bias=False)
        self.logit_scale = nn.Parameter(torch.empty(()))
        if config.logit_bias:
            self.logit_bias = nn.Parameter(torch.empty(()))
        self.post_init()  # type: ignore[no-untyped-call]

    def core_parameters(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {
            "image_projection": self.visual_projection.weight.T,
            "text_projection": self.text_projection.weight.T,
            "logit_scale": self.logit_scale,
        }
        return named | {"logit_bias": self.logit_bias} if self.config.logit_bias else named

    def get_input_embeddings(self) -> nn.Module:
        return self.text_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.text_model.set_input_embeddings(value)

    def get_image_features(
        self,
        pixel_values: Tensor | None = None,
        output_hidden_states: HiddenStates = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        interpolate_pos_encoding: bool = False,
        **others: Any,
    ) -> Any:
        """The vision tower's output, with the features [B, projection_dim] as `pooler_output`, not of unit length."""
        out: Any = self.vision_model(
            pixel_values,
            output_hidden_states,
            output_attentions,
            return_dict=True,
            interpolate_pos_encoding=interpolate_pos_encoding,
        )
        out.pooler_output = self.visual_projection(out.pooler_output)
        return out if self.wants_dict(return_dict) else out.to_tuple()

    def get_text_features(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_hidden_states: HiddenStates = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """The text tower's output, with the features [B, projection_dim] as `pooler_output`, not of unit length."""
        out: Any = self.text_model(
            input_ids,
            attention_mask,
            output_hidden_states,
            output_attentions,
            return_dict=True,
            position_ids=position_ids,
        )
        out.pooler_output = self.text_projection(out.pooler_output)
        return out if self.wants_dict(return_dict) else out.to_tuple()

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_loss: bool | None = None,
        output_hidden_states: HiddenStates = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        **others: Any,
    ) -> CLIPOutput | tuple[Any, ...]:
        """Unit-length `image_embeds` and `text_embeds` [B, projection_dim], and their logits where both are given.

        `return_loss` adds the contrastive loss of pairs, the sigmoid loss for a model whose logits have a bias. It is
        that of this process's batch alone. `others` have no effect.

        Raises:
            InputError: neither pictures nor texts, or a loss of one without the other.
        """
        if input_ids is None and pixel_values is None:
            raise InputError("give pixel_values, input_ids or both")
        wanted: Any = {
            "output_hidden_states": output_hidden_states,
            "output_attentions": output_attentions,
            "return_dict": True,
        }
        vision: Any = None
        if pixel_values is not None:
            wanted_of_vision = wanted | {"interpolate_pos_encoding": interpolate_pos_encoding}
            vision = self.get_image_features(pixel_values, **wanted_of_vision)
        text: Any = None
        if input_ids is not None:
            text = self.get_text_features(input_ids, attention_mask, position_ids=position_ids, **wanted)
        images = None if vision is None else F.normalize(vision.pooler_output, dim=-1)
        texts = None if text is None else F.normalize(text.pooler_output, dim=-1)
        logits = loss = None
        if images is not None and texts is not None:
            logits = self._logits(texts, images)
            loss = self._loss(images, texts) if return_loss else None
        elif return_loss:
            raise InputError("return_loss needs pixel_values and input_ids of the same length")
        out = CLIPOutput(
            loss=loss,
            logits_per_image=None if logits is None else logits.T,
            logits_per_text=logits,
            text_embeds=texts,
            image_embeds=images,
            text_model_output=text,
            vision_model_output=vision,
        )
        return out if self.wants_dict(return_dict) else out.to_tuple()

    def _logits(self, texts: Tensor, images: Tensor) -> Tensor:
        logits = self.logit_scale.exp() * texts @ images.T
        return logits + self.logit_bias if self.config.logit_bias else logits

    def _loss(self, images: Tensor, texts: Tensor) -> Tensor:
        scale = self.logit_scale.exp()
        if self.config.logit_bias:
            return _criterion("siglip")(images, texts, scale, self.logit_bias)
        return _criterion("clip")(images, texts, scale)


@cache
def _criterion(kind: str) -> Callable[..., Tensor]:
    # the losses are open_clip's, which takes seconds to import
    from diffclip.training.losses import make_criterion

    return make_criterion(kind, gather_with_grad=False)

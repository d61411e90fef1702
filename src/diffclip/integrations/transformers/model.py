"""The whole model: the core's towers with the conventions of `CLIPModel`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.clip.modeling_clip import CLIPOutput
from transformers.utils.generic import can_return_tuple

from diffclip.errors import InputError
from diffclip.integrations.transformers.base import DiffCLIPPreTrainedModel
from diffclip.integrations.transformers.configuration import DiffCLIPConfig
from diffclip.integrations.transformers.towers import DiffCLIPTextModel, DiffCLIPVisionModel


class DiffCLIPModel(DiffCLIPPreTrainedModel):  # type: ignore[no-untyped-call]
    """Both towers, their projections, the logit scale, and a bias of the logits if the configuration has one."""

    config_class = DiffCLIPConfig
    base_model_prefix = "diffclip"
    input_modalities = ["image", "text"]  # noqa: RUF012

    def __init__(self, config: DiffCLIPConfig) -> None:
        super().__init__(config)
        core = config.core()  # refuses towers that do not fit together
        self.vision_model = DiffCLIPVisionModel(config.vision_config)
        self.text_model = DiffCLIPTextModel(config.text_config)
        self.visual_projection = nn.Linear(core.vision.width, core.embed_dim, bias=False)
        self.text_projection = nn.Linear(core.text.width, core.embed_dim, bias=False)
        self.logit_scale = nn.Parameter(torch.empty(()))
        if config.logit_bias:
            self.logit_bias = nn.Parameter(torch.empty(()))
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        return self.text_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.text_model.set_input_embeddings(value)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def get_image_features(self, pixel_values: Tensor | None = None, **options: Any) -> Any:
        """Return the vision tower's output; `pooler_output` is the features [B, projection_dim], not of unit length."""
        out: Any = self.vision_model(pixel_values, return_dict=True, **options)
        out.pooler_output = self.visual_projection(out.pooler_output)
        return out

    @can_return_tuple  # type: ignore[untyped-decorator]
    def get_text_features(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **options: Any
    ) -> Any:
        """Return the text tower's output; `pooler_output` is the features [B, projection_dim], not of unit length."""
        out: Any = self.text_model(input_ids, attention_mask, return_dict=True, **options)
        out.pooler_output = self.text_projection(out.pooler_output)
        return out

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_loss: bool | None = None,
        interpolate_pos_encoding: bool = False,
        **options: Any,
    ) -> CLIPOutput:
        """Return unit-length `image_embeds` and `text_embeds` [B, projection_dim], and the logits if both are given.

        `return_loss` adds the contrastive loss of pairs, the sigmoid loss for a model whose logits have a bias. It is
        that of this process's batch alone. `output_hidden_states` and `output_attentions` go to both towers; other
        options have no effect.

        Raises:
            InputError: neither images nor texts, or a loss of one without the other.
        """
        if input_ids is None and pixel_values is None:
            raise InputError("give pixel_values, input_ids or both")
        vision: Any = None
        text: Any = None
        images = texts = logits = loss = None
        if pixel_values is not None:
            vision = self.get_image_features(
                pixel_values, interpolate_pos_encoding=interpolate_pos_encoding, return_dict=True, **options
            )
            images = F.normalize(vision.pooler_output, dim=-1)
        if input_ids is not None:
            text = self.get_text_features(
                input_ids, attention_mask, position_ids=position_ids, return_dict=True, **options
            )
            texts = F.normalize(text.pooler_output, dim=-1)
        if images is not None and texts is not None:
            logits = self.logit_scale.exp() * texts @ images.T
            if self.config.logit_bias:
                logits = logits + self.logit_bias
            loss = self._loss(logits) if return_loss else None
        elif return_loss:
            raise InputError("return_loss needs pixel_values and input_ids of the same length")
        return CLIPOutput(
            loss=loss,
            logits_per_image=None if logits is None else logits.T,
            logits_per_text=logits,
            text_embeds=texts,
            image_embeds=images,
            text_model_output=text,
            vision_model_output=vision,
        )

    def _loss(self, logits: Tensor) -> Tensor:
        """Return the loss of logits [N, N]: SigLIP's if they have a bias, else CLIP's."""
        targets = torch.arange(len(logits), device=logits.device)
        if self.config.logit_bias:
            signs = 2 * torch.eye(len(logits), device=logits.device) - 1
            return -F.logsigmoid(signs * logits).sum() / len(logits)
        return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2

"""The text tower as a model of transformers, alone and with its projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.clip.modeling_clip import CLIPTextModelOutput

from diffclip.errors import InputError
from diffclip.integrations.transformers.base import DiffCLIPPreTrainedModel, HiddenStates, set_lambda_inits
from diffclip.integrations.transformers.configuration import DiffCLIPTextConfig
from diffclip.towers.text import TEXT_NORM_EPS, TextTransformer

_OTHER_PARTS = [r"^vision_model\.", r"^visual_projection\.", r"^logit_(scale|bias)$"]


class DiffCLIPTextModel(DiffCLIPPreTrainedModel):  # type: ignore[no-untyped-call]
    """`hidden_states[0]` is what enters the first block, `hidden_states[i]` what block i gives, not normed."""

    config_class = DiffCLIPTextConfig
    base_model_prefix = "text_model"
    main_input_name = "input_ids"
    input_modalities = "text"
    _keys_to_ignore_on_load_unexpected = [*_OTHER_PARTS, r"^text_projection\."]  # noqa: RUF012

    def __init__(self, config: DiffCLIPTextConfig) -> None:
        super().__init__(config)
        core = config.core()
        self.token_embedding: nn.Module = nn.Embedding(core.text.vocab_size, core.text.width)
        self.positional_embedding = nn.Parameter(torch.empty(core.text.context_length, core.text.width))
        self.transformer = TextTransformer(core.text)
        set_lambda_inits(self.transformer.resblocks, core)
        self.ln_final = nn.LayerNorm(core.text.width, eps=TEXT_NORM_EPS)
        self.gradient_checkpointing = False
        self.post_init()  # type: ignore[no-untyped-call]

    def core_parameters(self) -> dict[str, Tensor]:
        return dict(self.named_parameters())

    def get_input_embeddings(self) -> nn.Module:
        return self.token_embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.token_embedding = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_hidden_states: HiddenStates = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPooling | tuple[Any, ...]:
        """Ids [B, L] to the normed output and, as `pooler_output`, its end of text, the largest id of a row.

        The tower is causal, so that padding after the end of text changes nothing, and a mask of it has no effect.
        `position_ids` [B, L] or [1, L] are 0, 1, 2… where they are left out. `others` have no effect.

        Raises:
            InputError: no ids, more of them than the context, or a mask that hides some before the end of text.
        """
        if input_ids is None:
            raise InputError("input_ids are missing: this model takes texts")
        longest = self.config.max_position_embeddings
        if input_ids.ndim != 2 or input_ids.shape[1] > longest:
            raise InputError(
                f"input_ids are {list(input_ids.shape)}: this model takes [B, L] with L up to {longest}, "
                "call the tokenizer with truncation=True"
            )
        end = self.config.eos_token_id
        # ids of someone's own, which have no end of text, are read at the largest, as the core does
        ends = input_ids.argmax(dim=-1) if end is None else (input_ids == end).int().argmax(dim=-1)
        if attention_mask is not None and not torch.compiler.is_compiling():
            _check_mask(attention_mask, ends)
        places = slice(input_ids.shape[1]) if position_ids is None else position_ids
        x = self.token_embedding(input_ids) + self.positional_embedding[places]
        passed = self._pass_through(x, self.transformer.resblocks, output_hidden_states, output_attentions)
        last = self.ln_final(passed.last)
        out = BaseModelOutputWithPooling(
            last_hidden_state=last,
            pooler_output=last[torch.arange(last.shape[0], device=last.device), ends],
            hidden_states=passed.hidden_states,
            attentions=passed.attentions,
        )
        return out if self.wants_dict(return_dict) else out.to_tuple()


class DiffCLIPTextModelWithProjection(DiffCLIPPreTrainedModel):  # type: ignore[no-untyped-call]
    """The text tower with its projection into the joint space."""

    config_class = DiffCLIPTextConfig
    base_model_prefix = "text_model"
    main_input_name = "input_ids"
    input_modalities = "text"
    _keys_to_ignore_on_load_unexpected = _OTHER_PARTS

    def __init__(self, config: DiffCLIPTextConfig) -> None:
        super().__init__(config)
        self.text_model = DiffCLIPTextModel(config)
        self.text_projection = nn.Linear(config.hidden_size, config.projection_dim, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def core_parameters(self) -> dict[str, Tensor]:
        return {"text_projection": self.text_projection.weight.T}

    def get_input_embeddings(self) -> nn.Module:
        return self.text_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.text_model.set_input_embeddings(value)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_hidden_states: HiddenStates = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> CLIPTextModelOutput | tuple[Any, ...]:
        """As `DiffCLIPTextModel`; `text_embeds` [B, projection_dim] are not of unit length."""
        passed: Any = self.text_model(
            input_ids,
            attention_mask,
            output_hidden_states,
            output_attentions,
            return_dict=True,
            position_ids=position_ids,
        )
        out = CLIPTextModelOutput(
            text_embeds=self.text_projection(passed.pooler_output),
            last_hidden_state=passed.last_hidden_state,
            hidden_states=passed.hidden_states,
            attentions=passed.attentions,
        )
        return out if self.wants_dict(return_dict) else out.to_tuple()


def _check_mask(mask: Tensor, ends: Tensor) -> None:
    places = torch.arange(mask.shape[1], device=mask.device)
    if bool(((mask == 0) & (places <= ends[:, None])).any()):
        raise InputError(
            "attention_mask hides tokens before the end of text: this model takes texts padded on the right"
        )

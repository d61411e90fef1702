"""The models in transformers: the whole CLIP, and its towers alone.

`hidden_states[0]` is the input of the first block, `hidden_states[i]` the output of block i, without the final norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.clip.modeling_clip import CLIPOutput
from transformers.utils.generic import can_return_tuple

from diffclip.attention.differential import LAMBDA_VECTORS
from diffclip.attention.module import set_lambda_init
from diffclip.config import CLIPConfig
from diffclip.initialisation import initialise
from diffclip.integrations.transformers.configuration import (
    DiffCLIPConfig,
    DiffCLIPTextConfig,
    DiffCLIPVisionConfig,
)
from diffclip.sources.transformers import PROJECTIONS, core_name
from diffclip.towers.text import TEXT_NORM_EPS, ResidualAttentionBlock, TextTransformer
from diffclip.towers.vision import build_vision

# all (True), or the numbers of some, as LLaVA in newer releases of transformers asks for them
HiddenStates = bool | int | Sequence[int] | None

# patterns of the weights of the whole model, of which a tower alone ignores those that it lacks
_VISION = [r"^vision_model\.", r"^visual_projection\."]
_TEXT = [r"^text_model\.", r"^text_projection\."]
_LOGITS = r"^logit_(scale|bias)$"


class VisionBlock(GradientCheckpointingLayer, Block):  # type: ignore[misc, no-untyped-call]  # no types in timm
    """timm's block, which transformers can checkpoint."""


class TextBlock(GradientCheckpointingLayer, ResidualAttentionBlock):  # type: ignore[no-untyped-call]
    """The core's block, which transformers can checkpoint."""


def adopt_blocks(blocks: Any, kind: type[nn.Module], config: CLIPConfig) -> None:
    """Change the class of each block to `kind`, and set λ_init of the differential layers as the core's model does."""
    for block in blocks:
        block.__class__ = kind
    set_lambda_init((block.attn for block in blocks), config.lambda_init)


class DiffCLIPPreTrainedModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Base class: initialization, dtypes and attention backends are as in the core.

    `attn_implementation="eager"` computes attention by its formula. Any other value uses the fastest way on the device.
    λ's vectors stay float32 in every dtype.
    """

    supports_gradient_checkpointing = True
    # because of **kwargs, the Trainer would expect a loss that is a sum, and not divide accumulated losses
    accepts_loss_kwargs = False
    _supports_sdpa = True
    _supports_attention_backend = True
    # a tower's forward uses parameters of its own, so the tower stays on one device
    _no_split_modules = ["DiffCLIPVisionModel", "DiffCLIPTextModel"]  # noqa: RUF012
    _keep_in_fp32_modules_strict = [*LAMBDA_VECTORS]  # noqa: RUF012
    _input_embed_layer = "token_embedding"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # transformers calls this for each module; skip parameters that were loaded or have no values yet
        own = [value for value in module.parameters(recurse=False) if not value.is_meta]
        fresh = {id(value) for value in own if not getattr(value, "_is_hf_initialized", False)}
        named = [(name, value) for name, value in self.named_parameters() if id(value) in fresh]
        missing = [(core_name(name), value.T if name in PROJECTIONS else value) for name, value in named]
        if missing:
            seed = int(torch.randint(2**62, (), device="cpu").item())
            initialise(missing, self.config.core(), "matched", seed)

    def pass_through(
        self,
        x: Tensor,
        blocks: Iterable[nn.Module],
        output_hidden_states: HiddenStates,
        output_attentions: bool | None,
    ) -> dict[str, Any]:
        """Pass x [B, N, width] through `blocks`; return `last_hidden_state`, and the requested states and maps."""
        blocks = list(blocks)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        requested = _requested_states(output_hidden_states, len(blocks) + 1)
        backend = "eager" if self.config._attn_implementation == "eager" else "auto"
        states: list[Tensor | None] = [x if 0 in requested else None]
        attentions: list[Tensor] = []
        for number, block in enumerate(blocks, start=1):
            layer: Any = block.attn
            if layer.backend != backend:
                layer.backend = backend
            if output_attentions:
                with _maps_of(block) as maps:
                    x = block(x)
                attentions += maps
            else:
                x = block(x)
            states.append(x if number in requested else None)
        return {
            "last_hidden_state": x,
            "hidden_states": tuple(states) if requested else None,
            "attentions": tuple(attentions) if output_attentions else None,
        }


def _requested_states(request: HiddenStates, states: int) -> set[int]:
    """Return the numbers of the hidden states to keep, of `states` in all."""
    if request is None or isinstance(request, bool):
        return set(range(states)) if request else set()
    return {number % states for number in ([request] if isinstance(request, int) else request)}


@contextmanager
def _maps_of(block: Any) -> Iterator[list[Tensor]]:
    """Let the layer of `block` compute attention from explicit maps, and yield the maps that multiply the values.

    Gradient checkpointing is off meanwhile: it would recompute the block after the layer has been restored.
    """
    combined_maps: list[Tensor] = []
    layer, checkpointed = block.attn, block.gradient_checkpointing

    def attend(x: Tensor, causal: bool) -> Tensor:
        out, maps = layer.attend_through_maps(x, causal)
        combined_maps.append(maps.combined.to(out.dtype))
        return out

    layer._attend, block.gradient_checkpointing = attend, False
    try:
        yield combined_maps
    finally:
        del layer._attend
        block.gradient_checkpointing = checkpointed


class DiffCLIPVisionModel(DiffCLIPPreTrainedModel):  # type: ignore[no-untyped-call]
    """The vision tower."""

    config_class = DiffCLIPVisionConfig
    base_model_prefix = "vision_model"
    main_input_name = "pixel_values"
    input_modalities = "image"
    _keys_to_ignore_on_load_unexpected = [*_TEXT, _LOGITS, _VISION[1]]  # noqa: RUF012

    def __init__(self, config: DiffCLIPVisionConfig) -> None:
        super().__init__(config)
        core = config.core()
        self.visual = tower = build_vision(core.vision)
        adopt_blocks(tower.blocks, VisionBlock, core)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        return self.visual.patch_embed.proj

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        pixel_values: Tensor | None = None,
        output_hidden_states: HiddenStates = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPooling:
        """Return the last block's output for normalized images [B, 3, S, S]; `pooler_output` is its normed class token.

        `output_hidden_states` may be numbers of states; the other states are then None. Attentions [B, heads, N, N]
        multiply the values: A, or A1 − λ·A2. Making them patches the layers for a moment, so use one thread for them.
        `others` have no effect: transformers' Llava passes the arguments of its language model to this method too.
        Missing images, or images of another size, raise `ValueError`.
        """
        if pixel_values is None:
            raise ValueError("pixel_values are missing: this model takes images")
        size = self.config.image_size
        if pixel_values.shape[1:] != (3, size, size):
            raise ValueError(
                f"pixel_values are {list(pixel_values.shape)}: this model takes [B, 3, {size}, {size}]"
            )
        tower = self.visual
        x = tower._pos_embed(tower.patch_embed(pixel_values.to(tower.patch_embed.proj.weight.dtype)))
        x = tower.norm_pre(tower.patch_drop(x))
        passed = self.pass_through(x, tower.blocks, output_hidden_states, output_attentions)
        # only the class token: the norm treats each token alone
        pooled = tower.forward_head(tower.norm(passed["last_hidden_state"][:, :1]))
        return BaseModelOutputWithPooling(pooler_output=pooled, **passed)


class DiffCLIPTextModel(DiffCLIPPreTrainedModel):  # type: ignore[no-untyped-call]
    """The text tower."""

    config_class = DiffCLIPTextConfig
    base_model_prefix = "text_model"
    main_input_name = "input_ids"
    input_modalities = "text"
    _keys_to_ignore_on_load_unexpected = [*_VISION, _LOGITS, _TEXT[1]]  # noqa: RUF012

    def __init__(self, config: DiffCLIPTextConfig) -> None:
        super().__init__(config)
        core = config.core()
        self.token_embedding: nn.Module = nn.Embedding(core.text.vocab_size, core.text.width)
        self.positional_embedding = nn.Parameter(torch.empty(core.text.context_length, core.text.width))
        self.transformer = TextTransformer(core.text)
        adopt_blocks(self.transformer.resblocks, TextBlock, core)
        self.ln_final = nn.LayerNorm(core.text.width, eps=TEXT_NORM_EPS)
        self.post_init()  # type: ignore[no-untyped-call]

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_hidden_states: HiddenStates = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPooling:
        """Return the last block's normed output for token ids [B, L]; `pooler_output` is its row at the end of text.

        The tower is causal, so tokens after the end have no effect, and a mask that hides only such tokens has none.
        `others` have no effect.

        Raises:
            ValueError: no ids, more ids than the context length, or a mask that hides a token up to the end of text.
        """
        if input_ids is None:
            raise ValueError("input_ids are missing: this model takes texts")
        longest = self.config.max_position_embeddings
        if input_ids.ndim != 2 or input_ids.shape[1] > longest:
            raise ValueError(
                f"input_ids are {list(input_ids.shape)}, not [B, L ≤ {longest}]: give truncation=True"
            )
        end = self.config.eos_token_id
        # custom ids without an end of text: take features at the largest id, as the core does
        ends = input_ids.argmax(dim=-1) if end is None else (input_ids == end).int().argmax(dim=-1)
        if attention_mask is not None and not torch.compiler.is_compiling():
            positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)
            if bool(((attention_mask == 0) & (positions <= ends[:, None])).any()):
                raise ValueError("attention_mask hides tokens before the end of text: pad on the right")
        x = self.token_embedding(input_ids) + self.positional_embedding[: input_ids.shape[1]]
        passed = self.pass_through(x, self.transformer.resblocks, output_hidden_states, output_attentions)
        passed["last_hidden_state"] = last = self.ln_final(passed["last_hidden_state"])
        pooled = last[torch.arange(last.shape[0], device=last.device), ends]
        return BaseModelOutputWithPooling(pooler_output=pooled, **passed)


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
        return_loss: bool | None = None,
        **options: Any,
    ) -> CLIPOutput:
        """Return unit-length `image_embeds` and `text_embeds` [B, projection_dim], and the logits if both are given.

        `return_loss` adds the contrastive loss of pairs, or the sigmoid loss if the logits have a bias. The loss is
        over this process's batch alone. `output_hidden_states` and `output_attentions` go to both towers; other
        options have no effect.

        Raises:
            ValueError: neither images nor texts, or `return_loss` without as many texts as images.
        """
        if input_ids is None and pixel_values is None:
            raise ValueError("give pixel_values, input_ids or both")
        vision: Any = None
        text: Any = None
        images = texts = logits = loss = None
        if pixel_values is not None:
            vision = self.get_image_features(pixel_values, return_dict=True, **options)
            images = F.normalize(vision.pooler_output, dim=-1)
        if input_ids is not None:
            text = self.get_text_features(input_ids, attention_mask, return_dict=True, **options)
            texts = F.normalize(text.pooler_output, dim=-1)
        if return_loss and (images is None or texts is None or len(images) != len(texts)):
            raise ValueError("return_loss needs pixel_values and input_ids of the same length")
        if images is not None and texts is not None:
            logits = self.logit_scale.exp() * texts @ images.T
            if self.config.logit_bias:
                logits = logits + self.logit_bias
            loss = self._loss(logits) if return_loss else None
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

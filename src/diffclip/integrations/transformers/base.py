"""Base of the models: starting values, the pass through the blocks with states and maps, fixed dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from diffclip.attention import DifferentialAttention
from diffclip.attention.module import LAMBDA_VECTORS
from diffclip.config import CLIPConfig, lambda_init_of_layer
from diffclip.initialisation import initialise
from diffclip.towers.text import ResidualAttentionBlock

# True, or which of them, as newer releases' LLaVA asks for
HiddenStates = bool | int | Sequence[int] | None

# transformers' name of a projection, whose weight is transposed, and the core's
PROJECTIONS = {
    "visual_projection.weight": "image_projection",
    "text_projection.weight": "text_projection",
}


def core_name(name: str) -> str:
    """Return the core's name of a parameter of a whole model or of one tower."""
    name = name.removeprefix("vision_model.").removeprefix("text_model.")
    return PROJECTIONS.get(name, name)


class VisionBlock(GradientCheckpointingLayer, Block):  # type: ignore[misc, no-untyped-call]  # no types in timm
    """timm's block, which transformers can checkpoint."""


class TextBlock(GradientCheckpointingLayer, ResidualAttentionBlock):  # type: ignore[no-untyped-call]
    """The core's block, which transformers can checkpoint."""


def adopt_blocks(blocks: Iterable[nn.Module], kind: type[nn.Module], config: CLIPConfig) -> None:
    """Make each of `blocks` a `kind`, and give its differential layer its λ_init, as the core's model does."""
    for index, block in enumerate(blocks):
        block.__class__ = kind
        if isinstance(block.attn, DifferentialAttention):
            block.attn.lambda_init = lambda_init_of_layer(config.lambda_init, index)


class DiffCLIPPreTrainedModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Starting values, types and attention backends as in the core.

    `attn_implementation="eager"` computes attention by its formula, anything else by the fastest way that the device
    has. λ's vectors stay float32 in every type.
    """

    supports_gradient_checkpointing = True
    # the Trainer would take **kwargs for a loss that is a sum, and not divide what it accumulates
    accepts_loss_kwargs = False
    _supports_sdpa = True
    _supports_attention_backend = True
    # a tower's parameters are used by its own forward, so it stays on one device
    _no_split_modules = ["DiffCLIPVisionModel", "DiffCLIPTextModel"]  # noqa: RUF012
    _keep_in_fp32_modules_strict = [*LAMBDA_VECTORS]  # noqa: RUF012
    _input_embed_layer = "token_embedding"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # transformers comes by for each module; what was loaded, or has no values yet, is not drawn
        wanted = {
            id(parameter)
            for parameter in module.parameters(recurse=False)
            if not getattr(parameter, "_is_hf_initialized", False) and not parameter.is_meta
        }
        missing = [
            (core_name(name), parameter.T if name in PROJECTIONS else parameter)
            for name, parameter in self.named_parameters()
            if id(parameter) in wanted
        ]
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
        kept = _kept(output_hidden_states, len(blocks) + 1)
        backend = "eager" if self.config._attn_implementation == "eager" else "auto"
        states: list[Tensor | None] = [x if 0 in kept else None]
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
            states.append(x if number in kept else None)
        return {
            "last_hidden_state": x,
            "hidden_states": tuple(states) if kept else None,
            "attentions": tuple(attentions) if output_attentions else None,
        }


def _kept(wanted: HiddenStates, states: int) -> set[int]:
    """Return the numbers of the hidden states to keep, of `states` in all."""
    if wanted is None or isinstance(wanted, bool):
        return set(range(states)) if wanted else set()
    return {number % states for number in ([wanted] if isinstance(wanted, int) else wanted)}


@contextmanager
def _maps_of(block: Any) -> Iterator[list[Tensor]]:
    """Let the layer of `block` attend through its maps, and keep the maps that multiply the values.

    The block is not checkpointed meanwhile: it would be computed again after the layer is itself again.
    """
    kept: list[Tensor] = []
    layer, checkpointed = block.attn, block.gradient_checkpointing

    def attend(x: Tensor, causal: bool) -> Tensor:
        out, maps = layer.attend_through_maps(x, causal)
        kept.append(maps.combined.to(out.dtype))
        return out  # type: ignore[no-any-return]

    layer._attend, block.gradient_checkpointing = attend, False
    try:
        yield kept
    finally:
        del layer._attend
        block.gradient_checkpointing = checkpointed

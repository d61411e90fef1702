"""What the models share: starting values, blocks one after another with what they leave behind, types that stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffclip.attention import DifferentialAttention, SelfAttention
from diffclip.config import CLIPConfig, lambda_init_of_layer
from diffclip.initialisation import initialise

# whether to return hidden states, or which of them, as the newer releases' LLaVA asks for
HiddenStates = bool | int | Sequence[int] | None


class Passed(NamedTuple):
    """What went through the blocks: the last output, and the states and maps that were asked for."""

    last: Tensor
    hidden_states: Any  # a tuple of tensors, None where one was not asked for
    attentions: tuple[Tensor, ...] | None


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
    _keep_in_fp32_modules_strict = ["lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"]  # noqa: RUF012

    def core_parameters(self) -> dict[str, Tensor]:
        """Our names for the parameters of this model, a view of each where the layout differs.

        Parts that are models themselves are left out: they know their own.
        """
        raise NotImplementedError

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # transformers comes by for each module; what was loaded, or has no values yet, is not drawn
        wanted = {
            id(parameter)
            for parameter in module.parameters(recurse=False)
            if not getattr(parameter, "_is_hf_initialized", False) and not parameter.is_meta
        }
        if not wanted:
            return
        named = self.core_parameters()
        missing = {name: view for name, view in named.items() if id(_owner(view)) in wanted}
        seed = int(torch.randint(2**62, (), device="cpu").item())
        config: CLIPConfig = self.config.core()
        initialise(_Named(missing), config, "matched", seed)

    def wants_dict(self, return_dict: bool | None) -> bool:
        """Whether to return an output with names, which the configuration decides where the call does not."""
        return bool(self.config.return_dict if return_dict is None else return_dict)

    def _pass_through(
        self,
        x: Tensor,
        blocks: Iterable[nn.Module],
        output_hidden_states: HiddenStates,
        output_attentions: bool | None,
    ) -> Passed:
        """x [B, N, width] through `blocks`, whose `attn` is one of our layers."""
        blocks = list(blocks)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        kept = _kept(output_hidden_states, len(blocks) + 1)
        again = self.gradient_checkpointing and self.training and not output_attentions
        backend = "eager" if self.config._attn_implementation == "eager" else "auto"
        states: list[Tensor | None] = [x if 0 in kept else None]
        attentions: list[Tensor] = []
        for number, block in enumerate(blocks, start=1):
            layer: Any = block.attn
            if layer.backend != backend:
                layer.backend = backend
            if output_attentions:
                with _maps_of(layer) as maps:
                    x = block(x)
                attentions += maps
            else:
                x = self._gradient_checkpointing_func(block.__call__, x) if again else block(x)
            states.append(x if number in kept else None)
        return Passed(x, tuple(states) if kept else None, tuple(attentions) if output_attentions else None)


def set_lambda_inits(blocks: Iterable[nn.Module], config: CLIPConfig) -> None:
    """Give the differential layer of each block its λ_init, as the core's model does."""
    for index, block in enumerate(blocks):
        if isinstance(block.attn, DifferentialAttention):
            block.attn.lambda_init = lambda_init_of_layer(config.lambda_init, index)


class _Named(nn.Module):
    """Parameters of any modules under other names, for `initialise`."""

    def __init__(self, named: dict[str, Tensor]) -> None:
        super().__init__()
        self._named = named

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        yield from self._named.items()


def _owner(view: Tensor) -> Tensor:
    return view if view._base is None else view._base


def _kept(wanted: HiddenStates, states: int) -> set[int]:
    """The numbers of the hidden states to keep out of `states`."""
    if wanted is None or isinstance(wanted, bool):
        return set(range(states)) if wanted else set()
    return {number % states for number in ([wanted] if isinstance(wanted, int) else wanted)}


@contextmanager
def _maps_of(layer: SelfAttention) -> Iterator[list[Tensor]]:
    """While it lasts, `layer` attends through its maps and keeps what multiplies the values, in their type."""
    kept: list[Tensor] = []

    def attend(x: Tensor, causal: bool) -> Tensor:
        out, maps = layer.attend_through_maps(x, causal)
        kept.append(maps.combined.to(out.dtype))
        return out

    layer._attend = attend  # type: ignore[method-assign]
    try:
        yield kept
    finally:
        del layer._attend

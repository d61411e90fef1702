"""The models to compare (OpenCLIP's, our CLIP, and DiffCLIP with each attention operator), their steps and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffclip.attention.differential import DifferentialAttention
from diffclip.attention.head_norm import HEAD_NORM_EPS
from diffclip.attention.heads import split_heads
from diffclip.benchmarking.operators import timm_arrangement
from diffclip.benchmarking.timing import describe_error
from diffclip.config import CLIPConfig, named_config, variant_config
from diffclip.model import CLIP
from diffclip.training.losses import make_criterion
from diffclip.training.optimizer import make_optimizer
from diffclip.training.recipe import read_recipe

Batch = tuple[Tensor, Tensor]
"""Images and tokens."""
REFERENCE, OPENCLIP, OURS = "CLIP", "OpenCLIP", "DiffCLIP auto"
TIMM, PUBLISHED, SDPA = "DiffCLIP timm", "DiffCLIP eager", "DiffCLIP sdpa"


class TimmAttention(DifferentialAttention):
    """Our layer, computed as timm's `DiffAttention`: two fused calls, their difference, an RMS norm, a factor."""

    def _attend(self, x: Tensor, causal: bool) -> Tensor:
        q, k, v = split_heads(self.qkv(x), self.num_heads, self.num_heads // 2)
        out = timm_arrangement(q, k, v, self.current_lambda(), causal)
        out = F.rms_norm(out, (v.shape[-1],), self.diff_norm.weight, HEAD_NORM_EPS) * (1 - self.lambda_init)
        return out.transpose(1, 2).flatten(2)


def config_of(variant: str, size: str | None) -> CLIPConfig:
    """Return the config of `variant` in a named size, or in the size of the Flickr8k recipe (None)."""
    if size:
        return named_config(f"{variant}-{size}")
    return variant_config(variant, read_recipe("flickr8k_cpu").architecture or {})


def make_models(size: str | None, wanted: Sequence[str] | None) -> Iterator[tuple[str, nn.Module | str]]:
    """Yield the name of each model, or of the `wanted` ones, with the model on the CPU or the reason why it cannot be
    made. Every DiffCLIP has the same weights."""
    # first the models that a target names; no "triton": on a GPU `diffclip bench` decides if "auto" is the same
    for name in (REFERENCE, OPENCLIP, OURS, PUBLISHED, TIMM, SDPA):
        if wanted and name not in wanted:
            continue
        if name == OPENCLIP:
            try:
                yield name, _openclip(size)
            except Exception as error:  # compare the other models without it
                yield name, describe_error(error)
            continue
        model = CLIP(config_of("CLIP" if name == REFERENCE else "DiffCLIP", size), seed=0)
        if name == TIMM:
            for layers in model.attention_layers().values():
                for layer in layers:
                    layer.__class__ = TimmAttention
        elif name != REFERENCE:
            model.set_attention_backend(name.split()[1])
        yield name, model


def _openclip(size: str | None) -> nn.Module:
    """Make OpenCLIP's model of the same size, with random weights."""
    import open_clip

    if size:
        model: nn.Module = open_clip.create_model(size, output_dict=True)
        return model
    config = config_of("CLIP", None)
    vision = config.vision.model_dump(include={"layers", "width", "patch_size", "image_size"})
    text = config.text.model_dump(include={"context_length", "vocab_size", "width", "heads", "layers"})
    head_width = config.vision.width // config.vision.heads
    return open_clip.model.CLIP(
        config.embed_dim,
        open_clip.model.CLIPVisionCfg(**vision, head_width=head_width),
        open_clip.model.CLIPTextCfg(**text),
        output_dict=True,
    )


def compile_blocks(model: nn.Module) -> None:
    """Compile the blocks of a model in place. They share the compiled code if all have the same `lambda_init`."""
    # every model and batch size is a version of the same code: more versions than torch keeps by default
    torch._dynamo.config.recompile_limit = 256
    vision = model.visual.blocks if isinstance(model, CLIP) else model.visual.transformer.resblocks
    for block in [*vision, *model.transformer.resblocks]:
        block.compile(dynamic=False)


class Steps:
    """One model with its optimizer; calling it takes one step of `kind` on `batch`."""

    def __init__(self, model: nn.Module, device: torch.device, precision: str = "bf16") -> None:
        self.model = model.to(device)
        # a rate so small that a made-up batch cannot make the weights infinite
        self.optimizer = make_optimizer(self.model, read_recipe("flickr8k_cpu", ["lr=1e-6"]))
        self.criterion = make_criterion("clip", gather_with_grad=False)
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")

    def __call__(self, kind: str, batch: Batch) -> None:
        self.model.train(kind == "training")
        if kind == "inference":
            with torch.no_grad(), self.autocast:
                self.model(*batch)
            return
        self._loss(batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _loss(self, batch: Batch) -> Tensor:
        with self.autocast:
            return self.criterion(**self.model(*batch))

    def kept(self, batch: Batch) -> int:
        """Count the bytes that a forward pass keeps for the backward pass, without weights; each tensor counts once."""
        self.model.train()
        weights = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = self._loss(batch)
        del loss  # not earlier: freed memory could be reused, and two tensors would count as one
        return sum(sizes.values())

    def resident(self) -> int:
        """Return the bytes of the weights and of the optimizer's state."""
        state = [value for entry in self.optimizer.state.values() for value in entry.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *state]
        return sum(x.nbytes for x in tensors if isinstance(x, Tensor))


def make_batch(size: str | None, batch: int, device: torch.device) -> Batch:
    """Draw random images, and captions that end halfway through the context."""
    config = config_of("CLIP", size)
    vision, text = config.vision, config.text
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, vision.image_size, vision.image_size, generator=generator)
    tokens = torch.randint(1, text.vocab_size - 2, (batch, text.context_length), generator=generator)
    tokens[:, text.context_length // 2 :] = 0
    tokens[:, text.context_length // 2] = text.vocab_size - 1
    return images.to(device), tokens.to(device)

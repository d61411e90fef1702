"""CLIP: two towers, two projections and the logit scale (paper Section 3.3; layout and names as SLIP's CLIP)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffclip.attention.differential import LambdaAttention
from diffclip.attention.dispatch import check_backend
from diffclip.attention.module import SelfAttention, set_lambda_init
from diffclip.config import CLIPConfig, named_config, parse_config, resize_config
from diffclip.errors import unknown_name
from diffclip.initialisation import initialise, resolve_norm_eps
from diffclip.towers.text import TEXT_NORM_EPS, TextTransformer
from diffclip.towers.vision import build_vision

Readout = Literal["attention", "last-values"]
READOUTS: tuple[Readout, ...] = get_args(Readout)


class CLIP(nn.Module):
    """A CLIP of any variant; the attention of each tower is in its config.

    Args:
        config: what to build. `model.config` is a copy with `vision.norm_eps` resolved.
        init: starting values, "matched" (the same for every variant) or "published" (as in the published code).
        attention_backend: "auto", "eager", "sdpa" or "triton", for every layer (`diffclip.differential_attention`).
        seed: the seed of the starting values; None draws a seed from torch's global generator.

    Raises:
        InputError: unknown init or backend.
    """

    def __init__(
        self,
        config: CLIPConfig,
        init: str = "matched",
        attention_backend: str = "auto",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.config = config.model_copy(deep=True)
        self.config.vision.norm_eps = resolve_norm_eps(config.vision, init)
        vision, text = self.config.vision, self.config.text
        if seed is None:
            seed = int(torch.randint(2**62, (), device="cpu").item())
        with torch.random.fork_rng(devices=()):
            # for values that the constructor of a plugin's layer draws
            torch.default_generator.manual_seed(seed)
            self.visual = build_vision(vision, self.config.differential)
            self.token_embedding = nn.Embedding(text.vocab_size, text.width)
            self.positional_embedding = nn.Parameter(torch.empty(text.context_length, text.width))
            self.transformer = TextTransformer(text, self.config.differential)
        self.ln_final = nn.LayerNorm(text.width, eps=TEXT_NORM_EPS)
        self.image_projection = nn.Parameter(torch.empty(vision.width, config.embed_dim))
        self.text_projection = nn.Parameter(torch.empty(text.width, config.embed_dim))
        self.logit_scale = nn.Parameter(torch.empty(()))
        if config.logit_bias:
            self.logit_bias = nn.Parameter(torch.empty(()))
        for layers in self.attention_layers().values():
            set_lambda_init(layers, self.config.lambda_init)
        self.set_attention_backend(attention_backend)
        initialise(self.named_parameters(), self.config, init, seed)

    def attention_layers(self) -> dict[str, list[SelfAttention]]:
        """Return the attention layers in order of depth, by tower: "visual" and "text"."""
        return {
            "visual": [block.attn for block in self.visual.blocks],
            "text": [block.attn for block in self.transformer.resblocks],
        }

    def lambdas(self) -> dict[str, Tensor]:
        """Return λ of each layer by tower, as detached float32 [layers]. The shape is [0] for layers
        without a λ of their own: plain layers, and those of V2, whose λ depends on the token."""
        lambdas, none = {}, torch.empty(0, device=self.logit_scale.device)
        for tower, layers in self.attention_layers().items():
            values = [layer.current_lambda() for layer in layers if isinstance(layer, LambdaAttention)]
            lambdas[tower] = torch.stack(values).detach() if values else none
        return lambdas

    def set_attention_backend(self, name: str) -> None:
        """Use backend `name` in every layer; raise `InputError` for an unknown one."""
        check_backend(name)
        for layers in self.attention_layers().values():
            for layer in layers:
                layer.backend = name

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only block inputs for the backward pass of both towers, and recompute the rest."""
        self.visual.set_grad_checkpointing(enable)
        self.transformer.grad_checkpointing = enable

    def set_vision_norm_eps(self, eps: float) -> None:
        """Use `eps` in every LayerNorm of the vision tower, and record it in the config."""
        for module in self.visual.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = eps
        self.config.vision.norm_eps = eps

    def set_image_size(self, image_size: int) -> None:
        """Take images of another size, a multiple of the patch, from now on; timm resamples the position embeddings."""
        self.config = resize_config(self.config, image_size)
        self.visual.set_input_size(img_size=(image_size, image_size))

    def set_context_length(self, context_length: int) -> None:
        """Take texts of up to `context_length` tokens from now on. Positions are interpolated to be more, and the first
        ones are kept to be fewer: texts begin at the first position, so that shorter texts keep their features. Fewer
        than the start and the end of a text raise `InputError`."""
        fields, positions = self.config.model_dump(), self.positional_embedding
        fields["text"]["context_length"] = context_length
        self.config = parse_config(fields, f"texts of {context_length} tokens")
        values = positions.detach()[:context_length]
        if context_length > len(positions):
            values = F.interpolate(values.T[None], context_length, mode="linear", align_corners=True)[0].T
        self.positional_embedding = nn.Parameter(values.clone(), requires_grad=positions.requires_grad)

    def encode_image(self, images: Tensor, normalize: bool = False) -> Tensor:
        """Encode normalized images [B, 3, S, S] as features [B, embed_dim], of unit length if `normalize`.

        Raises:
            ValueError: images of another size.
        """
        self._check_images(images)
        features = self.visual(images) @ self.image_projection
        return F.normalize(features, dim=-1) if normalize else features

    def encode_patches(
        self, images: Tensor, normalize: bool = False, readout: Readout = "attention"
    ) -> Tensor:
        """Encode normalized images [B, 3, S, S] as features of every patch [B, rows·columns, embed_dim], row by row.

        Each patch goes through the final norm and the projection, as the class token does; registers are left out.
        Patch dropout does not apply.

        Args:
            normalize: make features of unit length.
            readout: "attention" takes the last layer's output. "last-values" takes the last layer's values through its
                output projection, without attention, residual and MLP, as MaskCLIP describes it (Zhou et al. 2022,
                arXiv:2112.01071, Section 3.2: the value layer and the last linear layer as two 1×1 convolutions). The
                values are those of `SelfAttention.own_values`. The final norm removes their scale.

        Raises:
            ValueError: images of another size.
            InputError: an unknown readout.
        """
        self._check_images(images)
        if readout not in READOUTS:
            raise unknown_name("readout", readout, READOUTS)
        tower = self.visual
        x = tower.norm_pre(tower._pos_embed(tower.patch_embed(images)))
        for block in tower.blocks[:-1]:
            x = block(x)
        last = tower.blocks[-1]
        x = last(x) if readout == "attention" else last.attn.out_proj(last.attn.own_values(last.norm1(x)))
        features: Tensor = tower.norm(x)[:, tower.num_prefix_tokens :] @ self.image_projection
        return F.normalize(features, dim=-1) if normalize else features

    def _check_images(self, images: Tensor) -> None:
        size = self.config.vision.image_size
        if images.ndim != 4 or images.shape[1:] != (3, size, size):
            raise ValueError(f"images are {list(images.shape)}: this model takes [B, 3, {size}, {size}]")

    def encode_text(self, tokens: Tensor, normalize: bool = False, skip_padding: bool = False) -> Tensor:
        """Encode token ids [B, L ≤ context_length] as features [B, embed_dim], taken at the largest id (end of text).

        `skip_padding` cuts off the tokens past the last end of text in the batch, which a causal tower never looks at.
        The features stay the same, and short captions take a fraction of the time. Shapes then depend on the texts.

        Raises:
            ValueError: more tokens than the context.
        """
        if tokens.ndim != 2 or tokens.shape[1] > self.config.text.context_length:
            longest = self.config.text.context_length
            raise ValueError(f"tokens are {list(tokens.shape)}: this model takes [B, L], L up to {longest}")
        if skip_padding:
            tokens = tokens[:, : int(tokens.argmax(dim=-1).max()) + 1]
        x = self.token_embedding(tokens) + self.positional_embedding[: tokens.shape[1]]
        x = self.ln_final(self.transformer(x))
        x = x[torch.arange(x.shape[0], device=x.device), tokens.argmax(dim=-1)]
        features = x @ self.text_projection
        return F.normalize(features, dim=-1) if normalize else features

    def forward(self, images: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Return unit-length "image_features" and "text_features" [B, embed_dim], "logit_scale" after exp (0-dim), and
        "logit_bias" (0-dim) if the configuration has one."""
        out = {
            "image_features": self.encode_image(images, normalize=True),
            "text_features": self.encode_text(tokens, normalize=True),
            "logit_scale": self.logit_scale.exp(),
        }
        return out | {"logit_bias": self.logit_bias} if self.config.logit_bias else out


def empty_model(config: CLIPConfig, attention_backend: str = "auto") -> CLIP:
    """Build a model whose weights are to be replaced: on the device "meta", without memory and draws. With a layer of
    a plugin the model is on the CPU, because such a layer may keep tensors that weights do not have."""
    is_built_in = config.vision.layer.is_built_in() and config.text.layer.is_built_in()
    with torch.device("meta" if is_built_in else "cpu"):
        return CLIP(config, attention_backend=attention_backend, seed=0)


def create_model(
    name: str,
    init: str = "matched",
    attention_backend: str = "auto",
    image_size: int | None = None,
    seed: int | None = None,
) -> CLIP:
    """Build a named model, `<variant>-<size>` (for example "DiffCLIP-ViT-B-16"), with random weights.

    Raises:
        InputError: unknown name, init or backend, or an image size that is not a multiple of the patch.
    """
    return CLIP(named_config(name, image_size), init=init, attention_backend=attention_backend, seed=seed)

"""Initialize parameters. Each draw is seeded with the parameter's name: two models agree where they share names.

`matched` follows SLIP everywhere: timm's initialization for the vision tower (Linear weights truncated normal 0.02,
zero biases), OpenAI's scaled normals with zero attention biases for the text tower. `published` differs only in
differential towers, as the published DiffCLIP code does. That code makes its vision blocks after timm has initialized
the original blocks, so their Linear layers keep torch's default. Its text attention keeps torch's default biases.
Sources: SLIP (github.com/facebookresearch/SLIP, models.py), DiffCLIP (github.com/hammoudhasan/DiffCLIP).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn

from diffclip.config import CLIPConfig, Init, VisionConfig
from diffclip.errors import unknown_name

INITS = get_args(Init)
LOGIT_SCALE_START = math.log(1 / 0.07)
# initial values for the sigmoid loss (Zhai et al. 2023, Section 3.1): scale 10, bias −10
_SIGMOID_SCALE_START, _SIGMOID_BIAS_START = math.log(10), -10.0
# LayerNorm epsilon of the published vision towers: as timm makes them, and with blocks that were made anew
_PLAIN_EPS, _RECREATED_EPS = 1e-6, 1e-5


def published_norm_eps(vision: VisionConfig) -> float:
    """Return the LayerNorm epsilon of the vision tower in the published weights."""
    return _RECREATED_EPS if vision.layer.recreated_when_published else _PLAIN_EPS


def resolve_norm_eps(vision: VisionConfig, init: str) -> float:
    """Return `norm_eps`; None becomes the default of `init`."""
    if init not in INITS:
        raise unknown_name("init", init, INITS)
    if vision.norm_eps is not None:
        return vision.norm_eps
    return published_norm_eps(vision) if init == "published" else _PLAIN_EPS


@torch.no_grad()
def initialise(parameters: Iterable[tuple[str, Tensor]], config: CLIPConfig, init: str, seed: int) -> None:
    """Set named parameters in place. Equal seeds and names give bit-equal values on every machine's CPU."""
    for name, parameter in parameters:
        device = torch.device("meta" if parameter.is_meta else "cpu")
        start = _start(name, parameter.shape, config, init, seed, device)
        if start is not None:
            parameter.copy_(start)


def _start(
    name: str, shape: torch.Size, config: CLIPConfig, init: str, seed: int, device: torch.device
) -> Tensor | None:
    """Return the starting value of a parameter; None keeps the one that it has."""

    def draw(
        name: str, shape: Iterable[int], std: float | None = None, seed_name: str | None = None
    ) -> Tensor:
        start = torch.empty(tuple(shape), dtype=torch.float32, device=device)
        key = hashlib.sha256(f"{seed}/{seed_name or name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
        if std is not None:
            return start.normal_(0, std, generator=generator)
        _draw(start, name, config, init, generator)
        return start

    block, is_attention, inner = name.partition(".attn.")
    if is_attention:
        tower = config.vision if name.startswith("visual.") else config.text
        layer_start = _LayerStart(tower.width, tower.heads, f"{block}.attn.", draw)
        return tower.layer.starting_value(inner, shape, layer_start)
    if name == "visual.pos_embed" and (registers := config.vision.registers):
        # the draw of a model without registers; the registers' positions have a seed of their own
        plain = draw(name, (shape[0], shape[1] - registers, shape[2]))
        ours = draw(name, shape, seed_name="visual.reg_pos_embed")
        return torch.cat([plain[:, :1], ours[:, 1 : 1 + registers], plain[:, 1:]], dim=1)
    return draw(name, shape)


class _LayerStart(NamedTuple):
    """The `StartingValues` of a layer: draws by the names of its parameters in the whole model."""

    width: int
    heads: int
    prefix: str
    draw: Callable[[str, Iterable[int], float | None], Tensor]

    def __call__(self, name: str, shape: Iterable[int], std: float | None = None) -> Tensor:
        return self.draw(self.prefix + name, shape, std)


def _draw(t: Tensor, name: str, config: CLIPConfig, init: str, g: torch.Generator) -> None:
    module, _, leaf = name.rpartition(".")
    layer = module.rpartition(".")[2]
    if name == "logit_scale":
        t.fill_(_SIGMOID_SCALE_START if config.logit_bias else LOGIT_SCALE_START)
    elif name == "logit_bias":
        t.fill_(_SIGMOID_BIAS_START)
    elif leaf == "weight" and t.ndim == 1:
        t.fill_(1.0)
    elif layer.startswith(("norm", "ln_")):
        t.zero_()
    elif name.startswith("visual."):
        _draw_vision(t, name, config, init, g)
    else:
        _draw_text(t, name, layer, leaf, config, init, g)


def _draw_vision(t: Tensor, name: str, config: CLIPConfig, init: str, g: torch.Generator) -> None:
    vision = config.vision
    torch_default = init == "published" and vision.layer.recreated_when_published
    if name == "visual.pos_embed":
        nn.init.trunc_normal_(t, std=0.02, a=-2.0, b=2.0, generator=g)
    elif name in ("visual.cls_token", "visual.reg_token"):
        t.normal_(0, 1e-6, generator=g)
    elif name.startswith("visual.patch_embed."):
        _torch_default(t, 3 * vision.patch_size**2, g)
    elif torch_default:
        _torch_default(t, int(vision.width * vision.mlp_ratio) if ".fc2." in name else vision.width, g)
    elif name.endswith("weight"):
        nn.init.trunc_normal_(t, std=0.02, a=-2.0, b=2.0, generator=g)
    else:
        t.zero_()


def _draw_text(
    t: Tensor, name: str, layer: str, leaf: str, config: CLIPConfig, init: str, g: torch.Generator
) -> None:
    text = config.text
    residual_std = text.width**-0.5 * (2 * text.layers) ** -0.5
    stds = {
        "token_embedding.weight": 0.02,
        "positional_embedding": 0.01,
        "image_projection": config.vision.width**-0.5,
        "text_projection": text.width**-0.5,
    }
    layer_stds = {"out_proj": residual_std, "c_fc": (2 * text.width) ** -0.5, "c_proj": residual_std}
    if name in stds:
        t.normal_(0, stds[name], generator=g)
    elif leaf == "weight":
        t.normal_(0, layer_stds.get(layer, text.width**-0.5), generator=g)
    elif layer in ("c_fc", "c_proj") or (init == "published" and text.layer.recreated_when_published):
        _torch_default(t, int(text.width * text.mlp_ratio) if layer == "c_proj" else text.width, g)
    else:
        t.zero_()


def _torch_default(t: Tensor, fan_in: int, g: torch.Generator) -> None:
    """Draw torch's default for Linear and Conv2d, weights and biases alike: uniform within ±1/√fan_in."""
    t.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=g)

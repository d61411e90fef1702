"""The configuration of a model: two towers, the joint space, and the preparation of images and texts.

Sizes and names follow the paper (TMLR 2025, Section 4) and its baseline, SLIP's CLIP. A named model is
`<variant>-<size>`, for example `DiffCLIP-dynamic-ViT-B-16`.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from diffclip.errors import InputError, explain, unknown_name
from diffclip.plugins import find_registered

if TYPE_CHECKING:
    from diffclip.attention import SelfAttention

Activation = Literal["gelu", "quick_gelu"]
Backend = Literal["auto", "eager", "sdpa", "triton"]
"""Backend of attention, see `attention.dispatch`."""
Init = Literal["matched", "published"]
"""Initialization of the parameters, see `initialisation`."""
# limits, because a stranger's file may ask for any number of layers, and images of 100,000 px take all memory
Depth = Annotated[int, Field(gt=0, le=1000)]
ImageSize = Annotated[int, Field(gt=0, le=8192)]

VOCABULARY = 49408
"""Number of ids of the tokenizer; the last two ids are start and end of text."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OPENAI_MEAN, OPENAI_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
STATISTICS = {"imagenet": (IMAGENET_MEAN, IMAGENET_STD), "openai": (OPENAI_MEAN, OPENAI_STD)}


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)


class _TowerConfig(_Config):
    width: PositiveInt
    layers: Depth
    heads: PositiveInt  # kinds of attention that pair the heads need an even number
    mlp_ratio: PositiveFloat = 4.0
    attention: str = "softmax"  # a registered kind of attention

    @model_validator(mode="after")
    def _check_heads(self) -> _TowerConfig:
        try:
            self.layer.check_heads(self.width, self.heads)
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def layer(self) -> type[SelfAttention]:
        """The class of its attention layers."""
        from diffclip.attention import attention_layer  # torch is slow to import

        return attention_layer(self.attention)

    @property
    def is_differential(self) -> bool:
        """True if its layers subtract a second map."""
        return self.layer.is_differential

    def layer_options(self, differential: Differential | None) -> dict[str, Any]:
        """Return the arguments that `differential` changes in its attention layers."""
        changed = differential.model_dump(exclude_defaults=True) if differential is not None else {}
        return {name: value for name, value in changed.items() if name in self.layer.options}


class VisionConfig(_TowerConfig):
    """The vision tower: a timm `VisionTransformer` pooled by its class token.

    `norm_eps` None is resolved when the model is built: 1e-6, but 1e-5 for a differential tower with
    `init="published"`, as the published code has it.
    """

    image_size: ImageSize = 224
    patch_size: PositiveInt = 16
    width: PositiveInt = 768
    layers: Depth = 12
    heads: PositiveInt = 12
    norm_eps: PositiveFloat | None = None
    activation: Activation = "gelu"
    pre_norm: bool = False  # a LayerNorm before the first block, as OpenAI's CLIP has
    patch_bias: bool = True  # a bias in the patch embedding; OpenAI's CLIP has none
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    patch_dropout: float = Field(default=0.0, ge=0, lt=1)
    # learned extra tokens whose outputs are not used (arXiv:2309.16588)
    registers: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_patches(self) -> VisionConfig:
        if self.image_size % self.patch_size:
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}"
            )
        # `maps.attention_maps.patch_part` takes the largest square number of tokens as the patches
        if self.registers > (most := 2 * (self.image_size // self.patch_size)):
            raise ValueError(
                f"{self.registers} registers are too many beside so few patches: use up to {most}"
            )
        return self


class TextConfig(_TowerConfig):
    """The text tower: a causal transformer. The output at the end-of-text token (the largest id of a row) is used."""

    context_length: int = Field(default=77, gt=1)
    vocab_size: int = Field(default=VOCABULARY, gt=2)
    width: PositiveInt = 512
    layers: Depth = 12
    heads: PositiveInt = 8
    activation: Activation = "quick_gelu"


class PreprocessConfig(_Config):
    """Image preparation: resize the shorter edge to `resize` (None: the image size), crop the center, normalize.

    With `resize` "squash", both edges become the image size for images of any shape, and nothing is cropped.
    """

    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = IMAGENET_STD
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    resize: PositiveInt | Literal["squash"] | None = None


class Differential(_Config):
    """The parts of an attention layer with a head norm. The defaults are the published layer (paper Section 3.2).

    Layers of other kinds ignore these settings.
    """

    head_norm: bool = True  # the RMS norm of each head's output
    factor: bool = True  # the factor (1 − λ_init) after the norm


class CLIPConfig(_Config):
    """The configuration of a whole model.

    `lambda_init` is a number, or "dynamic": 0.8 − 0.6·exp(−0.3·l) with l = 0 in a tower's first layer. Only kinds of
    attention with it in their `options` use it: "differential", the published kind, and those that share its factor.
    """

    embed_dim: PositiveInt = 512
    vision: VisionConfig = Field(default_factory=VisionConfig)
    text: TextConfig = Field(default_factory=TextConfig)
    lambda_init: float | Literal["dynamic"] = 0.8
    differential: Differential = Field(default_factory=Differential)
    logit_bias: bool = False  # a bias on the logits, for the sigmoid loss
    preprocess: PreprocessConfig = Field(default_factory=PreprocessConfig)
    tokenizer: Literal["openclip"] = "openclip"

    @model_validator(mode="after")
    def _check(self) -> CLIPConfig:
        resize, image_size = self.preprocess.resize, self.vision.image_size
        if isinstance(resize, int) and resize < image_size:
            raise ValueError(
                f"preprocess.resize {resize} is smaller than the image size {image_size}, and crops would have black "
                "edges: raise it"
            )
        if self.differential != Differential() and not self.layer_options:
            raise ValueError(
                "differential is set, and no tower has an attention that it changes: leave it out"
            )
        return self

    @property
    def layer_options(self) -> frozenset[str]:
        """The settings among "lambda_init", "head_norm" and "factor" that either tower uses."""
        return self.vision.layer.options | self.text.layer.options


class Variant(NamedTuple):
    """The attention of both towers, and what else tells a model from CLIP of the same size."""

    vision: str = "softmax"
    text: str = "softmax"
    lambda_init: float | Literal["dynamic"] = 0.8
    registers: int = 0  # of the vision tower
    head_norm: bool = True
    factor: bool = True
    color: str | None = None  # in figures


VARIANTS: dict[str, Variant] = {
    "CLIP": Variant(color="#0072b2"),
    "DiffCLIP": Variant("differential", "differential", color="#d55e00"),
    "DiffCLIP-dynamic": Variant("differential", "differential", "dynamic", color="#009e73"),
    "DiffCLIP-vision": Variant("differential", color="#cc79a7"),
    "DiffCLIP-text": Variant(text="differential"),
    "DiffCLIP-v2": Variant("differential-v2", "differential-v2", color="#5b4a9e"),
    "DiffCLIP-added": Variant("differential-added", "differential-added", 0.0, color="#e69f00"),
    "DiffCLIP-grouped": Variant("differential-grouped", "differential-grouped"),
    # rivals
    "CLIP-gated": Variant("gated", "gated"),
    "CLIP-gated-open": Variant("gated-open", "gated-open"),
    "CLIP-registers": Variant(registers=4),
    "CLIP-gated-registers": Variant("gated", "gated", registers=4),
    "CLIP-half-heads": Variant("half-heads", "half-heads"),
    "CLIP-half-heads-vision": Variant("half-heads"),
    "CLIP-half-heads-norm": Variant("half-heads-norm", "half-heads-norm"),
    "CLIP-half-heads-norm-vision": Variant("half-heads-norm"),
    # ablations: DiffCLIP with one part changed
    "DiffCLIP-lambda0": Variant("differential-lambda0", "differential-lambda0"),
    "DiffCLIP-lambda0-vision": Variant("differential-lambda0"),
    "DiffCLIP-lambda0.2": Variant("differential", "differential", 0.2),
    "DiffCLIP-lambda0.5": Variant("differential", "differential", 0.5),
    "DiffCLIP-no-norm": Variant("differential", "differential", head_norm=False),
    "DiffCLIP-no-factor": Variant("differential", "differential", factor=False),
    "DiffCLIP-bare": Variant("differential", "differential", head_norm=False, factor=False),
    "DiffCLIP-one-map": Variant(
        "differential-lambda0", "differential-lambda0", head_norm=False, factor=False
    ),
}

BUILT_IN_VARIANTS = tuple(VARIANTS)


def register_variant(
    name: str,
    vision: str = "softmax",
    text: str = "softmax",
    lambda_init: float | Literal["dynamic"] = 0.8,
    registers: int = 0,
    head_norm: bool = True,
    factor: bool = True,
    color: str | None = None,
) -> None:
    """Name a combination of attentions, so that NAME-SIZE, such as "CLIP-relu-ViT-S-16", is a model.

    Args:
        name: the name, such as "CLIP-relu".
        vision: the kind of attention of the vision tower (`diffclip.register_attention`).
        text: the kind of attention of the text tower.
        lambda_init: λ_init of each layer, or "dynamic"; kinds without it ignore it.
        registers: extra tokens of the vision tower.
        head_norm: whether differential layers have the head norm.
        factor: whether differential layers have the factor 1 − λ_init.
        color: in figures, such as "#0072b2"; by default one that no other model of a figure has.

    Raises:
        InputError: another variant has this name, there is no such attention, or the color is not one.
    """
    if color is not None and not re.fullmatch("#[0-9a-fA-F]{6}", color):
        raise InputError(f'variant {name}: color {color!r} is not one: write it as "#0072b2"')
    variant = Variant(vision, text, lambda_init, registers, head_norm, factor, color)
    if VARIANTS.get(name, variant) != variant:
        raise InputError(f"variant {name!r} is registered already: choose another name")
    parse_config(_variant_fields(variant), f"variant {name}")
    VARIANTS[name] = variant


# size → (patch, vision (width, layers, heads), text (width, layers, heads), joint width)
_SIZES = {
    "ViT-Ti-16": (16, (192, 12, 6), (256, 12, 4), 256),
    "ViT-S-16": (16, (384, 12, 6), (384, 12, 6), 384),
    "ViT-B-32": (32, (768, 12, 12), (512, 12, 8), 512),
    "ViT-B-16": (16, (768, 12, 12), (512, 12, 8), 512),
    "ViT-L-14": (14, (1024, 24, 16), (768, 12, 12), 768),
    "ViT-H-14": (14, (1280, 32, 16), (1024, 24, 16), 1024),
}


def model_names() -> list[str]:
    """Return the names of all models: each variant in each size."""
    return [f"{variant}-{size}" for size in _SIZES for variant in VARIANTS]


def variant_config(variant: str, architecture: dict[str, Any]) -> CLIPConfig:
    """Combine `architecture`, fields of `CLIPConfig` with sizes only, with the attention of a variant."""
    if not find_registered(lambda: variant in VARIANTS):
        error = unknown_name("model", variant, VARIANTS)
        raise InputError(f"{error} (a model of your own needs --plugin)")
    conflicts = {"lambda_init", "differential"} & architecture.keys()
    fields = _variant_fields(VARIANTS[variant])
    for tower in ("vision", "text"):
        sizes = architecture.get(tower, {})
        if not isinstance(sizes, dict):
            raise InputError(f"architecture.{tower} is {sizes!r}: it must map sizes such as width, layers")
        conflicts |= {"attention", "registers"} & sizes.keys()
        fields[tower] |= sizes
    if conflicts:
        names = ", ".join(sorted(conflicts))
        raise InputError(f"architecture has {names}: the model {variant} decides that, leave it out")
    return parse_config(architecture | fields, f"model {variant}")


def _variant_fields(variant: Variant) -> dict[str, Any]:
    """Return the fields of `CLIPConfig` that a variant sets."""
    return {
        "vision": {"attention": variant.vision, "registers": variant.registers},
        "text": {"attention": variant.text},
        "lambda_init": variant.lambda_init,
        "differential": {"head_norm": variant.head_norm, "factor": variant.factor},
    }


def parse_config(fields: dict[str, Any], source: str) -> CLIPConfig:
    """Validate `fields` as a configuration; `source` names their origin in errors."""
    try:
        return CLIPConfig.model_validate(fields)
    except ValidationError as error:
        raise InputError(f"{source}: {explain(error)}") from None


def mlp_ratio(width: int, hidden: int) -> float:
    """Return a ratio for which int(width · ratio) is exactly `hidden`."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def resize_config(config: CLIPConfig, image_size: int) -> CLIPConfig:
    """Return `config` for images of another size; a number in `preprocess.resize` changes in proportion."""
    fields = config.model_dump()
    fields["vision"]["image_size"] = image_size
    if isinstance(resize := config.preprocess.resize, int):
        fields["preprocess"]["resize"] = round(resize * image_size / config.vision.image_size)
    return parse_config(fields, f"images of {image_size}")


def named_config(name: str, image_size: int | None = None) -> CLIPConfig:
    """Return the configuration of a named model, at another image size if one is given. An unknown name (the error
    offers the nearest one), or a size that does not fit the patch, raises `InputError`."""
    if not find_registered(lambda: name in model_names()):
        raise unknown_name("model", name, model_names(), "give MODEL-SIZE, such as DiffCLIP-ViT-B-16")
    size = next(size for size in _SIZES if name.endswith(f"-{size}"))
    patch, vision, text, embed_dim = _SIZES[size]
    towers = [dict(zip(("width", "layers", "heads"), sizes, strict=True)) for sizes in (vision, text)]
    images = {"image_size": 224 if image_size is None else image_size, "patch_size": patch}
    sizes = {"embed_dim": embed_dim, "vision": images | towers[0], "text": towers[1]}
    return variant_config(name.removesuffix(f"-{size}"), sizes)


def variant_of(config: CLIPConfig) -> str:
    """Return the variant with the attentions, λ_init and parts of `config`; "custom" if there is none. λ_init and parts
    count only if a tower has them."""
    vision, parts = config.vision, {"lambda_init": config.lambda_init, **dict(config.differential)}
    ours = {"vision": vision.attention, "text": config.text.attention, "registers": vision.registers}
    ours |= {name: parts[name] for name in config.layer_options}
    fitting = (name for name, variant in VARIANTS.items() if ours.items() <= variant._asdict().items())
    return next(fitting, "custom")


def name_of(config: CLIPConfig) -> str:
    """Return a name for tables and records: the variant, and the name of its size or the numbers."""
    variant, vision, text = variant_of(config), config.vision, config.text
    towers = ((vision.width, vision.layers, vision.heads), (text.width, text.layers, text.heads))
    sizes = {architecture: size for size, architecture in _SIZES.items()}
    size = sizes.get((vision.patch_size, *towers, config.embed_dim))
    if variant != "custom" and size is not None:
        return f"{variant}-{size}"
    return (
        f"{variant}-v{vision.width}x{vision.layers}x{vision.heads}p{vision.patch_size}"
        f"-t{text.width}x{text.layers}x{text.heads}"
    )

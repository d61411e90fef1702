"""Configurations with transformers' names; `core()` converts them to our `CLIPConfig`, which checks them."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from transformers import PreTrainedConfig

from diffclip.config import VOCABULARY, CLIPConfig, mlp_ratio, name_of, parse_config
from diffclip.errors import InputError
from diffclip.sources.transformers import TOWER_FIELDS, core_config


class _TowerConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """One tower. `intermediate_size`, the width inside the MLPs, may be given instead of `mlp_ratio`."""

    tower: ClassVar[str]
    names: ClassVar[dict[str, str]]
    """transformers' name of each field of our configuration."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    hidden_act: str = "gelu"
    mlp_ratio: float = 4.0
    intermediate_size: int | None = None
    attention: str = "softmax"
    lambda_init: float | str = 0.8
    projection_dim: int = 512

    def __post_init__(self, **rest: Any) -> None:
        if self.intermediate_size is None:
            self.intermediate_size = int(self.hidden_size * self.mlp_ratio)
        else:
            self.mlp_ratio = mlp_ratio(self.hidden_size, self.intermediate_size)
        super().__post_init__(**rest)  # type: ignore[no-untyped-call]

    def core(self) -> CLIPConfig:
        """Return our configuration with this tower."""
        tower = {ours: getattr(self, theirs) for ours, theirs in self.names.items()}
        whole = {"embed_dim": self.projection_dim, "lambda_init": self.lambda_init, self.tower: tower}
        return parse_config(whole, type(self).__name__)

    @classmethod
    def of(cls, config: CLIPConfig) -> Self:
        """Convert the tower of `config`, the configuration of a built model."""
        tower = getattr(config, cls.tower)
        if tower.layer_options(config.differential):
            raise InputError(
                f"{name_of(config)} lacks a part of attention: use diffclip.save_weights instead"
            )
        fields = {theirs: getattr(tower, ours) for ours, theirs in cls.names.items()}
        return cls(**fields, lambda_init=config.lambda_init, projection_dim=config.embed_dim)


class DiffCLIPVisionConfig(_TowerConfig):  # type: ignore[no-untyped-call]
    """A vision tower. `layer_norm_eps` is never None; the image processor has the preprocessing settings."""

    model_type = "diffclip_vision_model"
    base_config_key = "vision_config"
    tower = "vision"
    names = TOWER_FIELDS["vision"]

    image_size: int = 224
    patch_size: int = 16
    num_channels: int = 3
    layer_norm_eps: float = 1e-6
    pre_norm: bool = False
    patch_bias: bool = True
    drop_path: float = 0.0
    patch_dropout: float = 0.0
    registers: int = 0


class DiffCLIPTextConfig(_TowerConfig):  # type: ignore[no-untyped-call]
    """A text tower. Features are taken at the first `eos_token_id`, the end of text; if None, at the largest id."""

    model_type = "diffclip_text_model"
    base_config_key = "text_config"
    tower = "text"
    names = TOWER_FIELDS["text"]

    hidden_size: int = 512
    num_attention_heads: int = 8
    hidden_act: str = "quick_gelu"
    vocab_size: int = VOCABULARY
    max_position_embeddings: int = 77
    pad_token_id: int | None = 0
    bos_token_id: int | None = VOCABULARY - 2
    eos_token_id: int | None = VOCABULARY - 1


class DiffCLIPConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Both towers, the joint width `projection_dim`, and whether the logits have a bias.

    `preprocess` holds the fields of our `PreprocessConfig`, for a folder that was saved without its image processor.
    """

    model_type = "diffclip"
    sub_configs = {"vision_config": DiffCLIPVisionConfig, "text_config": DiffCLIPTextConfig}  # noqa: RUF012

    vision_config: Any = None
    text_config: Any = None
    projection_dim: int = 512
    logit_bias: bool = False
    preprocess: dict[str, Any] | None = None

    def __post_init__(self, **rest: Any) -> None:
        for name, kind in self.sub_configs.items():
            tower = getattr(self, name)
            if not isinstance(tower, kind):
                setattr(self, name, kind(**(tower or {})))
            getattr(self, name).projection_dim = self.projection_dim
        super().__post_init__(**rest)  # type: ignore[no-untyped-call]

    def core(self) -> CLIPConfig:
        """Convert this configuration to ours."""
        return core_config(self.to_dict(), type(self).__name__)

    @classmethod
    def of(cls, config: CLIPConfig) -> DiffCLIPConfig:
        """Convert `config`, the configuration of a built model."""
        text = DiffCLIPTextConfig.of(config)
        if config.text.vocab_size < VOCABULARY:  # with custom ids, start and end of text are unknown
            text.bos_token_id = text.eos_token_id = None
        return cls(
            vision_config=DiffCLIPVisionConfig.of(config),
            text_config=text,
            projection_dim=config.embed_dim,
            logit_bias=config.logit_bias,
            preprocess=config.preprocess.model_dump(mode="json"),
        )

"""Configurations in transformers' terms; `core()` is the same in ours, which says what fits together."""

from __future__ import annotations

from typing import Any, Literal

from transformers import PreTrainedConfig

from diffclip.attention import settings_of
from diffclip.config import AttentionKind, CLIPConfig, TextConfig, VisionConfig, name_of, parse_config
from diffclip.errors import InputError
from diffclip.integrations.transformers.tokens import VOCABULARY

LambdaInit = float | Literal["dynamic"]


class _TowerConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    def __init__(
        self,
        hidden_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        hidden_act: str,
        mlp_ratio: float = 4.0,
        attention: AttentionKind = "softmax",
        lambda_init: LambdaInit = 0.8,
        projection_dim: int = 512,
        **rest: Any,
    ) -> None:
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.hidden_act = hidden_act
        self.mlp_ratio = mlp_ratio
        self.attention = attention
        self.lambda_init = lambda_init
        self.projection_dim = projection_dim
        super().__init__(**rest)

    @property
    def intermediate_size(self) -> int:
        """Width of the layer inside the MLPs."""
        return int(self.hidden_size * self.mlp_ratio)

    def _shared_fields(self) -> dict[str, Any]:
        return {
            "width": self.hidden_size,
            "layers": self.num_hidden_layers,
            "heads": self.num_attention_heads,
            "mlp_ratio": self.mlp_ratio,
            "attention": self.attention,
            "activation": self.hidden_act,
        }


class DiffCLIPVisionConfig(_TowerConfig):  # type: ignore[no-untyped-call]
    """A vision tower. `layer_norm_eps` is resolved; the picture's preparation is the image processor's."""

    model_type = "diffclip_vision_model"
    base_config_key = "vision_config"

    def __init__(
        self,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        hidden_act: str = "gelu",
        image_size: int = 224,
        patch_size: int = 16,
        num_channels: int = 3,
        layer_norm_eps: float = 1e-6,
        pre_norm: bool = False,
        patch_bias: bool = True,
        drop_path: float = 0.0,
        patch_dropout: float = 0.0,
        **rest: Any,
    ) -> None:
        self.image_size = image_size
        self.patch_size = patch_size
        self.num_channels = num_channels
        self.layer_norm_eps = layer_norm_eps
        self.pre_norm = pre_norm
        self.patch_bias = patch_bias
        self.drop_path = drop_path
        self.patch_dropout = patch_dropout
        super().__init__(hidden_size, num_hidden_layers, num_attention_heads, hidden_act, **rest)

    def core(self) -> CLIPConfig:
        """A configuration of ours with this vision tower.

        Raises:
            InputError: sizes that do not fit together, or not three channels.
        """
        if self.num_channels != 3:
            raise InputError(f"num_channels {self.num_channels}: pictures have 3")
        return parse_config({**_common(self), "vision": self.fields()}, type(self).__name__)

    def fields(self) -> dict[str, Any]:
        """The fields of our `VisionConfig`."""
        return self._shared_fields() | {
            "image_size": self.image_size,
            "patch_size": self.patch_size,
            "norm_eps": self.layer_norm_eps,
            "pre_norm": self.pre_norm,
            "patch_bias": self.patch_bias,
            "drop_path": self.drop_path,
            "patch_dropout": self.patch_dropout,
        }

    @classmethod
    def of(cls, config: CLIPConfig) -> DiffCLIPVisionConfig:
        """The vision tower of `config`.

        Raises:
            InputError: its `norm_eps` is not resolved, as that of a built model is, or its layers lack a part.
        """
        vision = config.vision
        if vision.norm_eps is None:
            raise InputError("norm_eps of the vision tower is not resolved: take the config of a built model")
        return cls(
            image_size=vision.image_size,
            patch_size=vision.patch_size,
            layer_norm_eps=vision.norm_eps,
            pre_norm=vision.pre_norm,
            patch_bias=vision.patch_bias,
            drop_path=vision.drop_path,
            patch_dropout=vision.patch_dropout,
            **_tower(config, vision),
        )


class DiffCLIPTextConfig(_TowerConfig):  # type: ignore[no-untyped-call]
    """A text tower, read at the first `eos_token_id`, the tokenizer's end of text; if None, at the largest id."""

    model_type = "diffclip_text_model"
    base_config_key = "text_config"

    def __init__(
        self,
        hidden_size: int = 512,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 8,
        hidden_act: str = "quick_gelu",
        vocab_size: int = 49408,
        max_position_embeddings: int = 77,
        pad_token_id: int | None = 0,
        bos_token_id: int | None = 49406,
        eos_token_id: int | None = 49407,
        **rest: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_position_embeddings = max_position_embeddings
        self.pad_token_id = pad_token_id
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        super().__init__(hidden_size, num_hidden_layers, num_attention_heads, hidden_act, **rest)

    def core(self) -> CLIPConfig:
        """A configuration of ours with this text tower.

        Raises:
            InputError: sizes that do not fit together.
        """
        return parse_config({**_common(self), "text": self.fields()}, type(self).__name__)

    def fields(self) -> dict[str, Any]:
        """The fields of our `TextConfig`."""
        return self._shared_fields() | {
            "context_length": self.max_position_embeddings,
            "vocab_size": self.vocab_size,
        }

    @classmethod
    def of(cls, config: CLIPConfig) -> DiffCLIPTextConfig:
        """The text tower of `config`.

        Raises:
            InputError: its layers lack a part of the published one.
        """
        text = config.text
        # ids of someone's own have their start and end elsewhere
        own: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
        return cls(
            vocab_size=text.vocab_size,
            **(own if text.vocab_size < VOCABULARY else {}),
            max_position_embeddings=text.context_length,
            **_tower(config, text),
        )


class DiffCLIPConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Both towers, the joint width `projection_dim`, and whether the logits have a bias."""

    model_type = "diffclip"
    sub_configs = {"vision_config": DiffCLIPVisionConfig, "text_config": DiffCLIPTextConfig}  # noqa: RUF012

    def __init__(
        self,
        vision_config: DiffCLIPVisionConfig | dict[str, Any] | None = None,
        text_config: DiffCLIPTextConfig | dict[str, Any] | None = None,
        projection_dim: int = 512,
        logit_bias: bool = False,
        **rest: Any,
    ) -> None:
        self.vision_config = (
            vision_config
            if isinstance(vision_config, DiffCLIPVisionConfig)
            else DiffCLIPVisionConfig(**(vision_config or {"projection_dim": projection_dim}))
        )
        self.text_config = (
            text_config
            if isinstance(text_config, DiffCLIPTextConfig)
            else DiffCLIPTextConfig(**(text_config or {"projection_dim": projection_dim}))
        )
        self.projection_dim = projection_dim
        self.logit_bias = logit_bias
        super().__init__(**rest)

    def core(self) -> CLIPConfig:
        """This configuration as ours.

        Raises:
            InputError: sizes that do not fit together, or towers with another λ_init each.
        """
        vision, text = self.vision_config, self.text_config
        differential = [tower for tower in (vision, text) if tower.attention == "differential"]
        lambda_inits = {tower.lambda_init for tower in differential or (vision,)}
        if len(lambda_inits) > 1:
            raise InputError(
                f"lambda_init is {vision.lambda_init} of the vision tower, {text.lambda_init} of the text tower: "
                "give both the same"
            )
        fields = {
            "embed_dim": self.projection_dim,
            "lambda_init": lambda_inits.pop(),
            "logit_bias": self.logit_bias,
            "vision": vision.fields(),
            "text": text.fields(),
        }
        return parse_config(fields, type(self).__name__)

    @classmethod
    def of(cls, config: CLIPConfig) -> DiffCLIPConfig:
        """`config` without its preprocess.

        Raises:
            InputError: `norm_eps` is not resolved, as that of a built model is, or layers lack a part of the
                published one.
        """
        return cls(
            vision_config=DiffCLIPVisionConfig.of(config),
            text_config=DiffCLIPTextConfig.of(config),
            projection_dim=config.embed_dim,
            logit_bias=config.logit_bias,
        )


def _common(tower: _TowerConfig) -> dict[str, Any]:
    return {"embed_dim": tower.projection_dim, "lambda_init": tower.lambda_init}


def _tower(config: CLIPConfig, tower: VisionConfig | TextConfig) -> dict[str, Any]:
    if settings_of(tower.attention, config.differential):
        raise InputError(
            f"{name_of(config)} lacks a part of differential attention, which transformers' configuration cannot say: "
            "save a folder of ours instead"
        )
    return {
        "hidden_size": tower.width,
        "num_hidden_layers": tower.layers,
        "num_attention_heads": tower.heads,
        "mlp_ratio": tower.mlp_ratio,
        "hidden_act": tower.activation,
        "attention": tower.attention,
        "lambda_init": config.lambda_init,
        "projection_dim": config.embed_dim,
    }

"""Models of open_clip and transformers, made here, as ours: equal outputs; what cannot be converted is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diffclip import CLIP, InputError
from diffclip.config import variant_of
from diffclip.convert import from_open_clip, from_transformers, to_differential
from diffclip.weights import load_weights, save_weights

VISION = {"layers": 2, "width": 32, "head_width": 8, "patch_size": 8, "image_size": 32}
TEXT = {"context_length": 8, "vocab_size": 50, "width": 24, "heads": 3, "layers": 2}
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TOKENS = torch.tensor([[1, 5, 6, 49, 0, 0, 0, 0], [1, 7, 49, 0, 0, 0, 0, 0], [1, 8, 9, 10, 11, 12, 13, 49]])


def open_clip_model(
    vision: dict[str, Any] | None = None, text: dict[str, Any] | None = None, **rest: Any
) -> Any:
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    custom = rest.pop("custom", False)
    make = open_clip.model.CustomTextCLIP if custom else open_clip.model.CLIP
    model = make(16, VISION | (vision or {}), TEXT | (text or {}), **rest)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases that are not trivial
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model.eval()


def transformers_model(**changes: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    tower = {"num_hidden_layers": 2, "hidden_act": "quick_gelu"}
    vision = tower | {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    text = tower | {"hidden_size": 24, "intermediate_size": 48, "num_attention_heads": 3}
    vision |= {"image_size": 32, "patch_size": 8} | changes.get("vision", {})
    text |= {"vocab_size": 50, "max_position_embeddings": 8, "eos_token_id": 49, "bos_token_id": 1}
    text |= changes.get("text", {})
    config = transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=16)
    model = transformers.CLIPModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model.eval()


def same(ours: CLIP, images: torch.Tensor, texts: torch.Tensor) -> None:
    torch.testing.assert_close(ours.encode_image(IMAGES), images, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.encode_text(TOKENS), texts, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"quick_gelu": True, "vision": {"output_tokens": True}},
        {"vision": {"no_ln_pre": True}},
        {"custom": True},
        {"init_logit_bias": -10.0},
    ],
    ids=["gelu", "quickgelu, output tokens", "no pre-norm", "custom text", "logit bias"],
)
def test_open_clip_models_keep_their_numbers_through_both_steps(how: dict[str, Any], tmp_path) -> None:
    model = open_clip_model(**how)
    ours = from_open_clip(model)
    with torch.no_grad():
        images, texts = model.encode_image(IMAGES), model.encode_text(TOKENS)
        images = images[0] if isinstance(images, tuple) else images
        same(ours, images, texts)
        assert variant_of(ours.config) == "CLIP"
        assert ours.config.vision.pre_norm is not how.get("vision", {}).get("no_ln_pre", False)
        differential = to_differential(ours)
        same(differential, images, texts)
        assert variant_of(differential.config) == "DiffCLIP-added"
        save_weights(differential, tmp_path / "saved")
        again = load_weights(CLIP(differential.config, seed=1), tmp_path / "saved")
        same(again, images, texts)


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_transformers_models_keep_their_numbers(activation: str) -> None:
    model = transformers_model(vision={"hidden_act": activation}, text={"hidden_act": activation})
    ours = from_transformers(model)
    with torch.no_grad():
        images, texts = model.get_image_features(IMAGES), model.get_text_features(TOKENS)
        images, texts = (getattr(found, "pooler_output", found) for found in (images, texts))
        same(to_differential(ours), images, texts)
    assert ours.config.vision.activation == activation


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"vision": {"ls_init_value": 0.1}}, r"differ from ours .*ls_1\.gamma"),
        ({"vision": {"pool_type": "avg"}}, "image features would differ"),
        ({"vision": {"attentional_pool": True}}, "differ from ours .*attn_pool"),
        ({"text": {"embed_cls": True}, "custom": True}, "differ from ours .*cls_emb"),
        (
            {key: {"act_kwargs": {"approximate": "tanh"}} for key in ("vision", "text")},
            "approximated by tanh",
        ),
        ({"vision": {"layers": (1, 1, 1, 1), "width": 8}}, "the towers ModifiedResNet"),
        ({"text": {"no_causal_mask": True}, "custom": True}, "text features would differ"),
        ({"vision": {"block_type": "custom", "qk_norm": True}}, "differ from ours"),
    ],
)
def test_other_open_clip_models_are_refused_by_what_they_have(how: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        from_open_clip(open_clip_model(**how), "their model")


def test_other_transformers_models_are_refused_by_what_they_have() -> None:
    with pytest.raises(InputError, match="activation relu"):
        from_transformers(transformers_model(vision={"hidden_act": "relu"}))
    with pytest.raises(InputError, match="text features would differ"):
        from_transformers(transformers_model(text={"layer_norm_eps": 0.1}))
    with pytest.raises(InputError, match="the kind 'Linear' instead of 'clip'"):
        from_transformers(torch.nn.Linear(2, 2))


def test_texts_that_do_not_end_with_the_largest_id_are_refused() -> None:
    told = "takes text features at the id 5, not the largest of 50"
    with pytest.raises(InputError, match=told):
        from_transformers(transformers_model(text={"eos_token_id": 5}), "their model")
    old = from_transformers(transformers_model(text={"eos_token_id": 2}))  # means the largest
    model = transformers_model()
    with torch.no_grad():
        torch.testing.assert_close(old.encode_text(TOKENS), model.get_text_features(TOKENS).pooler_output)

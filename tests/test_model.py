"""The models: sizes, names, and what timm's tower brings."""

from __future__ import annotations

import math

import pytest
import torch

import diffclip
from diffclip import CLIP, CLIPConfig, InputError
from diffclip.config import MODEL_NAMES, name_of, named_config, variant_config

TINY = {
    "embed_dim": 24,
    "vision": {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "heads": 4},
    "text": {"context_length": 16, "vocab_size": 100, "width": 32, "layers": 2, "heads": 4},
}


def tiny(variant: str = "DiffCLIP", **vision: object) -> CLIPConfig:
    return variant_config(variant, TINY | {"vision": TINY["vision"] | vision})


def batch(size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(1, 98, (3, 16))
    tokens[:, 10] = 99
    tokens[:, 11:] = 0
    return torch.randn(3, 3, size, size), tokens


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_every_named_model_has_its_name_at_any_image_size(name: str) -> None:
    config = named_config(name)
    assert name_of(config) == name_of(named_config(name, 2 * config.vision.image_size)) == name


def test_forward_gives_unit_features_and_backends_agree() -> None:
    model = CLIP(tiny(), seed=0).eval()
    images, tokens = batch()
    out = model(images, tokens)
    torch.testing.assert_close(out["logit_scale"], torch.tensor(1 / 0.07))
    for backend in ("eager", "sdpa"):
        model.set_attention_backend(backend)
        other = model(images, tokens)
        for name in ("image_features", "text_features"):
            torch.testing.assert_close(out[name].norm(dim=-1), torch.ones(3))
            torch.testing.assert_close(other[name], out[name], rtol=0, atol=1e-6)


def test_text_after_the_end_changes_nothing() -> None:
    model = CLIP(tiny(), seed=0).eval()
    _, tokens = batch()
    changed = tokens.clone()
    changed[:, 12:] = 7
    torch.testing.assert_close(model.encode_text(changed), model.encode_text(tokens))
    torch.testing.assert_close(
        model.encode_text(tokens[:, :11]), model.encode_text(tokens), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP"])
def test_half_precision_stays_near(dtype: torch.dtype, variant: str) -> None:
    model = CLIP(tiny(variant), seed=0).eval()
    images, tokens = batch()
    exact = model.encode_image(images, normalize=True), model.encode_text(tokens, normalize=True)
    model.to(dtype)
    half = model.encode_image(images.to(dtype), normalize=True), model.encode_text(tokens, normalize=True)
    for a, b in zip(exact, half, strict=True):
        assert b.dtype == dtype
        assert torch.cosine_similarity(a, b.float()).min() > 0.995


def test_lambda_stays_exact_when_the_model_is_cast() -> None:
    model = CLIP(tiny(), seed=0)
    before = model.lambdas()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.attention_layers()["visual"][0].current_lambda().dtype == torch.float32
    for cast in (model.bfloat16, model.float):
        cast()
        assert all(torch.equal(before[tower], lam) for tower, lam in model.lambdas().items())


def test_inputs_of_another_size_are_named() -> None:
    model = CLIP(tiny(), seed=0)
    with pytest.raises(InputError, match=r"images are \[1, 3, 40, 40\]: this model takes \[B, 3, 32, 32\]"):
        model.encode_image(torch.zeros(1, 3, 40, 40))
    with pytest.raises(InputError, match=r"tokens are \[1, 17\].* L up to 16"):
        model.encode_text(torch.ones(1, 17, dtype=torch.int64))


def test_dynamic_lambda_counts_layers_from_zero_in_each_tower() -> None:
    model = CLIP(tiny("DiffCLIP-dynamic"), seed=0)
    for layers in model.attention_layers().values():
        wanted = [0.8 - 0.6 * math.exp(-0.3 * depth) for depth in range(2)]
        assert [layer.lambda_init for layer in layers] == pytest.approx(wanted)
    told = CLIP(tiny("DiffCLIP-vision"), seed=0).lambdas()
    moved = CLIP(tiny("DiffCLIP-vision"), seed=0).to("meta").lambdas()
    assert {lam.device.type for lam in moved.values()} == {"meta"}
    assert {tower: len(lam) for tower, lam in told.items()} == {"visual": 2, "text": 0}


def test_drop_path_and_patch_dropout_act_in_training_only() -> None:
    images, _ = batch()
    model = CLIP(tiny(drop_path=0.5, patch_dropout=0.5), seed=0)
    torch.manual_seed(0)
    assert not torch.equal(model.encode_image(images), model.encode_image(images))
    model.eval()
    assert torch.equal(model.encode_image(images), model.encode_image(images))
    plain = CLIP(tiny(), seed=0).eval()
    assert torch.equal(model.encode_image(images), plain.encode_image(images))


@pytest.mark.parametrize(("variant", "tokens"), [("DiffCLIP", 65), ("CLIP-gated-registers", 69)])
def test_another_image_size_resamples_positions(variant: str, tokens: int) -> None:
    model = CLIP(tiny(variant), seed=0).eval()
    model.set_image_size(64)
    assert model.visual.pos_embed.shape == (1, tokens, 32)
    assert model.encode_image(batch(64)[0]).shape == (3, 24)
    assert model.config.vision.image_size == 64
    with pytest.raises(InputError, match="not a multiple of patch_size 8"):
        model.set_image_size(60)


def test_seeds_decide_the_start() -> None:
    a, b, c = (CLIP(tiny(), seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["visual.pos_embed"], c["visual.pos_embed"])
    torch.manual_seed(5)
    d = CLIP(tiny()).state_dict()["visual.pos_embed"]
    torch.manual_seed(5)
    assert torch.equal(d, CLIP(tiny()).state_dict()["visual.pos_embed"])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: diffclip.create_model("DifCLIP-ViT-B-16"), "did you mean 'DiffCLIP-ViT-B-16'"),
        (
            lambda: diffclip.create_model("CLIP-ViT-B-16", image_size=230),
            "230 is not a multiple of patch_size",
        ),
        (
            lambda: diffclip.create_model("CLIP-registers-ViT-B-16", image_size=16),
            "4 registers are too many beside so few patches: use up to 2",
        ),
        (lambda: variant_config("DiffCLIP", {"vision": {"heads": 3}}), "heads 3 is odd"),
        (lambda: variant_config("CLIP", {"text": {"width": 100, "heads": 8}}), "not a multiple of heads 8"),
        (lambda: CLIP(tiny(), init="matchd"), "did you mean 'matched'"),
        (lambda: CLIP(tiny(), attention_backend="flash"), "unknown attention backend 'flash'"),
    ],
)
def test_bad_requests_are_named(build, words: str) -> None:
    with pytest.raises(InputError) as error:
        build()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_padding_need_not_be_computed() -> None:
    model = CLIP(tiny(), seed=0).eval()
    tokens = torch.zeros(3, model.config.text.context_length, dtype=torch.int64)
    tokens[:, 0] = 5
    tokens[torch.arange(3), torch.tensor([2, 4, 3])] = model.config.text.vocab_size - 1
    lengths = []
    model.transformer.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    with torch.no_grad():
        whole = model.encode_text(tokens)
        torch.testing.assert_close(model.encode_text(tokens, skip_padding=True), whole, rtol=1e-5, atol=1e-6)
    assert lengths == [tokens.shape[1], 5]

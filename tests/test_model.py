"""The models: sizes, names, options of timm's tower, and patch features."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F
from tiny import SIZES, TOKENS, random_images

import diffclip
from diffclip import CLIP, CLIPConfig, InputError
from diffclip.attention import ATTENTION_LAYERS
from diffclip.config import model_names, name_of, named_config, variant_config


def tiny(variant: str = "DiffCLIP", **vision: object) -> CLIPConfig:
    return variant_config(variant, SIZES | {"vision": SIZES["vision"] | vision})


NAMED = {
    name for name in model_names() if name.endswith("Ti-16") or name.startswith(("CLIP-ViT", "DiffCLIP-ViT"))
}


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_named_model_has_its_name_at_any_image_size(name: str) -> None:
    config = named_config(name)
    assert name_of(config) == name_of(named_config(name, 2 * config.vision.image_size)) == name


def test_tokens_after_the_end_do_not_change_text_features() -> None:
    model = CLIP(tiny(), seed=0).eval()
    changed = TOKENS.clone()
    changed[:, 7:] = 7
    torch.testing.assert_close(model.encode_text(changed), model.encode_text(TOKENS))
    short = model.encode_text(TOKENS[:, :7])
    torch.testing.assert_close(short, model.encode_text(TOKENS), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP"])
def test_half_precision_features_stay_close(dtype: torch.dtype, variant: str) -> None:
    model = CLIP(tiny(variant), seed=0).eval()
    images = random_images()
    exact = model.encode_image(images, normalize=True), model.encode_text(TOKENS, normalize=True)
    model.to(dtype)
    half = model.encode_image(images.to(dtype), normalize=True), model.encode_text(TOKENS, normalize=True)
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


def test_inputs_of_a_wrong_size_and_unknown_readouts_raise_input_error() -> None:
    model = CLIP(tiny(), seed=0)
    for encode in (model.encode_image, model.encode_patches):
        with pytest.raises(ValueError, match=r"are \[1, 3, 40, 40\]: this model takes \[B, 3, 32, 32\]"):
            encode(torch.zeros(1, 3, 40, 40))
    with pytest.raises(ValueError, match=r"tokens are \[1, 9\].* L up to 8"):
        model.encode_text(torch.ones(1, 9, dtype=torch.int64))
    with pytest.raises(InputError, match="did you mean 'last-values'"):
        model.encode_patches(random_images(), readout="values")  # type: ignore[arg-type]


def test_dynamic_lambda_counts_layers_from_zero_in_each_tower() -> None:
    model = CLIP(tiny("DiffCLIP-dynamic"), seed=0)
    for layers in model.attention_layers().values():
        wanted = [0.8 - 0.6 * math.exp(-0.3 * depth) for depth in range(3)]
        assert [layer.lambda_init for layer in layers] == pytest.approx(wanted)
    lambdas = CLIP(tiny("DiffCLIP-vision"), seed=0).to("meta").lambdas()
    assert {lam.device.type for lam in lambdas.values()} == {"meta"}
    assert {tower: len(lam) for tower, lam in lambdas.items()} == {"visual": 3, "text": 0}


def test_drop_path_and_patch_dropout_act_in_training_only() -> None:
    images = random_images()
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
    assert model.encode_image(torch.zeros(2, 3, 64, 64)).shape == (2, 16)
    assert model.config.vision.image_size == 64
    with pytest.raises(InputError, match="not a multiple of patch_size 8"):
        model.set_image_size(60)


def test_seeds_decide_the_initial_weights() -> None:
    first, second = (CLIP(tiny(), seed=seed).visual.pos_embed for seed in (1, 2))
    assert not torch.equal(first, second)
    embeddings = []
    for _ in range(2):
        torch.manual_seed(5)
        embeddings.append(CLIP(tiny()).visual.pos_embed)
    assert torch.equal(*embeddings)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: diffclip.create_model("DifCLIP-ViT-B-16"), "did you mean 'DiffCLIP-ViT-B-16'"),
        (lambda: diffclip.create_model("CLIP-ViT-B-16", image_size=230), "230 is not a multiple of patch"),
        (lambda: named_config("CLIP-registers-ViT-B-16", 16), "4 registers are too many beside so few"),
        (lambda: variant_config("DiffCLIP", {"vision": {"heads": 3}}), "heads 3 is odd"),
        (lambda: variant_config("CLIP", {"text": {"width": 100, "heads": 8}}), "not a multiple of heads 8"),
        (lambda: CLIP(tiny(), init="matchd"), "did you mean 'matched'"),
        (lambda: CLIP(tiny(), attention_backend="flash"), "unknown attention backend 'flash'"),
    ],
)
def test_bad_requests_raise_a_one_line_error(build, words: str) -> None:
    with pytest.raises(InputError) as error:
        build()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_skip_padding_computes_fewer_tokens_and_the_same_features() -> None:
    model = CLIP(tiny(), seed=0).eval()
    lengths = []
    model.transformer.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    whole = model.encode_text(TOKENS)
    torch.testing.assert_close(model.encode_text(TOKENS, skip_padding=True), whole, rtol=1e-5, atol=1e-6)
    assert lengths == [8, 7]


# --- patch features ---

IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP", "DiffCLIP-v2", "CLIP-gated-registers"])
def test_patches_are_projected_like_the_class_token(variant: str) -> None:
    model = CLIP(tiny(variant, image_size=24), seed=0)
    tokens = model.visual.forward_features(IMAGES) @ model.image_projection
    torch.testing.assert_close(tokens[:, 0], model.encode_image(IMAGES))
    patches = model.encode_patches(IMAGES)
    torch.testing.assert_close(patches, tokens[:, -9:])  # row by row, without class token and registers
    torch.testing.assert_close(model.encode_patches(IMAGES, normalize=True), F.normalize(patches, dim=-1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_patches_and_gradients_are_those_of_timms_convolution(precision: torch.dtype, bias: bool) -> None:
    embed = CLIP(tiny(image_size=24, patch_bias=bias), seed=0).visual.patch_embed
    weights = list(embed.parameters())
    assert len(weights) == 1 + bias
    found = []
    for forward in (embed, lambda images: timm.layers.PatchEmbed.forward(embed, images)):
        images = IMAGES.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            patches = forward(images)
        assert patches.dtype == precision
        assert patches.shape == (2, 9, 32)
        found.append([patches, *torch.autograd.grad(patches.float().square().sum(), [images, *weights])])
    error = 1e-5 if precision == torch.float32 else 0.02
    for ours, timms in zip(*found, strict=True):
        assert (ours - timms).norm() < error * timms.norm()


def test_last_values_of_a_plain_model_match_values_by_hand() -> None:
    model = CLIP(tiny("CLIP", image_size=24), seed=0)
    tower = model.visual
    x = tower.patch_embed.proj(IMAGES).flatten(2).mT + tower.pos_embed[:, 1:]
    x = torch.cat([(tower.cls_token + tower.pos_embed[:, :1]).expand(2, -1, -1), x], 1)
    *blocks, last = tower.blocks
    for block in blocks:
        x = block(x)
    x = last.norm1(x[:, 1:])
    values = x @ last.attn.qkv.weight[64:].T + last.attn.qkv.bias[64:]
    out = values @ last.attn.out_proj.weight.T + last.attn.out_proj.bias
    wanted = tower.norm(out) @ model.image_projection
    torch.testing.assert_close(model.encode_patches(IMAGES, readout="last-values"), wanted)


@pytest.mark.parametrize("kind", ATTENTION_LAYERS)
def test_own_values_match_attention_over_a_single_token(kind: str) -> None:
    """A map over one token is 1, so A1 − λ·A2 is 1 − λ; the head norm removes this factor."""
    torch.manual_seed(0)
    layer = ATTENTION_LAYERS[kind](32, 4).double()
    if hasattr(layer, "diff_norm"):
        layer.diff_norm.weight.data.uniform_(0.5, 2)
        (
            layer.qkv if hasattr(layer, "qkv") else layer.part_qkv
        ).weight.data *= 100  # so that the norm's epsilon does not matter
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    alone = layer._attend(x.flatten(0, 1)[:, None], False).view(2, 9, 32)
    if kind == "differential-added":
        alone = alone / (1 - layer.current_lambda())
    if kind == "differential-v2":
        alone = alone / (1 - layer.token_lambdas(x)).mT.repeat_interleave(8, -1)
    torch.testing.assert_close(layer.own_values(x), alone, rtol=1e-5, atol=1e-5)


def test_encode_patches_in_training_keeps_every_patch_and_a_gradient() -> None:
    model = CLIP(tiny("DiffCLIP", image_size=24, patch_dropout=0.5), seed=0)
    for readout in ("attention", "last-values"):
        features = model.encode_patches(IMAGES, readout=readout)
        assert features.shape == (2, 9, 16)
        (gradient,) = torch.autograd.grad(features.square().sum(), [model.visual.patch_embed.proj.weight])
        assert gradient.abs().sum() > 0

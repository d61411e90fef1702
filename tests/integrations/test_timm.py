"""Our towers in timm: they follow its conventions and give the numbers of the core's vision tower."""

import copy
from functools import partial

import pytest
import timm
import torch
from PIL import Image
from timm.models import create_feature_extractor
from timm.optim import param_groups_weight_decay

import diffclip
from diffclip.config import named_config
from diffclip.errors import InputError
from diffclip.integrations.timm import SIZES, from_diffclip
from diffclip.preprocess import EvalTransform
from diffclip.towers.vision import build_vision

BASE = "diff_vit_base_patch16_224"
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 4}


def tiny_clip(**changes) -> diffclip.CLIP:
    vision = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 3, "heads": 4}
    vision |= {"attention": "differential"} | changes.pop("vision", {})
    text = {"context_length": 12, "width": 16, "layers": 1, "heads": 2}
    config = diffclip.CLIPConfig(embed_dim=24, vision=vision, text=text, **changes)
    return diffclip.CLIP(config, seed=3).eval()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def dynamic() -> diffclip.CLIP:
    """A model whose λ_init, epsilon and statistics are not the defaults."""
    return tiny_clip(
        lambda_init="dynamic",
        vision={"norm_eps": 1e-3},
        preprocess={"mean": (0.4, 0.5, 0.6), "interpolation": "bicubic", "resize": 40},
    )


assert_close = partial(torch.testing.assert_close, rtol=0, atol=1e-5)


def test_every_size_is_listed_and_builds_the_cores_tower() -> None:
    assert set(timm.list_models("diff_vit*")) == set(SIZES)
    for name in ("diff_vit_tiny_patch16_224", "diff_vit_base_patch32_224"):
        vision = named_config(f"DiffCLIP-{SIZES[name]}").vision
        assert str(vision.patch_size) in name
        with torch.device("meta"):
            tower = timm.create_model(name, num_classes=0)
            core = build_vision(vision.model_copy(update={"norm_eps": 1e-6}))
        shapes = {key: value.shape for key, value in tower.state_dict().items()}
        assert shapes == {key: value.shape for key, value in core.state_dict().items()}
        assert tower.blocks[0].attn.num_heads == vision.heads
        assert tower.pretrained_cfg["mean"] == (0.485, 0.456, 0.406)


@torch.no_grad()
def test_a_copy_gives_the_cores_numbers(dynamic, images) -> None:
    tower = from_diffclip(dynamic, num_classes=0)
    assert_close(tower(images), dynamic.visual(images))
    embeddings = from_diffclip(dynamic)  # the projection is the head
    assert_close(embeddings(images), dynamic.encode_image(images))
    assert "state_dict" not in embeddings.pretrained_cfg
    embeddings.head.weight.zero_()
    assert dynamic.image_projection.any()


@pytest.mark.parametrize("resize", [None, 40, 93, "squash"])
@torch.no_grad()
def test_images_are_prepared_as_in_the_core(resize) -> None:
    preprocess = {"mean": (0.4, 0.5, 0.6), "interpolation": "bicubic", "resize": resize}
    model = tiny_clip(preprocess=preprocess)
    tower = from_diffclip(model)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(tower))
    # at other image sizes, the crop keeps its share of the edge
    assert int(14 * 32 / tower.pretrained_cfg["crop_pct"]) == 14 * (resize if isinstance(resize, int) else 32)
    image = Image.effect_noise((70, 50), 80).convert("RGB")
    torch.testing.assert_close(transform(image), EvalTransform(32, model.config.preprocess)(image))


@torch.no_grad()
def test_another_image_size_resamples_positions(dynamic, images) -> None:
    larger = torch.nn.functional.interpolate(images, (48, 48))
    model = copy.deepcopy(dynamic)
    model.set_image_size(48)
    core = model.visual(larger)
    assert_close(from_diffclip(dynamic, num_classes=0, img_size=48)(larger), core)
    assert_close(from_diffclip(dynamic, num_classes=0, dynamic_img_size=True)(larger), core)
    tower = from_diffclip(dynamic, num_classes=0)
    tower.set_input_size(img_size=(48, 48))
    assert_close(tower(larger), core)


@torch.no_grad()
def test_timm_saves_it_and_loads_it_unchanged(dynamic, images, tmp_path) -> None:
    timm.models.save_for_hf(from_diffclip(dynamic, num_classes=0), tmp_path / "saved")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'saved'}", pretrained=True).eval()
    assert_close(loaded(images), dynamic.visual(images))


@pytest.mark.parametrize("kind", ["softmax", "differential-added", "gated"])
@torch.no_grad()
def test_other_attention_kinds_match_the_core(kind, images) -> None:
    vision = {"attention": kind, "pre_norm": True, "patch_bias": False, "activation": "quick_gelu"}
    vision["registers"] = 2 if kind == "gated" else 0
    core = tiny_clip(vision=vision, lambda_init=0.0 if kind.endswith("added") else 0.8)
    assert_close(from_diffclip(core, num_classes=0)(images), core.visual(images))
    fresh = timm.create_model(BASE, attention=kind, num_classes=5, **TINY).eval()
    assert fresh(images).shape == (2, 5)
    if kind.endswith("added"):
        assert [float(block.attn.current_lambda().detach()) for block in fresh.blocks] == [0.0] * 3


def test_wrong_arguments_are_input_errors() -> None:
    with pytest.raises(InputError, match="unknown attention 'differental'"):
        timm.create_model(BASE, attention="differental", **TINY)
    with pytest.raises(InputError, match='neither a number nor "dynamic"'):
        timm.create_model(BASE, lambda_init="dynamically", **TINY)
    sizes = {"image_size": 16, "patch_size": 8, "width": 16, "layers": 1, "heads": 2, "pre_norm": True}
    normed = diffclip.CLIPConfig(embed_dim=8, vision=sizes, text={"width": 16, "layers": 1, "heads": 2})
    with pytest.raises(InputError, match="a norm after biased patches"):
        from_diffclip(diffclip.CLIP(normed))


def test_lambda_init_is_used_and_all_weights_are_initialized() -> None:
    tower = timm.create_model(BASE, lambda_init="dynamic", **TINY)
    starts = [block.attn.lambda_init for block in tower.blocks]
    assert starts == pytest.approx([0.2, 0.35551, 0.47071], abs=1e-5)
    assert [block.attn.lambda_init for block in timm.create_model(BASE, **TINY).blocks] == [0.8] * 3
    for start in ("", "jax"):
        tower = timm.create_model(BASE, weight_init=start, fix_init=True, **TINY)
        attn = tower.blocks[1].attn
        assert attn.diff_norm.weight.eq(1).all()
        assert 0.02 < float(attn.lambda_q1.detach().std()) < 0.3
    with torch.device("meta"):
        tower = timm.create_model(BASE, weight_init="skip", **TINY)
    tower = tower.to_empty(device="cpu")
    for parameter in tower.parameters():
        parameter.data.fill_(torch.nan)
    tower.init_weights("", needs_reset=True)
    assert all(parameter.isfinite().all() for parameter in tower.parameters())


def test_heads_pooling_and_features(dynamic, images) -> None:
    tower = from_diffclip(dynamic, num_classes=7)
    assert tower(images).shape == (2, 7)
    tower.reset_classifier(3, "avg")
    assert tower(images).shape == (2, 3)
    assert tower.get_classifier().out_features == 3
    averaged = from_diffclip(dynamic, num_classes=0, global_pool="avg")
    torch.testing.assert_close(averaged.fc_norm.weight, dynamic.visual.norm.weight)
    for pooled in (averaged, from_diffclip(dynamic, num_classes=0, global_pool="map")):
        assert pooled(images).shape == (2, 32)

    features = from_diffclip(dynamic, features_only=True, out_indices=(0, 2))
    maps = features(images)
    assert [tuple(map.shape) for map in maps] == [(2, 32, 4, 4)] * 2
    assert features.feature_info.channels() == [32, 32]
    expected = dynamic.visual.forward_intermediates(images, indices=[0, 2], intermediates_only=True)
    assert_close(maps, expected)
    _, intermediates = tower.forward_intermediates(images, indices=2)
    assert_close(intermediates[-1], expected[-1])
    assert from_diffclip(dynamic, in_chans=1, num_classes=0)(images[:, :1]).shape == (2, 32)


def test_nodes_of_its_graph_can_be_extracted(dynamic, images) -> None:
    extract = create_feature_extractor(from_diffclip(dynamic, num_classes=0), ["blocks.1.add_1"])
    (tokens,) = extract(images).values()
    expected = dynamic.visual.forward_intermediates(images, indices=[1], intermediates_only=True)[0]
    assert_close(tokens[:, 1:].mT.reshape(2, 32, 4, 4), expected)


def test_training_with_drops_and_checkpointing(images) -> None:
    names = ("drop", "pos_drop", "patch_drop", "proj_drop", "drop_path")
    rates = [f"{name}_rate" for name in names]
    tower = timm.create_model(BASE, num_classes=4, **TINY, **dict.fromkeys(rates, 0.2)).train()
    assert not torch.equal(tower(images), tower(images))

    tower = timm.create_model(BASE, num_classes=4, **TINY).train()
    groups = param_groups_weight_decay(tower, 0.1, tower.no_weight_decay())
    assert sum(len(group["params"]) for group in groups) == len(list(tower.parameters()))
    gradients = []
    for checkpointing in (False, True):
        tower.set_grad_checkpointing(checkpointing)
        tower.zero_grad()
        tower(images).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in tower.parameters()])
    torch.testing.assert_close(*gradients)

"""Our towers in timm: its conventions hold, and the numbers are those of the core's vision tower."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from timm.models import create_feature_extractor
from timm.optim import param_groups_weight_decay

import diffclip
import diffclip.integrations.timm
from diffclip.config import named_config
from diffclip.errors import InputError
from diffclip.published import to_published
from diffclip.towers import build_vision
from diffclip.weights import save_published

NAMES = diffclip.integrations.timm.SIZES
BASE = "diff_vit_base_patch16_224"
TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 4}


def tiny_clip(**changes) -> diffclip.CLIP:
    config = diffclip.CLIPConfig(
        embed_dim=24,
        vision={"image_size": 32, "patch_size": 8, "width": 32, "layers": 3, "heads": 4}
        | {"attention": "differential"}
        | changes.pop("vision", {}),
        text={"context_length": 12, "width": 16, "layers": 1, "heads": 2},
        **changes,
    )
    return diffclip.CLIP(config, seed=3).eval()


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory) -> tuple[diffclip.CLIP, Path]:
    """A model whose λ_init, epsilon and statistics are none of the defaults, and its saved folder."""
    model = tiny_clip(
        lambda_init="dynamic",
        vision={"norm_eps": 1e-3},
        preprocess={"mean": (0.4, 0.5, 0.6), "interpolation": "bicubic", "resize": 40},
    )
    folder = tmp_path_factory.mktemp("dynamic")
    diffclip.save_weights(model, folder)
    return model, folder


def from_file(file: Path | str, **options) -> torch.nn.Module:
    return timm.create_model(
        BASE, pretrained=True, pretrained_cfg_overlay={"file": str(file)}, **(TINY | options)
    ).eval()


def assert_close(ours: torch.Tensor, core: torch.Tensor) -> None:
    torch.testing.assert_close(ours, core, rtol=0, atol=1e-5)


def test_every_size_is_listed_and_is_the_core_s_tower() -> None:
    assert set(timm.list_models("diff_vit*")) == set(NAMES)
    for name, size in NAMES.items():
        vision = named_config(f"DiffCLIP-{size}").vision
        assert str(vision.patch_size) in name
        with torch.device("meta"):
            tower = timm.create_model(name, num_classes=0)
            core = build_vision(vision.model_copy(update={"norm_eps": 1e-6}))
        shapes = {key: value.shape for key, value in tower.state_dict().items()}
        assert shapes == {key: value.shape for key, value in core.state_dict().items()}
        assert tower.blocks[0].attn.num_heads == vision.heads
        assert tower.pretrained_cfg["mean"] == (0.485, 0.456, 0.406)


@torch.no_grad()
def test_a_saved_folder_gives_the_core_s_numbers(dynamic, pictures) -> None:
    model, folder = dynamic
    tower = from_file(folder, num_classes=0)
    assert_close(tower(pictures), model.visual(pictures))
    embeddings = from_file(folder)  # the projection is the head
    assert_close(embeddings(pictures), model.encode_image(pictures))
    assert "state_dict" not in embeddings.pretrained_cfg


@pytest.mark.parametrize("resize", [None, 40, "squash"])
@torch.no_grad()
def test_images_are_prepared_as_the_core_does(tmp_path, resize) -> None:
    preprocess = {"mean": (0.4, 0.5, 0.6), "interpolation": "bicubic", "resize": resize}
    diffclip.save_weights(tiny_clip(preprocess=preprocess), tmp_path)
    tower = from_file(tmp_path)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(tower))
    image = Image.effect_noise((70, 50), 80).convert("RGB")
    torch.testing.assert_close(transform(image), diffclip.load(tmp_path)[1](image))


@torch.no_grad()
def test_another_picture_size_resamples_positions(dynamic, pictures) -> None:
    _, folder = dynamic
    larger = torch.nn.functional.interpolate(pictures, (48, 48))
    core = diffclip.load(folder, image_size=48)[0].visual(larger)
    assert_close(from_file(folder, num_classes=0, img_size=48)(larger), core)
    assert_close(from_file(folder, num_classes=0, dynamic_img_size=True)(larger), core)
    tower = from_file(folder, num_classes=0)
    tower.set_input_size(img_size=(48, 48))
    assert_close(tower(larger), core)


@torch.no_grad()
def test_published_files_are_read_without_running_them(tmp_path, pictures) -> None:
    core = tiny_clip()
    core.set_vision_norm_eps(1e-5)
    published = tmp_path / "checkpoint_best.pt"
    state = {f"module.{name}": value for name, value in to_published(core.state_dict(), core.config).items()}
    torch.save({"state_dict": state, "args": argparse.Namespace(lr=1), "path": Path("x")}, published)
    assert_close(from_file(published, num_classes=0)(pictures), core.visual(pictures))

    bare = tmp_path / "bare.pt"
    save_published(core, bare)
    tower = timm.create_model(BASE, num_classes=24, checkpoint_path=str(bare), **TINY).eval()
    assert_close(tower(pictures), core.encode_image(pictures))

    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    torch.save({"state_dict": state, "args": Hostile()}, published)
    with pytest.raises(InputError, match="wants to run"):
        from_file(published)
    with pytest.raises(Exception, match="weights_only"):
        timm.create_model(BASE, checkpoint_path=str(published), **TINY)
    assert not (tmp_path / "pwned").exists()


@torch.no_grad()
def test_a_run_folder_and_timm_s_own_reader(tmp_path, pictures) -> None:
    core = tiny_clip()
    checkpoint = tmp_path / "run" / "checkpoints" / "best"
    diffclip.save_weights(core, checkpoint)
    assert_close(from_file(tmp_path / "run", num_classes=0)(pictures), core.visual(pictures))
    tower = timm.create_model(BASE, checkpoint_path=str(checkpoint / "model.safetensors"), **TINY).eval()
    assert_close(tower.forward_head(tower.forward_features(pictures), pre_logits=True), core.visual(pictures))
    assert tower(pictures).shape == (2, 1000)


@torch.no_grad()
def test_timm_saves_it_and_loads_it_as_it_was(dynamic, pictures, tmp_path) -> None:
    model, folder = dynamic
    tower = from_file(folder, num_classes=0)
    arguments = TINY | {"num_classes": 0} | tower._model_args
    timm.models.save_for_hf(tower, tmp_path / "saved", model_args=arguments)
    again = timm.create_model(f"local-dir:{tmp_path / 'saved'}", pretrained=True).eval()
    assert_close(again(pictures), model.visual(pictures))


@pytest.mark.parametrize("kind", ["softmax", "differential-v2", "differential-added", "gated"])
@torch.no_grad()
def test_other_attention(kind, tmp_path, pictures) -> None:
    vision = {"attention": kind, "pre_norm": True, "patch_bias": False, "activation": "quick_gelu"}
    core = tiny_clip(vision=vision, lambda_init=0.0 if kind.endswith("added") else 0.8)
    diffclip.save_weights(core, tmp_path)
    assert_close(from_file(tmp_path, num_classes=0)(pictures), core.visual(pictures))
    fresh = timm.create_model(BASE, attention=kind, num_classes=5, **TINY).eval()
    assert fresh(pictures).shape == (2, 5)
    if kind.endswith("added"):
        assert [float(block.attn.current_lambda().detach()) for block in fresh.blocks] == [0.0] * 3


def test_other_weights_than_those_asked_for(dynamic, tmp_path) -> None:
    _, folder = dynamic
    with pytest.raises(InputError, match="lambda_init='dynamic': give lambda_init='dynamic'"):
        from_file(folder, lambda_init=0.8)
    with pytest.raises(InputError, match=r"depth=3.*give.*depth=3"):
        from_file(folder, depth=2)
    with pytest.raises(InputError, match=r"another kind: .* names differ"):
        timm.create_model(
            BASE, attention="softmax", checkpoint_path=str(folder / "model.safetensors"), **TINY
        )
    with pytest.raises(InputError, match="does not exist"):
        from_file(tmp_path / "no.safetensors")
    with pytest.raises(RuntimeError, match="No pretrained weights exist"):
        timm.create_model(BASE, pretrained=True, **TINY)
    with pytest.raises(InputError, match="unknown attention 'differental'"):
        timm.create_model(BASE, attention="differental", **TINY)
    with pytest.raises(InputError, match='neither a number nor "dynamic"'):
        timm.create_model(BASE, lambda_init="dynamically", **TINY)


def test_lambda_init_and_the_start() -> None:
    tower = timm.create_model(BASE, lambda_init="dynamic", **TINY)
    assert [block.attn.lambda_init for block in tower.blocks] == pytest.approx(
        [0.2, 0.35551, 0.47071], abs=1e-5
    )
    assert [block.attn.lambda_init for block in timm.create_model(BASE, **TINY).blocks] == [0.8] * 3
    for start in ("", "jax", "moco"):
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


def test_heads_pooling_and_features(dynamic, pictures) -> None:
    model, folder = dynamic
    tower = from_file(folder, num_classes=7)
    assert tower(pictures).shape == (2, 7)
    tower.reset_classifier(3, "avg")
    assert tower(pictures).shape == (2, 3)
    assert tower.get_classifier().out_features == 3
    averaged = from_file(folder, num_classes=0, global_pool="avg")
    tokens = model.visual.forward_features(pictures)
    torch.testing.assert_close(averaged.fc_norm.weight, model.visual.norm.weight)
    assert averaged(pictures).shape == tokens[:, 0].shape
    assert from_file(folder, num_classes=0, global_pool="map")(pictures).shape == (2, 32)

    features = from_file(folder, features_only=True, out_indices=(0, 2))
    maps = features(pictures)
    assert [tuple(map.shape) for map in maps] == [(2, 32, 4, 4)] * 2
    assert features.feature_info.channels() == [32, 32]
    expected = model.visual.forward_intermediates(pictures, indices=[0, 2], intermediates_only=True)
    for ours, core in zip(maps, expected, strict=True):
        assert_close(ours, core)
    _, intermediates = tower.forward_intermediates(pictures, indices=2)
    assert_close(intermediates[-1], expected[-1])
    assert from_file(folder, in_chans=1, num_classes=0)(pictures[:, :1]).shape == (2, 32)


def test_nodes_of_its_graph_can_be_taken_out(dynamic, pictures) -> None:
    model, folder = dynamic
    extract = create_feature_extractor(from_file(folder, num_classes=0), ["blocks.1.add_1"])
    (tokens,) = extract(pictures).values()
    expected = model.visual.forward_intermediates(pictures, indices=[1], intermediates_only=True)[0]
    assert_close(tokens[:, 1:].mT.reshape(2, 32, 4, 4), expected)


def test_training_with_drops_and_checkpointing(pictures) -> None:
    rates = (
        "drop_rate",
        "pos_drop_rate",
        "patch_drop_rate",
        "proj_drop_rate",
        "attn_drop_rate",
        "drop_path_rate",
    )
    tower = timm.create_model(BASE, num_classes=4, **TINY, **dict.fromkeys(rates, 0.2)).train()
    assert not torch.equal(tower(pictures), tower(pictures))

    tower = timm.create_model(BASE, num_classes=4, **TINY).train()
    groups = param_groups_weight_decay(tower, 0.1, tower.no_weight_decay())
    assert sum(len(group["params"]) for group in groups) == len(list(tower.parameters()))
    gradients = []
    for checkpointing in (False, True):
        tower.set_grad_checkpointing(checkpointing)
        tower.zero_grad()
        tower(pictures).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in tower.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)

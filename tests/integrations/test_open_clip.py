"""Our models in open_clip: its functions give the core's numbers, and its training program trains them."""

import argparse
import json
import logging
import subprocess
import sys
from pathlib import Path

import open_clip
import pytest
import torch
import torch.nn.functional as F
from open_clip import factory
from open_clip.loss import ClipLoss, SigLipLoss
from PIL import Image

import diffclip
from diffclip.config import model_names
from diffclip.errors import InputError
from diffclip.integrations.open_clip import register, run_command
from diffclip.published import to_published

TEXTS = ["a red circle", "two blue squares", "nothing at all"]


def tiny_config(**changes) -> diffclip.CLIPConfig:
    tower = {"width": 32, "layers": 2, "heads": 4, "attention": "differential"}
    return diffclip.CLIPConfig(
        embed_dim=24,
        vision=tower | {"image_size": 32, "patch_size": 16} | changes.pop("vision", {}),
        text=tower | {"context_length": 20} | changes.pop("text", {}),
        **changes,
    )


CONFIG = tiny_config(lambda_init="dynamic", preprocess={"mean": (0.4, 0.5, 0.6), "interpolation": "bicubic"})
FIXED = tiny_config()


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Register our models and two small models; restore open_clip afterwards."""
    before = factory.create_model
    register({"ViT-tiny": CONFIG, "ViT-tiny-fixed": FIXED})
    yield
    factory.create_model = open_clip.create_model = before


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A saved folder whose epsilon is not the default."""
    model = diffclip.CLIP(CONFIG, seed=1)
    model.set_vision_norm_eps(1e-3)
    folder = tmp_path_factory.mktemp("saved")
    diffclip.save_weights(model, folder)
    return folder


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def assert_same(ours, core: diffclip.CLIP, images: torch.Tensor) -> None:
    tokens = diffclip.tokenizer.Tokenizer(core.config.text)(TEXTS)
    features, wanted = ours.eval().encode_image(images), core.encode_image(images)
    torch.testing.assert_close(features, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.encode_text(tokens), core.encode_text(tokens), rtol=0, atol=1e-5)
    assert ours.config == core.config


def test_our_models_are_registered_once_and_open_clips_models_still_work(tmp_path) -> None:
    assert set(model_names()) <= set(open_clip.list_models())
    before, names = open_clip.create_model, open_clip.list_models()
    register()
    register({"ViT-tiny": CONFIG})
    assert open_clip.create_model is before is factory.create_model
    assert open_clip.list_models() == names
    small = {"width": 32, "layers": 1, "patch_size": 16, "image_size": 32, "head_width": 16}
    text = {"width": 32, "layers": 1, "heads": 2, "context_length": 8, "vocab_size": 64}
    (tmp_path / "theirs.json").write_text(json.dumps({"embed_dim": 8, "vision_cfg": small, "text_cfg": text}))
    open_clip.add_model_config(tmp_path / "theirs.json")
    assert type(open_clip.create_model("theirs")) is open_clip.CLIP
    with pytest.raises(RuntimeError, match="not found"):
        open_clip.create_model("no-such-model")


def test_taken_or_misread_names_and_other_open_clip_versions_are_refused(monkeypatch) -> None:
    for name in ("ViT-B-32", "DiffCLIP-ViT-B-16"):
        with pytest.raises(InputError, match="already: take another name"):
            register({name: CONFIG})
    with pytest.raises(InputError, match="would misread"):
        register({"tiny-siglip": CONFIG})
    monkeypatch.setattr(factory, "create_model", lambda name: None)
    with pytest.raises(InputError, match=r"open_clip_torch .* in another way"):
        register()


def test_weights_and_transforms_of_a_saved_folder_match_the_core(folder, images, tmp_path) -> None:
    core, preprocess, tokenizer = diffclip.load(folder)
    for source in (folder, folder / "model.safetensors"):
        model, train, evaluation = open_clip.create_model_and_transforms("ViT-tiny", pretrained=str(source))
        assert_same(model, core, images)
    image = Image.effect_noise((70, 50), 80).convert("RGB")
    torch.testing.assert_close(evaluation(image), preprocess(image))
    assert train(image).shape == (3, 32, 32)
    assert torch.equal(open_clip.get_tokenizer("ViT-tiny")(TEXTS), tokenizer(TEXTS))
    options = {"pretrained": str(folder), "image_mean": (0.1, 0.2, 0.3)}
    model, evaluation = open_clip.create_model_from_pretrained("ViT-tiny", **options)
    assert evaluation.transforms[-1].mean == model.config.preprocess.mean == (0.1, 0.2, 0.3)
    core.config.preprocess.resize = "squash"
    diffclip.save_weights(core, tmp_path)
    _, _, evaluation = open_clip.create_model_and_transforms("ViT-tiny", str(tmp_path))
    torch.testing.assert_close(evaluation(image), diffclip.load(tmp_path)[1](image))
    with pytest.raises(InputError, match="resize_mode longest cannot be given"):
        open_clip.create_model("ViT-tiny", str(tmp_path), force_preprocess_cfg={"resize_mode": "longest"})


def test_run_folders_and_published_files_load_with_the_cores_numbers(tmp_path, images) -> None:
    # models converted from OpenAI's have QuickGELU and the same name
    core = diffclip.CLIP(tiny_config(vision={"activation": "quick_gelu"}), seed=2).eval()
    diffclip.save_weights(core, tmp_path / "run" / "checkpoints" / "last")
    assert_same(open_clip.create_model("ViT-tiny-fixed", str(tmp_path / "run")), core, images)

    core = diffclip.CLIP(FIXED, seed=2).eval()
    core.set_vision_norm_eps(1e-5)
    state = {f"module.{name}": value for name, value in to_published(core.state_dict(), core.config).items()}
    published = tmp_path / "checkpoint_best.pt"
    torch.save({"state_dict": state, "args": argparse.Namespace(lr=1)}, published)
    assert_same(open_clip.create_model("ViT-tiny-fixed", str(published)), core, images)


def test_another_image_size_matches_the_core_or_is_refused(folder, images) -> None:
    core = diffclip.load(folder, image_size=48)[0]
    larger = F.interpolate(images, (48, 48))
    options = {"pretrained": str(folder), "force_image_size": 48}
    model, _, evaluation = open_clip.create_model_and_transforms("ViT-tiny", **options)
    assert_same(model, core, larger)
    assert evaluation.transforms[1].size == (48, 48)
    assert open_clip.create_model("ViT-tiny", force_image_size=48).config.vision.image_size == 48
    with pytest.raises(InputError, match="not a multiple"):
        open_clip.create_model("ViT-tiny", force_image_size=40)
    with pytest.raises(InputError, match=r"image_size: \(32, 48\) is not a whole number"):
        open_clip.create_model("ViT-tiny", force_image_size=(32, 48))


@pytest.mark.parametrize("precision", ["fp16", "pure_bf16"])
@torch.no_grad()
def test_half_precision(precision, folder, images) -> None:
    core = diffclip.load(folder)[0]
    model = open_clip.create_model("ViT-tiny", str(folder), precision=precision).eval()
    dtype = open_clip.get_input_dtype(precision)
    features = model.encode_image(images.to(dtype), normalize=True)
    assert features.dtype == dtype
    assert model.visual.blocks[0].attn.lambda_q1.dtype == torch.float32
    torch.testing.assert_close(model.logit_scale, core.logit_scale, rtol=0, atol=0)
    assert F.cosine_similarity(features.float(), core.encode_image(images)).min() > 0.999


def test_model_outputs_fit_open_clips_losses(images) -> None:
    tokens = open_clip.get_tokenizer("ViT-tiny")(TEXTS)
    model = open_clip.create_model("ViT-tiny", output_dict=True, pretrained_hf=False)
    out = model(images, tokens)
    assert set(out) == {"image_features", "text_features", "logit_scale"}
    ClipLoss()(**out, output_dict=True)["contrastive_loss"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert {"positional_embedding", "visual.pos_embed"} <= model.no_weight_decay()
    assert model(image=images)["text_features"] is None

    model = open_clip.create_model("ViT-tiny", init_logit_scale=1.5, init_logit_bias=-10)
    image, text, scale, bias = model(images, tokens)
    assert (round(scale.log().item(), 4), bias.item()) == (1.5, -10)
    SigLipLoss()(image, text, scale, bias).backward()


def test_wrong_options_and_weights_are_input_errors(folder) -> None:
    wrong_image = {"force_preprocess_cfg": {"interpolation": "lanczos"}}
    for name, options, message in (
        ("-fixed", {"pretrained": str(folder)}, "holds DiffCLIP-dynamic-.*, not DiffCLIP-v"),
        ("", {"pretrained": "openai"}, "openai does not exist: give a run folder"),
        ("", {"jit": True, "bias": 3}, "bias, jit cannot be given for ViT-tiny"),
        ("", {"force_patch_dropout": 7.0}, "patch_dropout: 7.0 is not below 1"),
        ("", wrong_image, "images of ViT-tiny: preprocess.interpolation: choose"),
    ):
        with pytest.raises(InputError, match=message):
            open_clip.create_model(f"ViT-tiny{name}", **options)
    with pytest.raises(InputError, match="ViT-tiny has no weights"):
        open_clip.create_model_from_pretrained("ViT-tiny")
    with pytest.raises(InputError, match="'DiffCLIP-ViT-B16': did you mean 'DiffCLIP-ViT-B-16'"):
        run_command(["--model=DiffCLIP-ViT-B16"])


@pytest.fixture
def their_logs():
    """Restore the root logger, since open_clip's program leaves its handlers there."""
    root = logging.getLogger()
    handlers, level, children = root.handlers[:], root.level, dict(root.manager.loggerDict)
    levels = {name: logger.level for name, logger in children.items() if isinstance(logger, logging.Logger)}
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    for name in list(root.manager.loggerDict):
        logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))


@pytest.mark.usefixtures("their_logs")
def test_its_program_trains_evaluates_and_resumes(scenes, tmp_path, monkeypatch, images) -> None:
    monkeypatch.chdir(tmp_path)
    shard = scenes / "captions" / "train" / "0.tar"
    data = f"--train-data {shard} --val-data {shard} --train-num-samples 32 --val-num-samples 32"
    data += " --dataset-type webdataset"
    settings = "--workers 0 --batch-size 8 --warmup 1 --lr 1e-3 --logs logs --name run --zeroshot-frequency 0"
    settings += " --precision amp_bf16 --accum-freq 2 --siglip --grad-checkpointing"
    options = f"{data} {settings}".split()
    assert run_command(["--model", "ViT-tiny", *options, "--epochs", "1"]) == 0
    assert run_command(["--model=ViT-tiny", *options, "--epochs", "2", "--resume", "latest"]) == 0
    checkpoints = tmp_path / "logs" / "run" / "checkpoints"
    results = [json.loads(line) for line in (checkpoints / "results.jsonl").read_text().splitlines()]
    assert [result["epoch"] for result in results] == [1, 2]
    assert "resuming checkpoint" in (tmp_path / "logs" / "run" / "out.log").read_text()

    trained = diffclip.load(checkpoints / "epoch_2.pt")[0]
    assert trained.config == CONFIG.model_copy(update={"vision": trained.config.vision, "logit_bias": True})
    assert not torch.equal(trained.logit_scale, diffclip.load(checkpoints / "epoch_1.pt")[0].logit_scale)
    assert_same(open_clip.create_model("ViT-tiny", str(checkpoints / "epoch_2.pt")), trained, images)
    resumed = ["--name", "b", "--resume", str(checkpoints / "epoch_2.pt")]
    with pytest.raises(InputError, match=r"lambda_init dynamic for 0\.8"):
        run_command(["--model", "ViT-tiny-fixed", *options, *resumed])


@pytest.mark.slow
def test_the_program_reports_an_error_in_one_line(tmp_path) -> None:
    command = [sys.executable, "-m", "diffclip.integrations.open_clip", "--model", "ViT-Q"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert refused.stderr.startswith("diffclip: ")

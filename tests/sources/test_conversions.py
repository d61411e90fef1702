"""Convert models and files of open_clip and transformers to ours and back: equal outputs, and refused models."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import in_process
import pytest
import torch
from in_process import diffclip_command
from PIL import Image
from safetensors.torch import load_file, save_file

import diffclip
from diffclip import CLIP, InputError
from diffclip.config import name_of, variant_of
from diffclip.preprocess import EvalTransform
from diffclip.sources.conversion import to_differential
from diffclip.sources.load import load_clip, load_with_origin, read_config
from diffclip.sources.open_clip import from_open_clip
from diffclip.sources.transformers import from_transformers
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


def same(ours: CLIP, images: torch.Tensor, texts: torch.Tensor | None = None) -> None:
    torch.testing.assert_close(ours.encode_image(IMAGES), images, rtol=1e-5, atol=1e-5)
    if texts is not None:
        torch.testing.assert_close(ours.encode_text(TOKENS), texts, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"quick_gelu": True},
        {"vision": {"no_ln_pre": True}},
        {"custom": True},
        {"init_logit_bias": -10.0},
    ],
    ids=["gelu", "quickgelu", "no pre-norm", "custom text", "logit bias"],
)
def test_open_clip_models_keep_their_numbers_through_both_steps(how: dict[str, Any], tmp_path) -> None:
    model = open_clip_model(**how)
    ours = from_open_clip(model)
    with torch.no_grad():
        images, texts = model.encode_image(IMAGES), model.encode_text(TOKENS)
        same(ours, images, texts)
        assert variant_of(ours.config) == "CLIP"
        assert ours.config.vision.pre_norm is not how.get("vision", {}).get("no_ln_pre", False)
        differential = to_differential(ours)
        same(differential, images, texts)
        assert variant_of(differential.config) == "DiffCLIP-added"
        save_weights(differential, tmp_path / "saved")
        loaded = load_weights(CLIP(differential.config, seed=1), tmp_path / "saved")
        same(loaded, images, texts)


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_transformers_models_keep_their_numbers(activation: str) -> None:
    model = transformers_model(vision={"hidden_act": activation}, text={"hidden_act": activation})
    ours = from_transformers(model)
    with torch.no_grad():
        images, texts = model.get_image_features(IMAGES), model.get_text_features(TOKENS)
        same(to_differential(ours), images.pooler_output, texts.pooler_output)
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
def test_unsupported_open_clip_models_are_refused_with_the_reason(how: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        from_open_clip(open_clip_model(**how), "their model")


def test_unsupported_transformers_models_are_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="activation relu"):
        from_transformers(transformers_model(vision={"hidden_act": "relu"}))
    with pytest.raises(InputError, match="text features would differ"):
        from_transformers(transformers_model(text={"layer_norm_eps": 0.1}))
    with pytest.raises(InputError, match="the kind 'Linear' instead of 'clip'"):
        from_transformers(torch.nn.Linear(2, 2))


def test_texts_that_do_not_end_with_the_largest_id_are_refused() -> None:
    message = "takes text features at the id 5, not the largest of 50"
    with pytest.raises(InputError, match=message):
        from_transformers(transformers_model(text={"eos_token_id": 5}), "their model")
    old = from_transformers(transformers_model(text={"eos_token_id": 2}))  # 2 means the largest id
    model = transformers_model()
    with torch.no_grad():
        torch.testing.assert_close(old.encode_text(TOKENS), model.get_text_features(TOKENS).pooler_output)


call = partial(in_process.call, "convert")


def test_a_transformers_folder_is_converted_to_a_differential_model(tmp_path: Path) -> None:
    from transformers import CLIPImageProcessor

    model = transformers_model()
    model.save_pretrained(tmp_path / "theirs")
    size, edge = IMAGES.shape[-1], {"shortest_edge": IMAGES.shape[-1] + 2}
    crop = {"height": size, "width": size}
    images = CLIPImageProcessor(size=edge, crop_size=crop, resample=2, image_mean=[0.1, 0.2, 0.3])
    images.save_pretrained(tmp_path / "theirs")
    out, err = call(f"transformers:{tmp_path / 'theirs'}", tmp_path / "ours", "--to-differential")
    assert "DiffCLIP-added-v32x2x4p8-t24x2x3" in out
    assert err == ""
    ours, preprocess, _ = diffclip.load(tmp_path / "ours")
    config = preprocess.preprocess
    assert config.mean == (0.1, 0.2, 0.3)
    assert (config.resize, config.interpolation) == (size + 2, "bilinear")
    same(ours, model.get_image_features(IMAGES).pooler_output)
    with pytest.raises(InputError, match="differential-added attention already"):
        call(tmp_path / "ours", tmp_path / "twice", "--to-differential")
    with pytest.raises(InputError, match="no published layout"):
        call(tmp_path / "ours", tmp_path / "ours.pt")


def test_weights_in_half_precision_are_read_in_float32(tmp_path: Path, capsys) -> None:
    model = transformers_model()
    model.half().save_pretrained(tmp_path / "half")
    ours = load_clip(f"transformers:{tmp_path / 'half'}")[0]
    assert "no image processor: images are prepared as OpenAI's" in capsys.readouterr().err
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    same(ours, model.float().get_image_features(IMAGES).pooler_output)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write weights of an architecture "tiny" with GELU; its tag "squashed" has QuickGELU and other preprocessing."""
    import open_clip
    from open_clip import factory, pretrained

    (tmp_path / "tiny.json").write_text(json.dumps({"embed_dim": 16, "vision_cfg": VISION, "text_cfg": TEXT}))
    open_clip.add_model_config(tmp_path / "tiny.json")
    torch.save(open_clip_model().state_dict(), tmp_path / "weights.pt")
    tag = {"quick_gelu": True, "resize_mode": "squash", "interpolation": "bilinear", "mean": (0.1, 0.2, 0.3)}
    monkeypatch.setitem(pretrained._PRETRAINED, "tiny", {"squashed": tag})
    monkeypatch.setattr(factory, "download_pretrained", lambda *_, **__: str(tmp_path / "weights.pt"))
    return tmp_path / "weights.pt"


@pytest.mark.parametrize("between", ["/", ":"])
def test_open_clip_weights_are_read_by_architecture_and_file(tiny: Path, between: str) -> None:
    ours, model = load_clip(f"open_clip:tiny{between}{tiny}")[0], open_clip_model()
    same(ours, model.encode_image(IMAGES))
    assert (ours.config.preprocess.resize, ours.config.preprocess.interpolation) == (None, "bicubic")
    half = tiny.with_name("half.pt")
    half.write_bytes(tiny.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"half\.pt cannot be read"):
        load_clip(f"open_clip:tiny/{half}")


def test_a_tag_decides_the_activation_and_the_preprocessing(tiny: Path, capsys) -> None:
    import open_clip

    ours, model = load_clip("open_clip:tiny/Squashed")[0], open_clip_model(quick_gelu=True)
    assert "Squashed was trained with QuickGELU, which is taken in place of tiny's" in capsys.readouterr().err
    assert ours.config.vision.activation == ours.config.text.activation == "quick_gelu"
    same(ours, model.encode_image(IMAGES))
    _, _, theirs = open_clip.create_model_and_transforms("tiny", "squashed", quick_gelu=True)
    image = Image.effect_noise((70, 50), 80).convert("RGB")
    transform = EvalTransform(32, ours.config.preprocess)
    torch.testing.assert_close(transform(image), theirs(image))
    assert transform.preprocess.mean == (0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("open_clip:ViT-B-61/openai", "did you mean"),
        ("open_clip:ViT-B-16/nothing", "neither a file nor a tag: give a file, or a tag of ViT-B-16: "),
        ("open_clip:ViT-B-16", "names no weights"),
        (
            "open_clip:ViT-B-16-SigLIP/webli",
            "the vision tower vit_base_patch16_siglip_224 of another library",
        ),
        ("transformers:/no/such/folder", "cannot be read"),
    ],
)
def test_missing_sources_raise_a_one_line_error(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        load_clip(source)
    assert "\n" not in str(error.value)


def test_code_in_weights_is_not_run(tiny: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"state_dict": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(InputError, match="wants to run"):
        load_clip(f"open_clip:tiny:{tmp_path / 'trap.pt'}")
    assert not (tmp_path / "ran").exists()
    (tmp_path / "page.pt").write_text("<!DOCTYPE html>")
    with pytest.raises(InputError, match=r"page\.pt is not a file of torch\.save"):
        load_clip(f"open_clip:tiny:{tmp_path / 'page.pt'}")
    with pytest.raises(InputError, match="is a file: give a folder"):
        load_clip(f"transformers:{tmp_path / 'page.pt'}")


def test_every_command_takes_models_of_other_libraries(tiny: Path, tmp_path: Path) -> None:
    """`load_with_origin` converts the models for all commands; `classify` stands for these commands."""
    model = transformers_model(text={"vocab_size": 49408, "eos_token_id": 49407})
    model.save_pretrained(tmp_path / "theirs")
    theirs, image = f"transformers:{tmp_path / 'theirs'}", tmp_path / "image.png"
    Image.effect_noise((40, 40), 80).convert("RGB").save(image)
    with pytest.warns(UserWarning, match="position embeddings are resampled from images of 32 px to 16 px"):
        loaded = load_with_origin(theirs, image_size=16)
    assert (loaded.label, loaded.weights) == (name_of(loaded.model.config), theirs)
    assert (loaded.preprocess.image_size, loaded.model.training) == (16, False)
    assert read_config(theirs) == diffclip.load(theirs)[0].config
    with pytest.raises(InputError, match="leave the model's name out"):
        load_with_origin(f"open_clip:tiny/{tiny}", "CLIP-ViT-B-16")
    done = diffclip_command("classify", image, "--labels", "cat, dog", "--model", theirs)
    assert done.returncode == 0, done.stderr


def test_a_transformers_round_trip_keeps_the_model(model_folder: Path, tmp_path: Path, capfd) -> None:
    """tests/integrations/test_transformers_models.py compares the outputs."""
    model = diffclip.load(model_folder)[0]
    out, _ = call(model_folder, tmp_path / "theirs", "--transformers")
    assert f"{tmp_path / 'theirs'}: DiffCLIP-v16x1x2p8-t16x1x2" in out
    capfd.readouterr()
    call(f"transformers:{tmp_path / 'theirs'}", tmp_path / "back")
    assert capfd.readouterr().err == ""
    loaded = diffclip.load(tmp_path / "back")[0]
    assert loaded.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_impossible_conversions_and_damaged_folders_are_refused(model_folder: Path, tmp_path: Path) -> None:
    for kind, message in (
        ("diffclip_vision_model", "model_type 'diffclip_vision_model', not 'clip'"),
        ("diffclip", "diffclip cannot be read"),
    ):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(InputError, match=message):
            load_clip(f"transformers:{tmp_path / kind}")
    transformers_model().save_pretrained(tmp_path / "cut")
    weights = load_file(tmp_path / "cut" / "model.safetensors")
    del weights["text_projection.weight"]
    save_file(weights, tmp_path / "cut" / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"is damaged, its weights lack text_projection\.weight"):
        load_clip(f"transformers:{tmp_path / 'cut'}")
    with pytest.raises(InputError, match="model_type None"):
        call(f"transformers:{model_folder}", tmp_path / "back")

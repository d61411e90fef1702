"""Both towers in onnxruntime: every kind of attention, any batch and length, and no files after a failed export."""

import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image, ImageOps

import diffclip
from diffclip import CLIP, CLIPConfig, InputError
from diffclip.convert.onnx import OPSET, TOLERANCE, Exported, describe_export, export_onnx, open_session, run
from diffclip.data.transforms import EvalTransform
from diffclip.errors import DiffCLIPError

DOCUMENT = Path(__file__).parents[2] / "docs" / "export.md"
IMAGES = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(7))
TOKENS = torch.tensor([[1, 5, 6, 49, 0, 0, 0, 0], [1, 49, 0, 0, 0, 0, 0, 0], [1, 8, 9, 10, 11, 12, 13, 49]])


def make(vision: str, text: str, vision_more: Any = (), text_more: Any = (), **rest: Any) -> CLIP:
    """Create a tiny model in which every part counts: norms, biases and λ are moved away from their starting values."""
    size = {"width": 16, "layers": 1, "heads": 2}
    image = {**size, "image_size": 16, "patch_size": 8, "attention": vision, **dict(vision_more)}
    words = {**size, "context_length": 8, "vocab_size": 50, "attention": text, **dict(text_more)}
    model = CLIP(CLIPConfig(embed_dim=8, vision=image, text=words, **rest), seed=0)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


OPENAI = {"pre_norm": True, "patch_bias": False}
MODELS: dict[str, Callable[[], CLIP]] = {
    "v1, v2": lambda: make("differential", "differential-v2", lambda_init="dynamic", logit_bias=True),
    "gated": lambda: make("gated", "gated-headwise", {"registers": 2}),
    "added, plain": lambda: make("differential-added", "softmax", OPENAI, {"activation": "gelu"}),
    "v2, v1": lambda: make("differential-v2", "differential", {"activation": "quick_gelu"}),
    "plain, added": lambda: make("softmax", "differential-added", (), {"heads": 3, "width": 24}),
}
FIRST, *OTHERS = MODELS
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]


@pytest.fixture(scope="module", params=[FIRST, *SLOW])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Exported]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        towers = export_onnx(MODELS[request.param](), tmp_path_factory.mktemp("exports") / "model")
    assert out.getvalue() + err.getvalue() == ""  # the libraries print nothing
    return towers


def test_exported_towers_take_any_batch_size_and_text_length(exported: list[Exported]) -> None:
    image, text = exported
    model = image.tower.model
    images, texts = open_session(image.file), open_session(text.file)
    for batch in (IMAGES, IMAGES[:1], IMAGES[:2]):  # 2 is also the number of heads
        wanted = model.encode_image(batch, normalize=True)
        torch.testing.assert_close(run(images, batch), wanted, rtol=0, atol=1e-5)
    for tokens in (TOKENS, TOKENS[:1, :4], TOKENS[:2, :5]):
        wanted = model.encode_text(tokens, normalize=True)
        torch.testing.assert_close(run(texts, tokens), wanted, rtol=0, atol=1e-5)
    assert max(image.error, text.error) < TOLERANCE
    assert [layer.backend for layers in model.attention_layers().values() for layer in layers] == ["auto"] * 2


def test_exported_files_describe_their_inputs_and_not_this_machine(exported: list[Exported]) -> None:
    for export, inputs in zip(exported, (["batch", 3, 16, 16], ["batch", "length"]), strict=True):
        graph = onnx.load(export.file)
        assert {(opset.domain, opset.version) for opset in graph.opset_import} == {("", OPSET)}
        assert {node.domain for node in graph.graph.node} == {""}
        description = {
            value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*graph.graph.input, *graph.graph.output)
        }
        assert description == {export.tower.input: inputs, f"{export.tower.name}_features": ["batch", 8]}
        assert str(Path(diffclip.__file__).parent).encode() not in export.file.read_bytes()
    folder, model = exported[0].file.parent, exported[0].tower.model
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "image.onnx", "text.onnx"]
    description = json.loads((folder / "config.json").read_text())
    assert CLIPConfig.model_validate(description["config"]) == model.config
    assert description["logit_scale"] == pytest.approx(model.logit_scale.exp().item())
    assert (description["logit_bias"] is None) == (not model.config.logit_bias)
    assert description["image"]["resize"] == description["image"]["size"] == 16
    assert description["text"]["tokenizer"] is None  # the tokenizer has more than 50 ids


@pytest.mark.parametrize("resize", [None, 20, "squash"])
def test_the_code_in_export_md_prepares_images_as_the_model_does(resize: Any) -> None:
    model = make("softmax", "softmax", preprocess={"resize": resize, "interpolation": "bicubic"})
    block = re.search(r"^def to_rgb.*?(?=^def encode_texts)", DOCUMENT.read_text(), re.S | re.M)
    assert block
    namespace: dict[str, Any] = {"np": np, "Image": Image, "ImageOps": ImageOps}
    namespace["config"] = describe_export(model, with_tokenizer=False)
    exec(block.group(), namespace)
    ours = EvalTransform(16, model.config.preprocess)
    noise = np.random.default_rng(0).integers(0, 256, (30, 41, 4), np.uint8)
    gray = noise[..., 0].astype(np.uint16) * 250
    for image in (Image.fromarray(noise[..., :3]), Image.fromarray(noise), Image.fromarray(gray)):
        assert np.array_equal(namespace["prepare"](image), ours(image).numpy()), image.mode


@pytest.mark.parametrize("exported", [FIRST], indirect=True)
def test_a_failed_export_leaves_no_files(
    exported: list[Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = MODELS[FIRST]().train(), exported[0].file.parent
    monkeypatch.setattr("diffclip.convert.onnx.TOLERANCE", 1e-12)
    write = "diffclip.convert.onnx._write_tower"  # reuse the towers that are already exported
    monkeypatch.setattr(write, lambda tower, file: shutil.copy(folder / tower.file, file))
    with pytest.raises(DiffCLIPError, match=r"image tower in onnxruntime is .*e-.* from torch where 1e-12"):
        export_onnx(model, tmp_path / "model")
    assert model.training
    with torch.no_grad():
        model.image_projection[0, 0] = float("nan")
    with pytest.raises(InputError, match="image tower gives numbers that are not finite: use other weights"):
        export_onnx(model, tmp_path / "model")
    with pytest.raises(InputError, match=r"torch\.bfloat16 on cpu: move it to the CPU in float32"):
        export_onnx(model.bfloat16(), tmp_path / "model")
    assert not any(tmp_path.iterdir())

"""The program in docs/export.md: onnxruntime gives our features, at another batch size."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import diffclip

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

DOCUMENT = Path(__file__).parents[1] / "docs" / "export.md"


def test_onnxruntime_gives_the_features_of_torch(tmp_path, monkeypatch) -> None:
    size = {"width": 16, "layers": 1, "heads": 2}
    vision = {**size, "image_size": 16, "patch_size": 8, "attention": "differential"}
    text = {**size, "context_length": 8, "attention": "differential-v2"}
    model = diffclip.CLIP(diffclip.CLIPConfig(embed_dim=8, vision=vision, text=text), seed=0)
    diffclip.save_weights(model, tmp_path / "runs/demo/DiffCLIP")
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.S | re.M)
    exec(program, {"__name__": "export"})
    loaded, _, tokenizer = diffclip.load(tmp_path / "runs/demo/DiffCLIP")
    images, tokens = torch.rand(5, 3, 16, 16), tokenizer(["a", "some words", "a red ball"])
    inputs = {"image": (loaded.encode_image, images), "text": (loaded.encode_text, tokens)}
    for name, (encode, batch) in inputs.items():
        session = onnxruntime.InferenceSession(f"{name}.onnx", providers=["CPUExecutionProvider"])
        (features,) = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
        with torch.no_grad():
            expected = encode(batch, normalize=True).numpy()
        np.testing.assert_allclose(features, expected, atol=1e-5)

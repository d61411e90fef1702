"""The models agree with what the published implementations compute, and with our own earlier values."""

from __future__ import annotations

import json
from pathlib import Path

import fill
import numpy as np
import pytest
import torch
from open_clip.loss import ClipLoss

import diffclip
from diffclip.config import named_config, variant_config
from diffclip.published import to_published

OWN = Path(__file__).parent / "golden"
TINY = {
    "embed_dim": 48,
    "vision": {"image_size": 32, "patch_size": 8, "width": 64, "layers": 3, "heads": 4},
    "text": {"vocab_size": 512, "width": 64, "layers": 3, "heads": 4},
}
# golden name → (variant, config, seed, batch, shapes file)
MODELS = {
    "clip_tiny": ("CLIP", None, 1, 4, "clip_tiny"),
    "diffclip_tiny": ("DiffCLIP", None, 1, 4, "diffclip_tiny"),
    "diffclip_tiny_star": ("DiffCLIP-dynamic", None, 1, 4, "diffclip_tiny"),
    "diffclip_tiny_vision_only": ("DiffCLIP-vision", None, 1, 4, "diffclip_tiny_vision_only"),
    "clip_vitb16": ("CLIP", "CLIP-ViT-B-16", 2, 2, "clip_vitb16"),
    "diffclip_vitb16": ("DiffCLIP", "DiffCLIP-ViT-B-16", 2, 2, "diffclip_vitb16"),
}


def compute(name: str, backend: str, folder: Path, scratch: Path) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Embeddings, logit scale, loss, and gradient norms under the published names.

    The model starts with `init="matched"`, and takes the published epsilon by reading a published file.
    """
    variant, named, seed, batch, shapes_file = MODELS[name]
    config = named_config(named) if named else variant_config(variant, TINY)
    shapes = json.loads((folder / f"{shapes_file}.shapes.json").read_text())
    state = {f"module.{key}": fill.weight(seed, key, shape) for key, shape in shapes.items()}
    model = diffclip.CLIP(config, attention_backend=backend, seed=0)
    file = scratch / f"{name}.pt"
    torch.save({"state_dict": state}, file)
    diffclip.load_weights(model, file)

    images = fill.images(seed, batch, config.vision.image_size)
    tokens = fill.tokens(seed, batch, config.text.context_length, config.text.vocab_size)
    out = model(images, tokens)
    loss = ClipLoss()(out["image_features"], out["text_features"], out["logit_scale"])
    loss.backward()
    with torch.no_grad():
        values = {
            "image_embed": model.encode_image(images),
            "text_embed": model.encode_text(tokens),
            "logit_scale": out["logit_scale"],
            "loss": loss,
        }
    gradients = to_published({key: p.grad for key, p in model.named_parameters()}, model.config)
    return (
        {key: value.detach().numpy() for key, value in values.items()},
        {key: float(gradient.double().norm()) for key, gradient in gradients.items()},
    )


def check(name: str, backend: str, folder: Path, scratch: Path) -> None:
    values, norms = compute(name, backend, folder, scratch)
    expected = np.load(folder / f"{name}.npz")
    for key, value in values.items():
        tolerance = 1e-5 * max(1.0, float(np.abs(expected[key]).max()))
        np.testing.assert_allclose(value, expected[key], rtol=0, atol=tolerance, err_msg=key)
    expected_norms = json.loads((folder / f"{name}.grad_norms.json").read_text())
    assert norms.keys() == expected_norms.keys()
    for key, norm in norms.items():
        assert abs(norm - expected_norms[key]) <= max(1e-4 * abs(expected_norms[key]), 1e-6), key


@pytest.mark.parametrize("backend", ["eager", "sdpa", "auto"])
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_the_published_implementations(name: str, backend: str, shared: Path, tmp_path: Path) -> None:
    check(name, backend, shared / "golden", tmp_path)

"""Models with about 20,000 weights for the tests with transformers."""

from typing import Any

import torch

from diffclip import CLIP, CLIPConfig

END = 59


def core(
    vision: str = "differential",
    text: str = "differential",
    tower: dict[str, Any] | None = None,
    vocabulary: int = END + 1,
    context: int = 6,
    **rest: Any,
) -> CLIP:
    """Make a model with about 20,000 weights, none of them 0 or 1, in evaluation mode."""
    sizes = {"image_size": 16, "patch_size": 8, "width": 32, "layers": 2, "heads": 4, "attention": vision}
    words = {"context_length": context, "vocab_size": vocabulary, "width": 16, "layers": 2, "heads": 2}
    towers = {"vision": sizes | (tower or {}), "text": words | {"attention": text}}
    config = CLIPConfig(embed_dim=24, **towers, **rest)
    model = CLIP(config, seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def near(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)

"""Recipes with towers that train in seconds."""

from __future__ import annotations

from typing import Any


def tiny_recipe(
    size: int = 16, width: int = 16, layers: int = 1, heads: int = 2, context: int = 24, **fields: Any
) -> dict[str, Any]:
    """Return the fields of a recipe with equal towers and four patches per image."""
    tower = {"width": width, "layers": layers, "heads": heads}
    architecture = {
        "embed_dim": 16,
        "vision": {"image_size": size, "patch_size": size // 2, **tower},
        "text": {"context_length": context, **tower},
    }
    return {"model": "DiffCLIP", "architecture": architecture, "epochs": 2, "batch_size": 8, **fields}

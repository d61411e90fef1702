"""Recipes with towers that train in seconds."""

from typing import Any

from diffclip.training.recipe import Recipe, parse_recipe


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
    return {
        "model": "DiffCLIP",
        "architecture": architecture,
        "epochs": 2,
        "batch_size": 8,
        "log_every": 1,
        **fields,
    }


def changed(recipe: Recipe, **keys: Any) -> Recipe:
    """Copy a recipe with other values of some keys, and of some keys of its data."""
    fields = recipe.model_dump()
    fields["data"] |= keys.pop("data", {})
    return parse_recipe(fields | keys, "test")

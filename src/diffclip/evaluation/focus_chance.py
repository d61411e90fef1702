"""What a map that is the same everywhere would reach in each measure of the task `focus`."""

from __future__ import annotations

from torch import Tensor

from diffclip.focus.measures import STRONGEST, background


def chance_of_uniform(coverage: Tensor) -> dict[str, float]:
    """By measure; `coverage` [n, P] of the items."""
    patches = coverage.shape[-1]
    area = float(coverage.mean())
    return {
        "auroc": 0.5,
        "ap": area,
        "inside": area,
        "inside_over_area": 1.0,
        "pointing": area,
        "entropy": 1.0,
        "effective_patches": float(patches),
        "class_token": 1 / (patches + 1),
        "top10": min(1.0, STRONGEST / patches),
        "background10": float(background(coverage.new_ones(patches), coverage).mean()),
    }

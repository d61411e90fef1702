"""Operations a sample: against formulas by hand, and against what OpenCLIP publishes of its models."""

from __future__ import annotations

import pytest

from diffclip.config import CLIPConfig, named_config, variant_config
from diffclip.training.flops import count_flops, loss_flops

ARCHITECTURE = {
    "embed_dim": 24,
    "vision": {"image_size": 32, "patch_size": 8, "width": 48, "layers": 3, "heads": 6},
    "text": {"context_length": 20, "vocab_size": 49408, "width": 32, "layers": 2, "heads": 4},
}


def tower(tokens: int, width: int, layers: int, embed_dim: int) -> int:
    """12·C² weights a block and token (QKV 3, out 1, MLP 8), and Q·Kᵀ and maps·V of N² entries; 2 a multiplication."""
    return layers * (2 * tokens * 12 * width**2 + 2 * 2 * tokens**2 * width) + 2 * width * embed_dim


def by_hand(config: CLIPConfig) -> tuple[int, int, int]:
    """(vision, text, of which the patches) forward."""
    vision, text = config.vision, config.text
    grid = (vision.image_size // vision.patch_size) ** 2
    patches = 2 * grid * 3 * vision.patch_size**2 * vision.width
    return (
        patches + tower(grid + 1, vision.width, vision.layers, config.embed_dim),
        tower(text.context_length, text.width, text.layers, config.embed_dim),
        patches,
    )


@pytest.mark.parametrize("variant", ["CLIP", "DiffCLIP", "DiffCLIP-vision"])
def test_a_forward_and_a_backward_pass_are_what_a_formula_gives(variant: str) -> None:
    config = variant_config(variant, ARCHITECTURE)
    vision, text, patches = by_hand(config)
    flops = count_flops(config, batch_size=8)
    assert (flops.vision, flops.text) == (vision, text)
    # two products for each of the forward pass; pictures need no gradient
    assert flops.backward == 2 * (vision + text) - patches
    assert flops.training == 3 * (vision + text) - patches + loss_flops(24, 8)


def test_features_first_and_blocks_again_cost_a_forward_pass_each() -> None:
    config = variant_config("DiffCLIP", ARCHITECTURE)
    plain = count_flops(config, 8)
    parts = count_flops(config, 8, in_parts=True)
    assert parts.training - plain.training == plain.forward
    again = count_flops(config, 8, grad_checkpointing=True)
    assert (again.vision, again.text) == (plain.vision, plain.text)
    # of the blocks alone, and a block is done again only as far as its last kept tensor
    assert 0.6 * plain.forward < again.backward - plain.backward < plain.forward


@pytest.mark.parametrize(
    ("name", "image", "text"),
    [("ViT-B-16", 35.13, 5.96), ("ViT-L-14", 162.03, 13.30), ("ViT-B-32", 8.82, 5.96)],
)
def test_named_models_have_the_operations_of_openclips_profiles(name: str, image: float, text: float) -> None:
    # open_clip's docs/model_profile.csv; its text tower of B/32 and B/16 is the same
    flops = count_flops(named_config(f"CLIP-{name}"), 1)
    assert flops.vision / 1e9 == pytest.approx(image, abs=0.03)
    assert flops.text / 1e9 == pytest.approx(text, abs=0.03)


def test_the_loss_grows_with_the_batch() -> None:
    # a row of both logits, D products each, and as much for either side's gradient
    assert loss_flops(512, 4096) == 3 * 2 * (2 * 512 * 4096)

"""Small models of every variant, with images and tokens for them."""

from typing import Any

import torch
from torch import Tensor

from diffclip import CLIP
from diffclip.config import variant_config
from diffclip.maps.relevance import image_relevances

SIZES = {
    "embed_dim": 16,
    "vision": {"image_size": 32, "patch_size": 8, "width": 32, "layers": 3, "heads": 4},
    "text": {"context_length": 8, "vocab_size": 50, "width": 32, "layers": 3, "heads": 4},
}
# sizes for the package's tokenizer and evaluations
WORDED = {
    "embed_dim": 16,
    "vision": {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "heads": 4},
    "text": {"context_length": 12, "width": 32, "layers": 1, "heads": 2},
}
START, END = 48, 49


def tiny(variant: str, backend: str = "auto", seed: int = 0) -> CLIP:
    """Create a model with scaled weights: with weights of 0.02 its maps would be nearly uniform."""
    model = CLIP(variant_config(variant, SIZES), attention_backend=backend, seed=seed).eval()
    with torch.no_grad():
        for layers in model.attention_layers().values():
            for layer in layers:
                layer.qkv.weight.mul_(12)
                layer.out_proj.weight.mul_(6)
    return model


def random_images(count: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def directions(count: int) -> Tensor:
    """Draw unit vectors as the features of `count` texts or images."""
    vectors = torch.randn(count, 16, generator=torch.Generator().manual_seed(1))
    return torch.nn.functional.normalize(vectors, dim=-1)


def image_relevance(*inputs: Any, method: str = "relevance", **how: Any) -> Tensor:
    return image_relevances(*inputs, methods=[method], **how)[method]


TOKENS = torch.tensor([[START, 3, 7, END, 0, 0, 0, 0], [START, 9, 4, 11, 2, 30, END, 0]])

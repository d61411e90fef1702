"""Draw weights and inputs that any machine can reproduce: a Philox stream per tensor, keyed by (seed, CRC-32 of name).

The golden values of the published implementations use the same scheme, so one reader serves both.
"""

import zlib

import numpy as np
import torch

# arrays that are not linear maps are drawn small, whatever their shape
SMALL = ("token_embedding.weight", "pos_embed", "positional_embedding", "cls_token", "bias")


def stream(seed: int, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))


def weight(seed: int, name: str, shape: list[int]) -> torch.Tensor:
    """Draw float32 values for the parameter `name` of the published layout."""
    draw = stream(seed, name).standard_normal(shape, dtype=np.float32)
    scale, center = np.float32(0.05), np.float32(0)
    if name == "logit_scale":
        scale, center = np.float32(0.1), np.float32(2.6592)
    elif "lambda_" in name:
        scale = np.float32(0.1)
    elif name.endswith("weight") and len(shape) == 1:
        scale, center = np.float32(0.1), np.float32(1)
    elif len(shape) > 1 and not name.endswith(SMALL):
        fan_in = shape[0] if name.endswith("_projection") else int(np.prod(shape[1:]))
        scale = np.float32(fan_in**-0.5)
    return torch.from_numpy(np.asarray(center + scale * draw, dtype=np.float32))


def images(seed: int, batch: int, size: int) -> torch.Tensor:
    return torch.from_numpy(stream(seed, "images").standard_normal((batch, 3, size, size), dtype=np.float32))


def tokens(seed: int, batch: int, context_length: int, vocab_size: int) -> torch.Tensor:
    rng = stream(seed, "tokens")
    out = np.zeros((batch, context_length), dtype=np.int64)
    for row in out:
        words = int(rng.integers(1, context_length - 1))
        row[0] = vocab_size - 2
        row[1 : 1 + words] = rng.integers(1, vocab_size - 2, words)
        row[1 + words] = vocab_size - 1
    return torch.from_numpy(out)

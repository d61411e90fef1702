"""What stands between the two layers of an MLP, by its name in the configuration."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class QuickGELU(nn.Module):
    """x·sigmoid(1.702·x), the sigmoid approximation of GELU that OpenAI's CLIP uses."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same shape."""
        return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "quick_gelu": QuickGELU}

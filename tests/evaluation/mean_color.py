"""A model that sees colors alone, so that its answers are known."""

from __future__ import annotations

import torch
from torch import nn


class Colors(nn.Module):
    """Sees an image's mean color, reads which color a statement names: right about images of one color."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.eye(3))

    def encode_image(self, images, normalize=False):
        return images.mean((2, 3)) @ self.gain

    def encode_text(self, tokens, normalize=False):
        return nn.functional.one_hot(tokens[:, 0], 3).float() @ self.gain

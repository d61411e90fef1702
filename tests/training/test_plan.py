"""The plan of a run, compared with the models of the paper and of OpenCLIP."""

import pytest
import torch

from diffclip import CLIP
from diffclip.config import named_config
from diffclip.training.plan import OWN_PARAMETERS, forward_flops, parameters_by_part


def test_parameters_and_operations_match_the_papers_and_open_clips_models() -> None:
    for variant, extra in (("DiffCLIP", 9216), ("DiffCLIP-vision", 4608), ("CLIP", 0)):
        with torch.device("meta"):
            model = CLIP(named_config(f"{variant}-ViT-B-16"), attention_backend="eager", seed=0)
        parts = parameters_by_part(model)
        # the published file; the "roughly 0.003 %" more of Section 4.1 is λ and the vision tower's head norms
        assert sum(parts.values()) == 149_629_185 - 9216 + extra
        assert parts[OWN_PARAMETERS] == extra
    # OpenCLIP's table of models: 41.09 GFLOP for both towers; a multiplication and an addition count as two
    assert sum(forward_flops(model).values()) / 1e9 == pytest.approx(41.1, rel=0.02)

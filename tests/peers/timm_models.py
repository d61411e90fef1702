"""timm's own tests of models on ours.

`make test-peers` brings them from the source distribution of the installed version. Its file chooses by name which
tests a ViT gets, so each is called here with our names. All pass but TorchScript, which is expected to fail.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from diffclip.integrations.timm import SIZES

theirs: Any = import_module("tests.test_models")
NAMES = [name for name in SIZES if "large" not in name and "huge" not in name]  # as timm's CI, by memory

# with a batch of 1
ON_A_BATCH = (
    "model_forward",
    "model_backward",
    "model_default_cfgs_non_std",
    "model_forward_features",
    "model_forward_intermediates_features",
    "model_forward_intermediates",
    "model_forward_fx",
    "model_backward_fx",
)
TORCHSCRIPT = ("model_forward_torchscript", "model_forward_fx_torchscript")


def run(test: str, *arguments: Any) -> None:
    getattr(theirs, f"test_{test}")(*arguments)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("test", ON_A_BATCH)
def test_on_a_batch(test: str, name: str) -> None:
    if test == "model_default_cfgs_non_std":
        run(test, name, 1, "cpu")
    else:
        run(test, name, 1)


@pytest.mark.parametrize("name", NAMES)
def test_contract_of_pruned_features(name: str) -> None:
    run("prune_intermediate_layers_contract", name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("test", TORCHSCRIPT)
@pytest.mark.xfail(strict=True, reason="TorchScript, which torch has deprecated, cannot read our operators")
def test_torchscript(test: str, name: str) -> None:
    run(test, name, 1)

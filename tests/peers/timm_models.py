"""Run timm's own model tests on our models.

`make test-peers` takes the tests from the source distribution of the installed version. timm's file chooses the tests
of a ViT by name, so this file calls each with our names. All pass except TorchScript, which is expected to fail.
"""

from importlib import import_module
from typing import Any

import pytest

from diffclip.integrations.timm import SIZES

theirs: Any = import_module("tests.test_models")
NAMES = [name for name in SIZES if "large" not in name and "huge" not in name]  # as timm's CI, for memory

# these tests take a batch size, here 1
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
def test_timms_test_passes_on_a_batch(test: str, name: str) -> None:
    if test == "model_default_cfgs_non_std":
        run(test, name, 1, "cpu")
    else:
        run(test, name, 1)


@pytest.mark.parametrize("name", NAMES)
def test_pruned_models_keep_timms_feature_contract(name: str) -> None:
    run("prune_intermediate_layers_contract", name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("test", TORCHSCRIPT)
@pytest.mark.xfail(strict=True, reason="TorchScript, which torch has deprecated, cannot read our operators")
def test_torchscript(test: str, name: str) -> None:
    run(test, name, 1)

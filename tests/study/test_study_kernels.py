"""Fused attention is tried before a grid depends on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_study import ABLATIONS
from torch import Tensor

from diffclip.attention import eager
from diffclip.study.kernels import fault_of_kernels, fault_of_layers, kinds_of
from diffclip.study.recipe import read_study

CPU = torch.device("cpu")


def test_kinds_of_attention_are_tried_once(study_file: Callable[..., Path]) -> None:
    study = read_study(study_file(ablations=ABLATIONS))
    assert [recipe.model for recipe in kinds_of(study)] == ["DiffCLIP", "DiffCLIP-no-norm"]
    models = [recipe.model for recipe in kinds_of(read_study("study_gpu"))]
    assert {"DiffCLIP", "DiffCLIP-v2", "DiffCLIP-bare"} <= set(models)
    assert "CLIP" not in models
    assert "DiffCLIP-dynamic" not in models


def test_attention_that_is_right_holds_and_what_is_wrong_is_named(
    study_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = read_study(study_file(change={"precision": "bf16"}))
    recipe = kinds_of(study)[0]
    assert fault_of_layers(recipe, CPU, pairs=16) is None
    right = eager.differential

    def wrong(q: Tensor, *more: Any) -> Tensor:
        return right(1.5 * q, *more)

    monkeypatch.setattr(eager, "differential", wrong)
    assert "off by" in str(fault_of_layers(recipe, CPU, pairs=16))


def test_attention_that_never_answers_is_a_fault_too(study_file: Callable[..., Path]) -> None:
    told = fault_of_kernels(read_study(study_file()), "cpu", 0.01)
    assert told == "DiffCLIP: it took more than 0 s"

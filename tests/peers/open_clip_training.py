"""Run open_clip's own training tests on our models, with its arguments, through our entry to its training program.

`make test-peers` takes the tests from the source distribution of the installed version. open_clip's inference tests
need pretrained weights or reference files, which no source distribution has.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from diffclip.integrations.open_clip import run_command

theirs: Any = import_module("tests.test_training_simple")


def run(test: str, model: str, monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
    """Run one of open_clip's tests with `model` in place of its model."""

    def main(arguments: list[str]) -> None:
        options = ["--logs", str(logs), *arguments]
        options[options.index("--model") + 1] = model
        run_command(options)

    monkeypatch.setattr(theirs, "main", main)
    getattr(theirs, test)()


@pytest.mark.parametrize("model", ["CLIP-ViT-Ti-16", "DiffCLIP-ViT-Ti-16"])
@pytest.mark.parametrize("test", ["test_training", "test_training_unfreezing_vit"])
def test_training(test: str, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(test, model, monkeypatch, tmp_path)
    assert list(tmp_path.glob("*/checkpoints/epoch_1.pt"))


@pytest.mark.xfail(strict=True, reason="TorchScript, which torch has deprecated, cannot read our operators")
def test_torchscript(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run("test_training_clip_with_jit", "DiffCLIP-ViT-Ti-16", monkeypatch, tmp_path)

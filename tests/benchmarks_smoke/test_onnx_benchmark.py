"""benchmarks/onnx.py, as small as its options allow."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import onnx as program
from diffclip import CLIP, TextConfig, VisionConfig
from diffclip.config import variant_config


def tiny(name: str, seed: int) -> CLIP:
    vision = VisionConfig(image_size=16, patch_size=8, width=16, layers=1, heads=2)
    text = TextConfig(context_length=8, vocab_size=50, width=16, layers=1, heads=2)
    sizes = {"vision": vision, "text": text}
    architecture = {key: value.model_dump(exclude={"attention"}) for key, value in sizes.items()}
    return CLIP(variant_config(name.removesuffix("-tiny"), architecture | {"embed_dim": 8}), seed=seed)


@pytest.mark.slow
def test_both_models_and_the_table_in_the_document(monkeypatch, tmp_path) -> None:
    document = tmp_path / "export.md"
    document.write_text("before\n<!-- begin onnx -->\nold\n<!-- end onnx -->\nafter\n")
    arguments = ["--size", "tiny", "--seconds", "0.5", "--threads", "1", "--document", str(document)]
    monkeypatch.setattr(sys, "argv", ["program", *arguments, "--output", str(tmp_path)])
    monkeypatch.setattr(program, "create_model", tiny)
    program.main()
    found = json.loads((tmp_path / "onnx.json").read_text())
    assert {len(rows) for rows in found["towers"].values()} == {4}
    lines = document.read_text().splitlines()
    assert "old" not in lines
    assert [line.split(" | ")[:2] for line in lines if line.startswith(("| image", "| text"))] == [
        [f"| {tower}", name] for tower in ("image", "text") for name in ("CLIP", "DiffCLIP")
    ]

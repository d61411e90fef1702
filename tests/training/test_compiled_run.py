"""torch.compile leaves the curve of a run alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_loop import changed, lines

from diffclip.training import run as runner
from diffclip.training.recipe import Recipe

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_compiled_run_has_the_curve_of_a_plain_one(precision: str, recipe: Recipe, tmp_path: Path) -> None:
    plain = changed(recipe, precision=precision, data={"val": None})
    runner.train(plain, tmp_path / "plain")
    runner.train(changed(plain, compile=True, micro_batch=4), tmp_path / "compiled")
    records = [lines(tmp_path / run / "metrics.jsonl") for run in ("plain", "compiled")]
    assert len(records[1]) == 15
    for a, b in zip(*records, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4 if precision == "fp32" else 0.02)

"""Run each program in benchmarks/ once, as small as its options allow."""

import json
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from benchmarks import attention, loader, models, parity, plots, tables, training
from benchmarks.attention import Ceilings, forward_work
from benchmarks.models import TimmAttention
from diffclip.benchmarking.operators import Shape
from diffclip.config import variant_config


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    def call(program: Callable[[], None], *arguments: str) -> int:
        common = ["--device", "cpu", "--threads", "1", "--output", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["program", *arguments, *common])
        try:
            program()
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    return call


@pytest.fixture
def uninterpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off Triton's interpreter, which other tests use: it would take minutes here."""
    monkeypatch.setattr("diffclip.attention.fused._INTERPRETED", False)


@pytest.fixture
def ordinary_torch() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("uninterpreted")
def test_attention_benchmark_writes_rows_curve_plot_and_table(run, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(attention.SHAPES, "cpu", {"small": Shape(1, 4, 12, 8)})
    monkeypatch.setitem(attention.CURVE, "cpu", [Shape(2, 4, n, 8) for n in (6, 12)])
    ceilings = Ceilings(None, 1e11, None, {"operations": "made up"})
    monkeypatch.setattr(attention, "measure_ceilings", lambda device, dtype: ceilings)
    assert run(attention.main, "--rounds", "1", "--seconds", "1", "--curve") == 0
    result = json.loads((tmp_path / "attention_cpu_float32.json").read_text())
    rows = result["shapes"]["small"]["rows"]
    assert rows["differential timm"]["both"]["floor_share"] > 0
    assert "on cpu" in rows["differential triton"]["why"]
    assert str(tmp_path) not in result["about"]["command"]
    curve = json.loads((tmp_path / "attention_curve_cpu_float32.json").read_text())
    assert list(curve["shapes"]) == ["N = 6", "N = 12"]
    assert len(plots.draw([curve]).axes) == 2
    assert run(attention.main, "--busy", "--curve") == 2

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin attention cpu -->\nold\n<!-- end attention cpu -->\nafter\n")
    monkeypatch.setattr(sys, "argv", ["tables", str(page), "--results", str(tmp_path)])
    tables.main()
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| small, B 1, N 12 | differential timm |" in text
    assert "`differential triton` did not run" in text
    assert "old" not in text


@pytest.mark.parametrize(("samples", "outcome"), [(3, "(3 samples are too few to say)"), (5, "✓")])
def test_a_target_has_a_verdict_from_five_samples_on(samples, outcome) -> None:
    rows = {}
    for name, milliseconds in {"auto": 2.0, "eager": 5.0, "timm": 5.0}.items():
        time = {"median_ms": milliseconds, "samples": samples}
        rows[f"differential {name}"] = {"forward": time, "both": time}
    result = {"shapes": {"long": {"shape": {"tokens": 2305}, "rows": rows}}}
    lines = tables.targets_table({"attention_cpu_float32": result})
    name = "CPU, N = 2305, forward: speed of auto to eager"
    assert f"| {name} | ≥ 2.2 | 2.50 {outcome} | `make bench` |" in lines


@pytest.mark.usefixtures("uninterpreted")
def test_training_benchmark_times_training_and_inference_of_every_model(run, monkeypatch, tmp_path) -> None:
    tower = {"width": 64, "layers": 1, "heads": 2}
    sizes = {"embed_dim": 16, "vision": {"image_size": 16, "patch_size": 8, **tower}}
    sizes["text"] = {"context_length": 12, **tower}
    monkeypatch.setattr(models, "config_of", lambda variant, size: variant_config(variant, sizes))
    assert run(training.main, "--batch", "2", "--rounds", "1", "--seconds", "60") == 0
    result = json.loads((tmp_path / "training_cpu_bf16.json").read_text())
    assert [entry["kind"] for entry in result["sections"]] == ["training", "inference"]
    for entry in result["sections"]:
        assert set(entry["rows"]) == {
            "CLIP", "OpenCLIP", "DiffCLIP auto", "DiffCLIP eager", "DiffCLIP sdpa", "DiffCLIP timm",
        }  # fmt: skip
        for row in entry["rows"].values():
            assert row["samples_per_second"] > 0
            assert (row.get("kept_bytes", 0) > 0) == (entry["kind"] == "training")
    table = "\n".join(tables.training_table(result))
    assert "| training, batch 2 | CLIP |" in table


def test_loader_benchmark_measures_both_loaders(monkeypatch, tmp_path) -> None:
    # without fork, each of four processes would import torch and OpenCLIP again
    monkeypatch.setattr(loader, "get_context", lambda kind: get_context("fork"))
    monkeypatch.setattr(loader, "_SETTLE", 0.1)
    monkeypatch.setattr(loader, "EACH", 4)
    monkeypatch.setattr(loader, "LARGE", 8)
    options = "--samples 32 --many 12 --batch 4 --seconds 0.2 --turn 0.1 --workers 1"
    monkeypatch.setattr(sys, "argv", ["program", *options.split(), "--output", str(tmp_path)])
    loader.main()
    result = json.loads((tmp_path / "loader.json").read_text())
    assert result["data"]["samples"] == 32
    assert result["workers"]["1"]["ratio"]["per_core"]["median"] > 0
    assert all(seconds > 0 for times in result["many"]["times"].values() for seconds in times.values())
    table = "\n".join(tables.loader_table(result))
    assert "| again, in windows of 16 |" in table
    assert "| 1 | OpenCLIP |" in table
    measured = [goal.value for goal in tables.targets({"loader": result}) if "loader" in goal.name]
    assert [value is None for value in measured] == [True, False, True, False]


@pytest.mark.usefixtures("uninterpreted", "ordinary_torch")
def test_parity_program_passes_the_shortest_case(run, tmp_path) -> None:
    assert run(parity.main, "--longest", "7") == 0
    result = json.loads((tmp_path / "parity_cpu.json").read_text())
    worst = {(row["backend"], row["dtype"]): row.get("worst") for row in result["rows"]}
    assert worst["eager", "float32"] < 1e-5
    assert worst["triton", "float32"] is None
    assert result["not_reached"] == 0


@pytest.mark.usefixtures("uninterpreted", "ordinary_torch")
def test_parity_finds_a_wrong_backend(monkeypatch) -> None:
    real = parity.differential_attention

    def wrong(*arguments, **rest):
        out = real(*arguments, **rest)
        return out + 1e-3 if arguments[5] == "sdpa" else out

    monkeypatch.setattr(parity, "differential_attention", wrong)
    rows = parity.check(parity.Case(1, 1, 5, 8, 16), "float32", "cpu", seed=0)
    assert {row["backend"]: row.get("ok") for row in rows} == {"eager": True, "sdpa": False, "triton": None}


def test_timm_attention_matches_timms_layer() -> None:
    from timm.layers import DiffAttention

    torch.manual_seed(0)
    oracle = DiffAttention(64, num_heads=4, qkv_bias=True)
    oracle.lambda_init = 0.8
    layer = TimmAttention(64, 8)
    for name, value in oracle.state_dict().items():
        key = name.replace("sub_norm", "diff_norm").replace("proj.", "out_proj.")
        layer.get_parameter(key).data.copy_(value)
    x = torch.randn(2, 11, 64)
    for causal in (False, True):
        torch.testing.assert_close(layer(x, is_causal=causal), oracle(x, is_causal=causal))


def test_forward_work_of_vit_b_16_matches_a_count_by_hand() -> None:
    work = forward_work(Shape(1, 12, 197), element=2)
    # Q, K, V and O of 197×768 at two bytes; multiply and add, for the products of queries and keys and of maps and V
    assert work == (4 * 197 * 768 * 2, 2 * (2 * 12 * 197 * 197 * 64), 12 * 197 * 197)

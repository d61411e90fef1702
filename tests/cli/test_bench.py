"""`diffclip bench` on small shapes, and `diffclip benchmark`, which passes its arguments to clip_benchmark."""

import json

import pytest
from in_process import diffclip_command
from typer.testing import CliRunner

from diffclip.benchmarking import attention
from diffclip.benchmarking.operators import Shape
from diffclip.cli.main import app
from diffclip.errors import InputError
from diffclip.scenes import write_scenes


@pytest.fixture(autouse=True)
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"vision": Shape(1, 4, 10, 8), "text": Shape(1, 4, 6, 8, causal=True)}
    monkeypatch.setitem(attention.SHAPES, "cpu", shapes)
    monkeypatch.setattr(attention, "why_not", _no_kernels)


def _no_kernels(name: str, inputs: object) -> str | None:
    # Triton's interpreter, which other tests use, would take minutes
    return "no kernels here" if "triton" in name else None


def test_bench_prints_a_table_and_advice_or_json() -> None:
    done = diffclip_command("bench", "--device", "cpu", "--seconds", "0.2")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith('use attention_backend="')
    text = " ".join(done.stdout.split())
    for words in ("vision, N = 10", "text, N = 6", "differential triton did not run: no kernels here"):
        assert words in text
    report = json.loads(diffclip_command("bench", "--device", "cpu", "--seconds", "0.2", "--json").stdout)
    assert report["towers"]["text"]["shape"]["causal"] is True
    assert report["towers"]["vision"]["rows"]["differential sdpa"]["both"]["median_ms"] > 0
    assert report["towers"]["vision"]["auto"] in ("eager", "sdpa")
    assert report["about"]["dtype"] == "float32"
    assert report["advice"].startswith(f'use attention_backend="{report["attention_backend"]}"')


@pytest.mark.parametrize("words", [[], ["eval", "-h"]])
def test_benchmark_help_adds_two_lines_to_that_of_clip_benchmark(words) -> None:
    result = CliRunner().invoke(app, ["benchmark", *words])
    assert result.exit_code == 0
    example, added, blank, usage = result.stdout.splitlines()[:4]
    assert "diffclip benchmark eval --pretrained runs/clip --dataset wds/cifar10" in example
    assert "--model diffclip --pretrained random --model_type diffclip --output {dataset}_" in added
    assert blank == ""
    assert usage.startswith(" ".join(["usage: diffclip benchmark", *words[:-1], "[-h]"]))


def test_benchmark_keeps_parser_exit_codes_and_raises_our_errors() -> None:
    result = CliRunner().invoke(app, ["benchmark", "eval", "--no-amp"])
    assert result.exit_code == 2
    assert "unrecognized arguments: --no-amp" in result.stderr
    result = CliRunner().invoke(app, ["benchmark", "eval", "--pretrained", "runs/gone"])
    assert isinstance(result.exception, InputError)
    assert "runs/gone does not exist" in str(result.exception)


def test_benchmark_evaluates_a_saved_model_on_scenes(model_folder, tmp_path) -> None:
    write_scenes(tmp_path / "scenes", size=16, train=8, val=8, test=24, seed=0)
    options = ["--pretrained", str(model_folder), "--dataset", "wds/scenes", "--task", "zeroshot_retrieval"]
    options += ["--dataset_root", "scenes/captions", "--recall_k", "1", "5"]
    result = diffclip_command("benchmark", "eval", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (file,) = tmp_path.glob("scenes_*.json")
    record = json.loads(file.read_text())
    assert record["pretrained"] == str(model_folder)
    names = {f"{way}_retrieval_recall@{k}" for way in ("image", "text") for k in (1, 5)}
    assert record["metrics"].keys() == names

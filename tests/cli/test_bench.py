"""`diffclip bench` on small shapes, and `diffclip benchmark`, which passes its arguments to clip_benchmark."""

import json

import pytest
from in_process import diffclip_command
from typer.testing import CliRunner

from diffclip.benchmarking import attention
from diffclip.benchmarking.operators import Shape
from diffclip.cli.main import app
from diffclip.errors import InputError


@pytest.fixture(autouse=True)
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"vision": Shape(1, 4, 10, 8), "text": Shape(1, 4, 6, 8, causal=True)}
    monkeypatch.setitem(attention.SHAPES, "cpu", shapes)
    # Triton's interpreter, which other tests use, would take minutes
    monkeypatch.setattr(attention, "why_not", lambda name, _: "no kernels here" if "triton" in name else None)


def test_bench_prints_a_table_and_advice_or_json() -> None:
    done = diffclip_command("bench", "--device", "cpu", "--seconds", "0.2")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith('use attention_backend="')
    text = " ".join(done.stdout.split())
    for words in ("vision, N = 10", "text, N = 6", "differential triton did not run: no kernels here"):
        assert words in text
    report = json.loads(diffclip_command("bench", "--device", "cpu", "--seconds", "0.2", "--json").stdout)
    assert report["towers"]["text"]["shape"]["causal"] is True
    rows = report["towers"]["vision"]["rows"]
    assert rows["differential sdpa"]["both"]["median_ms"] > 0
    assert rows["differential auto"]["backend"] == report["towers"]["vision"]["auto"] == "eager"
    assert report["about"]["dtype"] == "float32"
    assert report["advice"].startswith(f'use attention_backend="{report["attention_backend"]}"')


@pytest.mark.parametrize("words", [[], ["eval", "-h"]])
def test_benchmark_help_is_that_of_clip_benchmark(words) -> None:
    result = CliRunner().invoke(app, ["benchmark", *words])
    assert result.exit_code == 0
    assert result.stdout.startswith(" ".join(["usage: diffclip benchmark", *words[:-1], "[-h]"]))


def test_benchmark_keeps_parser_exit_codes_and_raises_our_errors() -> None:
    result = CliRunner().invoke(app, ["benchmark", "eval", "--no-amp"])
    assert result.exit_code == 2
    assert "unrecognized arguments: --no-amp" in result.stderr
    result = CliRunner().invoke(app, ["benchmark", "--plugin", "gone.py", "eval", "--pretrained", "x"])
    assert "gone.py" in str(result.exception)
    for options, message in (
        (["--pretrained", "runs/gone"], "runs/gone does not exist"),
        (["--model", "CLIP"], "no model is given: diffclip benchmark eval --pretrained MODEL"),
    ):
        result = CliRunner().invoke(app, ["benchmark", "eval", *options])
        assert isinstance(result.exception, InputError)
        assert message in str(result.exception)

"""`diffclip bench` on small shapes: the table, the line, JSON, and what is refused."""

from __future__ import annotations

import json

import pytest
from in_process import diffclip_command

from diffclip.benchmarking import attention
from diffclip.benchmarking.operators import Shape


@pytest.fixture(autouse=True)
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"vision": Shape(1, 4, 10, 8), "text": Shape(1, 4, 6, 8, causal=True)}
    monkeypatch.setitem(attention.SHAPES, "cpu", shapes)
    monkeypatch.setattr(attention, "why_not", _no_kernels)


def _no_kernels(name: str, inputs: object) -> str | None:
    # Triton's interpreter, which other tests use, would take minutes
    return "no kernels here" if "triton" in name else None


def test_a_table_and_one_line_or_json() -> None:
    done = diffclip_command("bench", "--device", "cpu", "--seconds", "0.2")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith('use attention_backend="')
    text = " ".join(done.stdout.split())
    for words in ("vision, N = 10", "text, N = 6", "differential triton did not run: no kernels here"):
        assert words in text
    found = json.loads(diffclip_command("bench", "--device", "cpu", "--seconds", "0.2", "--json").stdout)
    assert found["towers"]["text"]["shape"]["causal"] is True
    assert found["towers"]["vision"]["rows"]["differential sdpa"]["both"]["median_ms"] > 0
    assert found["towers"]["vision"]["auto"] in ("eager", "sdpa")
    assert found["about"]["dtype"] == "float32"
    assert found["advice"].startswith(f'use attention_backend="{found["attention_backend"]}"')


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--device", "cpu", "--tune"), "nothing to tune"), (("--device", "meta"), "use cpu or cuda")],
)
def test_what_cannot_be_measured_is_refused_in_a_line(arguments, words) -> None:
    done = diffclip_command("bench", *arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert words in done.stderr

"""benchmarks/needle.py: its layers match the package's, and a second run repeats nothing."""

import json
import sys

import pytest
import torch

from benchmarks import needle as program
from diffclip.attention.differential import DifferentialAttention
from diffclip.attention.gated import GatedAttention
from diffclip.attention.module import SelfAttention
from diffclip.attention.softmax import SoftmaxAttention

LAYERS = {"DiffCLIP": DifferentialAttention, "CLIP-gated": GatedAttention}


def layer_with(arm: str, weights: program.Weights) -> SelfAttention:
    """Create the package's layer with the weights of the first model."""
    kind = LAYERS.get(arm, SoftmaxAttention)
    layer = kind(program.WIDTH, program.heads_of(arm), qkv_bias=False, proj_bias=False)
    names = {"qkv": "qkv", "out": "out_proj", "gate": "gate_proj", "norm": "diff_norm"}
    state = {f"{name}.weight": weights[key][0] for key, name in names.items() if key in weights}
    if "lambdas" in weights:
        vectors = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
        state |= dict(zip(vectors, weights["lambdas"][0], strict=True))
    layer.load_state_dict(state)
    return layer


@pytest.mark.parametrize("arm", program.ARMS)
def test_each_arm_without_noise_matches_the_packages_layer(arm: str) -> None:
    cell = program.Cell("independent", 9, 0.0)
    weights = program.make_weights(arm, [3, 4])
    x, noise, _, _ = program.Data([3, 4]).draw(cell, 5)
    attention = program.attend(arm, weights, x, noise)
    tokens = torch.cat([weights["token"][0].expand(5, 1, -1), x[0]], 1)
    torch.testing.assert_close(attention.out[0], layer_with(arm, weights)(tokens)[:, 0])


def test_a_second_run_repeats_nothing_and_needs_the_same_seeds(monkeypatch, tmp_path, capsys) -> None:
    constants = {"STEPS": 2, "TEST": 8, "LENGTHS": (5,), "STRENGTHS": (1.0,), "RATES": (0.01,)}
    constants["PRIMARY"] = ("shared", 5, 1.0)
    for name, value in constants.items():
        monkeypatch.setattr(program, name, value)
    file = tmp_path / "needle.jsonl"
    options = ["needle", "--output", str(file), "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", [*options, "--dry-run"])
    program.main()
    assert "2 cells are left: about 0 min; the variance is unknown" in capsys.readouterr().out
    assert not file.exists()
    monkeypatch.setattr(sys, "argv", options)
    program.main()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["model"] for line in lines] == 2 * list(program.ARMS)
    assert all(len(line["acc1"]) == 2 for line in lines)
    assert {line["model"] for line in lines if "map_correlation" in line} == {"DiffCLIP"}
    timing = json.loads((tmp_path / "needle_timing.json").read_text())
    assert list(timing) == list(program.ARMS)
    assert timing["CLIP"]["ratio"] == 1
    capsys.readouterr()
    program.main()
    assert capsys.readouterr().out == "", "nothing is left to do"
    monkeypatch.setattr(sys, "argv", ["needle", "--output", str(file), "--seeds", "3"])
    with pytest.raises(SystemExit, match=r"needle\.jsonl has 2 seeds: give --seeds 2"):
        program.main()


def test_a_dry_run_says_what_the_committed_cells_find(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["needle", "--dry-run"])
    program.main()
    found = "50 seeds find 0.7 points in the primary cell with 80 % power"
    assert capsys.readouterr().out == f"0 cells are left: about 0 min; {found}\n"

"""`diffclip benchmark`: words go through to clip_benchmark as they stand."""

from __future__ import annotations

import json

import pytest
from in_process import diffclip_command
from typer.testing import CliRunner

from diffclip.cli.main import app
from diffclip.errors import InputError
from diffclip.scenes import write_scenes

pytest.importorskip("clip_benchmark")


@pytest.mark.parametrize("words", [[], ["eval", "-h"]])
def test_help_is_theirs_with_two_lines_of_ours(words) -> None:
    result = CliRunner().invoke(app, ["benchmark", *words])
    assert result.exit_code == 0
    example, added, blank, usage = result.stdout.splitlines()[:4]
    assert "diffclip benchmark eval --pretrained runs/clip --dataset wds/cifar10" in example
    assert "--model diffclip --pretrained random --model_type diffclip --output {dataset}_" in added
    assert blank == ""
    assert usage.startswith(" ".join(["usage: diffclip benchmark", *words[:-1], "[-h]"]))


def test_what_their_parser_refuses_has_its_exit_code_and_our_errors_come_through() -> None:
    result = CliRunner().invoke(app, ["benchmark", "eval", "--no-amp"])
    assert result.exit_code == 2
    assert "unrecognized arguments: --no-amp" in result.stderr
    result = CliRunner().invoke(app, ["benchmark", "eval", "--pretrained", "runs/gone"])
    assert isinstance(result.exception, InputError)
    assert "runs/gone does not exist" in str(result.exception)


def test_a_saved_model_on_scenes(model_folder, tmp_path) -> None:
    write_scenes(tmp_path / "scenes", size=16, train=8, val=8, test=24, seed=0)
    options = ["--pretrained", str(model_folder), "--dataset", "wds/scenes", "--task", "zeroshot_retrieval"]
    options += ["--dataset_root", "scenes/captions", "--recall_k", "1", "5"]
    result = diffclip_command("benchmark", "eval", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (file,) = tmp_path.glob("scenes_*.json")
    found = json.loads(file.read_text())
    assert found["pretrained"] == str(model_folder)
    assert set(found["metrics"]) == {
        f"{way}_retrieval_recall@{k}" for way in ("image", "text") for k in (1, 5)
    }

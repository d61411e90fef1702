"""Models on the hub: a pushed model loads unchanged, with our functions and with the hub's own."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from in_process import diffclip_command

import diffclip
from diffclip import CLIP, InputError
from diffclip.evaluation.records import Record, write_records
from diffclip.integrations.hub import push_to_hub
from diffclip.weights import weights_digest

MEASURES = (
    ("zero-shot", "acc1"),
    ("zero-shot", "acc5"),
    ("retrieval", "image_retrieval_recall@1"),
    ("retrieval", "image_retrieval_recall@5"),
    ("mmvp", "mean_per_pattern_accuracy"),
    ("mmvp", "pair_accuracy"),
)


def run_folder(model_folder: Path, folder: Path) -> Path:
    shutil.copytree(model_folder, folder / "checkpoints" / "best")
    (folder / "recipe.yaml").write_text("weights: start\nseed: 7\nepochs: 3\ndata: {train: cc3m/*.tar}\n")
    return folder


def write_results(file: Path, model: CLIP, **facts: Any) -> Path:
    fields = {
        "model": "m",
        "weights": "w",
        "digest": weights_digest(model)[:16],
        "dataset": "cifar10",
        "split": "test",
        "protocol": "",
    }
    fields |= {"value": 0.5, "count": 10, "low": 0.4, "high": 0.6, "seed": 7, **facts}
    write_records(file, [Record(**fields, task=task, metric=metric) for task, metric in MEASURES])
    return file


def test_a_run_is_pushed_and_loaded_again(model_folder, tmp_path, monkeypatch) -> None:
    hub, requests = tmp_path / "hub", []

    def upload(_: object, *, folder_path: str, **__: object) -> None:
        shutil.copytree(folder_path, hub, dirs_exist_ok=True)

    def download(repository: str, revision: str | None = None, **_: object) -> str:
        requests.append((repository, revision))
        if repository != "me/mine":
            raise OSError("no such repository")
        return str(hub)

    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: SimpleNamespace(repo_id="me/mine"))
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    run = run_folder(model_folder, tmp_path / "run")
    pushed = diffclip_command("push", run, "me/mine", "--license", "apache-2.0")
    assert (pushed.returncode, pushed.stdout) == (0, "hf-hub:me/mine\n"), pushed.stderr
    assert {file.name for file in hub.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    model = diffclip.load(model_folder)[0]
    push_to_hub(model, "me/mine")
    assert 'diffclip.load("hf-hub:me/mine")' in (hub / "README.md").read_text()
    loaded = diffclip.load("hf-hub:me/mine@abc")[0]
    assert loaded.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    assert requests == [("me/mine", "abc")]
    with pytest.raises(InputError, match="hf-hub:me/gone cannot be fetched"):
        diffclip.load("hf-hub:me/gone")


def test_a_dry_run_shows_the_card_and_sends_nothing(
    model_folder: Path, save_model: Any, tmp_path: Path
) -> None:
    """The digest of the weights decides which results belong to a model, under any name and after a conversion."""
    run = run_folder(model_folder, tmp_path / "run")
    assert diffclip_command("convert", run, tmp_path / "converted").returncode == 0
    model = diffclip.load(run)[0]
    results = write_results(tmp_path / "results.jsonl", model)
    layer = write_results(tmp_path / "layer.jsonl", model, layer=1)
    options = ["--results", results, "--results", layer, "--license", "mit", "--dry-run"]
    for source, training in (
        (run, "| data | cc3m/*.tar |\n| seed | 7 |\n| weights | start |\n| epochs | 3 |"),
        (tmp_path / "converted", "| data | cc3m |\n| seed | 7 |"),
    ):
        done = diffclip_command("push", source, "me/mine", *options)
        assert done.returncode == 0, done.stderr
        for part in (
            training,
            "model.safetensors: ",
            "license: mit",
            "| zero-shot | cifar10, test | acc1 | 0.5000 | 0.4000 to 0.6000 | 10 |",
            'diffclip.load("hf-hub:me/mine")',
        ):
            assert part in done.stdout
        shown = re.findall(r"^\| \S+ \| cifar10, test \| (\S+)", done.stdout, re.MULTILINE)
        assert shown == ["acc1", "image_retrieval_recall@5", "pair_accuracy"]  # headlines alone
    other = write_results(tmp_path / "other.jsonl", diffclip.load(save_model(tmp_path / "other", 1))[0])
    refused = diffclip_command("push", run, "me/mine", "--results", other, "--dry-run")
    assert refused.returncode == 2
    assert "has no record of the weights of" in refused.stderr

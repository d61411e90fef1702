"""clip_benchmark's own program on our models: equal metrics, and errors before it starts unsupported work."""

import json
import sys
from collections import Counter
from pathlib import Path

import in_process
import pytest

import diffclip
from diffclip.data.open_set import open_set
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.run import run_task

pytest.importorskip("clip_benchmark")

from clip_benchmark import cli, models

from diffclip.integrations import clip_benchmark as ours

# from clip_benchmark's accuracy with NumPy 2.3
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:clip_benchmark")
BATCH = 64
KINDS = ("softmax", "differential")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch) -> None:
    """Keep results without an output folder out of the repository."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, Path]:
    """A saved model folder for each kind of attention; large weights spread the features."""
    runs = tmp_path_factory.mktemp("runs")
    folders = {attention: runs / attention for attention in KINDS}
    for attention, folder in folders.items():
        tower = {"width": 32, "layers": 2, "heads": 4, "attention": attention}
        vision, text = tower | {"image_size": 32, "patch_size": 16}, tower | {"context_length": 20}
        model = diffclip.CLIP(diffclip.CLIPConfig(embed_dim=32, vision=vision, text=text), seed=0)
        for layer in (layer for layers in model.attention_layers().values() for layer in layers):
            layer.qkv.weight.data.mul_(12)
            layer.out_proj.weight.data.mul_(6)
        diffclip.save_weights(model, folder)
    return folders


def run_theirs(weights: Path, folder: Path, *options: str) -> dict[str, float]:
    """Return the metrics of `diffclip benchmark eval` on a folder."""
    output = Path.cwd() / "theirs.json"
    paths = ["--pretrained", str(weights), "--dataset_root", str(folder), "--output", str(output)]
    settings = f"--no_amp --quiet --num_workers 0 --batch_size {BATCH} --recall_k 1 5 10".split()
    in_process.call("benchmark", "eval", *paths, *settings, *options)
    metrics: dict[str, float] = json.loads(output.read_text())["metrics"]
    return metrics


def assert_equal_but_for_one_item(weights: Path, folder: Path, split: str, *options: str) -> dict[str, float]:
    theirs = run_theirs(weights, folder, "--split", split, *options)
    data = open_set(folder, split)
    scores = run_task(None, Setting(*diffclip.load(weights), data, BATCH))
    scores = [score for score in scores if score.metric != "mean_recall"]  # only we report it
    assert {score.metric for score in scores} == set(theirs)
    for score in scores:
        items = score.count
        if score.metric == "mean_per_class_recall":  # an item counts most in the smallest class
            sizes = Counter(data.labels)
            items = len(sizes) * min(sizes.values())
        assert abs(theirs[score.metric] - score.value) * items <= 1.001, score.metric
    return theirs


def test_the_same_zero_shot_and_retrieval_metrics_on_scenes(scenes, weights) -> None:
    options = ["--dataset", "wds/scenes-shapes"]
    assert_equal_but_for_one_item(weights["differential"], scenes / "shapes", "test", *options)
    options = ["--dataset", "wds/scenes", "--task", "zeroshot_retrieval"]
    metrics = assert_equal_but_for_one_item(weights["differential"], scenes / "captions", "test", *options)
    assert 0 < metrics["image_retrieval_recall@1"] < metrics["image_retrieval_recall@10"] < 1


def test_registering_is_idempotent_and_names_missing_packages(monkeypatch) -> None:
    for _ in range(2):
        ours.register()
    assert models.MODEL_TYPES.count("diffclip") == 1
    monkeypatch.setattr(sys, "argv", ["clip_benchmark", "eval", "--model_type", "diffclip"])
    assert cli.get_parser_args()[1].model_type == "diffclip"
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(InputError, match=r"missing packages \(sklearn\).* pip install 'diffclip\[eval\]'"):
        ours.register()


def test_the_default_output_is_one_file_per_model(weights, scenes) -> None:
    """Results for weights in a subfolder are in the working folder, one file per model, with the name as given."""
    Path("runs").symlink_to(weights["softmax"].parent)
    names = ["runs/softmax", "runs/differential"]
    options = f"--dataset wds/shapes --dataset_root {scenes / 'shapes'} --quiet --num_workers 1".split()
    ours.run_command(["eval", "--pretrained", *names, *options])
    results = [f"shapes_{name.replace('/', '_')}_diffclip_en_zeroshot_classification.json" for name in names]
    assert [json.loads(Path(file).read_text())["pretrained"] for file in results] == names
    ours.run_command(["build", *results, "--output", "all.csv"])
    assert len(Path("all.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--pretrained", "gone"], "unknown model 'gone'"),
        (["--model", "CLIP-ViT-B-16"], "holds CLIP-v32x2x4.*, not CLIP-ViT-B-16"),
        (["--dataset", "cifar11"], "Unsupported dataset: cifar11.* --dataset wds/NAME"),
        (["--dataset_root", "CAPTIONS"], "Classes not specified for wds/shapes.* --task zeroshot_retrieval"),
        (["--output", "taken/{dataset}.json"], r"cannot write taken/shapes\.json"),
        (["--output", "{set}.json"], "clip_benchmark says: 'set'"),
    ],
)
def test_bad_input_raises_one_line_errors(options, words, weights, scenes) -> None:
    Path("taken").touch()
    options = [str(scenes / "captions") if word == "CAPTIONS" else word for word in options]
    arguments = ["--pretrained", str(weights["softmax"]), "--dataset", "wds/shapes", "--quiet"]
    with pytest.raises(InputError, match=words) as caught:
        ours.run_command(["eval", *arguments, "--dataset_root", str(scenes / "shapes"), *options])
    assert "\n" not in str(caught.value)
    assert not list(Path().glob("*.json"))

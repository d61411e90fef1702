import json
import shutil

import pytest

import diffclip
from diffclip.config import model_names
from diffclip.errors import InputError
from diffclip.sources.load import load_with_origin
from diffclip.sources.registry import find_model


@pytest.fixture
def run_folder(model_folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(model_folder, run / "checkpoints" / "step_00000010")
    (run / "checkpoints" / "last").symlink_to("step_00000010")
    (run / "recipe.yaml").write_text("model: DiffCLIP\nseed: 7\n")
    return run


def test_a_run_folder_gives_its_best_checkpoint_and_seed(run_folder):
    loaded = load_with_origin(str(run_folder))
    assert loaded.weights == str(run_folder / "checkpoints" / "last")
    assert loaded.seed == 7
    assert diffclip.load(run_folder)[0].config == loaded.model.config
    (run_folder / "checkpoints" / "best").symlink_to("step_00000010")
    loaded = load_with_origin(str(run_folder))
    assert loaded.weights == str(run_folder / "checkpoints" / "best")
    assert load_with_origin(loaded.weights).seed == 7


@pytest.mark.parametrize(
    "train",
    [
        "https://me:secret@host/cc12m/{000..331}.tar?key=1",
        "https://me:secret@cc12m/{000..331}.tar",
        "sets/cc12m/shard?.tar",
        ["sets/cc12m/train", "other"],
        [{"shards": ["/data/cc12m"]}, {"shards": "https://host/{000..331}.tar", "weight": 0.5}],
    ],
)
def test_records_name_the_folder_of_the_training_set(train, run_folder):
    (run_folder / "recipe.yaml").write_text(json.dumps({"model": "DiffCLIP", "data": {"train": train}}))
    assert load_with_origin(str(run_folder)).data == "cc12m"


def test_a_bad_recipe_gives_no_data_and_a_missing_recipe_no_seed(run_folder):
    (run_folder / "recipe.yaml").write_text("data: [1, 2]")
    assert load_with_origin(str(run_folder)).data is None
    (run_folder / "recipe.yaml").unlink()
    assert load_with_origin(str(run_folder)).seed is None


def test_a_model_name_gives_random_weights_with_a_warning(capsys):
    loaded = load_with_origin("CLIP-ViT-Ti-16", image_size=32)
    assert "WARNING: CLIP-ViT-Ti-16 has random weights" in capsys.readouterr().err
    assert (loaded.label, loaded.weights, loaded.seed) == ("CLIP-ViT-Ti-16", "random, seed 0", None)
    assert loaded.preprocess.image_size == 32
    with pytest.raises(InputError, match="does not fit"):
        load_with_origin("CLIP-ViT-Ti-16", model_name="DiffCLIP-ViT-Ti-16")


def test_find_model_finds_nothing_for_names_and_refuses_unknown_sources(tmp_path):
    assert all(find_model(name) is None for name in model_names())
    assert find_model("hf-hub:someone/some-model") == "hf-hub:someone/some-model"
    with pytest.raises(InputError, match="did you mean 'CLIP-ViT-B-16'"):
        find_model("clip-vit-b16")
    with pytest.raises(InputError, match="does not exist"):
        find_model(str(tmp_path / "gone"))
    with pytest.raises(InputError, match="neither"):
        load_with_origin(str(tmp_path))

import pytest
import yaml

from diffclip.errors import InputError
from diffclip.training.watch import checkpoints_of


def write_recipe(run, epochs=2):
    run.mkdir(parents=True, exist_ok=True)
    recipe = {
        "model": "CLIP-ViT-B-16",
        "epochs": epochs,
        "batch_size": 4,
        "lr": 1e-3,
        "data": {"train": "t", "val": "v"},
    }
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))


def write_checkpoint(run, step, epoch):
    import torch

    from diffclip.weights import save_torch

    folder = run / "checkpoints" / f"step_{step:08d}"
    folder.mkdir(parents=True)
    progress = {"step": step, "epoch": epoch, "batch": 0, "samples": 0, "best_score": None}
    save_torch({"progress": progress, "weight": torch.zeros(1)}, folder / "training.pt")
    last = run / "checkpoints" / "last"
    last.unlink(missing_ok=True)
    last.symlink_to(folder.name)
    return folder


def test_a_finished_run_gives_what_it_has_and_ends(tmp_path):
    write_recipe(tmp_path)
    folders = [write_checkpoint(tmp_path, 10, 1), write_checkpoint(tmp_path, 20, 2)]
    assert list(checkpoints_of(tmp_path)) == folders


def test_checkpoints_come_as_they_appear_and_the_last_one_is_not_missed(tmp_path):
    write_recipe(tmp_path)
    pauses = []

    def train_on():
        pauses.append(None)
        if len(pauses) == 2:
            write_checkpoint(tmp_path, 10, 1)
        if len(pauses) == 4:
            write_checkpoint(tmp_path, 20, 2)

    found = [folder.name for folder in checkpoints_of(tmp_path, train_on, seconds=0)]
    assert found == ["step_00000010", "step_00000020"]


def test_a_half_written_folder_waits_for_its_state(tmp_path):
    write_recipe(tmp_path, epochs=1)
    (tmp_path / "checkpoints" / "step_00000005").mkdir(parents=True)
    done = iter([lambda: write_checkpoint(tmp_path, 10, 1)])
    found = list(checkpoints_of(tmp_path, lambda: next(done)(), seconds=0))
    assert [folder.name for folder in found] == ["step_00000010"]


def test_a_folder_that_is_no_run_is_told(tmp_path):
    with pytest.raises(InputError, match="is no run folder"):
        next(checkpoints_of(tmp_path / "nothing"))

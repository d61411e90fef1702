"""Checkpoints on disk: what is written, how damage is found, and which one is taken."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gradients import made_batch, made_model

from diffclip import InputError
from diffclip.training.checkpoint import (
    Progress,
    choose_checkpoint,
    damage,
    read_state,
    restore_checkpoint,
    save_checkpoint,
)
from diffclip.training.losses import make_criterion
from diffclip.training.optimizer import parameter_groups

ALONE = SimpleNamespace(global_rank=0, world_size=1, device=torch.device("cpu"))


def stepped(steps: int = 2) -> tuple[torch.nn.Module, torch.optim.AdamW]:
    model = made_model()
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), fused=True)
    for _ in range(steps):
        optimizer.zero_grad()
        make_criterion("clip", True)(**model(*made_batch())).backward()
        optimizer.step()
    return model, optimizer


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Checkpoints of the steps 1, 2 and 3, the second of them the best."""
    model, optimizer = stepped()
    for step in (1, 2, 3):
        progress = Progress(step, epoch=step, samples=12 * step)
        save_checkpoint(ALONE, tmp_path, model, optimizer, progress, best=step == 2)
    return tmp_path


def test_the_state_of_the_optimizer_comes_back_exactly(run: Path) -> None:
    model, optimizer = stepped()
    fresh = torch.optim.AdamW(parameter_groups(model, 0.1), fused=True)
    assert restore_checkpoint(ALONE, run / "checkpoints" / "last", model, fresh, 0) == Progress(3, 3, 0, 36)
    for parameter in model.parameters():
        before, after = optimizer.state[parameter], fresh.state[parameter]
        assert before.keys() == after.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "training.json", "optimizer-00000-of-00001.safetensors"]
)
@pytest.mark.parametrize("how", ["cut", "changed", "missing"])
def test_damage_to_any_file_is_found(
    name: str, how: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run / "checkpoints" / "step_00000003"
    assert damage(folder) is None
    file = folder / name
    content = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
    elif how == "cut":
        file.write_bytes(content[:-1])
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    words = {"missing": "is missing", "cut": "is cut off", "changed": "is not what was written"}
    assert damage(folder) == f"{name} {words[how]}" or (damage(folder) or "").startswith(
        f"{name} {words[how]}:"
    )
    assert choose_checkpoint(run) == run / "checkpoints" / "step_00000002"
    assert "step_00000003 is damaged" in capsys.readouterr().err
    assert read_state(run / "checkpoints" / "last").step == 2
    # the next checkpoint takes its place
    model, optimizer = stepped()
    save_checkpoint(ALONE, run, model, optimizer, Progress(3, epoch=3))
    assert damage(folder) is None


@pytest.mark.parametrize("content", ["{", '{"training.json": 3}'])
def test_a_list_of_files_that_is_none_is_damage(content: str, run: Path) -> None:
    folder = run / "checkpoints" / "step_00000003"
    (folder / "files.json").write_text(content)
    assert "files.json cannot be read" in (damage(folder) or "")


def test_a_last_link_that_was_lost_is_made_anew(run: Path) -> None:
    (run / "checkpoints" / "last").unlink()
    (run / "checkpoints" / "previous").unlink()
    assert choose_checkpoint(run) == run / "checkpoints" / "step_00000003"
    assert read_state(run / "checkpoints" / "last").step == 3


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert choose_checkpoint(tmp_path) is None


def test_the_state_of_another_model_is_an_error(run: Path) -> None:
    model = made_model("siglip")
    del model.token_embedding
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(InputError, match="is no training state of this model") as error:
        restore_checkpoint(ALONE, run / "checkpoints" / "last", model, optimizer, 0)
    assert "\n" not in str(error.value)


def test_leftovers_of_a_killed_writer_are_removed(run: Path) -> None:
    left = run / "checkpoints" / ".0123abcd.tmp"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    model, optimizer = stepped()
    save_checkpoint(ALONE, run, model, optimizer, Progress(4, epoch=4))
    assert not left.exists()
    kept = {path.name for path in (run / "checkpoints").iterdir()}
    assert kept == {"last", "previous", "best", "step_00000002", "step_00000003", "step_00000004"}

"""Checkpoints on disk: how damage is found, which one is taken, and what is left of a killed writer."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gradients import made_batch, made_model

from diffclip.training.checkpoint import Progress, choose_checkpoint, damage, read_state, save_checkpoint
from diffclip.training.losses import make_criterion
from diffclip.training.optimizer import parameter_groups

ALONE = SimpleNamespace(global_rank=0, world_size=1, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def stepped() -> tuple[torch.nn.Module, torch.optim.AdamW]:
    model = made_model()
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), fused=True)
    make_criterion("clip", True)(**model(*made_batch())).backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def run(stepped: tuple[torch.nn.Module, torch.optim.AdamW], tmp_path: Path) -> Path:
    """Checkpoints of the steps 1, 2 and 3, the second of them the best."""
    for step in (1, 2, 3):
        save_checkpoint(ALONE, tmp_path, *stepped, Progress(step, epoch=step), best=step == 2)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("optimizer-00000-of-00001.safetensors", None, "optimizer-00000-of-00001.safetensors is missing"),
        ("training.json", lambda old: old[:-1], r"training\.json is cut off: \d+ of \d+ bytes"),
        ("model.safetensors", lambda old: old[:-1] + bytes([old[-1] ^ 1]), "is not what was written"),
        ("files.json", lambda _: b'{"training.json": 3}', r"files\.json cannot be read"),
    ],
)
def test_damage_is_found_and_the_checkpoint_before_taken(
    name: str, content, fault: str, run: Path, stepped, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run / "checkpoints" / "step_00000003"
    assert damage(folder) is None
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content((folder / name).read_bytes()))
    assert re.search(fault, damage(folder) or "")
    assert choose_checkpoint(run) == run / "checkpoints" / "step_00000002"
    assert "step_00000003 is damaged" in capsys.readouterr().err
    assert read_state(run / "checkpoints" / "last").step == 2
    # the next checkpoint takes its place
    save_checkpoint(ALONE, run, *stepped, Progress(3, epoch=3))
    assert damage(folder) is None


def test_a_kill_before_the_link_does_not_lose_the_best(stepped, tmp_path: Path) -> None:
    for step in (1, 2):
        progress = Progress(step, epoch=step, best_score=step / 10)
        save_checkpoint(ALONE, tmp_path, *stepped, progress, best=True)
    best = tmp_path / "checkpoints" / "best"
    best.unlink()
    best.symlink_to("step_00000001")
    newest = choose_checkpoint(tmp_path)
    assert newest is not None
    assert best.resolve() == newest.resolve()
    (best / "training.json").write_text("cut")  # where something is damaged nothing is guessed
    save_checkpoint(ALONE, tmp_path, *stepped, Progress(3, epoch=3, best_score=0.3))
    damaged = best.resolve()
    choose_checkpoint(tmp_path)
    assert best.resolve() == damaged


def test_leftovers_of_a_killed_writer_are_removed(run: Path, stepped) -> None:
    left = run / "checkpoints" / ".0123abcd.tmp"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    save_checkpoint(ALONE, run, *stepped, Progress(4, epoch=4))
    kept = {path.name for path in (run / "checkpoints").iterdir()}
    assert kept == {"last", "previous", "best", "step_00000002", "step_00000003", "step_00000004"}

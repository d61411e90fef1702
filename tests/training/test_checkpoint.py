"""Checkpoints on disk: finding damage, choosing the checkpoint to resume from, and leftovers of a killed writer."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gradients import made_batch, made_model

from diffclip.errors import InputError
from diffclip.files import checkpoint_of, read_link
from diffclip.training.checkpoint import (
    RunProgress,
    choose_checkpoint,
    find_damage,
    read_state,
    save_checkpoint,
    try_folder,
)
from diffclip.training.losses import make_criterion

ALONE = SimpleNamespace(global_rank=0, world_size=1, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def stepped() -> tuple[torch.nn.Module, torch.optim.AdamW]:
    model = made_model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    make_criterion("clip", True)(**model(*made_batch())).backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def run(stepped: tuple[torch.nn.Module, torch.optim.AdamW], tmp_path: Path) -> Path:
    """A run folder with checkpoints of steps 1, 2 and 3; step 2 is the best."""
    for step in (1, 2, 3):
        save_checkpoint(ALONE, tmp_path, *stepped, RunProgress(step, epoch=step), best=step == 2)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("optimizer.safetensors", None, "No such file"),
        ("training.json", lambda old: old[:-1], "training.json is not what was written"),
        ("model.safetensors", lambda old: old[:-1] + bytes([old[-1] ^ 1]), "is not what was written"),
        ("files.json", lambda _: b"3}", "Extra data"),
    ],
)
def test_damaged_checkpoints_are_found_and_skipped(name, content, fault, run, stepped, capsys) -> None:
    folder = run / "checkpoints" / "step_00000003"
    assert find_damage(folder) is None
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content((folder / name).read_bytes()))
    assert fault in (find_damage(folder) or "")
    assert choose_checkpoint(run) == run / "checkpoints" / "step_00000002"
    assert "step_00000003 is damaged" in capsys.readouterr().err
    assert read_state(run / "checkpoints" / "last").step == 2
    # the next checkpoint replaces the damaged folder
    save_checkpoint(ALONE, run, *stepped, RunProgress(3, epoch=3))
    assert find_damage(folder) is None


def test_a_position_that_cannot_be_read_is_named(run, stepped) -> None:
    (run / "checkpoints" / "step_00000003" / "training.json").write_text("{")
    with pytest.raises(
        InputError, match=r"cannot read .*step_00000003/training\.json .*: go on with --resume"
    ):
        save_checkpoint(ALONE, run, *stepped, RunProgress(3, epoch=4))


def test_a_copy_that_follows_links_goes_on_and_loses_nothing(run, stepped, tmp_path, capsys) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    checkpoints = copy / "checkpoints"
    assert checkpoint_of(copy) == checkpoints / "best"
    assert choose_checkpoint(copy) == checkpoints / "step_00000003"
    save_checkpoint(ALONE, copy, *stepped, RunProgress(4), best=True)
    steps = [read_state(read_link(checkpoints / name)).step for name in ("previous", "last", "best")]
    assert steps == [3, 4, 4]
    aside = {folder.name.split(".")[0]: read_state(folder).step for folder in checkpoints.glob("*.*")}
    assert aside == {"last": 3, "best": 2, "previous": 2}
    assert capsys.readouterr().err.count("was a folder, not a link: it is") == 3


def test_a_kill_while_saving_leaves_the_previous_checkpoint_usable(run, stepped, monkeypatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("diffclip.training.checkpoint.flush", killed)
        save_checkpoint(ALONE, run, *stepped, RunProgress(4, epoch=4), best=True)
    assert choose_checkpoint(run) == run / "checkpoints" / "step_00000003"
    best = run / "checkpoints" / "best"
    best.unlink()
    best.symlink_to("step_00000004")  # a later kill: after the link, before its folder
    leftover = run / "checkpoints" / ".new.tmp"
    leftover.mkdir(exist_ok=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    assert choose_checkpoint(run) == run / "checkpoints" / "step_00000003"
    save_checkpoint(ALONE, run, *stepped, RunProgress(4, epoch=4), best=True)
    assert read_state(best).step == 4
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"last", "previous", "best", "step_00000003", "step_00000004"}


def test_no_failure_of_publishing_deletes_a_checkpoint(run, stepped, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise InputError("no link")

    folder = run / "checkpoints" / "step_00000004"
    with monkeypatch.context() as patch, pytest.raises(InputError, match="no link"):
        patch.setattr("diffclip.training.checkpoint.write_link", refuse)
        save_checkpoint(ALONE, run, *stepped, RunProgress(4, epoch=4), best=True)
    assert find_damage(folder) is None
    assert choose_checkpoint(run) == folder


def test_a_folder_is_tried_before_the_first_step(tmp_path, monkeypatch) -> None:
    try_folder(tmp_path)
    assert list((tmp_path / "checkpoints").iterdir()) == []
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if Path(source).is_dir():
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(InputError, match=r"cannot write .*checkpoints.*: Operation not permitted"):
        try_folder(tmp_path)

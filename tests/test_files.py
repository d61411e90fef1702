"""Files appear whole or not at all, on a full disk too."""

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import SIZES

import diffclip
from diffclip import CLIP, InputError
from diffclip.config import variant_config
from diffclip.files import (
    check_writable,
    explain_disk_errors,
    hold_lock,
    write_atomically,
    write_text,
)
from diffclip.weights import save_published


def test_errors_unrelated_to_the_target_are_raised_unchanged() -> None:
    for fault in (BrokenPipeError(errno.EPIPE, "x"), OSError("no number")):
        with pytest.raises(OSError) as error, explain_disk_errors(Path("x")):
            raise fault
        assert error.value is fault


def test_long_file_names_are_written_and_too_long_names_refused(tmp_path: Path) -> None:
    write_text(tmp_path / ("a" * 250), "text")
    assert [path.name for path in tmp_path.iterdir()] == ["a" * 250]
    target = tmp_path / ("b" * 256)
    for check in (check_writable, lambda path: write_text(path, "text")):
        with pytest.raises(InputError, match=f"cannot write {target}: File name too long; choose another"):
            check(target)


def test_writing_to_a_link_keeps_the_link_and_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to("there/file")
    for text in ("first", "second"):
        write_text(link, text)
        assert link.is_symlink()
        assert (tmp_path / "there" / "file").read_text() == text
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["file"]


def test_writing_to_a_pipe_keeps_the_pipe(tmp_path: Path) -> None:
    pipe, texts = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: texts.append(pipe.read_text()), daemon=True)
    reader.start()
    check_writable(pipe)
    write_text(pipe, "text")
    reader.join(30)
    assert texts == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")


@needs_full
@pytest.mark.parametrize("folder", [False, True])
def test_a_disk_that_fills_up_keeps_the_previous_contents(folder: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if not folder:
        target.write_text("before")
    message = f"no space left on device while writing {target}: free"
    with pytest.raises(InputError, match=message), write_atomically(target) as temporary:
        if folder:
            temporary.mkdir()
            (temporary / "half").touch()
        else:
            temporary.write_text("half")
        with open("/dev/full", "w") as full:
            full.write("x")
    assert [path.read_text() for path in tmp_path.iterdir()] == ([] if folder else ["before"])


def test_check_writable_finds_unwritable_targets_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for target in (tmp_path / "file", tmp_path / "new", tmp_path / "a" / "b" / "new", Path(os.devnull)):
        check_writable(target)
    for target in (tmp_path / "folder", tmp_path / "file" / "a" / "b"):
        with pytest.raises(InputError, match=f"cannot write {target}: .* is in the way"):
            check_writable(target)
    with pytest.raises(InputError, match="in the way"):
        write_text(tmp_path / "file" / "inner", "x")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_cannot_be_written_keeps_the_previous_checkpoint(
    tmp_path: Path, file_limit: Callable[[int], None]
) -> None:
    from lightning.fabric import Fabric

    from diffclip.training.checkpoint import RunProgress, read_state, save_checkpoint

    model = CLIP(variant_config("DiffCLIP", SIZES), seed=0)
    optimiser = torch.optim.AdamW(model.parameters())
    fabric = Fabric(accelerator="cpu", devices=1)
    save_checkpoint(fabric, tmp_path, model, optimiser, RunProgress(step=1))
    file_limit(1000)
    second = (fabric, tmp_path, model, optimiser, RunProgress(step=2))
    for save in (lambda: save_checkpoint(*second), lambda: save_published(model, tmp_path / "a.pt")):
        with pytest.raises(InputError, match=r"cannot write|no space left") as error:
            save()
        assert "\n" not in str(error.value)
    assert read_state(tmp_path / "checkpoints" / "last").step == 1
    diffclip.load_weights(model, tmp_path / "checkpoints" / "last")
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"last", "step_00000001"}


def test_a_file_system_without_locks_is_named_in_a_line(tmp_path, monkeypatch, capsys) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    for _ in range(2):
        with hold_lock(tmp_path / ".lock"):
            pass
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"diffclip: {tmp_path} is on a file system without locks (No locks available): ")

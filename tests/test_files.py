"""Files appear whole or not at all, on a full disk too."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import diffclip
from diffclip import CLIP, InputError
from diffclip.config import variant_config
from diffclip.files import write_atomically, write_text
from diffclip.weights import save_published

SIZES = {"text": {"width": 32, "layers": 1, "heads": 2}, "vision": {"width": 32, "layers": 1, "heads": 2}}


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_text(target, "first")
    with pytest.raises(RuntimeError), write_atomically(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]
    write_text(target, "second")
    assert target.read_text() == "second"


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), write_atomically(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "half").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with write_atomically(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "whole").touch()
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["whole"]


def test_something_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="in the way"):
        write_text(tmp_path / "file" / "inner", "x")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        os.name != "posix"
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True
        ).returncode
    ):
        pytest.skip("cannot mount a small file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    "save", [diffclip.save_weights, lambda m, folder: save_published(m, folder / "a.pt")]
)
def test_a_full_disk_is_said_in_one_line_and_leaves_nothing_half_written(save, small_disk: Path) -> None:
    model = CLIP(variant_config("DiffCLIP", SIZES), seed=0)
    with pytest.raises(
        InputError, match=r"no space left on device while writing .*: free some space"
    ) as error:
        save(model, small_disk / "model")
    assert "\n" not in str(error.value)
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []
    with pytest.raises(InputError, match="no space left"):
        write_text(small_disk / "text", "x" * 1_000_000)


def test_a_full_disk_keeps_the_checkpoint_before(small_disk: Path) -> None:
    from diffclip.training.checkpoint import Progress, read_progress, save_checkpoint

    sizes = {
        "embed_dim": 8,
        "vision": {"image_size": 16, "patch_size": 16, "width": 8, "layers": 1, "heads": 2},
        "text": {"context_length": 8, "vocab_size": 300, "width": 8, "layers": 1, "heads": 2},
    }
    model = CLIP(variant_config("DiffCLIP", sizes), seed=0)
    optimiser = torch.optim.AdamW(model.parameters())
    save_checkpoint(small_disk, model, optimiser, Progress(step=1))
    (small_disk / "ballast").write_bytes(bytes(150_000))
    with pytest.raises(InputError, match="no space left"):
        save_checkpoint(small_disk, model, optimiser, Progress(step=2))
    assert read_progress(small_disk).step == 1
    diffclip.load_weights(model, small_disk / "checkpoints" / "last")
    assert {path.name for path in (small_disk / "checkpoints").iterdir()} == {"last", "step_00000001"}

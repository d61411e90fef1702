import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from odd_shards import encoded, smooth_picture, write_odd_shards, write_shard_of

from diffclip.cli.data_check import check
from diffclip.errors import InputError


def test_a_table_a_file_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_odd_shards(tmp_path / "odd")
    output, page = tmp_path / "out" / "check.json", tmp_path / "out" / "check.html"
    check([str(folder)], output=output, page=page, workers=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "42 of 44 samples can be trained on (95.5 %)."
    assert any(line.split() == ["unreadable", "pictures", "1", "(2.3", "%)"] for line in lines)
    assert f"  {folder}/3.tar is empty (0 bytes)" in lines
    assert f"  {folder}/1.tar:bare has no caption" in lines
    assert any(line.startswith(f"  {folder}/1.tar:cut is cut short or broken") for line in lines)
    assert lines[-2:] == [f"wrote {output}", f"wrote {page}"]
    assert json.loads(output.read_text())["whole"] == 42
    assert f"diffclip data check {folder} --output {output} --page {page}</pre>" in page.read_text()
    assert (folder / "diffclip-index" / "counts.json").exists()


def test_the_command_on_the_page_makes_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_odd_shards(tmp_path / "odd")
    page = tmp_path / "page.html"
    check(
        [str(folder / "0.tar"), str(folder / "2.tar")],
        page=page,
        sample=5,
        seed=2,
        workers=1,
        context_length=12,
    )
    assert "samples drawn from 23 can be trained on" in capsys.readouterr().out
    words = f"{folder}/0.tar {folder}/2.tar --page {page} --sample 5 --seed 2 --context-length 12</pre>"
    assert f"diffclip data check {words}" in page.read_text()


def test_long_lists_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = [
        (f"{i:02d}", {"jpg": b"broken" if i else encoded(smooth_picture(0)), "txt": b"a"}) for i in range(31)
    ]
    write_shard_of(tmp_path / "0.tar", samples)
    check([str(tmp_path)], workers=1)
    out = capsys.readouterr().out
    assert "Unreadable, the first 10 of 30:" in out
    assert out.count("is not a picture") == 10


def test_what_cannot_be_written_is_found_out_first(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a file or folder of that name is in the way"):
        check(["no shards here"], output=tmp_path)


def test_nothing_to_train_on_is_exit_code_2(tmp_path: Path) -> None:
    write_shard_of(tmp_path / "0.tar", [("a", {"jpg": b"broken", "txt": b"a"})])
    command = [sys.executable, "-m", "diffclip.cli", "data", "check", str(tmp_path), "--workers", "1"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)
    assert "not one of 1 samples" in ended.stderr


def test_ctrl_c_ends_it_and_its_workers(tmp_path: Path) -> None:
    picture = encoded(smooth_picture(0, (900, 900)))
    # few enough shards to be indexed by one process, so that the children are those that read
    for shard in range(4):
        samples = [(f"{i:04d}", {"jpg": picture, "txt": b"a"}) for i in range(400)]
        write_shard_of(tmp_path / "shards" / f"{shard}.tar", samples)
    command = [
        sys.executable,
        "-m",
        "diffclip.cli",
        "data",
        "check",
        str(tmp_path / "shards"),
        "--workers",
        "2",
    ]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(command, stdout=errors, stderr=errors, start_new_session=True)
        while len(workers := [child for child in children_of(process.pid) if reads_a_shard(child)]) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait() == 130
    assert (tmp_path / "errors").read_text() == "diffclip: interrupted\n"
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def children_of(parent: int) -> list[int]:
    path = Path(f"/proc/{parent}/task/{parent}/children")
    try:
        return [int(child) for child in path.read_text().split()]
    except OSError:
        return []


def reads_a_shard(process: int) -> bool:
    try:
        return any(os.readlink(file).endswith(".tar") for file in Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return False

import json
import os
from pathlib import Path

import pytest
from in_process import diffclip_command
from odd_shards import write_odd_shards, write_shard_of

from diffclip.cli.data_check import check
from diffclip.errors import InputError


def test_a_table_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    folder = write_odd_shards(tmp_path / "odd")
    output = tmp_path / "out" / "check.json"
    check([str(folder)], output=output, workers=1)
    lines = capsys.readouterr().out.splitlines()
    answers = dict(line.strip().split("   ", 1) for line in lines if "   " in line.strip())
    answers = {name: value.strip() for name, value in answers.items()}
    assert answers["faults in the shards"] == "3"
    assert answers["can be trained on"] == "42 (95.5 %)"
    assert answers["unreadable images"] == "1 (2.27 %)"
    assert answers["same pixels as another"] == "1 (2.38 %), groups: 1"
    assert answers["looks like another"] == "2 (4.76 %), groups: 1"
    assert answers["shorter edge"].endswith("below 224: 42 (100 %)")
    assert f"  {folder}/3.tar is empty (0 bytes)" in lines
    assert f"  {folder}/1.tar:bare has no caption" in lines
    assert lines[-1] == f"wrote {output}"
    assert json.loads(output.read_text())["whole"] == 42
    # nothing is written beside the data
    assert sorted(os.listdir(folder)) == ["0.tar", "1.tar", "2.tar", "3.tar"]


def test_nothing_to_train_on_is_exit_code_2(tmp_path: Path) -> None:
    write_shard_of(tmp_path / "0.tar", [("a", {"jpg": b"broken", "txt": b"a"})])
    ended = diffclip_command("data", "check", tmp_path, "--workers", 1)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)
    assert "none of 1 samples" in ended.stderr


def test_a_shard_is_not_taken_for_the_output(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="would replace a shard"):
        check([str(tmp_path / "1.tar")], output=tmp_path / "0.tar")  # --output *.tar

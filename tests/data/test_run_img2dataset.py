import json
import os
import sys
from pathlib import Path

import pytest
from fake_img2dataset import write_program

from diffclip.data.caption_list import CaptionList
from diffclip.data.run_img2dataset import command_of, find_tool, outcome_of, run_tool
from diffclip.errors import DiffCLIPError, InputError


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    return write_program(tmp_path / "bin" / "img2dataset")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CaptionList:
    """Five pictures at addresses of files, the fourth of which is missing; two pairs a shard."""
    lines = ["url\tcaption"]
    for number in range(5):
        picture = tmp_path / f"{number}.jpg"
        if number != 3:
            picture.write_bytes(b"picture")
        lines.append(f"{picture.as_uri()}\tcaption {number}")
    path = tmp_path / "urls.tsv"
    path.write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("FAKE_SHARD", "2")
    return CaptionList(path, ("url", "caption"), 5)


def calls(tmp_path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]


def test_the_tool_is_found_where_it_may_be(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="is not installed: run pipx install img2dataset"):
        find_tool()
    with pytest.raises(InputError, match=r"nothing is no program"):
        find_tool(tmp_path / "nothing")
    assert find_tool(program) == [str(program)]
    pipx = write_program(tmp_path / "runners" / "pipx")
    monkeypatch.setenv("PATH", str(pipx.parent))
    assert find_tool() == [str(pipx), "run", "img2dataset"]
    uvx = write_program(tmp_path / "runners" / "uvx")
    assert find_tool() == [str(uvx), "img2dataset"]
    monkeypatch.setenv("PATH", os.pathsep.join([str(pipx.parent), str(program.parent)]))
    assert find_tool() == [str(program)]


def test_the_settings_of_the_paper(program: Path, source: CaptionList, tmp_path: Path) -> None:
    shards = tmp_path / "out" / "train"
    told: list[tuple[str, int, int | None]] = []
    command = command_of([str(program)], source, shards, 3, 7)
    run_tool(command, shards, tmp_path / "log", lambda *step: told.append(step))
    (options,) = calls(tmp_path)
    assert options == {
        "url_list": str(source.path),
        "input_format": "tsv",
        "url_col": "url",
        "caption_col": "caption",
        "output_folder": str(shards),
        "output_format": "webdataset",
        "image_size": "224",
        "resize_mode": "keep_ratio",
        "resize_only_if_bigger": "True",
        "encode_format": "jpg",
        "encode_quality": "95",
        "extract_exif": "False",
        "processes_count": "3",
        "thread_count": "7",
        "incremental_mode": "incremental",
        "enable_wandb": "False",
    }
    assert sum(done for _, done, _ in told) == 5
    assert "fake img2dataset starts" in (tmp_path / "log").read_text()
    outcome = outcome_of(shards)
    assert (outcome.shards, outcome.pairs, outcome.pictures, outcome.not_fetched) == (3, 5, 4, 1)
    assert outcome.size == sum(path.stat().st_size for path in shards.glob("*.tar"))
    ((reason, number),) = outcome.reasons.items()
    assert "No such file" in reason
    assert number == 1


def test_a_run_goes_on_where_one_stopped(program: Path, source: CaptionList, tmp_path: Path) -> None:
    shards = tmp_path / "train"
    command = command_of([str(program)], source, shards, 1, 1)
    run_tool(command, shards, tmp_path / "log")
    first = (shards / "00000.tar").stat().st_mtime_ns
    # killed in the second shard, with the copy of its list still there
    (shards / "00001_stats.json").unlink()
    (shards / "_tmp").mkdir()
    told: list[int] = []
    run_tool(command, shards, tmp_path / "log", lambda _, done, __: told.append(done))
    assert told == [2]
    assert (shards / "00000.tar").stat().st_mtime_ns == first
    assert outcome_of(shards).pairs == 5
    assert not (shards / "_tmp").exists()


def test_shards_without_a_single_picture_are_tried_again(
    program: Path, source: CaptionList, tmp_path: Path
) -> None:
    shards = tmp_path / "train"
    command = command_of([str(program)], source, shards, 1, 1)
    for number in range(5):
        (tmp_path / f"{number}.jpg").unlink(missing_ok=True)
    run_tool(command, shards, tmp_path / "log")
    assert outcome_of(shards).pictures == 0
    for number in (0, 2):
        (tmp_path / f"{number}.jpg").write_bytes(b"picture")
    run_tool(command, shards, tmp_path / "log")
    assert outcome_of(shards).pictures == 2


def test_a_tool_that_fails(
    program: Path, source: CaptionList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CODE", "3")
    command = command_of([str(program)], source, tmp_path / "train", 1, 1)
    message = r"img2dataset failed with exit code 3 \(ValueError: the list is odd\); its log is .*/log$"
    with pytest.raises(DiffCLIPError, match=message) as raised:
        run_tool(command, tmp_path / "train", tmp_path / "log")
    assert not isinstance(raised.value, InputError)


def test_a_tool_that_is_killed(tmp_path: Path) -> None:
    killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    with pytest.raises(DiffCLIPError, match=r"img2dataset was ended by SIGKILL; its log is"):
        run_tool(killed, tmp_path / "train", tmp_path / "log")


def test_odd_notes_count_as_none(tmp_path: Path) -> None:
    for name, content in (("00000", "{"), ("00001", "[]"), ("00002", '{"count": 1}')):
        (tmp_path / f"{name}_stats.json").write_text(content)
    assert outcome_of(tmp_path).shards == 0
    assert outcome_of(tmp_path / "nothing").pairs == 0

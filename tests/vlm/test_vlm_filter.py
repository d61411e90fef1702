"""`diffclip vlm data`: what is kept of LLaVA's mix, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from diffclip.cli.vlm_data import vlm_data
from diffclip.errors import InputError
from diffclip.vlm.conversations import read_conversations

app = typer.Typer()
app.command()(vlm_data)


def call(*arguments: object) -> str:
    """stdout of the command; what it raises is raised again."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception:
        raise result.exception
    return result.stdout


def sample(image: str | None, answer: str = "A bus, “é”.", **fields: object) -> dict:
    question = "<image>\nWhat?" if image else "Who?"
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return {"id": "same", **({"image": image} if image else {}), "conversations": turns, **fields}


MIX = [
    sample("coco/train2017/1.jpg"),
    sample("gqa/images/1.jpg"),
    sample(None, model=""),
    sample("coco/train2017/2.jpg", more=[1, {"kept": None}]),
    sample("coco/train2017/3.jpg", answer=" "),
    sample("coco2/1.jpg"),
    sample("top.png"),
    sample("coco/train2017/4.jpg"),
    "no object",
]


@pytest.fixture
def source(tmp_path) -> Path:
    file = tmp_path / "mix.json"
    file.write_text(json.dumps(MIX), encoding="utf-8")
    return file


@pytest.fixture
def pictures(tmp_path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "coco/train2017").mkdir(parents=True)
    for number in (1, 4):
        (folder / f"coco/train2017/{number}.jpg").touch()
    return folder


def test_keeps_one_folder_as_it_is(source, tmp_path):
    target = tmp_path / "new" / "coco.json"
    printed = call(source, target)
    assert json.loads(target.read_text(encoding="utf-8")) == [MIX[0], MIX[3], MIX[7]]
    assert len(target.read_text(encoding="utf-8").splitlines()) == 5
    assert len(read_conversations(target, tmp_path, check_pictures=False)) == 3
    lines = printed.splitlines()
    assert lines[0] == f"{target}: kept 3 of 9 samples of {source}"
    assert [line.split(":")[1].split() for line in lines[1:4]] == [
        ["3", "other", "pictures"],
        ["1", "text", "only"],
        ["2", "unusable"],
    ]
    assert [line.split() for line in lines[5:9]] == [
        ["4", "coco/"],
        ["1", "gqa/"],
        ["1", "coco2/"],
        ["1", "(no", "folder)"],
    ]
    assert "sample [4] (id same): the answer in turn 2 is empty" in lines[9]
    assert "sample [8]: it is a text" in lines[10]


def test_counts_as_json_and_pictures_at_hand(source, pictures, tmp_path):
    target = tmp_path / "coco.json"
    found = json.loads(call(source, target, "--images", "coco/", "--pictures", pictures, "--json"))
    assert [one["image"][-5] for one in json.loads(target.read_text())] == ["1", "4"]
    counts = ("kept", "other_pictures", "text_only", "missing", "unusable")
    assert [found[name] for name in counts] == [2, 3, 1, 1, 2]
    assert sum(found[name] for name in counts) == found["samples"] == 9
    assert found["folders"] == {"coco/": 4, "gqa/": 1, "coco2/": 1, "(no folder)": 1}
    assert len(read_conversations(target, pictures)) == 2


def test_nothing_left(source, pictures, tmp_path):
    target = tmp_path / "out.json"
    with pytest.raises(InputError, match=r"starts with 'vg/': choose --images from coco/ \(4\), gqa/ \(1\)"):
        call(source, target, "--images", "vg/")
    with pytest.raises(InputError, match=r"none of the 1 pictures of .* under 'gqa/' is in .*pictures: give"):
        call(source, target, "--images", "gqa/", "--pictures", pictures)
    with pytest.raises(InputError, match=r"nothing usable is left .*sample \[4\] \(id same\)"):
        call(source, target, "--images", "coco/train2017/3")
    source.write_text(json.dumps(MIX[2:3]))
    with pytest.raises(InputError, match="has no sample with a picture"):
        call(source, target)
    source.write_text(json.dumps([{"image": ["a.jpg"], "conversations": []}]))
    with pytest.raises(InputError, match=r"nothing usable is left .*'image' is no path"):
        call(source, target)
    assert not target.exists()


def test_source_stays(source, tmp_path):
    before = source.read_bytes()
    with pytest.raises(InputError, match="is the source itself"):
        call(source, tmp_path / "." / "mix.json")
    with pytest.raises(InputError, match=r"none.json does not exist"):
        call(tmp_path / "none.json", source)
    with pytest.raises(InputError, match="a file or folder of that name is in the way"):
        call(source, tmp_path)
    assert source.read_bytes() == before

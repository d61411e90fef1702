"""LLaVA's JSON: what is read, and what is refused in one line that names the sample."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest

from diffclip.errors import InputError
from diffclip.vlm.conversations import Conversation, Turn, missing_pictures, read_conversations


def human(text: object) -> dict:
    return {"from": "human", "value": text}


def gpt(text: object) -> dict:
    return {"from": "gpt", "value": text}


def write(folder: Path, *samples: object) -> Path:
    file = folder / "mix.json"
    file.write_text(json.dumps(samples), encoding="utf-8")
    return file


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    for name in ("coco/train2017/1.jpg", "coco/train2017/2.jpg", "top.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_reads_pictures_turns_and_text(tmp_path, pictures):
    file = write(
        tmp_path,
        {
            "id": "000000033471",
            "image": "coco/train2017/1.jpg",
            "conversations": [
                human("<image>\nWhat is it? "),
                gpt(" A bus.\n"),
                human("Red?"),
                gpt("Yes é 🙂"),
            ],
        },
        {"id": "000000033471", "image": "top.png", "conversations": [human("What?\n<image>"), gpt("A")]},
        {"id": 12, "model": "", "conversations": [human("Who?"), gpt("I")]},
        {"image": "./coco/train2017/2.jpg", "conversations": [human("<image>"), gpt("A caption")]},
    )
    name = str(file)
    was_enabled = gc.isenabled()
    found = read_conversations(file, pictures)
    assert gc.isenabled() == was_enabled
    assert found == [
        Conversation(
            "000000033471",
            pictures / "coco/train2017/1.jpg",
            (Turn("What is it?", "A bus."), Turn("Red?", "Yes é 🙂")),
            0,
            name,
        ),
        Conversation("000000033471", pictures / "top.png", (Turn("What?", "A"),), 1, name),
        Conversation("12", None, (Turn("Who?", "I"),), 2, name),
        Conversation("", pictures / "coco/train2017/2.jpg", (Turn("", "A caption"),), 3, name),
    ]
    assert [one.name for one in found][2:] == [f"{name}, sample [2] (id 12)", f"{name}, sample [3]"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not JSON"),
        (b'{"id": 1}\n{"id": 2}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'[{"id": "\xff"}]', "is not UTF-8"),
        (b'{"id": 1}', "is not a list but an object"),
        (b"null", "is not a list but null"),
        (b"[]", "is an empty list"),
    ],
)
def test_what_is_no_list_of_samples(tmp_path, content, reason):
    file = tmp_path / "mix.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"mix.json {reason}.*give a list of conversations"):
        read_conversations(file, tmp_path)


def test_no_file(tmp_path):
    with pytest.raises(InputError, match=r"none.json does not exist"):
        read_conversations(tmp_path / "none.json", tmp_path)
    with pytest.raises(InputError, match=r"cannot read .*: Is a directory"):
        read_conversations(tmp_path, tmp_path)


ASK = human("<image>\nWhat?")


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ("text", "it is a text, write an object"),
        ({"image": "top.png"}, "it has no answer"),
        ({"conversations": []}, "it has no answer"),
        ({"conversations": [human("What?")]}, "no answer to its last human turn"),
        ({"conversations": [human("a"), gpt("b"), human("c")]}, "no answer to its last human turn"),
        ({"conversations": [human("a"), gpt(" \n")]}, "the answer in turn 2 is empty"),
        ({"conversations": [human("a"), gpt(None)]}, "the value of turn 2 is null"),
        ({"conversations": [human("a"), {"from": "gpt"}]}, "the value of turn 2 is null"),
        ({"conversations": [human("a"), gpt("half \ud83d")]}, "turn 2 has half a character"),
        ({"conversations": [human("a"), {"from": "system", "value": "b"}]}, "turn 2 is from 'system'"),
        ({"conversations": [human("a"), "b"]}, "turn 2 is from 'None'"),
        ({"conversations": [gpt("a"), human("b")]}, "turn 1 is from 'gpt' first"),
        ({"conversations": [human("a"), human("b")]}, "turn 2 is from 'human' after another human turn"),
        ({"conversations": [ASK, gpt("b")]}, "turn 1 has <image> but there is no picture"),
        ({"conversations": [human("a"), gpt("<image>")]}, "turn 2 has <image> but there is no picture"),
        ({"image": "top.png", "conversations": [human("a"), gpt("b")]}, "it has a picture but no <image>"),
        (
            {"image": "top.png", "conversations": [human("a"), gpt("b"), ASK, gpt("b")]},
            "it has a picture but no <image>, write that into its first human turn",
        ),
        (
            {"image": "top.png", "conversations": [human("<image>a<image>"), gpt("b")]},
            "it has <image> 2 times",
        ),
        (
            {"image": "top.png", "conversations": [human("is <image> red?"), gpt("b")]},
            "<image> stands inside its first human turn",
        ),
        ({"image": "top.png", "conversations": [ASK, gpt("<image>")]}, "turn 2 has an <image> too many"),
        (
            {"image": "top.png", "conversations": [ASK, gpt("b"), ASK, gpt("c")]},
            "turn 3 has an <image> too many",
        ),
        ({"image": ["a", "b"], "conversations": [ASK, gpt("b")]}, "'image' is no path (a list)"),
        ({"image": "", "conversations": [ASK, gpt("b")]}, "'image' is no path (an empty text)"),
        ({"image": "a\0b", "conversations": [ASK, gpt("b")]}, "'image' is no path (a text)"),
        ({"image": "../top.png", "conversations": [ASK, gpt("b")]}, "the picture ../top.png leaves"),
        ({"image": "coco/../../x", "conversations": [ASK, gpt("b")]}, "the picture coco/../../x leaves"),
        ({"image": "/etc/passwd", "conversations": [ASK, gpt("b")]}, "the picture /etc/passwd leaves"),
    ],
)
def test_what_no_model_can_be_trained_on(tmp_path, pictures, sample, reason):
    good = {"id": "same", "conversations": [human("a"), gpt("b")]}
    named = "" if isinstance(sample, str) else r" \(id same\)"
    sample = {"id": "same", **sample} if isinstance(sample, dict) else sample
    with pytest.raises(InputError) as raised:
        read_conversations(write(tmp_path, good, sample, good), pictures)
    (line,) = str(raised.value).splitlines()
    assert f"mix.json, sample [1]{named.replace(chr(92), '')}: " in line
    assert reason in line
    assert line.endswith(", or leave the sample out")


def test_names_in_errors_stay_on_their_line(tmp_path, pictures):
    sample = {"id": "a\nb" * 100, "image": "..\n/..", "conversations": [ASK, gpt("b")]}
    with pytest.raises(InputError) as raised:
        read_conversations(write(tmp_path, sample), pictures)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_missing_pictures(tmp_path, pictures):
    asked = [ASK, gpt("b")]
    names = [
        "coco/train2017/1.jpg",
        "coco/train2017/9.jpg",
        "gone/1.jpg",
        "top.png",
        "top.png/x",
        "gone/1.jpg",
    ]
    file = write(tmp_path, *({"image": name, "conversations": asked} for name in names))
    with pytest.raises(InputError) as raised:
        read_conversations(file, pictures)
    said = (
        "3 of the 5 pictures of .*mix.json are not in .*: coco/train2017/9.jpg, gone/1.jpg, top.png/x: give"
    )
    assert raised.match(said.replace(".*:", ".*, such as"))
    assert len(read_conversations(file, pictures, check_pictures=False)) == 6
    with pytest.raises(InputError, match="nowhere is not a folder"):
        read_conversations(file, tmp_path / "nowhere")
    assert missing_pictures(pictures, names) == {names[1], names[2], names[4]}


def test_text_alone_needs_no_folder(tmp_path):
    file = write(tmp_path, {"conversations": [human("a"), gpt("b")]})
    assert read_conversations(file, tmp_path / "nowhere")[0].picture is None

"""Asking: a batch answers as each question alone does, and the command says what is wrong."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from diffclip.cli.main import app
from diffclip.errors import InputError
from diffclip.vlm.ask import answer
from diffclip.vlm.folders import save_vlm

QUESTIONS = ("Is the picture light?", "What colour is the square? Describe the picture shortly.", "Yes?")


@pytest.fixture(scope="module")
def talker(tiny_vlm: tuple[Any, Any]) -> tuple[Any, Any]:
    """The tiny model with a language model that is sure of itself, so that rounding decides nothing."""
    model = copy.deepcopy(tiny_vlm[0])
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            parameter.mul_(8.0 if parameter.ndim > 1 else 1.0)
        model.model.multi_modal_projector.weight.mul_(50)
    model.generation_config.eos_token_id = [0]
    return model, tiny_vlm[1]


@pytest.fixture(scope="module")
def shades() -> list[Image.Image]:
    return [Image.new("RGB", (30, 20), (value, 255 - value, value)) for value in (0, 250)]


def test_a_batch_answers_as_each_question_alone(
    talker: tuple[Any, Any], shades: list[Image.Image], tmp_path: Path
) -> None:
    shades[1].save(tmp_path / "light.png")
    pictures = [shades[0], None, tmp_path / "light.png"]
    together = answer(*talker, pictures, QUESTIONS, 6)
    alone = [
        answer(*talker, [picture], [question], 6)[0]
        for picture, question in zip(pictures, QUESTIONS, strict=True)
    ]
    assert together == alone
    assert all(together)


def test_the_picture_matters(talker: tuple[Any, Any], shades: list[Image.Image]) -> None:
    answers = answer(*talker, [*shades, None], [QUESTIONS[0]] * 3, 6)
    assert len(set(answers)) == 3


def test_answers_are_cut_off(talker: tuple[Any, Any], shades: list[Image.Image]) -> None:
    long, short = (answer(*talker, shades[:1], QUESTIONS[:1], most)[0] for most in (6, 2))
    assert len(short) < len(long)
    assert long.startswith(short)


def test_nothing_asked_is_nothing_answered(talker: tuple[Any, Any]) -> None:
    assert answer(*talker, [], []) == []


def test_what_cannot_be_asked(talker: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match="question 2 is empty"):
        answer(*talker, [None, None], ["Yes?", " "])
    with pytest.raises(InputError, match="1 pictures and 2 questions"):
        answer(*talker, [None], ["Yes?", "No?"])


def test_the_command(talker: tuple[Any, Any], shades: list[Image.Image], tmp_path: Path) -> None:
    save_vlm(*talker, tmp_path / "run" / "model")
    shades[0].save(tmp_path / "dark.png")
    asked = ["vlm", "ask", str(tmp_path / "dark.png"), *QUESTIONS[:2], "--model", str(tmp_path / "run")]
    said = CliRunner().invoke(app, [*asked, "--json", "--max-new-tokens", "4", "--device", "cpu"])
    assert said.exit_code == 0, said.output
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    assert [line["question"] for line in lines] == list(QUESTIONS[:2])
    expected = [answer(*talker, shades[:1], [question], 4)[0] for question in QUESTIONS[:2]]
    assert [line["answer"] for line in lines] == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{picture}", " ", "--model", "x"], "a question is empty"),
        (["nowhere.png", "Yes?", "--model", "x"], "nowhere.png"),
        (["{picture}", "Yes?", "--model", "nowhere"], "nowhere is no folder"),
        (["{picture}", "Yes?", "--model", "x", "--device", "tpu9"], "device 'tpu9' is not available"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, shades: list[Image.Image], tmp_path: Path
) -> None:
    picture = tmp_path / "dark.png"
    shades[0].save(picture)
    result = CliRunner().invoke(app, ["vlm", "ask", *(word.format(picture=picture) for word in arguments)])
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)
    assert "\n" not in str(result.exception)

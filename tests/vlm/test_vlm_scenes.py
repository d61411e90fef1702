"""Conversations and questions about scenes, and the small language model that is trained for them."""

import json
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tiny_vlm import stopped_after_a_save

from diffclip.scenes.layout import Dice, Spec, lay_out, make_generator
from diffclip.scenes.questions import TOPICS
from diffclip.scenes.vocabulary import COLORS
from diffclip.scenes.write import write_questions
from diffclip.vlm import language_model
from diffclip.vlm.conversations import IMAGE, Turn, read_conversations
from diffclip.vlm.files import load_language_model
from diffclip.vlm.language_model import make_language_model
from diffclip.vlm.scenes import (
    color_turn,
    count_things,
    describe,
    open_turn,
    write_conversations,
    yes_no_turns,
)

SCENES = 400


def scene(index: int) -> list[Spec]:
    return lay_out(Dice(make_generator("scene", "train", 5, index)), 1 + index % 4, None)[1]


def dice(index: int) -> Dice:
    return Dice(make_generator("questions", "train", 5, index))


def write(folder: Path) -> Path:
    """Write two conversations about each of 24 images."""
    write_conversations(folder, 24, 2, 16, 3, lambda *done: None)
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("conversations") / "made")


@pytest.mark.parametrize("topic", TOPICS)
def test_yes_no_answers_are_true_and_independent_of_earlier_answers(topic: Any) -> None:
    often = count_things(map(scene, range(SCENES)))
    after: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for index in range(2000):
        specs, earlier = scene(index), ()
        kinds = {f"{spec.color} {spec.shape}" for spec in specs}
        colors = {spec.color for spec in specs}
        turns = yes_no_turns(specs, topic, often, dice(index))
        assert len(turns) == len({turn.question for turn in turns})
        assert len(turns) == len(colors if topic == "colours" else kinds)
        for question, answer in turns:
            words = question.removesuffix(" in the picture?").split()
            present = words[-1] in colors if topic == "colours" else " ".join(words[-2:]) in kinds
            assert answer == ("yes" if present else "no"), question
            after[earlier][answer] += 1
            earlier = (*earlier, answer)
    frequent = {earlier: counts for earlier, counts in after.items() if counts.total() > 50}
    assert {len(earlier) for earlier in frequent} >= {0, 1, 2}
    for earlier, counts in frequent.items():
        # five standard errors
        assert abs(counts["yes"] / counts.total() - 0.5) < 2.5 / counts.total() ** 0.5, earlier


def test_open_answers_and_descriptions_are_true_of_the_scene() -> None:
    openings = set()
    for index in range(SCENES):
        specs = scene(index)
        question, answer = open_turn(specs, dice(index))
        words = set(answer.replace(",", "").split()) - {"a", "an", "and"}
        last = question.rstrip("?").split()[-1]
        if question.startswith("How many"):
            assert answer == ("no", "one", "two", "three", "four")[len(specs)]
            continue
        openings.add(question.split()[0] + question.split()[1])
        expected = {
            "Which colours": {spec.color for spec in specs},
            "Which shapes": {spec.shape for spec in specs},
            "What colour": {spec.color for spec in specs if spec.shape == last},
            "What is": {spec.shape for spec in specs if spec.color == last},
        }[" ".join(question.split()[:2])]
        assert words == expected, question
    assert len(openings) == 4
    lone = [Spec("star", "red"), Spec("ring", "blue"), Spec("star", "red")]
    assert color_turn(lone) == Turn("Which colours are in the picture?", "red and blue")
    assert set(describe(lone, dice(0)).split(" and ")) == {"two red stars", "a blue ring"}


def test_both_stages_are_llava_json_on_images_that_no_question_uses(written: Path, tmp_path: Path) -> None:
    images = written / "images"
    captions, talks = (read_conversations(written / f"stage{stage}.json", images) for stage in (1, 2))
    assert (len(captions), len(talks)) == (24, 48)
    assert all(len(caption.turns) == 1 for caption in captions)
    assert Image.open(images / (captions[0].image or "")).size == (16, 16)
    answers = Counter(turn.answer for talk in talks for turn in talk.turns)
    assert min(answers["yes"], answers["no"]) > 10
    for sample in json.loads((written / "stage2.json").read_text()):
        assert sample["conversations"][0]["value"].startswith(f"{IMAGE}\n")
    write_questions(tmp_path / "colours", 24, 16, 3, "colours")
    question_images = {file.read_bytes() for file in (tmp_path / "colours" / "images").iterdir()}
    assert len(question_images) == 24
    assert not question_images & {file.read_bytes() for file in images.rglob("*.jpg")}


def test_a_stopped_write_keeps_the_images_and_resumes_to_the_same_files(
    written: Path, tmp_path: Path
) -> None:
    shutil.copytree(written / "images", tmp_path / "images")
    image = tmp_path / "images" / "scene_0000019.jpg"
    image.write_bytes(b"kept")
    write(tmp_path)
    assert image.read_bytes() == b"kept"
    for name in ("stage1.json", "stage2.json"):
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes()


def test_the_language_model_has_whole_word_tokens_and_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_model, "_TOKENIZER_SCENES", language_model._TOKENIZER_SCENES[:250])
    made, stopped = tmp_path / "made", tmp_path / "stopped"
    make_language_model(made, steps=3)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    model, tokenizer = load_language_model(str(made))
    assert (model.config.model_type, model.config.vocab_size) == ("qwen2", len(tokenizer))
    for word in ("yes", "no", IMAGE, "<|im_end|>", *(f" {word}" for word in (*COLORS, "teardrop"))):
        assert len(tokenizer(word).input_ids) == 1, word
    text = "Is there a red crescent in the picture? Größe 3"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    with stopped_after_a_save():
        make_language_model(stopped, steps=3)
    make_language_model(stopped, steps=3)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (made, stopped)]
    assert weights[0] == weights[1]

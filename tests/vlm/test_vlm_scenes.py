"""Conversations and questions about scenes, and the small language model that reads them first."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from PIL import Image

from diffclip.errors import StoppedError
from diffclip.scenes import COLORS, draw_scene, questions
from diffclip.scenes.layout import Dice, Spec, lay_out, stream
from diffclip.scenes.questions import NEGATIVES, TOPICS, question_indices, question_scene
from diffclip.scenes.write import write_questions
from diffclip.vlm.conversations import IMAGE, Turn
from diffclip.vlm.dataset import open_conversations
from diffclip.vlm.demo import DemoSettings, train_models
from diffclip.vlm.files import load_language_model
from diffclip.vlm.language_model import LanguageSettings, make_language_model
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
    return lay_out(Dice(stream("scene", "train", 5, index)), 1 + index % 4, None)[1]


def dice(index: int) -> Dice:
    return Dice(stream("questions", "train", 5, index))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conversations") / "made"
    write_conversations(folder, 24, 2, 16, 3, lambda *done: None)
    return folder


@pytest.mark.parametrize("topic", TOPICS)
def test_yes_no_answers_are_true_and_do_not_follow_from_those_before(topic: Any) -> None:
    often = count_things(map(scene, range(SCENES)))
    after: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for index in range(2000):
        specs, given = scene(index), ()
        kinds = {f"{spec.color} {spec.shape}" for spec in specs}
        colors = {spec.color for spec in specs}
        turns = yes_no_turns(specs, topic, often, dice(index))
        assert len(turns) == len({turn.question for turn in turns})
        assert len(turns) == len(colors if topic == "colours" else kinds)
        for question, answer in turns:
            words = question.removesuffix(" in the picture?").split()
            here = words[-1] in colors if topic == "colours" else " ".join(words[-2:]) in kinds
            assert answer == ("yes" if here else "no"), question
            after[given][answer] += 1
            given = (*given, answer)
    seen = {given: counts for given, counts in after.items() if counts.total() > 50}
    assert {len(given) for given in seen} >= {0, 1, 2}
    for given, counts in seen.items():
        # five standard errors
        assert abs(counts["yes"] / counts.total() - 0.5) < 2.5 / counts.total() ** 0.5, given


def test_told_answers_are_true_of_the_scene() -> None:
    asked = set()
    for index in range(SCENES):
        specs = scene(index)
        question, answer = open_turn(specs, dice(index))
        words = set(answer.replace(",", "").split()) - {"a", "an", "and"}
        last = question.rstrip("?").split()[-1]
        if question.startswith("How many"):
            assert answer == ("no", "one", "two", "three", "four")[len(specs)]
            continue
        asked.add(question.split()[0] + question.split()[1])
        expected = {
            "Which colours": {spec.color for spec in specs},
            "Which shapes": {spec.shape for spec in specs},
            "What colour": {spec.color for spec in specs if spec.shape == last},
            "What is": {spec.shape for spec in specs if spec.color == last},
        }[" ".join(question.split()[:2])]
        assert words == expected, question
    assert len(asked) == 4
    lone = [Spec("star", "red"), Spec("ring", "blue"), Spec("star", "red")]
    assert color_turn(lone) == Turn("Which colours are in the picture?", "red and blue")
    assert set(describe(lone, dice(0)).split(" and ")) == {"two red stars", "a blue ring"}


def test_both_stages_are_llavas_json(written: Path) -> None:
    images = written / "images"
    captions, talks = (open_conversations(written / f"stage{stage}.json", images) for stage in (1, 2))
    assert (len(captions), len(talks)) == (24, 48)
    assert all(len(one.turns) == 1 for one in captions)
    assert Image.open(images / (captions[0].image or "")).size == (16, 16)
    answers = Counter(turn.answer for one in talks for turn in one.turns)
    assert min(answers["yes"], answers["no"]) > 10
    for sample in json.loads((written / "stage2.json").read_text()):
        assert sample["conversations"][0]["value"].startswith(f"{IMAGE}\n")


def test_the_same_conversations_come_again(written: Path, tmp_path: Path) -> None:
    write_conversations(tmp_path / "again", 24, 2, 16, 3, lambda *done: None)
    for name in ("stage1.json", "stage2.json", "images/0/scene_0000023.jpg"):
        assert (tmp_path / "again" / name).read_bytes() == (written / name).read_bytes()


def test_a_stopped_demo_keeps_its_images_and_shows_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Mock(side_effect=draw_scene)
    monkeypatch.setattr("diffclip.vlm.scenes.draw_scene", drawn)
    monkeypatch.setattr("diffclip.vlm.scenes._PART", 10)
    monkeypatch.setattr("diffclip.vlm.demo.write_scenes", Mock())
    monkeypatch.setattr("diffclip.vlm.demo.make_language_model", Mock(side_effect=KeyboardInterrupt))
    settings = DemoSettings(questioned=3, talked=24, talks=1)

    def train(progress: Any) -> None:
        with pytest.raises(KeyboardInterrupt):
            train_models(tmp_path, [0], print, lambda part: nullcontext(Mock(wraps=progress[part])), settings)

    talks = tmp_path / "conversations"
    train(defaultdict(Mock, conversations=Mock(side_effect=[None, KeyboardInterrupt])))
    assert (drawn.call_count, sorted(path.name for path in talks.iterdir())) == (20, ["images"])
    progress: Any = defaultdict(Mock)
    train(progress)
    assert drawn.call_count == 24
    assert len(open_conversations(talks / "stage2.json", talks / "images")) == 24
    for topic in TOPICS:
        assert progress[f"questions about {topic}"].call_args_list == [(("images", 1, 3),)] * 3
    train(progress)
    assert drawn.call_count == 24
    assert progress["conversations"].call_count == 3


def test_images_that_are_trained_on_are_not_asked_about(written: Path, tmp_path: Path) -> None:
    write_questions(tmp_path / "colours", 24, 16, 3, "colours")
    asked = {file.read_bytes() for file in (tmp_path / "colours" / "images").iterdir()}
    assert len(asked) == 24
    assert not asked & {file.read_bytes() for file in (written / "images").rglob("*.jpg")}


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_color_questions_are_true_and_balanced(negatives: Any) -> None:
    asked = questions(60, negatives, seed=1, topic="colours")
    scenes = {index: question_scene(index, 1, 16).objects for index in question_indices(60, 1)}
    present = {index: {one.color for one in objects} for index, objects in scenes.items()}
    for question in asked:
        color = question.text.split()[3]
        assert (color in present[int(question.image[6:13])]) == (question.label == "yes")
    balance: dict[str, int] = defaultdict(int)
    for question in asked:
        balance[question.image] += 1 if question.label == "yes" else -1
    assert len(balance) == 60
    assert not any(balance.values())
    assert [question.question_id for question in asked] == list(range(1, len(asked) + 1))


def test_the_language_model_has_whole_words(tmp_path: Path) -> None:
    make_language_model(tmp_path / "made", LanguageSettings(32, 1, 2, first_steps=2, steps=5, batch_size=4))
    model, tokenizer = load_language_model(str(tmp_path / "made"))
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (model.config.model_type, model.config.vocab_size) == ("qwen2", len(tokenizer))
    for word in ("yes", "no", IMAGE, "<|im_end|>", *(f" {word}" for word in (*COLORS, "teardrop"))):
        assert len(tokenizer(word).input_ids) == 1, word
    text = "Is there a red crescent in the picture? Größe 3"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.slow
def test_a_language_model_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """SIGTERM after some steps: the model is then bit for bit one that was not stopped."""
    settings = LanguageSettings(16, 1, 2, first_steps=8, steps=16, batch_size=4)
    make_language_model(tmp_path / "whole", settings)
    run = tmp_path / "stopped.training"

    def stop() -> None:
        while not (run / "metrics.jsonl").is_file() or not (run / "metrics.jsonl").read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    watch = threading.Thread(target=stop)
    watch.start()
    with pytest.raises(StoppedError, match="go on"):
        make_language_model(tmp_path / "stopped", settings)
    watch.join()
    first = len((run / "metrics.jsonl").read_text().splitlines())
    assert 1 <= first < 16
    make_language_model(tmp_path / "stopped", settings)
    whole, stopped = (tmp_path / name / "model.safetensors" for name in ("whole", "stopped"))
    assert whole.read_bytes() == stopped.read_bytes()

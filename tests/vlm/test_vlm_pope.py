"""POPE: questions are read as published, metrics are right, nothing is asked twice, and records have every fact."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import in_process
import numpy as np
import pytest
from PIL import Image
from tiny_vlm import make_vision

from diffclip.errors import InputError
from diffclip.evaluation.records import read_records
from diffclip.evaluation.scores import Score
from diffclip.evaluation.statistics import mean_interval
from diffclip.scenes.write import write_questions
from diffclip.vlm import chat
from diffclip.vlm.files import save_vlm
from diffclip.vlm.llava import connect
from diffclip.vlm.pope import (
    METRICS,
    SPLITS,
    Question,
    QuestionSet,
    open_questions,
    read_answer,
    score_answers,
)


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        ("yes", ["Yes", "YES!", "", ".", "a dog", "None", "NO", "No!", "No\nYes", "There is. No", "1.5 not"]),
        ("no", ["No", "No, there is none. Yes", "yes and no", "  No  ", "A cat, not a dog.", "It is, no"]),
    ],
)
def test_answers_are_read_as_the_published_parser_does(answer: str, texts: list[str]) -> None:
    assert {read_answer(text) for text in texts} == {answer}


def asked(labels: str, per_image: int = 2) -> list[Question]:
    """Make a question for each letter y or n, `per_image` of them about each image."""
    answers = {"y": "yes", "n": "no"}
    return [
        Question(question_id=i, image=f"{i // per_image}.jpg", text=f"Is there a {i}?", label=answers[letter])
        for i, letter in enumerate(labels)
    ]


def scored(labels: str, answers: str, per_image: int = 2) -> dict[str, Score]:
    """Score the same questions and answers as all three splits; return the scores of one split by metric."""
    questions = QuestionSet("made", dict.fromkeys(SPLITS, asked(labels, per_image)), Path())
    words = {"y": "Yes.", "n": "No.", "?": ""}
    scores = score_answers(questions, {split: [words[letter] for letter in answers] for split in SPLITS})
    # three equal splits must not narrow the interval
    for score, overall in zip(scores["random"], scores["overall"], strict=True):
        assert (overall.value, overall.low, overall.high) == pytest.approx(
            (score.value, score.low, score.high)
        )
    return {score.metric: score for score in scores["random"]}


def test_metrics_match_values_computed_by_hand() -> None:
    # label yes: 3 right and 1 missed; label no: 2 right and 2 wrong
    scores = scored("yyyynnnn", "yyynyynn")
    values = {name: score.value for name, score in scores.items()}
    expected = (5 / 8, 3 / 5, 3 / 4, 2 / 3, 5 / 8, 0)
    assert values == pytest.approx(dict(zip(METRICS, expected, strict=True)))
    assert [score.chance for score in scores.values()] == pytest.approx([0.5, 0.5, 1, 2 / 3, 1, 0])
    assert [score.chance for score in scored("ynnn", "ynnn").values()] == [0.75, 0, 0, 0, 0, 0]
    garbage = scored("ynynynyn", "????????")
    assert [garbage[name].value for name in METRICS] == pytest.approx([0.5, 0.5, 1, 2 / 3, 1, 1])


def test_a_ratio_without_cases_is_0_with_the_interval_0_to_1() -> None:
    for labels, empty in (("ynyn", ["precision"]), ("nnnn", ["precision", "recall"])):
        scores = scored(labels, "nnnn")
        assert scores["precision"].value == scores["recall"].value == scores["f1"].value == 0
        assert [(scores[metric].low, scores[metric].high) for metric in empty] == [(0, 1)] * len(empty)


def test_intervals_resample_images_with_all_their_questions() -> None:
    dice = np.random.default_rng(0)
    labels = "yn" * 300
    right = np.repeat(dice.random(100) < 0.7, 6).astype(float)  # all answers of an image are right, or none
    answers = "".join(letter if ok else "ny"[letter == "n"] for letter, ok in zip(labels, right, strict=True))
    score = scored(labels, answers, per_image=6)["accuracy"]
    expected = mean_interval(right, np.repeat(np.arange(100), 6))
    assert (score.low, score.high) == pytest.approx(expected, abs=0.02)
    perfect = scored(labels, labels, per_image=6)["accuracy"]
    assert 0.95 < perfect.low < perfect.value == perfect.high == 1


def test_the_overall_score_is_the_mean_of_the_three_splits() -> None:
    """Each split has the same weight, whatever its number of questions."""
    labels = dict(zip(SPLITS, ("ynyn", "ynynyn", "ynynynyn"), strict=True))
    questions = QuestionSet("made", {split: asked(letters) for split, letters in labels.items()}, None)
    right = ["Yes", "No"]
    scores = score_answers(questions, {"random": ["Yes"] * 4, "popular": right * 3, "adversarial": right * 4})
    assert [scores[split][0].value for split in (*SPLITS, "overall")] == pytest.approx([0.5, 1, 1, 2.5 / 3])
    assert (scores["random"][0].count, scores["overall"][0].count) == (4, 18)
    assert "asked without the image" in scores["overall"][0].facts["protocol"]


def write_set(folder: Path, random: str | None = None) -> Path:
    """Write three files of four questions about two images; `random` replaces the text of the split random."""
    (folder / "images").mkdir(parents=True)
    for name in ("0.jpg", "1.jpg"):
        Image.new("RGB", (16, 16), "red").save(folder / "images" / name)
    whole = "".join(question.model_dump_json() + "\n" for question in asked("ynyn"))
    for split in SPLITS:
        text = whole if random is None or split != "random" else random
        (folder / f"coco_pope_{split}.json").write_text(text)
    return folder


def line(**fields: object) -> str:
    question = {"question_id": 1, "image": "0.jpg", "text": "Is there a dog?", "label": "yes"}
    return json.dumps(question | fields) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"random.json has no question"),
        (line() + line(question_id=2, label="maybe"), r"line 2 is not a question: label: choose"),
        ("[" * 100_000, r"line 1 is not a question: it is not JSON"),
        (line(image="7\n.jpg"), r"1 of the 3 images .* such as 7\\n.jpg"),
        (None, r"cannot read .*popular.json .*: POPE has the files"),
    ],
)
def test_bad_question_files_raise_one_line_errors(tmp_path: Path, text: str | None, message: str) -> None:
    folder = write_set(tmp_path / "set", random=text)
    if text is None:
        (folder / "coco_pope_popular.json").unlink()
    with pytest.raises(InputError, match=message) as error:
        open_questions(folder)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_vlm: tuple[Any, Any], parts: Any) -> tuple[Path, Path]:
    """A CLIP in a run of seed 7, and a saved DiffCLIP of the same size."""
    folder = tmp_path_factory.mktemp("vlm")
    save_vlm(*tiny_vlm, folder / "DiffCLIP")
    plain = connect(make_vision("softmax", seed=1), *parts[1:])
    save_vlm(*plain, folder / "CLIP-s7-stage2" / "model")
    (folder / "CLIP-s7-stage2" / "recipe.yaml").write_text("language_model: tiny\nseed: 7\n")
    return folder / "CLIP-s7-stage2", folder / "DiffCLIP"


run = partial(in_process.call, "vlm", "evaluate")


def test_the_evaluate_command_asks_once_and_keeps_other_records(models, tmp_path: Path, monkeypatch) -> None:
    data, output = tmp_path / "scenes", tmp_path / "out" / "pope.jsonl"
    write_questions(data, 2, 16, 0)
    asked: list[tuple[bytes, str]] = []

    def answer(model: Any, processor: Any, images: list[Any], texts: list[str]) -> list[str]:
        asked.extend((image.tobytes(), text) for image, text in zip(images, texts, strict=True) if image)
        return short(model, processor, images, texts)

    short = partial(chat.answer, max_new_tokens=2)
    monkeypatch.setattr(chat, "answer", answer)
    arguments = (*models, "--data", data, "--output", output, "--batch-size", 12)
    printed, _ = run(*arguments)
    # the three files have the same questions for what is in the images
    assert len(asked) == 2 * len(set(asked)) < 2 * 3 * 12
    records = read_records(output)
    assert len(records) == 2 * 4 * len(METRICS)
    assert {(record.model, record.seed) for record in records} == {("CLIP", 7), ("DiffCLIP", None)}
    assert {(record.task, record.dataset) for record in records} == {("pope", "scenes")}
    assert "POPE accuracy, scenes" in printed

    run(models[0], "--data", data, "--output", output, "--blind")
    both = read_records(output)
    assert both[: len(records)] == records
    assert {(row.task, row.count) for row in both[len(records) :]} == {("pope-blind", 12), ("pope-blind", 36)}

    monkeypatch.setattr(chat, "answer", lambda *arguments: pytest.fail("asked again"))
    again, _ = run(*arguments)
    assert f"{models[0]}: keeping its results in {output}" in again
    moved = models[0].with_name("moved")
    shutil.copytree(models[0], moved)
    again, _ = run(moved, "--data", data, "--output", output)
    assert "POPE accuracy" in again
    assert read_records(output) == both
    with pytest.raises(InputError, match="leave --images out"):
        run(models[0], "--data", data, "--output", output, "--blind", "--images", tmp_path)

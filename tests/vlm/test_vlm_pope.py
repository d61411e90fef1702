"""POPE: questions are read as published, metrics are right, nothing is asked twice, and records have every fact."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_vlm import make_vision
from typer.testing import CliRunner

from diffclip.cli.main import app
from diffclip.errors import InputError
from diffclip.evaluation.records import read_records
from diffclip.evaluation.statistics import mean_interval
from diffclip.scenes.export import write_questions
from diffclip.vlm import pope
from diffclip.vlm.files import Subject
from diffclip.vlm.llava import connect
from diffclip.vlm.pope import SPLITS, Question, QuestionSet, collect_answers, open_questions
from diffclip.vlm.pope_scores import METRICS, estimate, is_unclear, read_answer, to_records


@pytest.mark.parametrize(
    ("text", "answer", "unclear"),
    [
        *(("Yes", "yes", False), ("YES!", "yes", False), ("Yes, there is a dog.", "yes", False)),
        *(("", "yes", True), (".", "yes", True), ("a dog", "yes", True), ("None", "yes", True)),
        *(("No", "no", False), ("No, there is none. Yes", "no", False), ("There is not a dog.", "no", False)),
        *(("NO", "yes", True), ("No!", "yes", True), ("No\nYes", "yes", True), ("nO", "yes", True)),
        *(("There isn't a dog", "yes", True), ("There is. No", "yes", True), ("no-one", "yes", True)),
        *(("yes and no", "no", True), ("It is, no", "no", False), ("  No  ", "no", False)),
        *(("1.5 not", "yes", True), ("A cat, not a dog.", "no", False), ("I do not know", "no", False)),
    ],
)
def test_answers_are_read_as_the_published_parser_does(text: str, answer: str, unclear: bool) -> None:
    assert (read_answer(text), is_unclear(text)) == (answer, unclear)


def asked(labels: str, per_image: int = 2) -> list[Question]:
    """A question for each letter y or n, so many about each image."""
    return [
        Question(
            question_id=number,
            image=f"{number // per_image}.jpg",
            text=f"Is there a {number}?",
            label="yes" if letter == "y" else "no",
        )
        for number, letter in enumerate(labels)
    ]


def estimates(labels: str, said: str, per_image: int = 2) -> dict[str, Any]:
    questions = QuestionSet("made", {"random": asked(labels, per_image)}, Path())
    words = {"y": "Yes.", "n": "No.", "?": ""}
    return estimate(questions, {"random": [words[letter] for letter in said]})["random"]


def test_metrics_by_hand() -> None:
    # 3 yes right and 1 missed, 2 no right and 2 false
    found = estimates("yyyynnnn", "yyynyynn")
    values = {name: one.value for name, one in found.items()}
    expected = (5 / 8, 3 / 5, 3 / 4, 2 / 3, 5 / 8, 0)
    assert values == pytest.approx(dict(zip(METRICS, expected, strict=True)))
    assert [one.chance for one in found.values()] == pytest.approx([0.5, 0.5, 1, 2 / 3, 1, 0])
    more_no = estimates("ynnn", "ynnn")
    assert [one.chance for one in more_no.values()] == [0.75, 0, 0, 0, 0, 0]
    garbage = estimates("ynynynyn", "????????")
    assert [garbage[name].value for name in METRICS] == pytest.approx([0.5, 0.5, 1, 2 / 3, 1, 1])


@pytest.mark.parametrize(
    ("labels", "said", "zero"),
    [
        ("ynyn", "nnnn", ("precision", "recall", "f1")),
        ("nnnn", "yyyy", ("precision", "recall", "f1")),
        ("nnnn", "nnnn", ("precision", "recall", "f1", "yes_ratio")),
    ],
)
def test_a_ratio_of_nothing_is_0_with_the_widest_interval(
    labels: str, said: str, zero: tuple[str, ...]
) -> None:
    found = estimates(labels, said)
    assert all(found[metric].value == 0 for metric in zero)
    for metric, is_counted in (("precision", "y" in said), ("recall", "y" in labels)):
        if not is_counted:
            assert found[metric][1:3] == (0, 1)


def test_intervals_draw_images_with_all_their_questions() -> None:
    dice = np.random.default_rng(0)
    labels = "yn" * 300
    right = np.repeat(dice.random(100) < 0.7, 6).astype(float)  # of each image all answers are right, or none
    said = "".join(letter if own else "ny"[letter == "n"] for letter, own in zip(labels, right, strict=True))
    found = estimates(labels, said, per_image=6)["accuracy"]
    expected = mean_interval(right, np.repeat(np.arange(100), 6))
    assert (found.low, found.high) == pytest.approx(expected, abs=0.01)
    same = estimates(labels, labels, per_image=6)["accuracy"]
    assert same.value == same.high == 1
    assert 0.95 < same.low < 1


def test_the_mean_of_three_splits_draws_their_images_together() -> None:
    questions = QuestionSet("made", dict.fromkeys(SPLITS, asked("ynynyn" * 30, 6)), None)
    right = ["Yes" if question.label == "yes" else "No" for question in questions.splits["random"]]
    answers = [text if number // 6 % 3 else "Yes" for number, text in enumerate(right)]
    found = estimate(questions, dict.fromkeys(SPLITS, answers))
    assert list(found) == [*SPLITS, "overall"]
    # three times the same answers say no more than once
    for metric in METRICS:
        assert found["overall"][metric] == pytest.approx(found["random"][metric])
    other = estimate(questions, {"random": answers, "popular": right, "adversarial": right})
    accuracies = [other[split]["accuracy"].value for split in SPLITS]
    assert other["overall"]["accuracy"].value == pytest.approx(sum(accuracies) / 3)
    records = to_records(questions, found, "tiny", Subject("tiny", "runs/tiny", "0", 3))
    assert {(one.task, one.dataset, one.seed) for one in records} == {("pope-blind", "made", 3)}
    assert {one.count for one in records if one.split == "random"} == {180}
    assert {one.count for one in records if one.split == "overall"} == {540}
    assert {one.chance for one in records if one.metric == "accuracy"} == {0.5}


def write_set(folder: Path, **changed: str) -> Path:
    """Three files of four questions about two images; `changed` replaces the text of one."""
    (folder / "images").mkdir(parents=True)
    for name in ("0.jpg", "1.jpg"):
        Image.new("RGB", (16, 16), "red").save(folder / "images" / name)
    whole = "".join(one.model_dump_json() + "\n" for one in asked("ynyn"))
    for split in SPLITS:
        (folder / f"coco_pope_{split}.json").write_text(changed.get(split, whole))
    return folder


def line(**fields: object) -> str:
    whole = {"question_id": 1, "image": "0.jpg", "text": "Is there a dog?", "label": "yes"}
    return json.dumps(whole | fields) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"random.json has no question"),
        (line() + line(question_id=1), r"line 2: question_id 1 is there twice"),
        (line() + line(question_id=2, label="maybe"), r"line 2 is not a question: label: Input should be"),
        ("[]", r"line 1 is not a question"),
        ("Is there a dog?\n", r"line 1 is not a question: Invalid JSON"),
        (json.dumps({"question_id": 1}), r"line 1 is not a question: image: Field required"),
        (line(text=" "), r"line 1 is not a question: text"),
        ("[" * 100_000, r"line 1 is not a question: Invalid JSON"),
        (line(image="7\n.jpg"), r"1 of the 3 images .* such as 7\\n.jpg"),
    ],
)
def test_bad_questions_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    write_set(tmp_path / "set", random=text)
    with pytest.raises(InputError, match=message) as error:
        open_questions(tmp_path / "set")
    assert "\n" not in str(error.value)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere is not a folder"):
        open_questions(tmp_path / "nowhere")
    folder = write_set(tmp_path / "set")
    with pytest.raises(InputError, match=r"2 of the 2 images .* not in .*elsewhere"):
        open_questions(folder, images=tmp_path / "elsewhere")
    assert open_questions(folder, blind=True).images is None
    (folder / "coco_pope_popular.json").unlink()
    with pytest.raises(InputError, match=r"cannot read .*popular.json .*: POPE has the files"):
        open_questions(folder)


@pytest.fixture
def model_that_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the model by one that answers by the number in a question; return the log of its batches."""
    log = tmp_path / "asked.txt"

    def answer(model: Any, processor: Any, images: Any, texts: list[str], tokens: int) -> list[str]:
        with log.open("a") as lines:
            lines.write(json.dumps(texts) + "\n")
        return ['No\u2028, "no"\n really' if int(text.split()[-1][:-1]) % 3 else "Yes" for text in texts]

    monkeypatch.setattr(pope, "answer", answer)
    return log


def collect(
    file: Path,
    progress: Callable[[str, int, int | None], None] = lambda what, more, total: None,
    model: str = "a",
    count: int = 60,
) -> list[str]:
    questions = QuestionSet("made", {"random": asked("yn" * (count // 2))}, None)
    return collect_answers(None, None, questions, "random", file, {"model": model}, 7, progress)


def test_after_a_kill_the_other_questions_are_asked_in_the_same_batches(
    tmp_path: Path, model_that_logs: Path
) -> None:
    done = []

    def kill(what: str, more: int, total: int | None) -> None:
        done.append(more)
        if sum(done) >= 20:
            os.kill(os.getpid(), signal.SIGKILL)

    file = tmp_path / "answers" / "a.jsonl"
    child = os.fork()
    if not child:
        collect(file, kill)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    with file.open("a") as handle:
        handle.write('{"question_id": 21, "ques')  # a line that was cut off
    answers = collect(file)
    batches = model_that_logs.read_text().splitlines()
    model_that_logs.unlink()
    assert answers == collect(tmp_path / "straight.jsonl")
    assert batches == model_that_logs.read_text().splitlines()
    assert file.read_bytes() == (tmp_path / "straight.jsonl").read_bytes()


def test_answers_are_kept_for_the_same_model_and_questions(tmp_path: Path, model_that_logs: Path) -> None:
    file = tmp_path / "a.jsonl"
    answers = collect(file)
    assert collect(file, count=20) == answers[:20]
    assert collect(file) == answers
    assert len(model_that_logs.read_text().splitlines()) == 9
    collect(file, model="b")
    assert len(model_that_logs.read_text().splitlines()) == 18


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_vlm: tuple[Any, Any],
    tiny_language_model: Any,
    tiny_tokenizer: Any,
    tiny_image_processor: Any,
) -> tuple[Path, Path]:
    """A CLIP in a run of seed 7, and a saved DiffCLIP of the same size."""
    from diffclip.vlm.files import save_vlm

    folder = tmp_path_factory.mktemp("vlm")
    save_vlm(*tiny_vlm, folder / "DiffCLIP")
    plain = connect(make_vision("softmax", seed=1), tiny_language_model, tiny_tokenizer, tiny_image_processor)
    save_vlm(*plain, folder / "CLIP-s7-stage2" / "model")
    (folder / "CLIP-s7-stage2" / "recipe.yaml").write_text("language_model: tiny\nseed: 7\n")
    return folder / "CLIP-s7-stage2", folder / "DiffCLIP"


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["vlm", "evaluate", *map(str, arguments)])
    if result.exception:
        raise result.exception
    return result


def test_the_command_asks_once_and_keeps_other_records(models: tuple[Path, Path], tmp_path: Path) -> None:
    data, output = tmp_path / "scenes", tmp_path / "out" / "pope.jsonl"
    write_questions(data, 2, 16, 0)
    arguments = (*models, "--task", "pope", "--data", data, "--output", output, "--batch-size", 12)
    first = run(*arguments)
    records = read_records(output)
    assert len(records) == 2 * 4 * len(METRICS)
    assert {(one.model, one.seed) for one in records} == {
        ("CLIP", 7),
        ("DiffCLIP", None),
    }
    assert {(one.task, one.dataset) for one in records} == {("pope", "scenes")}
    # an untrained model says neither yes nor no
    assert "is not answering the questions" in first.stdout
    assert "are not plainly yes or no" in first.stdout
    assert "DiffCLIP minus CLIP: accuracy" in first.stdout
    kept = {path: path.read_bytes() for path in (tmp_path / "out" / "pope.answers").rglob("*.jsonl")}
    assert [len(content.splitlines()) for content in kept.values()] == [1 + 12] * 6

    run(*arguments)
    assert read_records(output) == records
    assert {path: path.read_bytes() for path in kept} == kept

    run(models[0], "--data", data, "--output", output, "--blind")
    both = read_records(output)
    assert both[: len(records)] == records
    assert {(one.task, one.count) for one in both[len(records) :]} == {("pope-blind", 12), ("pope-blind", 36)}


def test_records_of_weights_that_have_changed_are_removed(models: tuple[Path, Path], tmp_path: Path) -> None:
    folder, output, data = tmp_path / "model", tmp_path / "pope.jsonl", write_set(tmp_path / "set")
    shutil.copytree(models[1], folder)
    run(folder, "--data", data, "--output", output, "--blind")
    settings = folder / "generation_config.json"
    settings.write_text(settings.read_text().replace("{", '{\n  "max_length": 600,', 1))
    run(folder, "--data", data, "--output", output)
    assert {one.task for one in read_records(output)} == {"pope"}


def test_bad_requests_are_one_line(models: tuple[Path, Path], tmp_path: Path) -> None:
    data, output = write_set(tmp_path / "set"), tmp_path / "o.jsonl"
    for arguments, message in (
        ((models[0], "--task", "mme", "--output", output), "unknown task 'mme'"),
        ((models[0], "--blind", "--images", tmp_path, "--output", output), "leave --images out"),
        ((models[0], "--output", "/dev/null"), "/dev/null is not a file"),
        ((tmp_path / "nothing", "--output", output), "give a run folder"),
    ):
        with pytest.raises(InputError, match=message):
            run(*arguments, "--data", data)


def test_two_calls_do_not_answer_into_one_file(models: tuple[Path, Path], tmp_path: Path) -> None:
    from diffclip.files import lock_file

    data, output = write_set(tmp_path / "set"), tmp_path / "o.jsonl"
    (tmp_path / "o.answers").mkdir()
    ready, hold = os.pipe(), os.pipe()
    child = os.fork()
    if not child:  # a lock belongs to its process
        handle = lock_file(tmp_path / "o.answers" / ".lock")
        os.write(ready[1], b"1")
        os.read(hold[0], 1)
        del handle
        os._exit(0)
    os.read(ready[0], 1)
    try:
        with pytest.raises(InputError, match=f"process {child} .* is answering into .*o.jsonl: wait for it"):
            run(models[0], "--data", data, "--output", output)
    finally:
        os.write(hold[1], b"1")
        os.waitpid(child, 0)
    assert not output.exists()

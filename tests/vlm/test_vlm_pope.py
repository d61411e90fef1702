"""POPE: the published reading of answers, the numbers, bad files, and the command."""

import json
import os

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import diffclip
from diffclip.cli.vlm_evaluate import evaluate
from diffclip.errors import InputError
from diffclip.evaluation.records import read_records
from diffclip.evaluation.results_file import outcome_key, read_outcomes
from diffclip.evaluation.statistics import mean_interval
from diffclip.scenes.export import write_questions
from diffclip.vlm.answers import holding
from diffclip.vlm.pope import (
    SPLITS,
    Question,
    QuestionFile,
    QuestionSet,
    is_unclear,
    open_questions,
    read_answer,
)
from diffclip.vlm.pope_scores import METRICS, results, split_scores

ANSWERS = [
    *("Yes", "No", "yes.", "no.", "Yes, there is a dog in the image.", "No, there is no dog in the image."),
    *("", ".", " ", "No.", "no", "NO", "No!", "None", "not", "Not", "Nothing", "Yes, no", "yes no", "No,"),
    *(
        "There is not. Yes",
        "There is. No",
        "There is not a dog",
        "There isn't a dog",
        "It is, no",
        "dog dog dog",
    ),
    *(
        "No\n",
        "Yes\nNo",
        "no-one",
        "  No  ",
        "I do not know",
        "1.5 not",
        "…no…",
        "Нет",
        "nO",
        "A cat, not a dog.",
    ),
]


def published(text: str) -> str:
    """The reading in the published evaluate.py, said again step by step."""
    if text.find(".") != -1:
        text = text.split(".")[0]
    text = text.replace(",", "")
    words = text.split(" ")
    return "no" if "No" in words or "not" in words or "no" in words else "yes"


def asked(labels: str, per_picture: int = 2) -> QuestionFile:
    """A question a letter, y or n, so many about each picture."""
    whole = {"y": "yes", "n": "no"}
    return QuestionFile(
        "random",
        [
            Question(
                question_id=n, image=f"{n // per_picture}.jpg", text=f"Is there a {n}?", label=whole[letter]
            )
            for n, letter in enumerate(labels)
        ],
    )


def scores_of(labels: str, said: str, per_picture: int = 2) -> dict:
    file = asked(labels, per_picture)
    words = {"y": "Yes.", "n": "No.", "?": ""}
    numbers = {name: number for number, name in enumerate(file.pictures)}
    return {one.metric: one for one in split_scores(file, [words[letter] for letter in said], numbers)}


@pytest.mark.parametrize("text", ANSWERS)
def test_answers_are_read_as_published(text):
    assert read_answer(text) == published(text)


@pytest.mark.parametrize(
    ("text", "answer", "unclear"),
    [
        ("", "yes", True),
        ("Yes", "yes", False),
        ("YES!", "yes", False),
        ("No, there is none. Yes", "no", False),
        ("NO", "yes", True),
        ("No\nYes", "yes", True),
        ("There isn't a dog", "yes", True),
        ("yes and no", "no", True),
        ("a dog", "yes", True),
        ("There is not a dog.", "no", False),
    ],
)
def test_what_is_not_plainly_yes_or_no_is_unclear(text, answer, unclear):
    assert (read_answer(text), is_unclear(text)) == (answer, unclear)


def test_numbers_by_hand():
    # 3 right yeses, 1 missed, 2 false, 2 right noes
    found = {name: one.value for name, one in scores_of("yyyynnnn", "yyynyy?n".replace("?", "n")).items()}
    assert found == pytest.approx(
        {
            "accuracy": 5 / 8,
            "precision": 3 / 5,
            "recall": 3 / 4,
            "f1": 2 / 3,
            "yes_ratio": 5 / 8,
            "unclear_ratio": 0,
        }
    )
    assert tuple(found) == METRICS


def test_garbage_is_right_about_half_and_all_of_it_is_unclear():
    found = scores_of("ynynynyn", "????????")
    assert found["accuracy"].value == found["precision"].value == 0.5
    assert found["recall"].value == found["yes_ratio"].value == found["unclear_ratio"].value == 1


@pytest.mark.parametrize(
    ("labels", "said", "zero"),
    [
        ("ynyn", "nnnn", ("precision", "recall", "f1")),
        ("nnnn", "yyyy", ("precision", "recall", "f1")),
        ("nnnn", "nnnn", ("precision", "recall", "f1", "yes_ratio")),
    ],
)
def test_a_ratio_of_nothing_is_0_with_the_widest_interval(labels, said, zero):
    found = scores_of(labels, said)
    assert all(found[metric].value == 0 for metric in zero)
    for metric, counted in (("precision", "y" in said), ("recall", "y" in labels)):
        if not counted:
            assert (found[metric].low, found[metric].high) == (0, 1)


def test_outcomes_have_the_number_for_their_mean_and_nearly_its_interval():
    dice = np.random.default_rng(0)
    labels = "yn" * 900
    said = "".join(
        letter if right else "yn"[letter == "y"]
        for letter, right in zip(labels, dice.random(1800) < 0.7, strict=True)
    )
    for one in scores_of(labels, said, per_picture=6).values():
        assert one.hits.mean() == pytest.approx(one.value, abs=1e-12)
        linear = mean_interval(one.hits, one.clusters)
        assert linear == pytest.approx((one.low, one.high), abs=0.004)
        assert one.low < one.value < one.high or one.metric == "unclear_ratio"


def test_pictures_are_drawn_with_all_their_questions():
    # of each picture all is right, or nothing
    labels = "ynynyn" * 40
    said = "".join("ynynyn" if n % 2 else "nynyny" for n in range(40))
    score = scores_of(labels, said, per_picture=6)["accuracy"]
    assert score.high - score.low > 2 * 1.96 * (0.25 / 240) ** 0.5 * 2


def test_the_mean_of_three_files_draws_their_pictures_together(tmp_path):
    file = asked("ynynyn" * 30, 6)
    files = [QuestionFile(split, file.questions) for split in SPLITS]
    right = ["Yes" if question.label == "yes" else "No" for question in file.questions]
    answers = [text if n // 6 % 3 else "Yes" for n, text in enumerate(right)]
    *one_each, mean = results(QuestionSet("made", files, tmp_path), dict.fromkeys(SPLITS, answers))
    assert [result.split for result in one_each] == list(SPLITS)
    assert mean.split == "overall"
    for single, whole in zip(one_each[0].scores, mean.scores, strict=True):
        assert whole.value == pytest.approx(single.value)
        # three times the same answers say no more than once
        assert (whole.low, whole.high) == pytest.approx((single.low, single.high), abs=0.02)


def test_files_of_other_sizes_weigh_the_same_in_the_mean(tmp_path):
    files = [
        QuestionFile(split, asked("yn" * half).questions)
        for split, half in zip(SPLITS, (10, 20, 30), strict=True)
    ]
    said = {"random": ["Yes"] * 20, "popular": ["Yes", "No"] * 20, "adversarial": ["Yes", "No"] * 30}
    mean = results(QuestionSet("made", files, tmp_path), said)[-1].scores[0]
    assert mean.value == pytest.approx((0.5 + 1 + 1) / 3)
    assert mean.hits.mean() == pytest.approx(mean.value)
    assert 0 <= mean.low <= mean.value <= mean.high <= 1


def write_set(folder, lines=None, **changed):
    """Three files of four questions about two pictures; `changed` replaces the text of one."""
    (folder / "images").mkdir(parents=True)
    for name in ("0.jpg", "1.jpg"):
        Image.new("RGB", (16, 16), "red").save(folder / "images" / name)
    whole = [
        {
            "question_id": n,
            "image": f"{n // 2}.jpg",
            "text": f"Is there a {n}?",
            "label": ("yes", "no")[n % 2],
        }
        for n in range(4)
    ]
    for split in SPLITS:
        text = "".join(json.dumps(line) + "\n" for line in (lines or whole))
        (folder / f"coco_pope_{split}.json").write_text(changed.get(split, text))
    return folder


def line(**fields) -> str:
    return (
        json.dumps({"question_id": 1, "image": "0.jpg", "text": "Is there a dog?", "label": "yes"} | fields)
        + "\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"random.json has no question"),
        (line() + line(question_id=1), r"line 2: question_id 1 is on line 1 already"),
        (
            line() + line(question_id=2, label="maybe"),
            r"line 2 is no question: label: Input should be 'yes' or 'no'",
        ),
        (line(label="Yes"), r"line 1 is no question: label"),
        ("[]", r"line 1 is no question"),
        ("Is there a dog?\n", r"line 1 is not JSON: one question a line"),
        (json.dumps({"question_id": 1}), r"line 1 is no question: image: Field required"),
        (line(text=" "), r"line 1 is no question: text"),
        ("[" * 100_000, r"line 1 is not JSON"),
        ('{"question_id": ' + "9" * 5000 + "}", r"line 1 is not JSON"),
        (line(image="7\n.jpg"), r"1 of the 3 pictures .* first is 7\\n.jpg"),
        (line(image="7.jpg") + line(question_id=2, image="8.jpg"), r"2 of the 4 pictures .* first is 7.jpg"),
    ],
)
def test_bad_questions_are_one_line(tmp_path, text, message):
    write_set(tmp_path / "set", random=text)
    with pytest.raises(InputError, match=message) as error:
        open_questions(tmp_path / "set")
    assert "\n" not in str(error.value)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(InputError, match="nowhere is no folder"):
        open_questions(tmp_path / "nowhere")
    folder = write_set(tmp_path / "set")
    with pytest.raises(InputError, match=r"4 pictures|2 of the 2 pictures .* not in .*elsewhere"):
        open_questions(folder, images=tmp_path / "elsewhere")
    assert open_questions(folder, blind=True).images is None
    (folder / "coco_pope_popular.json").unlink()
    with pytest.raises(InputError, match=r"popular.json does not exist: POPE has the files"):
        open_questions(folder)


def test_a_limit_takes_the_first_questions_of_each_file(tmp_path):
    files = open_questions(write_set(tmp_path / "set"), limit=3).files
    assert [[question.question_id for question in file.questions] for file in files] == [[0, 1, 2]] * 3


app = typer.Typer()
app.command()(evaluate)


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception:
        raise result.exception
    return result


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_vlm, tiny_language_model, tiny_tokenizer, tiny_image_processor):
    """A DiffCLIP and a CLIP of the same size, saved, the second in a run of seed 7."""
    from diffclip.integrations.transformers import vision_from_diffclip
    from diffclip.vlm.files import save_vlm
    from diffclip.vlm.llava import connect

    folder = tmp_path_factory.mktemp("vlm")
    save_vlm(*tiny_vlm, folder / "diffclip")
    config = diffclip.CLIPConfig(
        embed_dim=16,
        vision=diffclip.VisionConfig(image_size=16, patch_size=8, width=16, layers=2, heads=2),
        text=diffclip.TextConfig(context_length=12, width=16, layers=1, heads=2),
    )
    vision = vision_from_diffclip(diffclip.CLIP(config, seed=1).eval())
    plain = connect(vision, tiny_language_model, tiny_tokenizer, tiny_image_processor, "linear")
    save_vlm(*plain, folder / "run" / "model")
    (folder / "run" / "recipe.yaml").write_text("seed: 7\n")
    return folder / "run", folder / "diffclip"


def test_the_command_asks_once_compares_and_keeps_what_is_blind_apart(models, tmp_path):
    data, output = tmp_path / "scenes", tmp_path / "out" / "pope.jsonl"
    write_questions(data, 2, 16, 0)
    arguments = (*models, "--task", "pope", "--data", data, "--output", output, "--batch-size", 12)
    first = run(*arguments)
    records = read_records(output)
    assert len(records) == 2 * 4 * len(METRICS)
    assert {record.model for record in records} == {
        "CLIP-v16x2x2p8-linear-qwen2-2x32",
        "DiffCLIP-v16x2x2p8-linear-qwen2-2x32",
    }
    assert {(record.task, record.dataset) for record in records} == {("pope", "scenes")}
    assert {(record.seed, record.model[:4]) for record in records} == {(7, "CLIP"), (None, "Diff")}
    outcomes = read_outcomes(output)
    for record in records:
        assert outcomes[outcome_key(record)].hits.mean() == pytest.approx(record.value)
    # an untrained model says neither yes nor no
    assert "are not plainly yes or no" in first.stderr
    kept = {path: path.read_bytes() for path in (output.parent / "answers").rglob("*.jsonl")}
    assert len(kept) == 2 * 3
    assert [len(content.splitlines()) for content in kept.values()] == [1 + 12] * 6

    again = run(*arguments)
    assert "all answers were there" in again.stderr
    assert read_records(output) == records
    assert {path: path.read_bytes() for path in kept} == kept

    run(models[0], "--data", data, "--output", output, "--blind", "--limit", 4)
    both = read_records(output)
    assert both[: len(records)] == records
    assert {(record.task == "pope-blind") for record in both[len(records) :]} == {True}
    assert {
        record.count for record in both if (record.task == "pope-blind") and record.metric == "accuracy"
    } == {
        4,
        12,
    }


def test_a_majority_is_told(models, tmp_path):
    lines = [json.loads(line(question_id=n, label=label)) for n, label in enumerate(("yes", "yes", "no"))]
    data = write_set(tmp_path / "set", lines)
    told = run(models[1], "--data", data, "--output", tmp_path / "pope.jsonl", "--blind")
    assert "random: 2 of 3 questions have the answer yes, so always yes is right about 66.7 %" in told.stderr


def test_bad_requests_are_one_line(models, tmp_path):
    data = write_set(tmp_path / "set")
    for arguments, message in (
        (("--task", "mme", "--output", tmp_path / "o.jsonl"), "unknown task 'mme'"),
        (("--blind", "--images", tmp_path, "--output", tmp_path / "o.jsonl"), "leave --images out"),
        (("--output", "/dev/null"), "/dev/null is no file"),
    ):
        with pytest.raises(InputError, match=message):
            run(models[0], "--data", data, *arguments)
    with pytest.raises(InputError, match="give a run folder"):
        run(tmp_path / "nothing", "--data", data, "--output", tmp_path / "o.jsonl")


def test_two_calls_do_not_write_the_same_records_at_once(models, tmp_path):
    data, output = write_set(tmp_path / "set"), tmp_path / "o.jsonl"
    ready, hold = os.pipe(), os.pipe()
    child = os.fork()
    if not child:  # locks are a process's own
        with holding(output, tmp_path / "answers" / ".o.jsonl.lock"):
            os.write(ready[1], b"1")
            os.read(hold[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        with pytest.raises(InputError, match=f"process {child} .* is answering into .*o.jsonl: wait for it"):
            run(models[0], "--data", data, "--output", output)
    finally:
        os.write(hold[1], b"1")
        os.waitpid(child, 0)
    assert not output.exists()

"""`diffclip vlm evaluate`: POPE's yes/no questions, for language models that see through CLIP or DiffCLIP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

    from diffclip.evaluation.records import Record
    from diffclip.vlm.pope import QuestionSet
    from diffclip.vlm.pope_scores import Estimate

# shares of answers
_ONE_ANSWER, _UNCLEAR = 0.95, 0.05


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(help="Run folders of `diffclip vlm train`, or saved models.", metavar="MODEL..."),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="Folder of coco_pope_random.json, coco_pope_popular.json, coco_pope_adversarial.json."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            help="File for the records, as JSON lines; it keeps other records. Answers are kept in a folder beside it, "
            "from where a stopped call goes on."
        ),
    ],
    task: Annotated[str, typer.Option(help="The task.", metavar="pope")] = "pope",
    images: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the images (COCO's val2014); default: `images` in the folder of questions."
        ),
    ] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="Ask without the images, to see how much a model guesses.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions in a batch.")] = 16,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto prefers CUDA.")] = "auto",
) -> None:
    """Ask models POPE's questions, "Is there a dog in the image?", and count the right answers.

    Example: diffclip vlm evaluate runs/vlm --task pope --data POPE/output/coco --images val2014 --output pope.jsonl

    Example: diffclip vlm evaluate runs/vlm_clip runs/vlm_diffclip --data scenes/questions --output pope.jsonl

    Several models are compared with the first one on the same questions. The same call with --blind adds their answers
    without the images. `diffclip report` makes the paper's Table 3 from the records.
    """
    from diffclip.errors import InputError, require_group, unknown
    from diffclip.files import check_writable
    from diffclip.model_source import pick_device

    require_group("vlm", "transformers")
    if task != "pope":
        raise unknown("task", task, ["pope"])
    if blind and images is not None:
        raise InputError("--blind asks without the images: leave --images out")
    check_writable(output)
    if output.exists() and not output.is_file():
        raise InputError(f"{output} is not a file: give a file for the records, answers are kept beside it")
    from diffclip.vlm.pope import open_questions

    questions = open_questions(data, images, blind=blind)
    evaluate_models(models, questions, output, batch_size, pick_device(device))


def evaluate_models(
    models: Sequence[str], questions: QuestionSet, output: Path, batch_size: int, device: torch.device
) -> None:
    """Ask each model all questions, write its records to `output`, and print a table.

    Raises:
        InputError: a source has no model, an image cannot be read, memory is too small, or another process answers
            into `output`.
    """
    import torch

    import diffclip
    from diffclip.cli.progress import showing_progress
    from diffclip.errors import InputError
    from diffclip.evaluation.records import read_records, write_records
    from diffclip.files import disk_errors, lock_file
    from diffclip.vlm.files import identify, load_vlm
    from diffclip.vlm.pope import collect_answers
    from diffclip.vlm.pope_scores import estimate, to_records

    subjects = {source: identify(source) for source in models}
    names = {source: subject.name for source, subject in subjects.items()}
    if len(set(names.values())) < len(names):
        names = {source: source for source in names}
    place = output.with_name(f"{output.name.removesuffix('.jsonl')}.answers")
    with disk_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    lock = lock_file(place / ".lock")
    if isinstance(lock, str):
        raise InputError(f"{lock} is answering into {output}: wait for it, or give another --output")
    answers: dict[str, dict[str, list[str]]] = {}
    found: dict[str, dict[str, dict[str, Estimate]]] = {}
    with lock:
        for source, subject in subjects.items():
            name, folder = names[source], place / subject.digest
            model, processor = load_vlm(source)
            model.to(device)
            identity = {"model": subject.digest, "version": diffclip.__version__}
            answers[name] = {}
            for split in questions.splits:
                file = folder / _answers_name(questions.task, questions.name, split)
                with showing_progress(f"{source}: {split}", {}) as progress:
                    try:
                        answers[name][split] = collect_answers(
                            model, processor, questions, split, file, identity, batch_size, progress
                        )
                    except torch.OutOfMemoryError as error:
                        raise InputError(f"out of memory: use a --batch-size below {batch_size}") from error
            found[name] = estimate(questions, answers[name])
            new = to_records(questions, found[name], name, subject)
            measured = {_place(one) for one in new}
            before = read_records(output) if output.is_file() else []
            kept = [
                one
                for one in before
                if _place(one) not in measured and not _is_stale(one, subject.weights, folder)
            ]
            write_records(output, kept + new)
    _show_table(questions, found)
    _show_comparisons(questions, answers)
    if questions.images:
        _warn(found)


def _place(record: Record) -> tuple[object, ...]:
    return record.weights, record.task, record.dataset, record.split


def _answers_name(task: str, dataset: str, split: str) -> str:
    return re.sub(r"[^\w.-]+", "_", f"{task}-{dataset}-{split}") + ".jsonl"


def _is_stale(record: Record, weights: str, answers: Path) -> bool:
    """Return whether a record is of earlier weights in the same folder: the present ones have no such answers."""
    if record.weights != weights or not record.task.startswith("pope"):
        return False
    split = "random" if record.split == "overall" else record.split
    return not (answers / _answers_name(record.task, record.dataset, split)).is_file()


def _show_table(questions: QuestionSet, found: Mapping[str, Mapping[str, Mapping[str, Estimate]]]) -> None:
    """Print a block for each split, in which each model has a row."""
    import pandas as pd

    from diffclip.vlm.pope_scores import METRICS, OVERALL, majority

    def row(split: str, model: str, values: Sequence[float], interval: str) -> tuple[str, ...]:
        accuracy, *rest = (f"{100 * value:.1f}" for value in values)
        return split, model, accuracy, interval, *rest

    rows = []
    for split in next(iter(found.values())):
        for model, own in found.items():
            estimates = [own[split][metric] for metric in METRICS]
            interval = f"{100 * estimates[0].low:.1f} to {100 * estimates[0].high:.1f}"
            rows.append(row(split, model, [one.value for one in estimates], interval))
        asked = [
            one for part, of_part in questions.splits.items() if split in (part, OVERALL) for one in of_part
        ]
        rows.append(row(split, f"always {majority(asked)[0]}", [one.chance for one in estimates], ""))
    heads = ["split", "model", "accuracy", "interval", "precision", "recall", "F1", "yes", "unclear"]
    blind = "" if questions.images else ", asked without the images"
    print(f"POPE on {questions.name}{blind}, in %, with the 95 % interval of the accuracy over images")
    print(pd.DataFrame(rows, columns=heads).to_string(index=False))
    print("unclear: neither yes nor no in plain words")


def _show_comparisons(questions: QuestionSet, answers: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
    """Compare the accuracy of each further model with that of the first."""
    from diffclip.evaluation.statistics import compare_two_trained_weights
    from diffclip.vlm.pope_scores import accuracy_by_question

    first, *others = answers
    base, images = accuracy_by_question(questions, answers[first])
    for model in others:
        right, _ = accuracy_by_question(questions, answers[model])
        test = compare_two_trained_weights(right, base, images)
        print(
            f"{model} minus {first}: accuracy {100 * test.difference:+.1f} points, 95 % interval {100 * test.low:+.1f} "
            f"to {100 * test.high:+.1f}. This compares these trained weights, not the methods."
        )


def _warn(found: Mapping[str, Mapping[str, Mapping[str, Estimate]]]) -> None:
    """Name models that do not answer the questions."""
    for model, own in found.items():
        shares = [metrics["yes_ratio"].value for metrics in own.values()]
        word, share = max(("yes", max(shares)), ("no", 1 - min(shares)), key=lambda answer: answer[1])
        if share > _ONE_ANSWER:
            print(
                f"{model} is not answering the questions: {100 * share:.1f} % of its answers are {word}, so its "
                "accuracy says nothing."
            )
        unclear = max(metrics["unclear_ratio"].value for metrics in own.values())
        if unclear > _UNCLEAR:
            print(f"{model}: {100 * unclear:.1f} % of its answers are not plainly yes or no.")

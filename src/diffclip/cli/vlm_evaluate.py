"""`diffclip vlm evaluate`: POPE's yes/no questions, for language models that see through CLIP or DiffCLIP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

    from diffclip.evaluation.records import Record
    from diffclip.vlm.pope import QuestionSet

_ONE_ANSWER = 0.95  # a model with a larger share of one answer does not answer the questions


def evaluate(
    models: Annotated[
        list[str], typer.Argument(help="Runs of `diffclip vlm train`, or saved models.", metavar="MODEL...")
    ],
    data: Annotated[Path, typer.Option(help="Folder of coco_pope_random.json and POPE's other two files.")],
    output: Annotated[Path, typer.Option(help="File for the records, as JSON lines; other records stay.")],
    task: Annotated[str, typer.Option(help="The task.", metavar="pope")] = "pope",
    images: Annotated[
        Path | None, typer.Option(help="Folder of the images (COCO's val2014); default: DATA/images.")
    ] = None,
    blind: Annotated[bool, typer.Option("--blind", help="Ask without images: how much is guessed?")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions in a batch.")] = 16,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto prefers CUDA.")] = "auto",
) -> None:
    """Ask models POPE's questions, "Is there a dog in the image?", and count the right answers.

    Example: diffclip vlm evaluate runs/vlm --task pope --data POPE/output/coco --images val2014 --output pope.jsonl

    Example: diffclip vlm evaluate runs/vlm_clip runs/vlm_diffclip --data scenes/questions --output pope.jsonl

    Two models are compared on the same questions, and a finished model is not asked again. The same command with
    --blind adds the answers without the images.
    `diffclip report` makes the paper's Table 3 from the records.
    """
    from diffclip.errors import InputError, require_group, unknown
    from diffclip.files import check_writable
    from diffclip.model_source import pick_device

    require_group("vlm", "transformers")
    require_group("report", "pandas", "scipy", "statsmodels")
    if task != "pope":
        raise unknown("task", task, ["pope"])
    if blind and images is not None:
        raise InputError("--blind asks without the images: leave --images out")
    check_writable(output)
    from diffclip.vlm.pope import open_questions

    questions = open_questions(data, images, blind=blind)
    evaluate_models(models, questions, output, batch_size, pick_device(device))


def evaluate_models(
    models: Sequence[str], questions: QuestionSet, output: Path, batch_size: int, device: torch.device
) -> None:
    """Ask each model all questions, write its records to `output`, and print a table.

    Raises:
        InputError: a source has no model, an image cannot be read, or memory is too small.
    """
    import torch

    import diffclip
    from diffclip.cli.evaluate_table import show_records
    from diffclip.cli.progress import showing_progress
    from diffclip.data.images import read_image
    from diffclip.data.index import digest_of
    from diffclip.errors import InputError
    from diffclip.evaluation.features import digest_of as weights_digest
    from diffclip.evaluation.results_file import ResultsFile
    from diffclip.vlm.chat import answer
    from diffclip.vlm.files import identify, load_vlm
    from diffclip.vlm.pope import OVERALL, score_answers

    facts, folder = {source: identify(source) for source in models}, questions.images
    if len({(own["model"], own["seed"]) for own in facts.values()}) < len(facts):
        facts = {source: own | {"model": source} for source, own in facts.items()}
    results = ResultsFile(output)
    done: list[Record] = []
    for source, own in facts.items():
        model, processor = load_vlm(source)
        weights, config = weights_digest(model), model.config.to_json_string()
        stamp = digest_of([diffclip.__version__, weights, config, questions.digest])
        if results.find(f"{stamp} {OVERALL}"):
            print(f"{source}: keeping its results in {output}")
        else:
            model.to(device)
            answers: dict[str, list[str]] = {}
            for split, asked in questions.splits.items():
                answers[split] = []
                with showing_progress(f"{source}: {split}", {"questions": len(asked)}) as progress:
                    for start in range(0, len(asked), batch_size):
                        batch = asked[start : start + batch_size]
                        shown = [read_image(folder / one.image) if folder else None for one in batch]
                        try:
                            answers[split] += answer(model, processor, shown, [one.text for one in batch])
                        except torch.OutOfMemoryError as error:
                            raise InputError(
                                f"out of memory: use a --batch-size below {batch_size}"
                            ) from error
                        progress("questions", len(batch), None)
            for split, scores in score_answers(questions, answers).items():
                results.add(scores, f"{stamp} {split}", task=questions.task, dataset=questions.name, **own)
        done += [one for split in (*questions.splits, OVERALL) for one in results.find(f"{stamp} {split}")]
    show_records(done, results.outcomes, headlines_only=False)
    for record in done:
        yes = record.value or 0.0
        share, word = max((yes, "yes"), (1 - yes, "no"))
        is_ratio = (record.task, record.metric, record.split) == ("pope", "yes_ratio", OVERALL)
        if is_ratio and share > _ONE_ANSWER:
            print(
                f"{record.weights} does not answer the questions: {100 * share:.1f} % of its answers are {word}, so "
                "its accuracy says nothing."
            )

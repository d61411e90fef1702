"""Ask models the questions of POPE, and add their scores to a results file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from diffclip.data.images import read_image
from diffclip.data.workers import Progress
from diffclip.errors import InputError
from diffclip.evaluation.records import Record
from diffclip.evaluation.results_file import ResultsFile
from diffclip.files import digest_of
from diffclip.version import __version__
from diffclip.vlm import chat
from diffclip.vlm.files import identify, load_vlm
from diffclip.vlm.pope import OVERALL, QuestionSet, score_answers
from diffclip.weights import weights_digest


def evaluate_models(
    models: Sequence[str],
    questions: QuestionSet,
    results: ResultsFile,
    batch_size: int,
    device: torch.device,
    showing: Callable[[str], AbstractContextManager[Progress]],
    say: Callable[[str], None] = print,
) -> list[Record]:
    """Ask each model all questions, add its scores to `results` and return the records of all models.

    `models` are runs of `diffclip vlm train`, or saved models. A model is not asked again if `results` holds its
    answers to the same questions. `showing` makes the progress display of a part from its name. `InputError` is raised
    if a model cannot be loaded, an image cannot be read, or the memory is too small.
    """
    facts = {source: identify(source) for source in models}
    if len({(fields["model"], fields["seed"]) for fields in facts.values()}) < len(facts):
        facts = {source: fields | {"model": source} for source, fields in facts.items()}
    records: list[Record] = []
    for source, fields in facts.items():
        model, processor = load_vlm(source)
        weights, config = weights_digest(model), model.config.to_json_string()
        stamp = digest_of([__version__, weights, config, questions.digest])
        if results.find(f"{stamp} {OVERALL}"):
            say(f"{source}: keeping its results in {results.path}")
        else:
            model.to(device)
            answers: dict[str, list[str]] = {}
            for split in questions.splits:
                with showing(f"{source}: {split}") as progress:
                    answers[split] = _ask(model, processor, questions, split, batch_size, progress)
            for split, scores in score_answers(questions, answers).items():
                results.add(scores, f"{stamp} {split}", task=questions.task, dataset=questions.name, **fields)
        for split in (*questions.splits, OVERALL):
            records += results.find(f"{stamp} {split}")
    return records


def _ask(
    model: object, processor: object, questions: QuestionSet, split: str, batch_size: int, progress: Progress
) -> list[str]:
    """Return the answers to the questions of a split."""
    items, folder = questions.splits[split], questions.images
    answers: list[str] = []
    for start in range(0, len(items), batch_size):
        batch = items[start : start + batch_size]
        images = [read_image(folder / item.image) if folder else None for item in batch]
        try:
            answers += chat.answer(model, processor, images, [item.text for item in batch])
        except torch.OutOfMemoryError as error:
            raise InputError(f"out of memory: use a --batch-size below {batch_size}") from error
        progress("questions", len(batch), len(items))
    return answers

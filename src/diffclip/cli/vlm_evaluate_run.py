"""Carrying out what `diffclip vlm evaluate` was asked for, and telling how it goes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import diffclip
from diffclip.cli.progress import showing_progress
from diffclip.cli.vlm_evaluate_table import show_answers
from diffclip.errors import InputError
from diffclip.evaluation.ledger import Ledger
from diffclip.evaluation.pope_names import POPE, majority
from diffclip.evaluation.protocol import particulars_of
from diffclip.evaluation.records import Record
from diffclip.evaluation.scores import Result
from diffclip.vlm.answers import AnswerFile, holding
from diffclip.vlm.chat import answer
from diffclip.vlm.files import Subject, identify, label_of, load_vlm
from diffclip.vlm.pope import MAX_NEW_TOKENS, QuestionFile, QuestionSet, ask_all, open_questions
from diffclip.vlm.pope_scores import results

ANSWERS = "answers"
"""The folder beside the records: a folder a model, in it a file a split."""


@dataclass(frozen=True)
class Request:
    """The command line of `diffclip vlm evaluate`, checked and resolved."""

    models: Sequence[str]
    data: Path
    output: Path
    images: Path | None
    blind: bool
    limit: int | None
    name: str | None
    batch_size: int
    device: torch.device


def carry_out(request: Request) -> None:
    """Ask, write and show.

    Raises:
        InputError: no such model, wrong questions, pictures that are missing or broken, or no place to write.
    """
    questions = open_questions(request.data, request.images, request.name, request.limit, request.blind)
    _say_counts(questions)
    subjects = {source: identify(source) for source in request.models}
    output, found = request.output, []
    # who read the records before another wrote some would write them without
    with holding(output, output.parent / ANSWERS / f".{output.name}.lock"):
        ledger = _ledger(output, list(subjects.values()))
        for source, subject in subjects.items():
            model, processor = load_vlm(source)
            label = label_of(model)
            model.to(request.device)
            own = _ask(request, source, subject, label, model, processor, questions, ledger)
            found.append((source if len(subjects) > 1 else label, own))
    show_answers(found)


def _ask(
    request: Request,
    source: str,
    subject: Subject,
    label: str,
    model: Any,
    processor: Any,
    questions: QuestionSet,
    ledger: Ledger,
) -> list[Result]:
    """One model through all questions; records are written after each file."""

    def ask(pictures: Sequence[Path | None], texts: Sequence[str]) -> list[str]:
        try:
            said: list[str] = answer(model, processor, pictures, texts, max_new_tokens=MAX_NEW_TOKENS)
        except torch.OutOfMemoryError as error:
            raise InputError(
                f"out of memory, use a smaller --batch-size than {request.batch_size}"
            ) from error
        return said

    folder = request.output.parent / ANSWERS / f"{label}-{subject.digest[:8]}"
    identity = {
        "model": label,
        "content": subject.digest,
        "blind": request.blind,
        "max_new_tokens": MAX_NEW_TOKENS,
        "version": diffclip.__version__,
    }
    answers: dict[str, list[str]] = {}
    own: list[Result] = []
    with holding(folder, folder / ".lock"):
        for file in questions.files:
            kept = AnswerFile(folder / _file_name(questions, file), identity, questions.keys(file))
            left = sum(question.question_id not in kept.found for question in file.questions)
            _say_kept(source, file, kept, left)
            started = time.monotonic()
            with showing_progress(f"{source}: {file.split}", {"questions": left}) as advance:
                answers[file.split] = ask_all(
                    ask,
                    file,
                    questions.images,
                    kept,
                    request.batch_size,
                    lambda done: advance("questions", done, None),
                )
            own = results(questions, answers, _made_by(subject))
            for result in own:
                ledger.add(result, label, str(subject.weights), subject.seed)
            ledger.write()
            seconds = time.monotonic() - started
            print(f"{source}: {_told(own, file, seconds if left else None)}", file=sys.stderr, flush=True)
    return own


def _ledger(output: Path, subjects: Sequence[Subject]) -> Ledger:
    """What the file holds is kept, but for records of models that have been trained further since."""
    made_by = {str(subject.weights): _made_by(subject) for subject in subjects}

    def stale(record: Record) -> bool:
        now = made_by.get(record.weights)
        return record.task == POPE and now is not None and now != particulars_of(record.protocol)

    dropped: list[str] = []

    def keep(record: Record) -> bool:
        if stale(record):
            dropped.append(record.weights)
            return False
        return True

    ledger = Ledger(output, lambda record: True, keep)
    for weights in dict.fromkeys(dropped):
        print(
            f"diffclip: {weights} has changed: its earlier records in {output} are left out", file=sys.stderr
        )
    return ledger


def _made_by(subject: Subject) -> str:
    return f"weights {subject.digest}"


def _file_name(questions: QuestionSet, file: QuestionFile) -> str:
    stem = re.sub(r"[^\w.-]+", "_", f"{questions.name}-{file.split}")
    return f"{stem}{'-blind' if questions.images is None else ''}.jsonl"


def _say_counts(questions: QuestionSet) -> None:
    for file in questions.files:
        asked, yes = len(file.questions), file.yes
        if 2 * yes != asked:
            often, reached = majority(asked, yes)
            print(
                f"diffclip: {questions.name}, {file.split}: {yes} of {asked} questions have the answer yes, so always "
                f"{often} is right about {100 * reached['accuracy']:.1f} %",
                file=sys.stderr,
            )


def _say_kept(source: str, file: QuestionFile, kept: AnswerFile, left: int) -> None:
    if kept.replaced:
        print(f"diffclip: {kept.path} was of another version or setting: begun again", file=sys.stderr)
    asked = len(file.questions)
    if 0 < left < asked:
        print(
            f"{source}: {file.split}: {asked - left} of {asked} answers are there, going on", file=sys.stderr
        )


def _told(own: Sequence[Result], file: QuestionFile, seconds: float | None) -> str:
    """One file in a line."""
    scores = {one.metric: one for result in own if result.split == file.split for one in result.scores}
    accuracy = scores["accuracy"]
    how = "all answers were there" if seconds is None else f"{seconds:.1f} s"
    return (
        f"{file.split}: accuracy {100 * accuracy.value:.1f} % [{100 * accuracy.low:.1f}, {100 * accuracy.high:.1f}], "
        f"yes ratio {100 * scores['yes_ratio'].value:.1f} % ({how})"
    )

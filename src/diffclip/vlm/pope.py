"""POPE: yes/no questions about the objects in an image (Li et al. 2023, arXiv:2305.10355), asked of a model.

The published folder (github.com/RUCAIBox/POPE, `output/coco`) has three files of questions, which differ in the absent
objects that they ask for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from diffclip.config import explain
from diffclip.errors import InputError
from diffclip.files import disk_errors, printable, write_text
from diffclip.scenes.export import QUESTION_IMAGES
from diffclip.vlm.chat import MAX_NEW_TOKENS, answer

SPLITS = ("random", "popular", "adversarial")
POPE, POPE_BLIND = "pope", "pope-blind"
"""The tasks of records: with the images, and without."""
Answer = Literal["yes", "no"]


class Question(BaseModel):
    """One line of a question file; other fields, such as LLaVA's `category`, are ignored."""

    model_config = ConfigDict(frozen=True)

    question_id: int
    image: str = Field(min_length=1)
    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    label: Answer


@dataclass(frozen=True)
class QuestionSet:
    """The questions of each split, and the folder of their images (None: asked without images)."""

    name: str
    splits: dict[str, list[Question]]
    images: Path | None

    @property
    def task(self) -> str:
        return POPE if self.images is not None else POPE_BLIND


def open_questions(
    folder: str | Path, images: str | Path | None = None, name: str | None = None, blind: bool = False
) -> QuestionSet:
    """Open the questions in `folder`, which has the published layout; no image is read.

    Args:
        images: folder of the images; None: `images` in `folder`, as in the built-in set.
        name: the set's name in records; None: the folder's.
        blind: ask without images, which then need not be there.

    Raises:
        InputError: a folder or file is missing, a line is not a question, a number occurs twice, an answer is neither
            yes nor no, or images are missing.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give the one that holds {_file_name(SPLITS[0])}")
    splits = {split: _read(folder / _file_name(split)) for split in SPLITS}
    place = Path(images).expanduser() if images is not None else folder / QUESTION_IMAGES
    names = list(dict.fromkeys(one.image for questions in splits.values() for one in questions))
    missing = [] if blind else [image for image in names if not (place / image).is_file()]
    if missing:
        raise InputError(
            f"{len(missing)} of the {len(names)} images of the questions are not in {place}, such as "
            f"{printable(missing[0])}: give their folder with --images (COCO's is val2014)"
        )
    return QuestionSet(name or folder.resolve().name, splits, None if blind else place)


def collect_answers(
    model: Any,
    processor: Any,
    questions: QuestionSet,
    split: str,
    file: Path,
    identity: Mapping[str, object],
    batch_size: int,
    progress: Callable[[str, int, int | None], None],
) -> list[str]:
    """Ask a model the questions of a split, and keep the answers in `file`, from where a stopped call goes on.

    The first line of `file` has `identity`, the set and the folder of images: answers of another model or another set
    are asked again. Batches, and so their padding, are the same after a stop.

    Args:
        progress: called with "questions", how many more are answered, and of how many.

    Raises:
        InputError: the file cannot be written, or an image cannot be read.
    """
    asked = questions.splits[split]
    whose = {**identity, "set": questions.name, "images": str(questions.images)}
    header = json.dumps({"answers_of": whose}) + "\n"
    answers = _kept_answers(file, header, asked)
    if len(answers) < len(asked):
        del answers[len(answers) // batch_size * batch_size :]
        write_text(file, header + "".join(map(_line, asked, answers)))
    progress("questions", len(answers), len(asked))
    for start in range(len(answers), len(asked), batch_size):
        batch = asked[start : start + batch_size]
        images = [None if questions.images is None else questions.images / one.image for one in batch]
        new = answer(model, processor, images, [one.text for one in batch], MAX_NEW_TOKENS)
        with disk_errors(file), file.open("a", encoding="utf-8") as handle:
            handle.write("".join(map(_line, batch, new)))
        answers += new
        progress("questions", len(new), len(asked))
    return answers


def _line(question: Question, text: str) -> str:
    # escaped, since an answer may have letters that separate lines for some readers, such as U+2028
    return json.dumps({"question_id": question.question_id, "question": question.text, "answer": text}) + "\n"


def _kept_answers(file: Path, header: str, asked: Sequence[Question]) -> list[str]:
    """Read the answers to the first questions; a line that was cut off, or about another question, ends them."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    first, *lines = text.splitlines(keepends=True) or [""]
    kept: list[str] = []
    for question, line in zip(asked, lines if first == header else [], strict=False):
        try:
            text = str(json.loads(line)["answer"])
        except (ValueError, KeyError, TypeError):
            break
        if line != _line(question, text):
            break
        kept.append(text)
    return kept


def _file_name(split: str) -> str:
    return f"coco_pope_{split}.json"


def _read(file: Path) -> list[Question]:
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(
            f"cannot read {file} ({reason}): POPE has the files {', '.join(map(_file_name, SPLITS))}"
        ) from None
    questions: dict[int, Question] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            question = Question.model_validate_json(line)
        except ValidationError as error:
            raise InputError(f"{file}, line {number} is not a question: {explain(error)}") from None
        if question.question_id in questions:
            raise InputError(
                f"{file}, line {number}: question_id {question.question_id} is there twice: number the questions"
            )
        questions[question.question_id] = question
    if not questions:
        raise InputError(f"{file} has no question: fetch it again")
    return list(questions.values())

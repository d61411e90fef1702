"""POPE: yes/no questions about what is in a picture (Li et al. 2023, arXiv:2305.10355), asked and read.

The published folder (github.com/RUCAIBox/POPE, `output/coco`) has three files of questions that differ in what is asked
for but absent. An answer is read as the published `evaluate.py` does it, to the letter: everything is yes that has no
No, not or no in its first sentence, so an empty answer is a yes, and a model that says nothing at all is right about
half of the questions. So answers that are not plainly the one or the other are counted beside.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from diffclip.config import explain
from diffclip.errors import InputError
from diffclip.files import printable
from diffclip.scenes.export import QUESTION_IMAGES
from diffclip.vlm.answers import AnswerFile

POPE = "pope"
SPLITS = ("random", "popular", "adversarial")

Answer = Literal["yes", "no"]
Ask = Callable[[Sequence[Path | None], Sequence[str]], Sequence[str]]
"""Pictures (None: without one) and questions of one batch → what is answered."""

MAX_NEW_TOKENS = 128
_WORD = re.compile(r"[a-z]+")


class Question(BaseModel):
    """One line of a question file; further fields, such as LLaVA's `category`, are not looked at."""

    model_config = ConfigDict(frozen=True)

    question_id: int
    image: str = Field(min_length=1)
    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    label: Answer


@dataclass(frozen=True)
class QuestionFile:
    """The questions of one split."""

    split: str
    questions: list[Question]

    @property
    def yes(self) -> int:
        """How many have the answer yes."""
        return sum(question.label == "yes" for question in self.questions)

    @property
    def pictures(self) -> list[str]:
        """The pictures, each once, in the order of the questions."""
        return list(dict.fromkeys(question.image for question in self.questions))

    @property
    def digest(self) -> str:
        """What tells these questions from others."""
        return digest([question.model_dump_json() for question in self.questions])


@dataclass(frozen=True)
class QuestionSet:
    """The three files of a folder; `images` holds their pictures, None: they are not to be looked at."""

    name: str
    files: list[QuestionFile]
    images: Path | None

    def keys(self, file: QuestionFile) -> dict[int, str]:
        """By question id, what an answer follows from: the words asked, and the content of the picture."""
        return {
            one.question_id: digest([one.text, self._contents.get(one.image, "")]) for one in file.questions
        }

    @cached_property
    def _contents(self) -> dict[str, str]:
        images = self.images
        if images is None:
            return {}
        names = dict.fromkeys(name for file in self.files for name in file.pictures)
        return {name: hashlib.sha256((images / name).read_bytes()).hexdigest() for name in names}


def read_answer(text: str) -> Answer:
    """What the published parser reads: no if a word of the text before its first full stop is exactly No, not or no."""
    words = text.split(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "not", "no"} & set(words) else "yes"


def is_unclear(text: str) -> bool:
    """Whether the first sentence does not say in plain words, of any case, what `read_answer` takes it for."""
    words = set(_WORD.findall(text.split(".")[0].lower()))
    yes, no = "yes" in words, bool(words & {"no", "not"})
    return yes == no or yes != (read_answer(text) == "yes")


def open_questions(
    folder: str | Path,
    images: str | Path | None = None,
    name: str | None = None,
    limit: int | None = None,
    blind: bool = False,
) -> QuestionSet:
    """The questions in `folder`, which is laid out as published; no picture is read.

    Args:
        images: the folder of their pictures; None: `images` in `folder`, as the built-in set has it.
        name: what the set is called; None: as the folder.
        limit: the first so many questions of each file.
        blind: without pictures, which then need not be there.

    Raises:
        InputError: a folder or file is missing, a line is no question, a number occurs twice, an answer is neither yes
            nor no, or pictures are missing.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: give the one that holds {_file_name('random')}")
    files = []
    for split in SPLITS:
        files.append(QuestionFile(split, _read(folder / _file_name(split))[:limit]))
    place = None
    if not blind:
        place = Path(images).expanduser() if images is not None else folder / QUESTION_IMAGES
        _check_pictures(place, files)
    return QuestionSet(name or folder.resolve().name, files, place)


def ask_all(
    ask: Ask,
    file: QuestionFile,
    images: Path | None,
    answers: AnswerFile,
    batch_size: int,
    progress: Callable[[int], object] | None = None,
) -> list[str]:
    """What is answered to each question of `file`; those that `answers` has are not asked again.

    Batches are the same wherever an earlier call stopped, so that their padding is, too.

    Args:
        images: the folder of the pictures; None: ask without them.
        progress: told how many more are answered.
    """
    for batch in _batches(file.questions, batch_size):
        left = [question for question in batch if question.question_id not in answers.found]
        if not left:
            continue
        pictures = [None if images is None else images / question.image for question in left]
        said = ask(pictures, [question.text for question in left])
        answers.add(
            {
                "question_id": one.question_id,
                "image": one.image,
                "question": one.text,
                "label": one.label,
                "answer": text,
            }
            for one, text in zip(left, said, strict=True)
        )
        if progress:
            progress(len(left))
    return [answers.found[question.question_id] for question in file.questions]


def _batches(questions: Sequence[Question], size: int) -> Iterator[Sequence[Question]]:
    for start in range(0, len(questions), size):
        yield questions[start : start + size]


def _file_name(split: str) -> str:
    return f"coco_pope_{split}.json"


def _read(file: Path) -> list[Question]:
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise InputError(
            f"{file} does not exist: POPE has the files {', '.join(map(_file_name, SPLITS))}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(f"cannot read {file}: {reason}") from error
    questions: list[Question] = []
    seen: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            question = Question.model_validate(json.loads(line))
        except ValidationError as error:
            raise InputError(f"{where} is no question: {explain(error)}") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not JSON: one question a line, as POPE is published") from error
        first = seen.setdefault(question.question_id, number)
        if first != number:
            raise InputError(
                f"{where}: question_id {question.question_id} is on line {first} already, answers are kept by it: "
                "number the questions"
            )
        questions.append(question)
    if not questions:
        raise InputError(f"{file} has no question: fetch it again")
    return questions


def _check_pictures(place: Path, files: Sequence[QuestionFile]) -> None:
    names = list(dict.fromkeys(name for file in files for name in file.pictures))
    missing = [name for name in names if not (place / name).is_file()]
    if missing:
        raise InputError(
            f"{len(missing)} of the {len(names)} pictures that are asked about are not in {place}, the first is "
            f"{printable(missing[0])}: give their folder with --images (COCO's is val2014)"
        )


def digest(parts: Sequence[str]) -> str:
    """What tells a list of lines from others, in twelve letters."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]

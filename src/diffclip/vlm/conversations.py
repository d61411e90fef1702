"""Conversations about images in LLaVA's JSON: read, check, and keep them in little memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError, model_validator

from diffclip.errors import InputError, explain, explain_errors
from diffclip.files import printable

IMAGE = "<image>"
"""The mark of the image's place in a question; the language model's tokenizer may use another token."""
_WANTED = "give a list of conversations in LLaVA's JSON, or one conversation per line"


class Turn(NamedTuple):
    """A question and its answer, without white space around them; `IMAGE` is removed from the question."""

    question: str
    answer: str


class Conversation(NamedTuple):
    """One sample. The image comes before the first question; `image` is its path in the folder of images, or None."""

    id: str
    image: str | None
    turns: tuple[Turn, ...]
    position: int = 0  # in the file, from 0, because LLaVA's ids are not unique
    file: str = ""

    @property
    def name(self) -> str:
        """The sample's name in errors."""
        return _name(self.file, self.position, self.id)


class _Message(BaseModel):
    speaker: Literal["human", "gpt"] = Field(alias="from")
    value: str


class _Sample(BaseModel):
    """An entry of LLaVA's JSON: `{id, image?, conversations: [{from: human|gpt, value}, …]}`."""

    id: str | int | None = None
    image: str | None = Field(default=None, min_length=1)
    conversations: list[_Message] = Field(min_length=2)

    @model_validator(mode="after")
    def _is_usable(self) -> _Sample:
        image, texts = self.image, [message.value for message in self.conversations]
        "".join(texts).encode()  # raises ValueError for half a character (a lone surrogate)
        if image is not None and (os.path.isabs(image) or ".." in image.split("/") or "\0" in image):
            raise ValueError(f"the image {printable(image)} is outside the folder of images")
        if [message.speaker for message in self.conversations] != ["human", "gpt"] * (len(texts) // 2):
            raise ValueError("human and gpt do not take turns, human first and gpt last")
        if not all(text.strip() for text in texts[1::2]):
            raise ValueError("an answer is empty")
        if sum(text.count(IMAGE) for text in texts) != (image is not None):
            raise ValueError(f"write {IMAGE} once where there is an image, else never")
        if image is not None and not (texts[0].strip().startswith(IMAGE) or texts[0].strip().endswith(IMAGE)):
            raise ValueError(f"{IMAGE} is not at the start or the end of the first question")
        return self


class Conversations(Sequence[Conversation]):
    """Conversations, packed into one string of bytes: LLaVA's 600,000 would be gigabytes of objects in each process."""

    def __init__(self, samples: Iterable[Conversation], file: str) -> None:
        self._file = file
        packed = [json.dumps([*sample[:4]]).encode() for sample in samples]
        self._bytes, self._ends = b"".join(packed), np.cumsum([0, *map(len, packed)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: Any) -> Any:
        own_id, image, turns, position = json.loads(self._bytes[self._ends[index] : self._ends[index + 1]])
        return Conversation(own_id, image, tuple(Turn(*turn) for turn in turns), position, self._file)

    def lengths(self) -> NDArray[np.int64]:
        """Return the length of each sample in bytes [n]: about proportional to its tokens."""
        return np.diff(self._ends)


def read_conversations(json_file: str | Path, images: str | Path, prefix: str | None = None) -> Conversations:
    """Read conversations in LLaVA's JSON: a JSON list, or JSON lines. Ids may repeat or be left out.

    Args:
        images: folder that the images' paths start from; every image must exist, but none is opened.
        prefix: keep the conversations about images whose paths start like this, and leave out all others.

    Raises:
        InputError: the file cannot be read or has nothing to keep, a sample cannot be used, or images are missing.
    """
    file = str(json_file)
    samples = [
        _parse(entry, number, file)
        for number, entry in enumerate(_entries(file))
        if prefix is None or (isinstance(entry, dict) and str(entry.get("image") or "").startswith(prefix))
    ]
    if not samples:
        fault = "is empty" if prefix is None else f"has no conversation about an image in {prefix}"
        raise InputError(f"{file} {fault}: {_WANTED}")
    _check_images({sample.image for sample in samples if sample.image is not None}, Path(images), file)
    return Conversations(samples, file)


def _entries(file: str) -> Iterator[Any]:
    with explain_errors(f"cannot read {file}", _WANTED), open(file, encoding="utf-8-sig") as handle:
        is_list = handle.read(1 << 20).lstrip().startswith("[")
        handle.seek(0)
        yield from json.load(handle) if is_list else (json.loads(line) for line in handle if line.strip())


def _parse(entry: Any, position: int, file: str) -> Conversation:
    try:
        sample = _Sample.model_validate(entry)
    except ValidationError as error:
        own_id = entry.get("id") if isinstance(entry, dict) else None
        fault = f"{_name(file, position, own_id)}: {explain(error)}"
        raise InputError(f"{fault}: correct the sample or leave it out") from None
    texts = [message.value.replace(IMAGE, "").strip() for message in sample.conversations]
    turns = tuple(Turn(*pair) for pair in zip(texts[::2], texts[1::2], strict=True))
    return Conversation("" if sample.id is None else str(sample.id), sample.image, turns, position, file)


def _check_images(names: set[str], folder: Path, file: str) -> None:
    """Raise `InputError` if images are missing. Listing folders is quicker than single look-ups on network disks."""
    parents = {os.path.dirname(name) for name in names}
    files = {parent: set(os.listdir(folder / parent)) for parent in parents if (folder / parent).is_dir()}
    missing = sorted(
        name for name in names if os.path.basename(name) not in files.get(os.path.dirname(name), ())
    )
    if missing:
        raise InputError(
            f"{len(missing):,} of the {len(names):,} images of {file} are not in {folder}, such as "
            f"{', '.join(map(printable, missing[:3]))}: give the folder that these paths start from, or leave "
            "these samples out"
        )


def _name(file: str, position: int, own_id: object) -> str:
    suffix = f" (id {printable(str(own_id))[:80]})" if own_id not in ("", None) else ""
    return f"{file}, sample [{position}]{suffix}"

"""Conversations about images in LLaVA's JSON: read, check, and filter by folder of images."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError, model_validator

from diffclip.config import explain
from diffclip.errors import InputError, explain_errors
from diffclip.files import check_not_input, check_writable, printable, write_text

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


def read_samples(json_file: str | Path) -> Iterator[Any]:
    """Yield the entries of a JSON list, or of JSON lines."""
    is_empty = True
    with explain_errors(f"cannot read {json_file}", _WANTED), open(json_file, encoding="utf-8-sig") as handle:
        is_list = handle.read(1 << 20).lstrip().startswith("[")
        handle.seek(0)
        samples = json.load(handle) if is_list else (json.loads(line) for line in handle if line.strip())
        for sample in samples:
            is_empty = False
            yield sample
    if is_empty:
        raise InputError(f"{json_file} is empty: {_WANTED}")


def parse_sample(sample: Any, index: int, file: str) -> Conversation:
    """Check and parse one entry, without looking for its image file. If it cannot be used, `InputError` names file,
    index, id and fault. Ids may repeat or be left out."""
    try:
        parsed = _Sample.model_validate(sample)
    except ValidationError as error:
        own_id = sample.get("id") if isinstance(sample, dict) else None
        raise InputError(
            f"{_name(file, index, own_id)}: {explain(error)}: correct the sample or leave it out"
        ) from None
    texts = [message.value.replace(IMAGE, "").strip() for message in parsed.conversations]
    turns = tuple(Turn(*pair) for pair in zip(texts[::2], texts[1::2], strict=True))
    return Conversation("" if parsed.id is None else str(parsed.id), parsed.image, turns, index, file)


def filter_conversations(source: Path, target: Path, images: str) -> tuple[Counter[str], str]:
    """Write the samples of `source` whose image path starts with `images` to `target`, unchanged and in order.

    Samples without an image, and samples that training would refuse, are left out. `InputError` is raised if `source`
    cannot be read, is `target`, or has no such sample.

    Returns:
        The number of samples for each of "kept", "other images", "text only" and "unusable", and the fault of the
        first unusable sample.
    """
    check_not_input(target, [source])
    check_writable(target)
    counts: Counter[str] = Counter()
    fault = example = ""
    kept: list[str] = []
    for index, sample in enumerate(read_samples(source)):
        try:
            image = parse_sample(sample, index, str(source)).image
        except InputError as error:
            counts["unusable"] += 1
            fault = fault or str(error)
            continue
        if image is None:
            counts["text only"] += 1
        elif image.startswith(images):
            counts["kept"] += 1
            kept.append(json.dumps(sample))
        else:
            counts["other images"] += 1
            example = example or f"there is {printable(image)}"
    if not kept:
        reasons = "; ".join(filter(None, [example, fault])) or "there are no images"
        raise InputError(
            f"no usable sample of {source} has an image in {images} ({reasons}): choose another --images"
        )
    write_text(target, "[\n" + ",\n".join(kept) + "\n]\n")
    return counts, fault


def _name(file: str, index: int, own_id: object) -> str:
    suffix = f" (id {printable(str(own_id))[:80]})" if own_id not in ("", None) else ""
    return f"{file}, sample [{index}]{suffix}"

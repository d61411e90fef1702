"""Questions about pictures, answered in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from diffclip.data.images import read_image
from diffclip.errors import InputError
from diffclip.vlm.chat import prompt
from diffclip.vlm.folders import quiet


def answer(
    model: Any,
    processor: Any,
    pictures: Sequence[Path | Image.Image | None],
    questions: Sequence[str],
    max_new_tokens: int = 128,
) -> list[str]:
    """One answer to each question about the picture beside it: the likeliest token each time, in one batch.

    Args:
        model: as `connect` or `load_vlm` return it; it answers where it is, in its own dtype.
        processor: the model's.
        pictures: as many as questions; None asks without a picture.
        max_new_tokens: where an answer is cut off.

    Returns:
        Answers without special tokens and surrounding spaces. Beside other questions an answer is what it is alone, but
        for rounding (shorter prompts are padded on the left).

    Raises:
        InputError: an empty question, a picture that cannot be read, or not as many pictures as questions.
    """
    if len(pictures) != len(questions):
        raise InputError(
            f"{len(pictures)} pictures and {len(questions)} questions: give one picture a question, or None"
        )
    for number, question in enumerate(questions, 1):
        if not question.strip():
            raise InputError(f"question {number} is empty: write what you want to know")
    if not questions:
        return []
    prompts = [
        prompt(processor, question, picture is not None)
        for question, picture in zip(questions, pictures, strict=True)
    ]
    shown = [_open(picture) for picture in pictures if picture is not None]
    with torch.inference_mode(), quiet():
        inputs = processor(
            images=shown or None,
            text=prompts,
            padding=True,
            padding_side="left",
            add_special_tokens=False,
            return_tensors="pt",
        ).to(model.device, dtype=model.dtype)
        tokens = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
    new = tokens[:, inputs["input_ids"].shape[1] :]
    return [text.strip() for text in processor.batch_decode(new, skip_special_tokens=True)]


def _open(picture: Path | Image.Image) -> Image.Image:
    return picture.convert("RGB") if isinstance(picture, Image.Image) else read_image(picture)

"""The members of a sample, an image and captions, and the record of a sample that is skipped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from PIL import Image
from torch import Tensor

from diffclip.data.images import read_image, read_pixels
from diffclip.errors import InputError

IMAGE = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif")
CAPTION_KEY = "caption"

Transform = Callable[[Image.Image], Tensor]


@dataclass(frozen=True)
class Fault:
    """A shard, sample or mask that was skipped, and why; name and reason together are a sentence.

    `kind` is "note" where nothing was skipped and the reader should know all the same.
    """

    name: str
    reason: str
    kind: Literal["broken", "mask", "note"] = "broken"

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


def caption_members(caption_key: str = CAPTION_KEY) -> tuple[str, ...]:
    """List where captions may be: `.txt`, then `.json`; with a key other than the usual, only `.json`."""
    return ("txt", "json") if caption_key == CAPTION_KEY else ("json",)


def image_of(sample: Mapping[str, bytes], name: str) -> Image.Image:
    """Read the sample's image as RGB.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    return read_image(image_member(sample, name), name)


def pixels_of(sample: Mapping[str, bytes], name: str) -> Tensor:
    """Read the sample's image as uint8 [3, H, W].

    Raises:
        InputError: as `image_of`.
    """
    return read_pixels(image_member(sample, name), name)


def image_member(sample: Mapping[str, bytes], name: str) -> bytes:
    """Find the bytes of the sample's image file.

    Raises:
        InputError: there is none.
    """
    for extension in IMAGE:
        if extension in sample:
            return sample[extension]
    raise InputError(f"{name} has no image")


def captions_of(sample: Mapping[str, bytes], name: str, caption_key: str = CAPTION_KEY) -> list[str]:
    """Read the sample's captions: the lines of `.txt`, or the string or strings under `caption_key` in `.json`.

    Blank captions are dropped.

    Raises:
        InputError: no caption, none that is not blank, or a member that cannot be read.
    """
    extension = next((member for member in caption_members(caption_key) if member in sample), None)
    if extension is None:
        raise InputError(f"{name} has no caption")
    try:
        text = sample[extension].decode("utf-8-sig")
        captions = text.splitlines() if extension == "txt" else _from_json(text, caption_key)
    except UnicodeDecodeError:
        raise InputError(f"{name} has a caption that is not UTF-8 text") from None
    except (json.JSONDecodeError, RecursionError):
        raise InputError(f"{name} has a .json that is not valid JSON") from None
    except KeyError:
        raise InputError(f"{name} has no key {caption_key!r} in its .json") from None
    except TypeError:
        raise InputError(f"{name} has no string or strings as {caption_key!r} in its .json") from None
    captions = [caption.strip() for caption in captions if caption.strip()]
    if not captions:
        raise InputError(f"{name} has an empty caption")
    return captions


def _from_json(text: str, caption_key: str) -> list[str]:
    value = json.loads(text)[caption_key]
    captions = [value] if isinstance(value, str) else value
    if not isinstance(captions, list) or not all(isinstance(caption, str) for caption in captions):
        raise TypeError
    return captions


def label_of(sample: Mapping[str, bytes], name: str, classes: int) -> int:
    """Read the number in the sample's `.cls`, from 0 to `classes` − 1.

    Raises:
        InputError: it is no whole number, or another one.
    """
    text = sample["cls"].decode("ascii", "replace").strip()
    if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
        raise InputError(f"label {text[:20]!r} of {name} is not a whole number: correct its .cls")
    if not 0 <= int(text) < classes:
        raise InputError(f"label {text} of {name} is outside the {classes} classes of classnames.txt")
    return int(text)


def sample_fault(name: str, error: Exception) -> Fault:
    """Describe why `error` makes the sample `name` unusable."""
    if isinstance(error, InputError):
        return Fault(name, str(error).removeprefix(f"{name} "))
    return Fault(name, f"cannot be read ({error})")

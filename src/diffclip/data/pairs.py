"""Images with captions to train on: the members of a sample that hold them, and their decoded contents."""

from __future__ import annotations

import json
import os
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from diffclip.data.images import IMAGE, read_pixels
from diffclip.data.members import Members
from diffclip.data.tar_set import TarSample, TarSet
from diffclip.errors import Fault, InputError, sample_fault

if TYPE_CHECKING:
    from torch import Tensor

CAPTION_KEY = "caption"
# Number of decoded images after which the memory for all images is estimated.
_ESTIMATE_AFTER = 100
_ADVICE = (
    "to train, each sample needs an image and a caption (.txt or .json); sets with classes (.cls) are for "
    "`diffclip evaluate`"
)

Endings = str | tuple[str, ...] | list[str] | None
"""Endings of members or patterns with `*`, as a list or separated by `;`. None: the usual ones."""


class Captions(NamedTuple):
    """The captions of a sample. `weights` are their shares of the draws; empty: equal shares."""

    texts: list[str]
    weights: list[float] = []  # noqa: RUF012

    def draw(self, number: int) -> str:
        """Draw a caption by a random number of 32 bits."""
        if not self.weights:
            return self.texts[number % len(self.texts)]
        ends = list(accumulate(self.weights))
        return self.texts[min(bisect(ends, number / 2**32 * ends[-1]), len(ends) - 1)]


@dataclass(frozen=True)
class PairKeys:
    """The keys by which the image and the captions of a sample are found.

    Attributes:
        image_key, text_key: the endings of the members with the image and the captions.
        caption_key: the key of `.json` that holds a caption or a list of captions, or several keys with weights. With
            the default key, the text member comes first. With others, only `.json` is read.
        captions: "lines" if each line of a text member is a caption, "whole" if all of it is one.
    """

    image_key: Endings = None
    text_key: Endings = None
    caption_key: str | Mapping[str, float] = CAPTION_KEY
    captions: Literal["lines", "whole"] = "lines"

    def members(self, advice: str = _ADVICE) -> Members:
        text = (("txt", _endings(self.text_key, ("txt",))),) if self.caption_key == CAPTION_KEY else ()
        endings = (("image", _endings(self.image_key, IMAGE)), *text, ("json", ("json",)))
        needed = (("image", ("image",)), ("caption", tuple(label for label, _ in endings[1:])))
        return Members(endings, needed, advice)

    def read(self, sample: TarSample) -> Captions:
        """Read the captions of a sample. Raise `InputError` if there is none, and the errors of `TarSample.read`."""
        return self.parse(sample.read("txt", "json"), sample.name)

    def parse(self, members: Mapping[str, bytes], name: str) -> Captions:
        """Return the captions in the text member, or under the key or keys in `.json`, without the blank ones.
        `InputError` is raised if none is left, or a member cannot be read."""
        has_text = "json" not in members or members.get("txt", b"").strip()
        is_text = self.caption_key == CAPTION_KEY and "txt" in members and has_text
        if not is_text and "json" not in members:
            raise InputError(name, "has no caption")
        try:
            text = members["txt" if is_text else "json"].decode("utf-8-sig")
            content = text if is_text else json.loads(text)
        except UnicodeDecodeError:
            raise InputError(name, "has a caption that is not UTF-8 text") from None
        except (ValueError, RecursionError):  # RecursionError: lists nested too deeply
            raise InputError(name, "has a .json that is not valid JSON") from None
        if is_text:
            # not `splitlines`, which also splits at characters such as U+2028
            return _without_blanks({"": (text.split("\n") if self.captions == "lines" else text, 1.0)}, name)
        keys = {self.caption_key: 1.0} if isinstance(self.caption_key, str) else self.caption_key
        values = content if isinstance(content, dict) else {}
        found = {key: (values[key], weight) for key, weight in keys.items() if values.get(key) is not None}
        if not found:
            reason = f"has no key {' or '.join(map(repr, keys))} in its .json, but {', '.join([*values][:8]) or 'none'}"
            raise InputError(name, reason, "name the key of the captions as data.caption_key")
        return _without_blanks(found, name)


def _endings(value: Endings, usual: tuple[str, ...]) -> tuple[str, ...]:
    if value is None:
        return usual
    values = value.split(";") if isinstance(value, str) else value
    return tuple(ending.strip().removeprefix(".").lower() for ending in values if ending.strip())


def _without_blanks(found: Mapping[str, tuple[Any, float]], name: str) -> Captions:
    texts: list[str] = []
    weights: list[float] = []
    for key, (content, weight) in found.items():
        captions = [content] if isinstance(content, str) else content
        if not isinstance(captions, list) or not all(isinstance(caption, str) for caption in captions):
            raise InputError(name, f"has no string or strings as {key!r} in its .json")
        captions = [caption.strip() for caption in captions if caption.strip()]
        texts += captions
        weights += [weight / len(captions) for _ in captions]
    if not texts:
        raise InputError(name, "has an empty caption")
    return Captions(texts, weights if len(found) > 1 else [])


class Pair(NamedTuple):
    """A sample: `name` is its shard and key, for messages; `pixels` are uint8 [3, H, W]."""

    key: str
    name: str
    captions: Captions
    pixels: Tensor


class Pairs:
    """The images and captions of `tars`, decoded: `pairs[i]` is a `Pair`, or the fault of the sample or its shard.

    `keys` say how the image and the captions of a sample are found; the other arguments are those of `TarSet`.
    """

    def __init__(
        self,
        sources: Any,
        keys: PairKeys | None = None,
        window: int | None = None,
        cache: str | Path | None = None,
        cache_gb: float | None = None,
    ) -> None:
        self.keys = keys or PairKeys()
        self.tars = TarSet(sources, self.keys.members(), window, cache, cache_gb)
        self._decoded: list[Pair | Fault] = []

    def __len__(self) -> int:
        return len(self.tars)

    def __getitem__(self, i: int) -> Pair | Fault:
        """Read and decode sample `i`. Raise `DiffCLIPError` if a remote shard cannot be copied."""
        if self._decoded:
            return self._decoded[i]
        sample = self.tars[i]
        try:
            members = sample.read(*self.tars.members.labels)
            pixels = read_pixels(members["image"], sample.name)
        except (InputError, OSError) as error:
            return sample_fault(sample.name, error)
        try:
            return Pair(sample.key, sample.name, self.keys.parse(members, sample.name), pixels)
        except InputError as error:
            return sample_fault(sample.name, error, "caption")

    def decode(self) -> None:
        """Decode all samples once and keep them in memory, which forked data workers share. Raise `InputError` if they
        need more memory than the machine has."""
        limit, size, decoded = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 0, []
        for i in range(len(self)):
            decoded.append(pair := self[i])
            size += pair.pixels.nbytes if isinstance(pair, Pair) else 0
            if i + 1 >= _ESTIMATE_AFTER and (needed := size / (i + 1) * len(self)) > limit:
                raise InputError(
                    f"{len(self)} images take {needed / 1e9:.3g} GB of memory, with {limit / 1e9:.3g} GB: shrink "
                    "them with diffclip data make-shards --edge, or data.memory=false"
                )
        self._decoded = decoded

    def fetch(self, number: int) -> None:
        """Copy a shard to the cache if it is remote and its samples are not in memory."""
        if not self._decoded:
            self.tars.fetch(number)

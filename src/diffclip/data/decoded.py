"""All usable samples of a corpus decoded, in files that every process of a machine maps into its memory.

The system keeps what is mapped once for all of them. The files are named by what they hold, so that they are made anew
where the shards change:

    FOLDER/HASH/pixels      the pictures one after another, 3 bytes a pixel, row by row
    FOLDER/HASH/index.json  their sizes, the keys and captions of the samples, and what is wrong with the broken ones
    FOLDER/HASH/tokens-32.npy  the captions as token ids [captions, 32], or whatever the length of the context is
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np
import PIL
import torch
import torchvision
from numpy.typing import NDArray
from torch import Tensor

from diffclip.data.corpus import Corpus
from diffclip.data.free_memory import free_memory
from diffclip.data.loader import decode
from diffclip.data.made_once import made_once
from diffclip.data.samples import Fault
from diffclip.data.sources import digest_of
from diffclip.errors import InputError
from diffclip.files import write_atomically, write_text
from diffclip.tokenizer import Tokenizer

_FORMAT = 1
_PIXELS, _INDEX = "pixels", "index.json"
# Samples between two looks at how large all of them will be.
_BETWEEN_CHECKS = 256


@dataclass(frozen=True)
class DecodedCorpus:
    """The usable samples of a corpus by number. What is broken has no pixels and no captions, and is in `faults`.

    Attributes:
        folder: where the files lie; no other samples lie there.
        pixels: all pictures one after another, uint8, mapped from a file.
        sizes: height and width of each, int64 [N, 2].
        keys: of the samples.
        captions: of each sample.
        faults: by number.
    """

    folder: Path
    pixels: Tensor
    sizes: NDArray[np.int64]
    keys: list[str]
    captions: list[list[str]]
    faults: dict[int, Fault]

    def picture(self, i: int) -> Tensor:
        """Sample `i` as `read_pixels` gives it: uint8 [3, H, W], the three values of a pixel together in memory."""
        (height, width), end = self.sizes[i].tolist(), int(self._ends[i])
        return self.pixels[end - 3 * height * width : end].view(height, width, 3).permute(2, 0, 1)

    def tokens(self, tokenizer: Tokenizer) -> Tensor:
        """The ids of all captions, int64 [captions, L], those of a sample together; kept beside the pictures."""
        file = self.folder / f"tokens-{tokenizer.context_length}.npy"
        total = sum(map(len, self.captions))

        def find() -> Tensor | None:
            try:
                ids = np.load(file, mmap_mode="c")
            except (OSError, ValueError):
                return None
            return torch.from_numpy(ids) if ids.shape == (total, tokenizer.context_length) else None

        def make() -> Tensor:
            ids = tokenizer([caption for own in self.captions for caption in own])
            with write_atomically(file) as part, part.open("wb") as handle:
                np.save(handle, ids.numpy())
            return ids

        return made_once(self.folder, find, make)

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        ends: NDArray[np.int64] = np.cumsum(3 * self.sizes.prod(1))
        return ends


def decoded_corpus(corpus: Corpus, folder: Path) -> DecodedCorpus:
    """The samples of a local corpus, decoded into a folder of their own in `folder` unless they are there.

    Raises:
        InputError: the corpus is remote or has a window, takes more memory than is free, or the files cannot be
            written.
    """
    if corpus.is_remote or corpus.window is not None:
        why = "is remote" if corpus.is_remote else "is read window by window"
        raise InputError(
            f"{corpus} {why}, and pictures in memory need all samples at hand: leave data.window out and give local "
            "shards, or train without pictures in memory"
        )
    versions = [torchvision.__version__, PIL.__version__]
    places = [os.path.abspath(place) for place in corpus.places]
    identity = [_FORMAT, versions, places, corpus.identity(), corpus.caption_key]
    own = folder.absolute() / digest_of(identity)[:20]

    def find() -> DecodedCorpus | None:
        return _load(own, corpus)

    def make() -> DecodedCorpus:
        _decode(own, corpus)
        made = _load(own, corpus)
        if made is None:
            raise InputError(f"{own} was changed while it was written: start again")
        return made

    return made_once(own, find, make)


def check_fits(size: float, what: str, device: torch.device) -> None:
    """Raise `InputError` where `size` bytes for the pictures of `what` are more than `device` has left."""
    free = free_memory(device)
    if free is not None and size > free:
        place = "memory" if device.type == "cpu" else f"memory of {device}"
        raise InputError(
            f"the pictures of {what} take {size / 1e9:.1f} GB decoded, and {free / 1e9:.1f} GB of {place} are free: "
            "give fewer or smaller ones, or train without pictures in memory"
        )


def _decode(folder: Path, corpus: Corpus) -> None:
    sizes, keys, captions, faults = [], [], [], {}
    with write_atomically(folder / _PIXELS) as part, part.open("wb") as handle:
        for i in range(corpus.samples):
            found = decode(corpus, i)
            if isinstance(found, Fault):
                faults[i] = [found.name, found.reason]
            sizes.append((0, 0) if isinstance(found, Fault) else tuple(found.pixels.shape[1:]))
            keys.append("" if isinstance(found, Fault) else found.key)
            captions.append([] if isinstance(found, Fault) else found.captions)
            if not isinstance(found, Fault):
                handle.write(found.pixels.permute(1, 2, 0).contiguous().numpy().data)
            if (i + 1) % _BETWEEN_CHECKS == 0:
                _check_so_far(handle, i + 1, corpus)
        _check_so_far(handle, corpus.samples, corpus)
    # What tells that all is there comes last.
    index = {"sizes": sizes, "keys": keys, "captions": captions, "faults": faults}
    write_text(folder / _INDEX, json.dumps(index))


def _check_so_far(handle: IO[bytes], done: int, corpus: Corpus) -> None:
    check_fits(handle.tell() / done * corpus.samples, str(corpus), torch.device("cpu"))


def _load(folder: Path, corpus: Corpus) -> DecodedCorpus | None:
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        size = (folder / _PIXELS).stat().st_size
    except (OSError, ValueError):
        return None
    sizes = np.array(index["sizes"], dtype=np.int64).reshape(-1, 2)
    if size != 3 * sizes.prod(1).sum() or len(sizes) != corpus.samples:
        return None
    check_fits(size, str(corpus), torch.device("cpu"))
    return DecodedCorpus(
        folder,
        map_bytes(folder / _PIXELS, size),
        sizes,
        index["keys"],
        index["captions"],
        {int(i): Fault(*fault) for i, fault in index["faults"].items()},
    )


def map_bytes(file: Path, size: int) -> Tensor:
    """The `size` bytes of `file` as uint8 [size], which processes share; what one writes into them, it alone sees."""
    # an empty file cannot be mapped
    return torch.from_numpy(np.memmap(file, np.uint8, "c", shape=(size,)) if size else np.zeros(0, np.uint8))

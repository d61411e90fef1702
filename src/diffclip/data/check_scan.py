"""Every sample of a corpus read as training reads it, and what is worth knowing of each: numbers, no pixels.

Pictures come and go; what stays is about 45 bytes a sample and 20 a caption.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from diffclip.config import TextConfig
from diffclip.data.corpus import Corpus
from diffclip.data.samples import PICTURE, Fault, captions_of, pixels_of, sample_fault
from diffclip.data.workers import leave_signals_to_parent, watched
from diffclip.errors import InputError
from diffclip.tokenizer import Tokenizer

MOST_TOKENS = 1024
"""A longer caption counts as this long."""

# small enough that the bar moves and a worker's answer is small, large enough that passing it costs little
_CHUNK = 128
# grey values of a picture that shows nothing: compression alone makes a few differ
_ONE_COLOUR = 16


@dataclass
class Scan:
    """What was read, samples in the order of the corpus.

    Attributes:
        number: [S] the sample's number in the corpus; only whole samples are listed.
        width, height: [S] pixels, upright.
        size: [S] bytes of the picture's file.
        content: [S] a hash of these bytes; equal for equal files.
        look: [S] ImageHash's pHash of the picture, 64 bits; 0 where ImageHash is not installed.
        one_colour: [S] the picture shows nothing, and `look` means nothing.
        owner: [C] the place in these arrays of the sample that a caption is of.
        words, tokens: [C] lengths of the caption, tokens with start and end.
        text: [C] a hash of the caption in lower case with single spaces.
        pictures, captions: samples left out because of the one or the other, and why.
    """

    number: NDArray[np.int64]
    width: NDArray[np.int32]
    height: NDArray[np.int32]
    size: NDArray[np.int64]
    content: NDArray[np.uint64]
    look: NDArray[np.uint64]
    one_colour: NDArray[np.bool_]
    owner: NDArray[np.int64]
    words: NDArray[np.int32]
    tokens: NDArray[np.int32]
    text: NDArray[np.uint64]
    pictures: list[Fault] = field(default_factory=list)
    captions: list[Fault] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.number)


_PER_SAMPLE = ("number", "width", "height", "size", "content", "look", "one_colour")
_PER_CAPTION = ("owner", "words", "tokens", "text")


def scan(
    corpus: Corpus,
    numbers: NDArray[np.int64],
    workers: int = 0,
    advance: Callable[[int], None] | None = None,
) -> Scan:
    """Read the samples `numbers` of a corpus.

    Args:
        corpus: what to read.
        numbers: [N] samples, ascending.
        workers: processes that read; 0 reads in this one.
        advance: called with how many more samples have been read.

    Raises:
        DiffCLIPError: a worker died, or a disk or an address does not answer.
    """
    chunks = np.array_split(numbers, max(1, -(-len(numbers) // _CHUNK)))
    loader: DataLoader[Any] = DataLoader(
        _Samples(corpus, chunks),
        batch_size=None,
        num_workers=workers,
        collate_fn=_as_it_is,
        worker_init_fn=leave_signals_to_parent,
        # Without its own generator a DataLoader draws from the global one.
        generator=torch.Generator(),
    )
    return _joined(_counting(watched(loader), chunks, advance))


def caption_hash(caption: str) -> int:
    """Equal for captions that differ in case or in spaces alone."""
    return _hash(" ".join(caption.lower().split()).encode("utf-8", "surrogatepass"))


def can_see_near_duplicates() -> bool:
    """Whether ImageHash is installed, which `look` comes from."""
    return importlib.util.find_spec("imagehash") is not None


class _Samples(Dataset[Scan]):
    def __init__(self, corpus: Corpus, chunks: Sequence[NDArray[np.int64]]) -> None:
        self.corpus, self.chunks, self.hashing = corpus, chunks, can_see_near_duplicates()
        self.tokenizer = Tokenizer(TextConfig(context_length=MOST_TOKENS))

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, chunk: int) -> Scan:
        samples: list[tuple[Any, ...]] = []
        owners: list[int] = []
        captions: list[str] = []
        pictures: list[Fault] = []
        unread: list[Fault] = []
        for number in self.chunks[chunk].tolist():
            sample = self.corpus.read(number)
            if isinstance(sample, Fault):
                pictures.append(sample)
                continue
            try:
                own = captions_of(sample.members, sample.name, self.corpus.caption_key)
            except InputError as error:
                unread.append(sample_fault(sample.name, error))
                continue
            try:
                facts = self._picture(sample.members, sample.name)
            except InputError as error:
                pictures.append(sample_fault(sample.name, error))
                continue
            owners += [len(samples)] * len(own)
            captions += own
            samples.append((number, *facts))
        columns = list(zip(*samples, strict=True)) or [()] * len(_PER_SAMPLE)
        # the first of the largest ids is the end of the text
        tokens: Any = self.tokenizer(captions).argmax(dim=1).numpy() + 1 if captions else []
        own_columns = (
            owners,
            [len(caption.split()) for caption in captions],
            tokens,
            list(map(caption_hash, captions)),
        )
        arrays = {
            name: np.array(values, dtype=_TYPES[name])
            for name, values in zip((*_PER_SAMPLE, *_PER_CAPTION), (*columns, *own_columns), strict=True)
        }
        return Scan(**arrays, pictures=pictures, captions=unread)

    def _picture(self, members: dict[str, bytes], name: str) -> tuple[int, int, int, int, int, bool]:
        pixels = pixels_of(members, name)
        data = next(members[ending] for ending in PICTURE if ending in members)
        grey = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).convert("L")
        values = np.asarray(grey)
        look = _look(grey) if self.hashing else 0
        return grey.width, grey.height, len(data), _hash(data), look, bool(np.ptp(values) < _ONE_COLOUR)


_TYPES: dict[str, Any] = {
    "number": np.int64,
    "width": np.int32,
    "height": np.int32,
    "size": np.int64,
    "content": np.uint64,
    "look": np.uint64,
    "one_colour": np.bool_,
    "owner": np.int64,
    "words": np.int32,
    "tokens": np.int32,
    "text": np.uint64,
}


def _look(grey: Image.Image) -> int:
    import imagehash

    return int.from_bytes(np.packbits(imagehash.phash(grey).hash).tobytes(), "big")


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def _as_it_is(chunk: Any) -> Any:
    return chunk


def _counting(
    scans: Iterator[Scan], chunks: Sequence[NDArray[np.int64]], advance: Callable[[int], None] | None
) -> Iterator[Scan]:
    for part, chunk in zip(scans, chunks, strict=True):
        if advance is not None:
            advance(len(chunk))
        yield part


def _joined(parts: Iterator[Scan]) -> Scan:
    found = list(parts)
    arrays = {name: np.concatenate([getattr(part, name) for part in found]) for name in _TYPES}
    firsts = np.cumsum([0, *map(len, found)])
    arrays["owner"] = np.concatenate(
        [part.owner + first for part, first in zip(found, firsts.tolist(), strict=False)]
    )
    return Scan(
        **arrays,
        pictures=[fault for part in found for fault in part.pictures],
        captions=[fault for part in found for fault in part.captions],
    )

"""Read a corpus as training reads it, and count what it holds: sizes, lengths, duplicates and broken samples."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from diffclip.config import TextConfig
from diffclip.data.corpus import Corpus
from diffclip.data.images import read_pixels
from diffclip.data.workers import data_loader, watched
from diffclip.errors import Fault, InputError, sample_fault
from diffclip.tokenizer import Tokenizer

LEARNED_AT = 224
"""Pixels of the usual models; a smaller image is enlarged."""
DISTANCE = 4
"""Bits of 64 in which the perceptual hashes of near duplicates differ at most. Images of JPEG quality 30, of half and
of twice the size stay within; one cut at its borders does not."""

_MOST_TOKENS = 1024
_CHUNK = 128
# gray values of an image that shows nothing: compression alone makes a few differ
_ONE_COLOR = 16
_QUANTILES = {"min": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "max": 1.0}
# of a perceptual hash: gray pixels of an edge, of which the lowest 8 × 8 frequencies count (Zauner 2010)
_EDGE = 32
_COSINES = np.cos(np.pi / _EDGE * np.outer(np.arange(8), np.arange(_EDGE) + 0.5))

_SAMPLE = np.dtype(
    [("number", "i8"), ("width", "i4"), ("height", "i4"), ("size", "i8"), ("content", "u8"), ("look", "u8"),
     ("one_color", "?")]
)  # fmt: skip
_CAPTION = np.dtype([("owner", "i8"), ("words", "i4"), ("tokens", "i4"), ("text", "u8")])

Spread = dict[str, float]
"""Quantiles from "min" to "max"."""


class Scan(NamedTuple):
    """The numbers behind a check: `samples` and `captions` are a row each, see `_SAMPLE` and `_CAPTION`.

    `content` is a hash of an image's file, `look` a perceptual hash of the image, `text` a hash of a caption in lower
    case, and `owner` the number of the sample that a caption is of.
    """

    samples: NDArray[Any]
    captions: NDArray[Any]
    faults: list[Fault]


@dataclass(frozen=True)
class Check:
    """The contents of a corpus: of its shards, of the samples that were read, and of those that are whole."""

    sources: list[str]
    shards: int
    samples_a_shard: Spread
    usable: int  # samples with a member for an image and one for a caption
    seed: int | None  # of the draw where only a part was read
    read: int
    whole: int  # samples that can be trained on; all below is of these
    skipped: list[Fault]  # broken shards, and samples without an image or a caption
    images_broken: list[Fault]
    captions_broken: list[Fault]
    width: Spread
    height: Spread
    shorter_edge: Spread
    aspect: Spread  # width by height
    file_size: Spread
    small: int  # images with a shorter edge below 224
    one_color: int
    captions: int
    different: int  # captions, but for case and spaces
    words: Spread
    tokens: Spread
    context_length: int
    truncated: int  # captions longer than `context_length` tokens
    exact: list[list[str]]  # samples with the same image file
    near: list[list[str]]  # samples whose images look alike, though they are other files

    def to_json(self) -> dict[str, Any]:
        """All of it in types that JSON has."""
        return asdict(self)


def check(
    corpus: Corpus,
    sample: int | None = None,
    seed: int = 0,
    workers: int = 0,
    context_length: int = 77,
    advance: Callable[[int], None] = lambda done: None,
) -> tuple[Check, Scan]:
    """Read a corpus, or a part of it, and count.

    Args:
        corpus: what to read.
        sample: how many samples to draw at random; None or more than there are: all.
        seed: of that draw.
        workers: processes that read; 0 reads in this one.
        context_length: tokens a caption may have, with start and end.
        advance: called with how many more samples have been read.

    Raises:
        InputError: not one sample can be read.
        DiffCLIPError: a worker died, or an address does not answer.
    """
    drawn = sample is not None and sample < corpus.samples
    numbers = np.arange(corpus.samples)
    if drawn:
        numbers = np.sort(np.random.default_rng(seed).choice(corpus.samples, sample, replace=False))
    found = _scan(corpus, numbers, workers, advance)
    samples, captions, faults = found
    if not len(samples):
        raise InputError(
            f"not one of {len(numbers)} samples of {corpus} can be trained on, the first: {faults[0]}"
        )
    shorter = np.minimum(samples["width"], samples["height"])
    counts = [count for source in corpus.layout.sources for count in source]
    return Check(
        sources=[source.spec for source in corpus.sources],
        shards=len(counts),
        samples_a_shard=_spread(counts),
        usable=corpus.samples,
        seed=seed if drawn else None,
        read=len(numbers),
        whole=len(samples),
        skipped=corpus.faults,
        images_broken=[fault for fault in faults if fault.kind != "caption"],
        captions_broken=[fault for fault in faults if fault.kind == "caption"],
        width=_spread(samples["width"]),
        height=_spread(samples["height"]),
        shorter_edge=_spread(shorter),
        aspect=_spread(samples["width"] / samples["height"]),
        file_size=_spread(samples["size"]),
        small=int((shorter < LEARNED_AT).sum()),
        one_color=int(samples["one_color"].sum()),
        captions=len(captions),
        different=len(np.unique(captions["text"])),
        words=_spread(captions["words"]),
        tokens=_spread(captions["tokens"]),
        context_length=context_length,
        truncated=int((captions["tokens"] > context_length).sum()),
        exact=_named(corpus, samples, _groups(np.unique(samples["content"], return_inverse=True)[1])),
        near=_named(corpus, samples, near_groups(samples)),
    ), found


def _spread(values: NDArray[Any] | Sequence[int]) -> Spread:
    """Quantiles of values of which there is at least one."""
    return dict(zip(_QUANTILES, np.quantile(values, list(_QUANTILES.values())).tolist(), strict=True))


def _scan(corpus: Corpus, numbers: NDArray[np.int64], workers: int, advance: Callable[[int], None]) -> Scan:
    chunks = np.array_split(numbers, max(1, -(-len(numbers) // _CHUNK)))
    loader = data_loader(_Chunks(corpus, chunks), workers, batch_size=None, collate_fn=_as_it_is)
    parts: list[Scan] = []
    for part, chunk in zip(watched(loader), chunks, strict=True):
        parts.append(part)
        advance(len(chunk))
    samples, captions = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    return Scan(samples, captions, [fault for part in parts for fault in part.faults])


class _Chunks(Dataset[Scan]):
    def __init__(self, corpus: Corpus, chunks: Sequence[NDArray[np.int64]]) -> None:
        self.corpus, self.chunks = corpus, chunks
        self.tokenizer = Tokenizer(TextConfig(context_length=_MOST_TOKENS))

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, chunk: int) -> Scan:
        samples, captions, faults = [], [], []
        for number in self.chunks[chunk].tolist():
            sample = self.corpus.read(number)
            if isinstance(sample, Fault):
                faults.append(sample)
                continue
            try:
                samples.append((number, *_facts(sample.image, sample.name)))
            except InputError as error:
                faults.append(sample_fault(sample.name, error))
                continue
            # the first of the largest ids is the end of the text
            tokens = (self.tokenizer(sample.captions).argmax(dim=1) + 1).tolist()
            captions += [
                (number, len(text.split()), length, _text_hash(text))
                for text, length in zip(sample.captions, tokens, strict=True)
            ]
        return Scan(np.array(samples, _SAMPLE), np.array(captions, _CAPTION), faults)


def _as_it_is(chunk: Any) -> Any:
    return chunk


def _facts(data: bytes, name: str) -> tuple[int, int, int, int, int, bool]:
    gray = Image.fromarray(read_pixels(data, name).permute(1, 2, 0).contiguous().numpy()).convert("L")
    one_color = bool(np.ptp(np.asarray(gray)) < _ONE_COLOR)
    return gray.width, gray.height, len(data), _hash(data), perceptual_hash(gray), one_color


def perceptual_hash(gray: Image.Image) -> int:
    """64 bits: which of the lowest frequencies of an image's discrete cosine transform lie above their median."""
    pixels = np.asarray(gray.resize((_EDGE, _EDGE), Image.Resampling.LANCZOS), dtype=np.float64)
    low = _COSINES @ pixels @ _COSINES.T
    return int.from_bytes(np.packbits(low > np.median(low)).tobytes(), "big")


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def _text_hash(caption: str) -> int:
    return _hash(" ".join(caption.lower().split()).encode("utf-8", "surrogatepass"))


def near_groups(samples: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Group samples whose images look alike, of those that are not the same file; of the same file the first counts.

    Two hashes that differ in 4 bits agree in 2 of 6 blocks at least, so that pairs are looked for among those that
    agree in one of the 15 choices of 2 blocks (Manku, Jain and Das Sarma, WWW 2007).
    """
    places = np.sort(np.unique(samples["content"], return_index=True)[1])
    places = places[~samples["one_color"][places]]
    values, inverse = np.unique(samples["look"][places], return_inverse=True)
    parent = np.arange(len(values))
    for first, second in _near_pairs(values):
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            parent[_root(parent, a)] = _root(parent, b)
    labels = np.array([_root(parent, place) for place in range(len(values))], dtype=np.int64)
    return [places[group] for group in _groups(labels[inverse])]


def _near_pairs(values: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Places of pairs at most `DISTANCE` apart; a pair may come more than once."""
    edges = np.linspace(0, 64, DISTANCE + 3).astype(int).tolist()
    blocks = [((1 << (high - low)) - 1) << low for low, high in pairwise(edges)]
    for chosen in combinations(blocks, 2):
        keys = values & np.uint64(sum(chosen))
        order = np.argsort(keys, kind="stable")
        keys, left, shift = keys[order], np.arange(len(values)), 0
        # each round pairs what lies `shift` apart in a bucket, and only larger buckets go on to the next
        while len(left):
            shift += 1
            left = left[left < len(keys) - shift]
            left = left[keys[left] == keys[left + shift]]
            first, second = order[left], order[left + shift]
            near = np.bitwise_count(values[first] ^ values[second]) <= DISTANCE
            yield first[near], second[near]


def _root(parent: NDArray[np.int64], place: int) -> int:
    while parent[place] != place:
        parent[place] = parent[parent[place]]
        place = int(parent[place])
    return place


def _groups(labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The places of each label that is there more than once, ascending; larger groups first, then earlier ones."""
    found: dict[int, list[int]] = defaultdict(list)
    for place, label in enumerate(labels.tolist()):
        found[label].append(place)
    groups = [np.array(places) for places in found.values() if len(places) > 1]
    return sorted(groups, key=lambda group: (-len(group), int(group[0])))


def _named(corpus: Corpus, samples: NDArray[Any], groups: list[NDArray[np.int64]]) -> list[list[str]]:
    return [[corpus.read(number).name for number in samples["number"][group].tolist()] for group in groups]

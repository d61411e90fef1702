"""Read a corpus as training reads it, and count what it holds: sizes, lengths, repetitions, and what is broken."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from diffclip.config import TextConfig
from diffclip.data.corpus import Corpus
from diffclip.data.samples import Fault, captions_of, image_member, pixels_of, sample_fault
from diffclip.data.workers import leave_signals_to_parent, watched
from diffclip.errors import InputError
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
_MOST_REPEATED = 20
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
    images_broken: list[Fault]
    captions_broken: list[Fault]


@dataclass(frozen=True)
class Check:
    """The contents of a corpus.

    Attributes:
        sources: what was asked for.
        shards: how many there are, and how many samples they hold.
        usable: samples with a member for an image and one for a caption.
        seed: of the draw where only a part was read.
        read: how many samples were read.
        whole: how many of them can be trained on.
        skipped: broken shards, and samples without an image or a caption.
        images_broken, captions_broken: samples left out for the one or the other.
        width, height, shorter_edge, aspect, file_size: of whole samples; `aspect` is width by height.
        small: images with a shorter edge below 224.
        one_color: images that show nothing.
        captions: how many there are; `different` ones, but for case and spaces; longer than `context_length` tokens.
        repeated: the captions that are there most often, and how often.
        exact: groups of samples with the same image file.
        near: groups of samples whose images look alike, though they are other files.
    """

    sources: list[str]
    shards: int
    samples_a_shard: Spread
    usable: int
    seed: int | None
    read: int
    whole: int
    skipped: list[Fault]
    images_broken: list[Fault]
    captions_broken: list[Fault]
    width: Spread
    height: Spread
    shorter_edge: Spread
    aspect: Spread
    file_size: Spread
    small: int
    one_color: int
    captions: int
    different: int
    words: Spread
    tokens: Spread
    context_length: int
    truncated: int
    repeated: list[tuple[str, int]]
    exact: list[list[str]]
    near: list[list[str]]

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
    found = scan(corpus, numbers, workers, advance)
    if not len(found.samples):
        first = [*found.images_broken, *found.captions_broken][0]
        raise InputError(
            f"not one of {len(numbers)} samples of {corpus} can be trained on, the first: {first}"
        )
    samples, captions = found.samples, found.captions
    shorter = np.minimum(samples["width"], samples["height"])
    counts = [count for source in corpus.layout.sources for count in source]
    return Check(
        sources=[source.spec for source in corpus.sources],
        shards=len(counts),
        samples_a_shard=spread(counts),
        usable=corpus.samples,
        seed=seed if drawn else None,
        read=len(numbers),
        whole=len(samples),
        skipped=corpus.faults,
        images_broken=found.images_broken,
        captions_broken=found.captions_broken,
        width=spread(samples["width"]),
        height=spread(samples["height"]),
        shorter_edge=spread(shorter),
        aspect=spread(samples["width"] / samples["height"]),
        file_size=spread(samples["size"]),
        small=int((shorter < LEARNED_AT).sum()),
        one_color=int(samples["one_color"].sum()),
        captions=len(captions),
        different=len(np.unique(captions["text"])),
        words=spread(captions["words"]),
        tokens=spread(captions["tokens"]),
        context_length=context_length,
        truncated=int((captions["tokens"] > context_length).sum()),
        repeated=_repeated(corpus, captions),
        exact=_named(corpus, samples, _groups(np.unique(samples["content"], return_inverse=True)[1])),
        near=_named(corpus, samples, near_groups(samples)),
    ), found


def spread(values: NDArray[Any] | Sequence[int]) -> Spread:
    """Quantiles of values of which there is at least one."""
    found = np.quantile(values, list(_QUANTILES.values())).tolist()
    return dict(zip(_QUANTILES, found, strict=True))


def scan(corpus: Corpus, numbers: NDArray[np.int64], workers: int, advance: Callable[[int], None]) -> Scan:
    """Read the samples `numbers` of a corpus; see `check`."""
    chunks = np.array_split(numbers, max(1, -(-len(numbers) // _CHUNK)))
    loader: DataLoader[Any] = DataLoader(
        _Chunks(corpus, chunks),
        batch_size=None,
        num_workers=workers,
        collate_fn=_as_it_is,
        worker_init_fn=leave_signals_to_parent,
        generator=torch.Generator(),
    )
    parts: list[Scan] = []
    for part, chunk in zip(watched(loader), chunks, strict=True):
        parts.append(part)
        advance(len(chunk))
    return Scan(
        np.concatenate([part.samples for part in parts]),
        np.concatenate([part.captions for part in parts]),
        [fault for part in parts for fault in part.images_broken],
        [fault for part in parts for fault in part.captions_broken],
    )


class _Chunks(Dataset[Scan]):
    def __init__(self, corpus: Corpus, chunks: Sequence[NDArray[np.int64]]) -> None:
        self.corpus, self.chunks = corpus, chunks
        self.tokenizer = Tokenizer(TextConfig(context_length=_MOST_TOKENS))

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, chunk: int) -> Scan:
        samples, captions, images_broken, captions_broken = [], [], [], []
        for number in self.chunks[chunk].tolist():
            sample = self.corpus.read(number)
            if isinstance(sample, Fault):
                images_broken.append(sample)
                continue
            try:
                own = captions_of(sample.members, sample.name, self.corpus.caption_key)
            except InputError as error:
                captions_broken.append(sample_fault(sample.name, error))
                continue
            try:
                samples.append((number, *_facts(sample.members, sample.name)))
            except InputError as error:
                images_broken.append(sample_fault(sample.name, error))
                continue
            # the first of the largest ids is the end of the text
            tokens = (self.tokenizer(own).argmax(dim=1) + 1).tolist()
            captions += [
                (number, len(text.split()), length, _text_hash(text))
                for text, length in zip(own, tokens, strict=True)
            ]
        return Scan(np.array(samples, _SAMPLE), np.array(captions, _CAPTION), images_broken, captions_broken)


def _as_it_is(chunk: Any) -> Any:
    return chunk


def _facts(members: dict[str, bytes], name: str) -> tuple[int, int, int, int, int, bool]:
    data = image_member(members, name)
    gray = Image.fromarray(pixels_of(members, name).permute(1, 2, 0).contiguous().numpy()).convert("L")
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


def _repeated(corpus: Corpus, captions: NDArray[Any]) -> list[tuple[str, int]]:
    """The captions that are there most often, read again."""
    hashes, first, times = np.unique(captions["text"], return_index=True, return_counts=True)
    order = [place for place in np.lexsort((first, -times))[:_MOST_REPEATED].tolist() if times[place] > 1]
    found = []
    for place in order:
        sample = corpus.read(int(captions["owner"][first[place]]))
        own = (
            [] if isinstance(sample, Fault) else captions_of(sample.members, sample.name, corpus.caption_key)
        )
        text = next((text for text in own if _text_hash(text) == int(hashes[place])), "")
        found.append((text, int(times[place])))
    return found


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

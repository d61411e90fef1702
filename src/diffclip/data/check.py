"""Read a corpus as training reads it, and count: broken samples, sizes, lengths of captions, duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffclip.config import TextConfig
from diffclip.data.corpus import Corpus
from diffclip.data.workers import data_loader, watch_batches
from diffclip.errors import DiffCLIPError, Fault, InputError
from diffclip.tokenizer import Tokenizer

LEARNED_AT = 224
"""Image size of the usual models in pixels; a smaller image is enlarged."""
CONTEXT_LENGTH = 77
"""Tokens that the usual models read of a caption, with the start and the end token."""
DISTANCE = 4
"""Largest number of bits, of 64, in which the perceptual hashes of near duplicates differ. An image saved with JPEG
quality 75, or at half or twice the size, stays within this distance. At quality 30
photographs do too, and 93 of 100 smooth images. An image cut at its borders does not."""

_MOST_TOKENS = 1024
_CHUNK = 128
# An image with a smaller range of gray values counts as one color: compression alone changes some values.
_ONE_COLOR = 16
_QUANTILES = {"min": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "max": 1.0}
# Perceptual hash (Zauner 2010): edge of the gray image in pixels; the lowest 8 × 8 frequencies are used.
_EDGE = 32
_COSINES = np.cos(np.pi / _EDGE * np.outer(np.arange(8), np.arange(_EDGE) + 0.5))

# `content` is a hash of the image's pixels, `look` their perceptual hash, 0 for an image of one color.
_SAMPLE = np.dtype([("number", "i8"), ("shorter_edge", "i4"), ("content", "u8"), ("look", "u8")])

Spread = dict[str, float]
"""Quantiles from "min" to "max"."""


@dataclass(frozen=True)
class Check:
    """Counts of a corpus: its shards, the samples that were read, and the whole samples among them."""

    sources: list[str]
    shards: int
    usable: int  # samples with a member for an image and one for a caption
    read: int  # all usable samples, or the number of drawn ones
    whole: int  # samples that training can use; the fields after the faults count these
    skipped: list[Fault]  # broken shards, and samples without an image or a caption
    images_broken: list[Fault]
    captions_broken: list[Fault]
    shorter_edge: Spread
    small: int  # images with a shorter edge below 224
    captions: int
    tokens: Spread  # of a caption, with start and end
    truncated: int  # captions of more than 77 tokens
    exact: list[list[str]]  # groups of samples with the same pixels
    near: list[list[str]]  # groups of samples whose images look alike, though their pixels differ


def check(
    corpus: Corpus,
    sample: int | None = None,
    workers: int = 0,
    advance: Callable[[int], None] = lambda done: None,
) -> Check:
    """Read a corpus, or a part of it, and count its contents.

    Args:
        sample: how many samples to draw at random; None, or more than there are: all samples.
        workers: processes that read; 0 reads in this process.
        advance: called with the number of samples read since the last call.

    Raises:
        InputError: no sample can be trained on, or a shard does not exist.
        DiffCLIPError: a worker died, or an address does not answer.
    """
    numbers = np.arange(corpus.samples)
    if sample is not None and sample < corpus.samples:
        numbers = np.sort(np.random.default_rng(0).choice(corpus.samples, sample, replace=False))
    chunks = [numbers[start : start + _CHUNK].tolist() for start in range(0, len(numbers), _CHUNK)]
    read = partial(_read, corpus, Tokenizer(TextConfig(context_length=_MOST_TOKENS)))
    loader = data_loader(chunks, workers, batch_size=None, collate_fn=read)
    parts: list[tuple[NDArray[Any], NDArray[Any], list[Fault]]] = []
    for part in watch_batches(loader):
        parts.append(part)
        advance(len(part[0]) + len(part[2]))
    samples, tokens = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    faults = [fault for part in parts for fault in part[2]]
    if not len(samples):
        raise InputError(
            f"none of {len(numbers)} samples of {corpus} can be trained on (first: {faults[0]}): replace the shards"
        )
    return Check(
        sources=[source["spec"] for source in corpus.sources],
        shards=sum(source["shards"] for source in corpus.sources),
        usable=corpus.samples,
        read=len(numbers),
        whole=len(samples),
        skipped=corpus.faults,
        images_broken=[fault for fault in faults if fault.kind != "caption"],
        captions_broken=[fault for fault in faults if fault.kind == "caption"],
        shorter_edge=_spread(samples["shorter_edge"]),
        small=int((samples["shorter_edge"] < LEARNED_AT).sum()),
        captions=len(tokens),
        tokens=_spread(tokens),
        truncated=int((tokens > CONTEXT_LENGTH).sum()),
        exact=_names(corpus, samples["number"], _groups(samples["content"])),
        near=_names(corpus, samples["number"], near_groups(samples)),
    )


def _spread(values: NDArray[Any]) -> Spread:
    """Compute the quantiles of one or more values."""
    return dict(zip(_QUANTILES, np.quantile(values, list(_QUANTILES.values())).tolist(), strict=True))


def _read(
    corpus: Corpus, tokenizer: Tokenizer, numbers: Sequence[int]
) -> tuple[NDArray[Any], NDArray[Any], list[Fault]] | DiffCLIPError:
    """Read samples: their rows (see `_SAMPLE`), the numbers of tokens of all their captions, and the faults."""
    rows, tokens, faults = [], [], []
    try:
        for number in numbers:
            sample = corpus.read(number)
            if isinstance(sample, Fault):
                faults.append(sample)
                continue
            pixels = sample.pixels.permute(1, 2, 0).contiguous().numpy()
            gray = Image.fromarray(pixels).convert("L")
            look = 0 if np.ptp(np.asarray(gray)) < _ONE_COLOR else perceptual_hash(gray)
            # with the width: images of several shapes may have the same bytes
            content = hashlib.blake2b(pixels.tobytes(), digest_size=8, person=str(gray.width).encode())
            rows.append((number, min(gray.size), int.from_bytes(content.digest(), "big"), look))
            # the end token has the largest id, and argmax finds the first one
            tokens += (tokenizer(sample.captions).argmax(dim=1) + 1).tolist()
    except DiffCLIPError as error:
        return error  # for `watch_batches`
    return np.array(rows, _SAMPLE), np.array(tokens, np.int32), faults


def perceptual_hash(gray: Image.Image) -> int:
    """Return 64 bits: which of the lowest frequencies of the discrete cosine transform are above their median."""
    pixels = np.asarray(gray.resize((_EDGE, _EDGE), Image.Resampling.LANCZOS), dtype=np.float64)
    low = _COSINES @ pixels @ _COSINES.T
    return int.from_bytes(np.packbits(low > np.median(low)).tobytes(), "big")


def near_groups(samples: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Group samples whose images look alike. Of samples with the same pixels, only the first is compared.

    Two hashes that differ in at most 4 bits agree in at least 2 of 6 blocks. So only hashes that agree in one of the
    15 pairs of blocks are compared (Manku, Jain and Das Sarma, WWW 2007).
    """
    indices = np.sort(np.unique(samples["content"], return_index=True)[1])
    indices = indices[samples["look"][indices] != 0]
    values, inverse = np.unique(samples["look"][indices], return_inverse=True)
    labels, before, pairs = np.arange(len(values)), np.full(len(values), -1), list(_near_pairs(values))
    while not np.array_equal(labels, before):  # until all members of a group have its smallest label
        before = labels.copy()
        for first, second in pairs:
            np.minimum.at(labels, first, labels[second])
            np.minimum.at(labels, second, labels[first])
    return [indices[group] for group in _groups(labels[inverse])]


def _near_pairs(values: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the indices of pairs that differ in at most `DISTANCE` bits; a pair may come more than once."""
    edges = np.linspace(0, 64, DISTANCE + 3).astype(int).tolist()
    blocks = [((1 << (high - low)) - 1) << low for low, high in pairwise(edges)]
    for chosen in combinations(blocks, 2):
        keys = values & np.uint64(sum(chosen))
        order = np.argsort(keys, kind="stable")
        keys, entries, shift = keys[order], np.arange(len(values)), 0
        # each round pairs the entries of a bucket that are `shift` apart; only larger buckets go on to the next round
        while len(entries):
            shift += 1
            entries = entries[entries < len(keys) - shift]
            entries = entries[keys[entries] == keys[entries + shift]]
            first, second = order[entries], order[entries + shift]
            near = np.bitwise_count(values[first] ^ values[second]) <= DISTANCE
            yield first[near], second[near]


def _groups(labels: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Return the indices of each label that occurs more than once, ascending; larger groups first, then earlier."""
    order = np.argsort(labels, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group[0]))


def _names(corpus: Corpus, numbers: NDArray[np.int64], groups: list[NDArray[np.int64]]) -> list[list[str]]:
    return [[corpus.name(number) for number in numbers[group].tolist()] for group in groups]

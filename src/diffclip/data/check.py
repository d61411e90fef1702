"""Read shards as training reads them, and count: broken samples, sizes, lengths of captions, duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffclip.config import TextConfig
from diffclip.data.pairs import Pairs
from diffclip.data.workers import Progress, map_processes
from diffclip.errors import Fault, InputError
from diffclip.tokenizer import Tokenizer

LEARNED_AT = 224
"""Image size of the usual models in pixels; a smaller image is enlarged."""
CONTEXT_LENGTH = 77
"""Tokens that the usual models read of a caption, with the start and the end token."""

_MOST_TOKENS = 1024
_CHUNK = 128
_QUANTILES = {"min": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "max": 1.0}

# `content` is a hash of the image's pixels.
_SAMPLE = np.dtype([("number", "i8"), ("shorter_edge", "i4"), ("captions", "i4"), ("content", "u8")])

Spread = dict[str, float]
"""Quantiles from "min" to "max"."""


@dataclass(frozen=True)
class Check:
    """Counts of a set: its shards, the samples that were read, and the whole samples among them."""

    sources: list[str]
    shards: int
    usable: int  # samples with a member for an image and one for a caption
    read: int  # all usable samples, or the number of drawn ones
    whole: int  # samples that training can use; the fields after the faults count these
    skipped: list[Fault]  # broken shards, and samples without an image or a caption
    notes: list[Fault]  # oddities of the shards, of which nothing is skipped
    images_broken: list[Fault]
    captions_broken: list[Fault]
    shorter_edge: Spread
    small: int  # images with a shorter edge below 224
    captions: int
    several: int  # samples with several captions, or lines
    tokens: Spread  # of a caption, with start and end
    truncated: int  # captions of more than 77 tokens
    exact: list[list[str]]  # groups of samples with the same pixels


def check(
    pairs: Pairs,
    sample: int | None = None,
    workers: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Check:
    """Read all samples, or a part of them, and count their contents.

    Args:
        sample: how many samples to draw at random; None, or more than there are: all samples.
        workers: processes that read; 0 reads in this process.
        progress: called with "samples", the number read since the last call, and the number to read.

    Raises:
        InputError: no sample can be trained on, or a shard does not exist.
        DiffCLIPError: a worker died, or an address does not answer.
    """
    tars, numbers = pairs.tars, np.arange(len(pairs))
    if sample is not None and sample < len(pairs):
        numbers = np.sort(np.random.default_rng(0).choice(len(pairs), sample, replace=False))
    chunks = [numbers[start : start + _CHUNK].tolist() for start in range(0, len(numbers), _CHUNK)]
    read = partial(_read, pairs, Tokenizer(TextConfig(context_length=_MOST_TOKENS)))
    parts: list[tuple[NDArray[Any], NDArray[Any], list[Fault]]] = []
    for part in map_processes(read, chunks, workers):
        parts.append(part)
        progress("samples", len(part[0]) + len(part[2]), len(numbers))
    samples, tokens = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    faults = [fault for part in parts for fault in part[2]]
    if not len(samples):
        none = f"none of {len(numbers)} samples of {tars} can be trained on (first: {faults[0]})"
        raise InputError(f"{none}: mend or replace them")
    groups = _groups(samples["content"])
    return Check(
        sources=[source["spec"] for source in tars.sources],
        shards=sum(source["shards"] for source in tars.sources),
        usable=len(pairs),
        read=len(numbers),
        whole=len(samples),
        skipped=tars.faults,
        notes=tars.notes,
        images_broken=[fault for fault in faults if fault.kind != "caption"],
        captions_broken=[fault for fault in faults if fault.kind == "caption"],
        shorter_edge=_spread(samples["shorter_edge"]),
        small=int((samples["shorter_edge"] < LEARNED_AT).sum()),
        captions=len(tokens),
        several=int((samples["captions"] > 1).sum()),
        tokens=_spread(tokens),
        truncated=int((tokens > CONTEXT_LENGTH).sum()),
        exact=[[tars.name(number) for number in samples["number"][group].tolist()] for group in groups],
    )


def _spread(values: NDArray[Any]) -> Spread:
    """Compute the quantiles of one or more values."""
    return dict(zip(_QUANTILES, np.quantile(values, list(_QUANTILES.values())).tolist(), strict=True))


def _read(
    pairs: Pairs, tokenizer: Tokenizer, numbers: Sequence[int]
) -> tuple[NDArray[Any], NDArray[Any], list[Fault]]:
    """Read samples: their rows (see `_SAMPLE`), the numbers of tokens of all their captions, and the faults."""
    rows, tokens, faults = [], [], []
    for number in numbers:
        sample = pairs[number]
        if isinstance(sample, Fault):
            faults.append(sample)
            continue
        pixels = sample.pixels.permute(1, 2, 0).contiguous().numpy()
        height, width = pixels.shape[:2]
        # with the width: images of several shapes may have the same bytes
        content = hashlib.blake2b(pixels.tobytes(), digest_size=8, person=str(width).encode())
        texts = sample.captions.texts
        captions = sum(text.count("\n") + 1 for text in texts)
        rows.append((number, min(height, width), captions, int.from_bytes(content.digest(), "big")))
        # the end token has the largest id, and argmax finds the first one
        tokens += (tokenizer(texts).argmax(dim=1) + 1).tolist()
    return np.array(rows, _SAMPLE), np.array(tokens, np.int32), faults


def _groups(labels: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Return the indices of each label that occurs more than once, ascending; larger groups first, then earlier."""
    order = np.argsort(labels, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group[0]))

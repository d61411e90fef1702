"""What shards hold and whether it is fit to train on: counts, sizes, lengths, repetitions, and what is broken.

Nothing is printed; the numbers become a table, a file or a page elsewhere.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import diffclip
from diffclip.data.check_duplicates import equal_groups, near_groups
from diffclip.data.check_scan import Scan, can_see_near_duplicates, caption_hash, scan
from diffclip.data.corpus import Corpus
from diffclip.data.samples import Fault, captions_of
from diffclip.errors import InputError

LEARNED_AT = 224
"""Pixels of the usual models; a smaller picture is blown up."""

_QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_NAMES = ("min", "1 %", "5 %", "25 %", "median", "75 %", "95 %", "99 %", "max")
# captions whose language is guessed, at about 40,000 a second
_GUESSED = 5_000
_MOST_REPEATED = 20
# what a corpus says of samples that lack something, alone or many of a shard at once
_LACKS = re.compile(r"(?:holds (\d+) samples that have|has) no (?:picture|caption)")

Spread = dict[str, float]
"""Quantiles from "min" to "max", and the "mean"."""


@dataclass(frozen=True)
class ShardFacts:
    """How many usable samples the shards have. `uneven` are those with less than half of the median."""

    count: int
    broken: list[Fault]
    samples: Spread
    smallest: str
    largest: str
    uneven: list[tuple[str, int]]


@dataclass(frozen=True)
class PictureFacts:
    """Of whole samples. `aspect` is width by height; `small` those with a shorter edge below `LEARNED_AT`."""

    width: Spread
    height: Spread
    shorter_edge: Spread
    aspect: Spread
    size: Spread
    total_size: int
    small: int
    one_colour: int


@dataclass(frozen=True)
class CaptionFacts:
    """Of whole samples.

    Attributes:
        count: captions, and how many of them `different`: case and spaces apart.
        words, tokens: lengths; tokens with start and end.
        truncated: captions longer than `context_length` tokens.
        repeated: the captions that are there most often, and how often.
        languages: of `guessed` captions drawn at random, how many are of which; None without py3langid.
    """

    count: int
    different: int
    words: Spread
    tokens: Spread
    context_length: int
    truncated: int
    repeated: list[tuple[str, int]]
    guessed: int
    languages: dict[str, int] | None


@dataclass(frozen=True)
class Repetition:
    """Groups of samples whose pictures are the same, by name; `pictures` are those that repeat another one."""

    pictures: int
    groups: list[list[str]]


@dataclass(frozen=True)
class Check:
    """What is known of a corpus.

    Attributes:
        sources: what was asked for.
        usable: samples with a member for a picture and one for a caption.
        read: how many of these were read: all, or a sample drawn with `seed`.
        whole: how many of what was read can be trained on.
        lacking: samples without a picture or a caption.
        unreadable_pictures, unreadable_captions: samples left out for the one or the other.
        exact: the same file more than once.
        near: other files of the same look; None without ImageHash.
    """

    sources: list[str]
    caption_key: str
    seed: int | None
    usable: int
    read: int
    whole: int
    shards: ShardFacts
    lacking: list[Fault]
    unreadable_pictures: list[Fault]
    unreadable_captions: list[Fault]
    pictures: PictureFacts
    captions: CaptionFacts
    exact: Repetition
    near: Repetition | None
    version: str = field(default=diffclip.__version__)

    @property
    def lacks(self) -> int:
        """How many samples `lacking` is about."""
        return sum(int(match[1] or 1) for fault in self.lacking if (match := _LACKS.match(fault.reason)))

    def to_json(self) -> dict[str, Any]:
        """All of it in types that JSON has."""
        return asdict(self)


def check(
    corpus: Corpus,
    sample: int | None = None,
    seed: int = 0,
    workers: int = 0,
    context_length: int = 77,
    advance: Callable[[int], None] | None = None,
) -> tuple[Check, Scan]:
    """Read a corpus, or a part of it, and say what it holds.

    Args:
        corpus: what to read.
        sample: how many samples to draw at random; None or more than there are: all.
        seed: of that draw and of the captions whose language is guessed.
        workers: processes that read; 0 reads in this one.
        context_length: tokens a caption may have, with start and end.
        advance: called with how many more samples have been read.

    Returns:
        What was found, and the numbers that it comes from.

    Raises:
        InputError: not one sample can be read.
        DiffCLIPError: a worker died, or a disk or an address does not answer.
    """
    drawn = sample is not None and sample < corpus.samples
    numbers = np.arange(corpus.samples)
    if drawn:
        numbers = np.sort(np.random.default_rng(seed).choice(corpus.samples, sample, replace=False))
    found = scan(corpus, numbers, workers, advance)
    if not len(found):
        first = [*found.pictures, *found.captions][0]
        raise InputError(
            f"not one of {len(numbers)} samples of {corpus} can be trained on, the first: {first}"
        )
    lacking, broken = _sorted(corpus.faults)
    return Check(
        sources=[source.spec for source in corpus.sources],
        caption_key=corpus.caption_key,
        seed=seed if drawn else None,
        usable=corpus.samples,
        read=len(numbers),
        whole=len(found),
        shards=_shards(corpus, broken),
        lacking=lacking,
        unreadable_pictures=found.pictures,
        unreadable_captions=found.captions,
        pictures=_pictures(found),
        captions=_captions(corpus, found, context_length, seed),
        exact=_repetition(corpus, found, equal_groups(found.content)),
        near=_repetition(corpus, found, near_groups(found.look, found.content, found.one_colour))
        if can_see_near_duplicates()
        else None,
    ), found


def spread(values: NDArray[Any] | Sequence[int]) -> Spread:
    """Quantiles and mean of values of which there is at least one."""
    quantiles = np.quantile(values, _QUANTILES)
    return {**dict(zip(_NAMES, map(float, quantiles), strict=True)), "mean": float(np.mean(values))}


def name_of(corpus: Corpus, number: int) -> str:
    """A sample for people: its shard and key."""
    return corpus.read(number).name


def _sorted(faults: Iterable[Fault]) -> tuple[list[Fault], list[Fault]]:
    """Faults of samples that lack something, and those of shards."""
    lacking: list[Fault] = []
    broken: list[Fault] = []
    for fault in faults:
        (lacking if _LACKS.match(fault.reason) else broken).append(fault)
    return lacking, broken


def _shards(corpus: Corpus, broken: list[Fault]) -> ShardFacts:
    counts = np.array([count for source in corpus.layout.sources for count in source], dtype=np.int64)
    firsts = np.cumsum(counts) - counts
    held = np.flatnonzero(counts)

    def name(shard: int) -> str:
        first = corpus.read(int(firsts[shard]))
        return first.name.removesuffix(f":{first.key}") if not isinstance(first, Fault) else first.name

    few = held[counts[held] < np.median(counts[held]) / 2]
    return ShardFacts(
        count=len(counts),
        broken=broken,
        samples=spread(counts),
        smallest=name(int(held[counts[held].argmin()])),
        largest=name(int(counts.argmax())),
        uneven=[(name(int(shard)), int(counts[shard])) for shard in few],
    )


def _pictures(found: Scan) -> PictureFacts:
    shorter = np.minimum(found.width, found.height)
    return PictureFacts(
        width=spread(found.width),
        height=spread(found.height),
        shorter_edge=spread(shorter),
        aspect=spread(found.width / found.height),
        size=spread(found.size),
        total_size=int(found.size.sum()),
        small=int((shorter < LEARNED_AT).sum()),
        one_colour=int(found.one_colour.sum()),
    )


def _captions(corpus: Corpus, found: Scan, context_length: int, seed: int) -> CaptionFacts:
    _, first, times = np.unique(found.text, return_index=True, return_counts=True)
    order = np.lexsort((first, -times))[:_MOST_REPEATED]
    often = [place for place in order.tolist() if times[place] > 1]
    texts = caption_texts(corpus, found, [int(first[place]) for place in often])
    guessed, languages = _languages(corpus, found, seed)
    return CaptionFacts(
        count=len(found.text),
        different=len(times),
        words=spread(found.words),
        tokens=spread(found.tokens),
        context_length=context_length,
        truncated=int((found.tokens > context_length).sum()),
        repeated=[(text, int(times[place])) for text, place in zip(texts, often, strict=True)],
        guessed=guessed,
        languages=languages,
    )


def caption_texts(corpus: Corpus, found: Scan, places: Sequence[int]) -> list[str]:
    """The captions at `places` of the scan, read again."""
    texts = []
    for place in places:
        sample = corpus.read(int(found.number[found.owner[place]]))
        if isinstance(sample, Fault):
            raise InputError(f"{sample}, but could be read before: start again")
        own = captions_of(sample.members, sample.name, corpus.caption_key)
        texts.append(next((one for one in own if caption_hash(one) == int(found.text[place])), own[0]))
    return texts


def _languages(corpus: Corpus, found: Scan, seed: int) -> tuple[int, dict[str, int] | None]:
    if importlib.util.find_spec("py3langid") is None:
        return 0, None
    import py3langid

    count = min(_GUESSED, len(found.text))
    places = np.sort(np.random.default_rng(seed).choice(len(found.text), count, replace=False))
    texts = caption_texts(corpus, found, places.tolist())
    languages = Counter(py3langid.classify(text)[0] for text in texts)
    return count, dict(languages.most_common())


def _repetition(corpus: Corpus, found: Scan, groups: Sequence[NDArray[np.int64]]) -> Repetition:
    return Repetition(
        pictures=sum(len(group) - 1 for group in groups),
        groups=[[name_of(corpus, number) for number in found.number[group].tolist()] for group in groups],
    )

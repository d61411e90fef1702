"""The setting of a task: a model, the preparation of its images and texts, and the set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import Tensor

from diffclip.config import STATISTICS
from diffclip.data.evaluation_set import EvaluationSet, ImageBatch
from diffclip.data.transforms import EvalTransform, Transform
from diffclip.evaluation.corruptions import MOST_SEVERE, CorruptedTransform
from diffclip.evaluation.embed import (
    Progress,
    Tokenizer,
    build_classifier,
    embed_images,
    embed_texts,
    evaluating,
    joined,
)
from diffclip.model import CLIP

Set = TypeVar("Set", bound=EvaluationSet)


@dataclass(frozen=True)
class Setting(Generic[Set]):
    """A model, the set to run it on, and how.

    Attributes:
        preprocess: PIL image → [3, S, S].
        draw: seed of what a task draws: the episodes of few-shot, the images that a linear probe holds out where the
            set has no validation split, and noise and the start of an attack.
        prompt: the text that is asked about an object with a mask, with `{c}` for its name; None: the set's own texts.
        words: other words for some of these names.
        init: how models of this kind start, for an untrained one.
        templates: of the zero-shot classifier; None: the set's own.
        features: computed features by set and split, shared by the tasks of one model.
    """

    model: CLIP
    preprocess: EvalTransform
    tokenizer: Tokenizer
    data: Set
    batch_size: int = 64
    workers: int = 0
    progress: Progress | None = None
    draw: int = 0
    prompt: str | None = None
    words: Mapping[str, str] = field(default_factory=dict)
    init: str = "matched"
    templates: Sequence[str] | None = None
    features: dict[tuple[str, ...], Any] = field(default_factory=dict)

    @property
    def prompts(self) -> Sequence[str]:
        """The templates of the zero-shot classifier."""
        return self.templates or self.data.templates

    def batches(self, transform: Transform | None = None, what: str = "images") -> Iterator[ImageBatch]:
        """Read the set in batches, prepared by `transform` (None: by `preprocess`), and report progress."""
        for batch in self.data.batches(transform or self.preprocess, self.batch_size, self.workers):
            yield batch
            if self.progress:
                self.progress(what, len(batch.positions), len(self.data))

    def image_features(self) -> tuple[Tensor, list[int]]:
        """Embed the images that can be read, [n, D], and return the position of each in the set."""
        features: list[Tensor] = []
        positions: list[int] = []
        with evaluating(self.model):
            for batch in self.batches():
                features.append(embed_images(self.model, batch.images))
                positions += batch.positions
            return joined(features), positions

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """Embed texts: [M, D]."""
        with evaluating(self.model):
            return embed_texts(self.model, self.tokenizer, texts, progress=self.progress)

    def classifier(self) -> Tensor:
        """Build the zero-shot classifier of the set's classes, [D, K]."""
        names = self.data.classnames
        return build_classifier(self.model, self.tokenizer, names, self.prompts, progress=self.progress)


def squashed(transform: EvalTransform) -> EvalTransform:
    """Return the same preparation of the whole image, resized to the model's square instead of cropped."""
    own = EvalTransform(transform.image_size, transform.preprocess.model_copy(update={"resize": "squash"}))
    if isinstance(transform, CorruptedTransform):
        return CorruptedTransform(own, transform.name, transform.severity)
    return own


def describe_images(transform: EvalTransform) -> str:
    """Describe how images are prepared, for the protocol of a record."""
    size, preprocess = transform.image_size, transform.preprocess
    names = [name for name, pair in STATISTICS.items() if pair == (preprocess.mean, preprocess.std)]
    cut = f"shorter edge {preprocess.resize or size} px {preprocess.interpolation}, center crop {size} px"
    if preprocess.resize == "squash":
        cut = f"squashed to {size} px {preprocess.interpolation}"
    text = f"{cut}, {names[0] if names else 'own'} statistics"
    if isinstance(transform, CorruptedTransform):
        text += f", {transform.name} {transform.severity} of {MOST_SEVERE}"
    return text

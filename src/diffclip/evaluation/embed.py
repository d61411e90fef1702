"""Embed images and texts at unit length, in batches, without gradients; and `Setting`, the input of a task.

Shapes: N images, M texts, B a batch, S image size, L context length, D joint width.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet, ImageBatch
from diffclip.data.workers import Progress
from diffclip.errors import Fault, NotFiniteError
from diffclip.model import CLIP
from diffclip.preprocess import Transform
from diffclip.tokenizer import Tokenizer


@contextmanager
def evaluation_mode(model: CLIP) -> Iterator[None]:
    """Switch to evaluation mode without gradients; the mode before is restored, also after an error."""
    was_training = model.training
    model.train(False)
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def embed_images(model: CLIP, images: Tensor) -> Tensor:
    """Embed a batch of normalized images [B, 3, S, S]: [B, D], unit length, float32, on the model's device."""
    weight = next(iter(model.parameters()))
    images = images.to(weight.device, weight.dtype, non_blocking=True)
    return F.normalize(model.encode_image(images).float(), dim=-1)


def tokens_and_embeddings(model: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """Encode a batch of normalized images [B, 3, S, S] once, for tasks on either side of the projection.

    Returns:
        The class tokens before the projection [B, W], or the features of another library's model, in float32 on the
        CPU; and what `embed_images` returns.
    """
    weight = next(iter(model.parameters()))
    images = images.to(weight.device, weight.dtype, non_blocking=True)
    if isinstance(model, CLIP):
        tokens = model.visual(images)
        features = tokens @ model.image_projection
    else:  # of another library: its features are all that it has
        tokens = features = model.encode_image(images)
    return tokens.float().cpu(), F.normalize(features.float(), dim=-1)


def embed_texts(
    model: CLIP,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    batch_size: int = 256,
    progress: Progress | None = None,
) -> Tensor:
    """Embed texts, at least one: [M, D], unit length, float32, on the model's device. Raise `NotFiniteError` if an
    embedding is not finite."""
    device = next(iter(model.parameters())).device
    # our own text tower ignores padding; another model may not
    extra = {"skip_padding": True} if isinstance(model, CLIP) else {}
    # Texts of similar length share a batch, so that it has little padding
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    features = []
    for start in range(0, len(texts), batch_size):
        batch = [texts[index] for index in order[start : start + batch_size]]
        features.append(F.normalize(model.encode_text(tokenizer(batch).to(device), **extra).float(), dim=-1))
        if progress:
            progress("texts", len(batch), len(texts))
    return check_embeddings(torch.cat(features)[torch.tensor(order).argsort().to(device)], "texts")


def check_embeddings(features: Tensor, kind: str) -> Tensor:
    """Return the embeddings [N, D] of `kind` ("images", "texts") unchanged.

    Raises:
        NotFiniteError: an embedding is not finite.
    """
    broken = int((~features.isfinite()).any(1).sum())
    if broken:
        raise NotFiniteError(
            f"the embeddings of {broken} of {len(features)} {kind} are not finite numbers: the model's weights are "
            "damaged or its training diverged, use another checkpoint"
        )
    return features


def build_classifier(
    model: CLIP,
    tokenizer: Tokenizer,
    classnames: Sequence[str],
    templates: Sequence[str],
    batch_size: int = 256,
    progress: Progress | None = None,
) -> Tensor:
    """Build the zero-shot classifier [D, K]: of each class, the normalized mean of its unit-length text embeddings.

    Each template has a place for the class name, `{c}` or `{}`. A batch of `batch_size` texts may mix classes.
    """
    texts = [fill_template(template, name) for name in classnames for template in templates]
    with evaluation_mode(model):
        features = embed_texts(model, tokenizer, texts, batch_size, progress)
        return F.normalize(features.view(len(classnames), len(templates), -1).mean(1), dim=-1).T.contiguous()


def fill_template(template: str, name: str) -> str:
    """Put the class name in place of `{c}` (or `{}`); other braces in template and name stay."""
    return template.replace("{c}" if "{c}" in template else "{}", name)


class Encoded(NamedTuple):
    """The n images of a set that can be read: class tokens before the projection [n, W], embeddings of unit length
    [n, D], the position of each in the set, and the broken images."""

    tokens: Tensor
    embeddings: Tensor
    positions: list[int]
    faults: tuple[Fault, ...]


AnySet = TypeVar("AnySet", bound=EvaluationSet)


@dataclass(frozen=True)
class Setting(Generic[AnySet]):
    """A model, the set to measure it on, and the options.

    Attributes:
        model, preprocess, tokenizer: as in `Loaded`; `preprocess` may be corrupted. `run.lacking` has checked that the
            model can do the task.
        draw: seed of random draws: the episodes of few-shot, the images that a linear probe holds out if the set has
            no validation split, and the noise and the start of an attack.
        prompt: the text for an object with a mask, with `{c}` for its name; None: the set's own texts.
        words: words that replace some of these names.
        init: the initialization of the untrained model in `focus`.
        templates: of the zero-shot classifier; None: the set's own.
        pool: in retrieval, the number of images to choose from: the set is split into pools of so many. None: all.
        features: cache of `encoded` by set, split and preparation, shared by the tasks of one model.
    """

    model: Any
    preprocess: Any
    tokenizer: Any
    data: AnySet
    batch_size: int = 64
    workers: int = 0
    progress: Progress | None = None
    draw: int = 0
    prompt: str | None = None
    words: Mapping[str, str] = field(default_factory=dict)
    init: str = "matched"
    templates: Sequence[str] | None = None
    pool: int | None = None
    features: dict[str, Encoded] = field(default_factory=dict)

    @property
    def prompts(self) -> Sequence[str]:
        """The templates of the zero-shot classifier."""
        return self.templates or self.data.templates

    def batches(self, transform: Transform | None = None) -> Iterator[ImageBatch]:
        """Read the set in batches, prepared by `transform` (None: by `preprocess`), and report progress."""
        for batch in self.data.batches(transform or self.preprocess, self.batch_size, self.workers):
            yield batch
            if self.progress:
                self.progress("images", len(batch.positions), len(self.data))

    def encoded(self, data: EvaluationSet | None = None) -> Encoded:
        """Encode the images of a set (None: the tested one) that can be read, once for all tasks of a model."""
        data = data or self.data
        key = json.dumps(
            [data.identity, self.preprocess.identity, self.preprocess.preprocess.model_dump(mode="json")]
        )
        if key not in self.features:
            tokens: list[Tensor] = []
            embeddings: list[Tensor] = []
            positions: list[int] = []
            with evaluation_mode(self.model):
                for batch in data.batches(self.preprocess, self.batch_size, self.workers):
                    class_tokens, embedded = tokens_and_embeddings(self.model, batch.images)
                    tokens.append(class_tokens)
                    embeddings.append(embedded)
                    positions += batch.positions
                    if self.progress:
                        self.progress(f"{data.split} images", len(batch.positions), len(data))
            # clones, because tensors of inference mode cannot be trained on
            parts = (torch.cat(tokens).clone(), check_embeddings(torch.cat(embeddings), "images").clone())
            self.features[key] = Encoded(*parts, positions, tuple(data.faults))
        found = self.features[key]
        self.data.faults = list(dict.fromkeys([*self.data.faults, *found.faults]))
        return found

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """Embed texts: [M, D]."""
        with evaluation_mode(self.model):
            return embed_texts(self.model, self.tokenizer, texts, progress=self.progress)

    def classifier(self) -> Tensor:
        """Build the zero-shot classifier of the set's classes, [D, K]."""
        names = self.data.classnames
        return build_classifier(self.model, self.tokenizer, names, self.prompts, progress=self.progress)

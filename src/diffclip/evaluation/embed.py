"""`Setting`, the input of a task, and the embeddings and features that tasks share.

Embeddings have unit length. A feature is the class token after the final norm, before the projection into the joint
space (768 wide in a ViT-B), not scaled. Both are float32.

Shapes: N images, M texts, B a batch, S image size, D joint width, W vision width.
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
from diffclip.data.published_sets import parts_of
from diffclip.data.workers import Progress
from diffclip.errors import Fault, InputError, NotFiniteError
from diffclip.evaluation.suite import TRAIN
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
    return _encode_images(model, images)[1]


def _encode_images(model: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features [B, W] of images, and their embeddings [B, D]."""
    weight = next(iter(model.parameters()))
    images = images.to(weight.device, weight.dtype, non_blocking=True)
    if isinstance(model, CLIP):
        tokens = model.visual(images)
        embeddings = tokens @ model.image_projection
    else:  # of another library: its features are all that it has
        tokens = embeddings = model.encode_image(images)
    return tokens.float(), F.normalize(embeddings.float(), dim=-1)


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
    """Return the embeddings [N, D] of `kind` ("images", "texts"), or raise `NotFiniteError`."""
    if broken := int((~features.isfinite()).any(1).sum()):
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
    """The n images of a set that can be read: features [n, W] on the CPU, embeddings [n, D] and positions in the set;
    and the broken images."""

    features: Tensor
    embeddings: Tensor
    positions: list[int]
    faults: tuple[Fault, ...]


AnySet = TypeVar("AnySet", bound=EvaluationSet)


@dataclass(frozen=True)
class Setting(Generic[AnySet]):
    """A model, the set to measure it on, and the options.

    Attributes:
        model, preprocess, tokenizer: as in `Loaded`. `run.lacking` has checked that the model can do the task.
        draw: seed of random draws: the episodes of few-shot, the images that a linear probe holds out if the set has
            no validation split, and the noise and the start of an attack.
        prompt: the text for an object with a mask, with `{c}` for its name; None: the set's own texts.
        words: words that replace some of these names.
        init: the initialization of the untrained model in `focus`.
        templates: of the zero-shot classifier; None: the set's own.
        pool: in retrieval, the number of images to choose from: the set is split into pools of so many. None: all.
        cache: results of `encoded` by set, split and preparation, shared by the tasks of one model.
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
    cache: dict[str, Encoded] = field(default_factory=dict)

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
        preparation = self.preprocess.preprocess.model_dump(mode="json")
        key = json.dumps([data.identity, self.preprocess.identity, preparation])
        if key not in self.cache:
            features, embeddings, positions = list[Tensor](), list[Tensor](), list[int]()
            with evaluation_mode(self.model):
                for batch in data.batches(self.preprocess, self.batch_size, self.workers):
                    batch_features, embedded = _encode_images(self.model, batch.images)
                    features.append(batch_features.cpu())
                    embeddings.append(embedded)
                    positions += batch.positions
                    if self.progress:
                        self.progress(f"{data.split} images", len(batch.positions), len(data))
            # clones, because tensors of inference mode cannot be trained on
            parts = (torch.cat(features).clone(), check_embeddings(torch.cat(embeddings), "images").clone())
            self.cache[key] = Encoded(*parts, positions, tuple(data.faults))
        found = self.cache[key]
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

    def train_and_test(self, task: str) -> tuple[Features, Features]:
        """Compute the features of the set's split `train`, and of the tested split."""
        data = self.data
        if parts_of(data.split)[0] == TRAIN:
            raise InputError(
                f"{task} learns from the split {TRAIN}: give another one to test on, as --split test"
            )
        train = data.beside(TRAIN)
        if train is None:
            raise InputError(f"{data.name} has no {TRAIN} split, which {task} learns from: add its shards")
        return self.features(train), self.features(data)

    def features(self, data: EvaluationSet) -> Features:
        """Compute the features of a split of the set; its broken images join the faults of the tested split."""
        if data.classnames != self.data.classnames:
            # shards and the publisher's files may number the same classes in another order
            splits = f"{data.split} and {self.data.split}"
            raise InputError(f"{data.name}: {splits} have different classes: use shards or files for both")
        encoded = self.encoded(data)
        labels = torch.tensor([data.labels[position] for position in encoded.positions])
        return Features(f"{data.name}/{data.split}", encoded.features, labels)

    @property
    def feature_kind(self) -> str:
        """Describe the features, for the protocol of a record."""
        is_clip = isinstance(self.model, CLIP)
        return "class token before the projection" if is_clip else "the encoder's features"


class Features(NamedTuple):
    """Features [N, W] of labeled images, their classes int64 [N], and the name of their split for messages."""

    name: str
    values: Tensor
    labels: Tensor

    def check(self, classnames: Sequence[str], least: int, purpose: str) -> None:
        """Raise `InputError` for a class with fewer than `least` images."""
        counts = torch.bincount(self.labels, minlength=len(classnames)).tolist()
        pairs = zip(classnames, counts, strict=True)
        if short := [f"{name!r} has {count}" for name, count in pairs if count < least]:
            note = f" ({len(short)} classes have too few)" if len(short) > 1 else ""
            raise InputError(
                f"{self.name}: class {short[0]} images{note}, and {least} are needed {purpose}: add some, or leave "
                "the class out of the set"
            )


@contextmanager
def one_thread(alone: bool = True) -> Iterator[None]:
    """Compute on one CPU thread inside, if `alone`: for many short steps, sharing work takes longer than doing it."""
    threads = torch.get_num_threads()
    try:
        if alone:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)

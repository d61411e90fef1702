"""The evaluation tasks by name, each run on one split of one set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffclip.config import STATISTICS, CLIPConfig
from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.evaluation_sets import BUILT_IN, open_masks, open_set, set_folder
from diffclip.data.masks import MaskedSet
from diffclip.errors import Fault, InputError, unknown
from diffclip.evaluation import linear_probe as probes
from diffclip.evaluation.corruptions import CorruptedTransform, describe
from diffclip.evaluation.embed import Progress, Tokenizer
from diffclip.evaluation.features import Features, read_features
from diffclip.evaluation.few_shot import EPISODES, QUERIES, SHOT, WAY, few_shot
from diffclip.evaluation.focus import focus
from diffclip.evaluation.linear_probe import linear_probe
from diffclip.evaluation.mmvp import PROMPT, QUESTIONS, PairSet, mmvp, open_pairs
from diffclip.evaluation.retrieval import retrieval
from diffclip.evaluation.scores import Result, Score
from diffclip.evaluation.suite import TRAIN, VALIDATION
from diffclip.evaluation.zero_shot import zero_shot

if TYPE_CHECKING:
    from diffclip.model import CLIP

Preprocess = Callable[[Image.Image], Tensor]

_FEATURES = "class token before the projection"
_SOLVED_BY = {
    "torch": "torch L-BFGS, un-squared L2 penalty",
    "sklearn": "scikit-learn's LogisticRegression",
}
_HELD_OUT = 0.2  # of each class, where a set has no validation split


@dataclass(frozen=True)
class Setting:
    """A model with its image and text preparation, the set to run it on, and how.

    Attributes:
        draw: seed of what a task draws: the episodes of few-shot, and the images that a linear probe holds out where
            the set has no validation split.
        probe: solver of the linear probe, "torch" or "sklearn".
        prompt: the text that focus asks about, with `{c}` for what a mask shows; None: the set's own texts.
        templates: of the zero-shot classifier; None: the set's own.
        features: computed features by set and split, shared by the tasks of one model.
    """

    model: CLIP
    preprocess: Preprocess
    tokenizer: Tokenizer
    data: EvaluationSet | PairSet
    batch_size: int = 64
    workers: int = 0
    progress: Progress | None = None
    draw: int = 0
    probe: str = "torch"
    prompt: str | None = None
    templates: Sequence[str] | None = None
    features: dict[tuple[str, str, str], tuple[Features, list[Fault]]] | None = None

    @property
    def samples(self) -> EvaluationSet:
        """The set of a task that reads samples one by one (`run_task` has checked its kind)."""
        assert isinstance(self.data, EvaluationSet)
        return self.data


def _zero_shot(setting: Setting) -> Result:
    data, templates = setting.samples, setting.templates or setting.samples.templates
    batches = (
        (batch.images, batch.labels.tolist())
        for batch in data.batches(setting.preprocess, setting.batch_size, setting.workers)
        if batch.labels is not None
    )
    scores = zero_shot(
        setting.model, setting.tokenizer, batches, data.classnames, templates, progress=setting.progress
    )
    return _result(
        setting,
        "zero-shot",
        scores,
        "templates averaged after normalization; ties count against",
        classes=len(data.classnames),
        templates=len(templates),
    )


def _retrieval(setting: Setting) -> Result:
    batches = (
        (batch.images, batch.captions)
        for batch in setting.samples.batches(setting.preprocess, setting.batch_size, setting.workers)
        if batch.captions is not None
    )
    scores = retrieval(setting.model, setting.tokenizer, batches, progress=setting.progress)
    return _result(
        setting,
        "retrieval",
        scores,
        "all captions, any own caption in the top k is a hit; ties count against",
    )


def _linear_probe(setting: Setting) -> Result:
    probes.check_solver(setting.probe)
    data = setting.samples
    train = _features(setting, _train_split(data, "linear-probe"))
    held_out = (data.beside(name) for name in VALIDATION if name != data.split)
    validation_set = next((split for split in held_out if split is not None), None)
    if validation_set is None:
        learned, held = stratified_split(train.labels, setting.draw)
        validation = train.take(held, f"{train.where}, held out")
        train = train.take(learned, train.where)
    else:
        validation = _features(setting, validation_set)
    per_class = probes.tuned_per_class(data.name)
    test = _features(setting, data)
    probe = linear_probe(train, validation, test, data.classnames, per_class, setting.probe, setting.progress)
    cut = sum(fit.iterations >= probes.MAX_ITERATIONS for fit in probe.fits)
    chosen_on = "a stratified fifth of train" if validation_set is None else validation_set.split
    method = (
        f"{_FEATURES}; {_SOLVED_BY[setting.probe]}; cost chosen by "
        f"{probes.headline_metric(data.name)} on {chosen_on} ({probe.cost:.4g}); fitted again on both, "
        f"{len(train.labels) + len(validation.labels)} images; {cut} of {len(probe.fits)} fits stopped after "
        f"{probes.MAX_ITERATIONS} iterations; ties count against"
    )
    draw = setting.draw if validation_set is None else None
    return _result(setting, "linear-probe", probe.scores, method, classes=len(data.classnames), draw=draw)


def _few_shot(setting: Setting) -> Result:
    data = setting.samples
    train = _features(setting, _train_split(data, "few-shot"))
    scores = few_shot(train, _features(setting, data), data.classnames, setting.draw, setting.progress)
    method = (
        f"{EPISODES} episodes of {WAY} classes, {SHOT} train images and up to {QUERIES} queries each; {_FEATURES}, "
        "less the mean of the supports, unit length; nearest prototype, ties count against"
    )
    return _result(setting, "few-shot", scores, method, classes=len(data.classnames), draw=setting.draw)


def _mmvp(setting: Setting) -> Result:
    pairs = setting.data
    assert isinstance(pairs, PairSet)
    scores = mmvp(
        setting.model, setting.tokenizer, setting.preprocess, pairs, setting.batch_size, setting.progress
    )
    method = (
        f"{len(pairs.pairs)} pairs of {len(pairs.patterns)} patterns, {PROMPT.format('STATEMENT')!r}, both statements "
        "must pick their own image of the pair; ties count against"
    )
    return _result(setting, "mmvp", scores, method)


def _focus(setting: Setting) -> Result:
    data = setting.data
    assert isinstance(data, MaskedSet)
    scores = focus(
        setting.model,
        setting.tokenizer,
        setting.preprocess,
        data,
        setting.prompt,
        setting.batch_size,
        setting.workers,
        setting.progress,
    )
    vision = setting.model.config.vision
    grid = vision.image_size // vision.patch_size
    texts = "texts of the set" if setting.prompt is None else f"text {setting.prompt!r}"
    method = (
        f"{grid}×{grid} patches, each as object by how much the mask covers; ties count half; {texts}; relevance of "
        "the last layer (Chefer et al.), rollout of all layers, mean over layers and heads of the others"
    )
    return _result(setting, "focus", scores, method)


@dataclass(frozen=True)
class Task:
    """The kind of set that a task needs, and the function that runs it."""

    kind: str
    run: Callable[[Setting], Result]


TASKS = {
    "zero-shot": Task("classification", _zero_shot),
    "retrieval": Task("retrieval", _retrieval),
    "linear-probe": Task("classification", _linear_probe),
    "few-shot": Task("classification", _few_shot),
    "mmvp": Task("mmvp", _mmvp),
    "focus": Task("masks", _focus),
}


def open_for(
    task: str | None, source: str | Path, split: str, root: Path | None = None
) -> EvaluationSet | PairSet:
    """Open a set as `open_set` does, for focus its masks, or the folder of MMVP-VLM, which has no splits.

    Raises:
        InputError: as `open_set`, `open_masks` and `open_pairs`.
    """
    if task == "focus":
        return open_masks(source, split, root)
    folder = set_folder(source, root)
    if task == "mmvp" or (folder / QUESTIONS).is_file():
        return open_pairs(folder, str(source) if str(source) in BUILT_IN else None)
    return open_set(source, split, root)


def pick_task(name: str | None, data: EvaluationSet | PairSet) -> str:
    """Return the task called `name`, or if None the first that sets of this kind are for.

    Raises:
        InputError: unknown name (the nearest one is offered), or the set is for another task.
    """
    if name is not None and name not in TASKS:
        raise unknown("task", name, TASKS)
    fitting = next(task for task, what in TASKS.items() if what.kind == data.kind)
    if name is not None and TASKS[name].kind != data.kind:
        raise InputError(
            f"{data.name} is a set for {data.kind}, which {name} cannot use: try --task {fitting}"
        )
    return name or fitting


def run_task(name: str | None, setting: Setting) -> Result:
    """Run task `name` (None: the one that the set is for); broken images are left out, see `data.faults`.

    Linear probe and few-shot read the split `train` beside the set's own, and linear probe `val` where there is one.

    Raises:
        InputError: unknown task, a set for another task, one of a single image, or one that the task cannot use.
    """
    data = setting.data
    name = pick_task(name, data)
    if (len(data.pairs) if isinstance(data, PairSet) else len(data)) < 2:
        raise InputError(
            f"{data.name}/{data.split} has a single item, which says nothing about a model: give more"
        )
    return TASKS[name].run(setting)


def stratified_split(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Draw four fifths to learn from and a fifth to validate on, within each class.

    A class with two or more images is in both; one with a single image is in the first.

    Args:
        labels: int64 [N].
        seed: seed of the draw.

    Returns:
        Two index tensors, int64, ascending, that hold each of the N once.

    Raises:
        InputError: no class has two images.
    """
    generator = np.random.default_rng(seed)
    classes = labels.numpy()
    held = np.zeros(len(classes), dtype=bool)
    for number in np.unique(classes):
        own = np.flatnonzero(classes == number)
        count = min(max(1, round(_HELD_OUT * len(own))), len(own) - 1)
        held[generator.permutation(own)[:count]] = True
    if not held.any():
        raise InputError("no class has two images to train on, so none can be held out to choose the cost on")
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def _train_split(data: EvaluationSet, task: str) -> EvaluationSet:
    if data.split == TRAIN:
        raise InputError(
            f"{task} learns from the split {TRAIN}: give another one to test on, as --split test"
        )
    found = data.beside(TRAIN)
    if found is None:
        there = "" if data.folder is None else f": put its shards into {data.folder / TRAIN}"
        raise InputError(f"{data.name} has no {TRAIN} split, which {task} learns from{there}")
    return found


def _features(setting: Setting, data: EvaluationSet) -> Features:
    """Read the features of a split; its broken images are told with those of the tested split."""
    if isinstance(setting.preprocess, CorruptedTransform):
        raise InputError(
            "corruptions shift test images, and this task learns from clean ones: "
            "use them with zero-shot, retrieval, mmvp or focus"
        )
    kept = {} if setting.features is None else setting.features
    key = (str(data.identity["source"]), str(data.identity["samples"]), _describe(setting.preprocess))
    if key not in kept:
        found = read_features(
            setting.model, setting.preprocess, data, setting.batch_size, setting.workers, setting.progress
        )
        kept[key] = found, list(data.faults)
    features, faults = kept[key]
    setting.samples.faults = list(dict.fromkeys(setting.samples.faults + faults))
    return features


def _result(setting: Setting, task: str, scores: Sequence[Score], method: str, **facts: Any) -> Result:
    data, change = setting.data, setting.preprocess
    images = describe_images(setting.model.config, change)
    if isinstance(change, CorruptedTransform):
        images += f", {describe(change.name, change.severity, change.image_size)}, seed {change.seed}"
        facts |= {"corruption": change.name, "severity": change.severity}
    faults = () if isinstance(data, PairSet) else tuple(data.faults)
    return Result(task, data.name, data.split, f"{method}; {images}", scores, faults=faults, **facts)


def _describe(preprocess: Preprocess) -> str:
    return str(getattr(preprocess, "identity", ""))


def describe_images(config: CLIPConfig, transform: object = None) -> str:
    """Say how images are prepared, for a record's protocol; by `transform` where it has its own settings."""
    size, preprocess = config.vision.image_size, getattr(transform, "preprocess", config.preprocess)
    names = [name for name, pair in STATISTICS.items() if pair == (preprocess.mean, preprocess.std)]
    cut = f"shorter edge {preprocess.resize or size} px {preprocess.interpolation}, center crop {size} px"
    if preprocess.resize == "squash":
        cut = f"squashed to {size} px {preprocess.interpolation}"
    return f"{cut}, {names[0] if names else 'own'} statistics"

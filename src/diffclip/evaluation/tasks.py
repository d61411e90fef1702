"""The evaluation tasks by name, each run on one split of one set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from torch import Tensor

from diffclip.config import STATISTICS, CLIPConfig
from diffclip.data.evaluation_sets import BUILT_IN, EvaluationSet, MaskedSet, open_masks, open_set, set_folder
from diffclip.data.shifts import corrupted_name
from diffclip.errors import InputError, unknown
from diffclip.evaluation.corruptions import CorruptedTransform, describe
from diffclip.evaluation.embed import Progress, Tokenizer
from diffclip.evaluation.features import FeatureReader, Features
from diffclip.evaluation.few_shot import EPISODES, QUERIES, SHOT, WAY, few_shot
from diffclip.evaluation.focus import focus, grid_of, texts_of
from diffclip.evaluation.linear_probe import (
    MAX_ITERATIONS,
    Probe,
    check_solver,
    headline_metric,
    linear_probe,
    tuned_per_class,
)
from diffclip.evaluation.mmvp import QUESTIONS, PairSet, mmvp, open_pairs
from diffclip.evaluation.protocol import drawn, with_particulars
from diffclip.evaluation.retrieval import retrieval
from diffclip.evaluation.scores import Result, Score
from diffclip.evaluation.splits import stratified_split, train_split, validation_split
from diffclip.evaluation.zero_shot import zero_shot

if TYPE_CHECKING:
    from diffclip.model import CLIP

Preprocess = Callable[[Image.Image], Tensor]

_OVER_PICTURES = "95 % bootstrap over pictures"
_FEATURES = "class token before the projection"
SOLVED_BY = {
    "torch": "torch L-BFGS, un-squared L2 penalty",
    "sklearn": "scikit-learn's LogisticRegression",
}


@dataclass(frozen=True)
class Setting:
    """A model with its picture and text preparation, the set to run it on, and how.

    `seed` is of what a task draws: the episodes of few-shot, and the pictures that a linear probe holds out where the
    set has no validation split. `probe` is the linear probe's solver, "torch" or "sklearn", and `prompt` the text that
    focus asks about, with `{c}` for what a mask shows (None: the set's own texts).
    """

    model: CLIP
    preprocess: Preprocess
    tokenizer: Tokenizer
    data: EvaluationSet | PairSet
    batch_size: int = 64
    workers: int = 0
    progress: Progress | None = None
    seed: int = 0
    probe: str = "torch"
    prompt: str | None = None

    @property
    def samples(self) -> EvaluationSet:
        """The set, for a task that reads samples one by one.

        Raises:
            InputError: it is one of pairs.
        """
        if isinstance(self.data, PairSet):
            raise InputError(f"{self.data.name} is a set for mmvp: try --task mmvp")
        return self.data


@dataclass(frozen=True)
class Outcome:
    """The scores of a task, how they were measured, what their intervals are over, and what this run found."""

    scores: list[Score]
    method: str
    interval: str = _OVER_PICTURES
    particulars: str = ""


@dataclass(frozen=True)
class Task:
    """The kind of set that a task needs, and how it is run."""

    kind: str
    run: Callable[[Setting], Outcome]


def _run_zero_shot(setting: Setting) -> Outcome:
    data = setting.samples
    batches = (
        (batch.images, batch.labels.tolist())
        for batch in data.batches(setting.preprocess, setting.batch_size, setting.workers)
        if batch.labels is not None
    )
    scores = zero_shot(
        setting.model, setting.tokenizer, batches, data.classnames, data.templates, progress=setting.progress
    )
    count = len(data.templates)
    templates = f"{count} template{'s' if count != 1 else ''} averaged after normalisation"
    return Outcome(scores, f"{len(data.classnames)} classes, {templates}; ties count against")


def _run_retrieval(setting: Setting) -> Outcome:
    batches = (
        (batch.images, batch.captions)
        for batch in setting.samples.batches(setting.preprocess, setting.batch_size, setting.workers)
        if batch.captions is not None
    )
    scores = retrieval(setting.model, setting.tokenizer, batches, progress=setting.progress)
    return Outcome(scores, "all captions, any own caption in the top k is a hit; ties count against")


def _run_linear_probe(setting: Setting) -> Outcome:
    check_solver(setting.probe)
    data = setting.samples
    train_set, validation_set = train_split(data, "linear-probe"), validation_split(data)
    reader = _reader(setting)
    train = _read(reader, train_set, data)
    if validation_set is None:
        learnt, held = stratified_split(train.labels, setting.seed)
        validation = train.take(held, f"{train.where}, held out")
        train = train.take(learnt, train.where)
        chosen_on = "a stratified fifth of train"
    else:
        validation = _read(reader, validation_set, data)
        chosen_on = validation_set.split
    per_class = tuned_per_class(data.name)
    result = linear_probe(
        train,
        validation,
        reader.read(data),
        data.classnames,
        per_class,
        setting.probe,
        setting.progress,
    )
    method = (
        f"{len(data.classnames)} classes, {_FEATURES}; {SOLVED_BY[setting.probe]}; cost chosen by "
        f"{headline_metric(data.name)} on {chosen_on}; fitted again on both, "
        f"{len(train.labels) + len(validation.labels)} pictures; ties count against"
    )
    fits = _describe_fits(result)
    return Outcome(
        result.scores, method, particulars=drawn(setting.seed, fits) if validation_set is None else fits
    )


def _describe_fits(probe: Probe) -> str:
    seconds = " ".join(f"{fit.seconds:.2f}" for fit in probe.fits)
    cut = sum(fit.iterations >= MAX_ITERATIONS for fit in probe.fits)
    stopped = f", {cut} of them stopped after {MAX_ITERATIONS} iterations" if cut else ""
    return f"cost {probe.cost:.4g}; {len(probe.fits)} fits in {seconds} s{stopped}"


def _run_few_shot(setting: Setting) -> Outcome:
    data = setting.samples
    train_set = train_split(data, "few-shot")
    reader = _reader(setting)
    train = _read(reader, train_set, data)
    scores = few_shot(train, reader.read(data), data.classnames, setting.seed, setting.progress)
    method = (
        f"{WAY} classes an episode of {len(data.classnames)}, {SHOT} train pictures and up to {QUERIES} queries each, "
        f"{EPISODES} episodes; {_FEATURES}, less the mean of the supports, unit length; nearest "
        "prototype, ties count against"
    )
    return Outcome(scores, method, "95 % bootstrap over test pictures", drawn(setting.seed))


def _run_mmvp(setting: Setting) -> Outcome:
    data = setting.data
    if not isinstance(data, PairSet):
        raise InputError(f"{data.name} is a set for {data.kind}: mmvp needs the folder of MMVP-VLM")
    scores = mmvp(
        setting.model, setting.tokenizer, setting.preprocess, data, setting.batch_size, setting.progress
    )
    return Outcome(scores, data.describe(), "95 % bootstrap over pairs")


def _run_focus(setting: Setting) -> Outcome:
    data = setting.data
    if not isinstance(data, MaskedSet):
        raise InputError(f"{data.name} is a set for {data.kind}: focus needs pictures with masks (.mask.png)")
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
    grid = grid_of(setting.model)
    method = (
        f"{grid}×{grid} patches, each as object by how much the mask covers; ties count half; "
        f"{texts_of(setting.prompt)}; relevance of the last layer (Chefer et al.), rollout of all layers, mean over "
        "layers and heads of the others"
    )
    return Outcome(scores, method)


def _reader(setting: Setting) -> FeatureReader:
    if isinstance(setting.preprocess, CorruptedTransform):
        raise InputError(
            "corruptions shift test pictures, and this task learns from clean ones: "
            "use them with zero-shot, retrieval, mmvp or focus"
        )
    return FeatureReader(
        setting.model, setting.preprocess, setting.batch_size, setting.workers, setting.progress
    )


def _read(reader: FeatureReader, data: EvaluationSet, tested: EvaluationSet) -> Features:
    """The features of another split of the set; what was broken in it is said with the split `tested`."""
    features = reader.read(data)
    tested.faults = list(dict.fromkeys(tested.faults + data.faults))
    return features


TASKS = {
    "zero-shot": Task("classification", _run_zero_shot),
    "retrieval": Task("retrieval", _run_retrieval),
    "linear-probe": Task("classification", _run_linear_probe),
    "few-shot": Task("classification", _run_few_shot),
    "mmvp": Task("mmvp", _run_mmvp),
    "focus": Task("masks", _run_focus),
}
LEARNING = ("linear-probe", "few-shot")
"""Tasks that learn from the set's split `train`."""


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
    """The task called `name`, or if None the first that sets of this kind are for.

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
    """Run task `name` (None: the one that the set is for); broken pictures are left out, see `data.faults`.

    Linear probe and few-shot read the split `train` beside the set's own, and linear probe `val` where there is one.

    Raises:
        InputError: unknown task, a set for another task, one of a single picture, or one that the task cannot use:
            see the task's function.
    """
    data = setting.data
    name = pick_task(name, data)
    if len(data) < 2 or (isinstance(data, PairSet) and len(data.pairs) < 2):
        raise InputError(
            f"{data.name}/{data.split} has a single {'pair' if isinstance(data, PairSet) else 'picture'}: "
            "one outcome says nothing about a model, give two or more"
        )
    outcome = TASKS[name].run(setting)
    pictures = describe_pictures(setting.model.config)
    change = setting.preprocess
    dataset = data.name
    if isinstance(change, CorruptedTransform):
        dataset = corrupted_name(data.name, change.name, change.severity)
        pictures += f", {describe(change.name, change.severity, change.image_size)}, seed {change.seed}"
    method = f"{name}; {outcome.method}; {pictures}; {outcome.interval}"
    return Result(name, dataset, data.split, with_particulars(method, outcome.particulars), outcome.scores)


def describe_pictures(config: CLIPConfig) -> str:
    """How pictures are prepared for the model, in a few words for a record's protocol."""
    size, preprocess = config.vision.image_size, config.preprocess
    names = [name for name, pair in STATISTICS.items() if pair == (preprocess.mean, preprocess.std)]
    if preprocess.resize == "squash":
        cut = f"squashed to {size} px {preprocess.interpolation}, "
    else:
        cut = (
            f"shorter edge {preprocess.resize or size} px {preprocess.interpolation}, centre crop {size} px, "
        )
    return f"{cut}{names[0] if names else 'own'} statistics"

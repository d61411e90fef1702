"""The evaluation tasks by name, each run on one split of one set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image
from torch import Tensor

from diffclip.config import STATISTICS, CLIPConfig
from diffclip.data.catalog import EvaluationSet
from diffclip.errors import InputError, unknown
from diffclip.evaluation.embed import Progress, Tokenizer
from diffclip.evaluation.retrieval import retrieval
from diffclip.evaluation.scores import Result, Score
from diffclip.evaluation.zero_shot import zero_shot

if TYPE_CHECKING:
    from diffclip.model import CLIP

Preprocess = Callable[[Image.Image], Tensor]


@dataclass(frozen=True)
class Setting:
    """A model with its picture and text preparation, the set to run it on, and how."""

    model: CLIP
    preprocess: Preprocess
    tokenizer: Tokenizer
    data: EvaluationSet
    batch_size: int = 64
    workers: int = 0
    progress: Progress | None = None


@dataclass(frozen=True)
class Task:
    """The kind of set that a task needs, how it is run, and what it says of itself in a record's protocol."""

    kind: str
    run: Callable[[Setting], list[Score]]
    describe: Callable[[EvaluationSet], str]


def _run_zero_shot(setting: Setting) -> list[Score]:
    data = setting.data
    batches = (
        (batch.images, batch.labels.tolist())
        for batch in data.batches(setting.preprocess, setting.batch_size, setting.workers)
        if batch.labels is not None
    )
    return zero_shot(
        setting.model, setting.tokenizer, batches, data.classnames, data.templates, progress=setting.progress
    )


def _describe_zero_shot(data: EvaluationSet) -> str:
    count = len(data.templates)
    templates = f"{count} template{'s' if count != 1 else ''} averaged after normalisation"
    return f"{len(data.classnames)} classes, {templates}; ties count against"


def _run_retrieval(setting: Setting) -> list[Score]:
    batches = (
        (batch.images, batch.captions)
        for batch in setting.data.batches(setting.preprocess, setting.batch_size, setting.workers)
        if batch.captions is not None
    )
    return retrieval(setting.model, setting.tokenizer, batches, progress=setting.progress)


def _describe_retrieval(data: EvaluationSet) -> str:
    return "all captions, any own caption in the top k is a hit; ties count against"


TASKS = {
    "zero-shot": Task("classification", _run_zero_shot, _describe_zero_shot),
    "retrieval": Task("retrieval", _run_retrieval, _describe_retrieval),
}


def pick_task(name: str | None, data: EvaluationSet) -> str:
    """The task called `name`, or if None the one that the set is for.

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

    Raises:
        InputError: unknown task, or a set for another task, or one without a picture that can be read.
    """
    data = setting.data
    name = pick_task(name, data)
    scores = TASKS[name].run(setting)
    config = setting.model.config
    protocol = (
        f"{name}; {TASKS[name].describe(data)}; {describe_pictures(config)}; 95 % bootstrap over pictures"
    )
    return Result(name, data.name, data.split, protocol, scores)


def describe_pictures(config: CLIPConfig) -> str:
    """How pictures are prepared for the model, in a few words for a record's protocol."""
    size, preprocess = config.vision.image_size, config.preprocess
    names = [name for name, pair in STATISTICS.items() if pair == (preprocess.mean, preprocess.std)]
    return (
        f"shorter edge {preprocess.resize or size} px {preprocess.interpolation}, centre crop {size} px, "
        f"{names[0] if names else 'own'} statistics"
    )

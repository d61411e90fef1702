"""The evaluation tasks by name, and `run_entries`, which runs the entries of a suite on a model. Finished tasks are
skipped, and a set that fails ends only its own task.

A task is one function. It takes a `Setting` (model, preparation, set) and returns a list of `Score`s, whose fact
`protocol` describes the method in words. A report's first table shows the first score, unless `names.HEADLINES` names
others. To add a task:

1. Write `evaluation/NAME.py` with the function, and if it learns from the split `train`, name it in `suite.LEARNING`.
2. Add a line to `TASKS`: the kinds of set that it reads, and the `options` of `Setting` that not every task uses.
3. Name it and its metrics in `names.py` (`TASKS`, `METRICS`), and the suites that measure it.
"""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from diffclip.data.evaluation_set import EvaluationSet, Kind
from diffclip.data.open_set import has_split, open_set, set_name
from diffclip.data.published_sets import BUILT_IN, parts_of, set_folder
from diffclip.data.workers import Progress
from diffclip.errors import DiffCLIPError, Fault, InputError
from diffclip.evaluation.embed import Encoded, Setting
from diffclip.evaluation.faithfulness import faithfulness
from diffclip.evaluation.few_shot import few_shot
from diffclip.evaluation.focus import focus
from diffclip.evaluation.linear_probe import linear_probe
from diffclip.evaluation.mechanics import mechanics
from diffclip.evaluation.minimal_pairs import QUESTIONS, mmvp, open_pairs, sugarcrepe
from diffclip.evaluation.records import Record
from diffclip.evaluation.results_file import ResultsFile, UnwritableResultsError
from diffclip.evaluation.robustness import robustness
from diffclip.evaluation.scores import Score, with_facts
from diffclip.evaluation.segmentation import segmentation
from diffclip.evaluation.suite import LEARNING, TRAIN, VALIDATION, Entry
from diffclip.evaluation.zero_shot import retrieval, zero_shot
from diffclip.names import TASKS as LABELS
from diffclip.preprocess import EvalTransform
from diffclip.scenes.write import draw_built_in
from diffclip.sources.load import Loaded
from diffclip.version import __version__
from diffclip.weights import weights_digest

TaskFunction = Callable[[Setting[Any]], list[Score]]
Need = Literal["texts", "maps"]


class Task(NamedTuple):
    """A task: the kinds of set that it reads, its function, and the fields of `Setting`, except `draw`, that not every
    task uses.

    `kinds` starts with the task's main kind: the default task of a set is the first in `TASKS` with the set's kind as
    main kind. With `squash` images are not cropped. `needs` names what a model of another library may lack: "texts", or
    the "maps" of its attention. The function raises `InputError` for an unusable model or set, and for embeddings that
    are not finite.
    """

    kinds: tuple[Kind, ...]
    run: TaskFunction
    options: tuple[str, ...] = ()
    squash: bool = False
    needs: tuple[Need, ...] = ("texts",)


TASKS = {
    "zero-shot": Task(("classification",), zero_shot),
    "retrieval": Task(("retrieval",), retrieval, ("pool",)),
    "linear-probe": Task(("classification",), linear_probe, needs=()),
    "few-shot": Task(("classification",), few_shot, needs=()),
    "mmvp": Task(("mmvp",), mmvp),
    "focus": Task(("masks",), focus, ("prompt", "words", "init"), needs=("texts", "maps")),
    "mechanics": Task(("retrieval", "classification", "masks"), mechanics, needs=("maps",)),
    "robustness": Task(("classification", "retrieval", "masks"), robustness),
    "faithfulness": Task(
        ("classification", "masks"), faithfulness, ("prompt", "words"), needs=("texts", "maps")
    ),
    "segmentation": Task(("segmentation",), segmentation, squash=True, needs=("texts", "maps")),
    "sugarcrepe": Task(("sugarcrepe",), sugarcrepe),
}


def register_task(
    name: str,
    kinds: Sequence[Kind],
    options: Sequence[str] = (),
    squash: bool = False,
    needs: Sequence[Need] = (),
) -> Callable[[TaskFunction], TaskFunction]:
    """Make the decorated function the task `name` of `diffclip evaluate`; the arguments are the fields of `Task`. A
    name that another task has raises `InputError`."""
    if name in TASKS:
        raise InputError(f"task {name!r} is registered already: choose another name")

    def register(run: TaskFunction) -> TaskFunction:
        TASKS[name] = Task(tuple(kinds), run, tuple(options), squash, tuple(needs))
        LABELS[name] = name
        return run

    return register


def open_for(task: str | None, source: str | Path, split: str, root: Path | None = None) -> EvaluationSet:
    """Open a set as `open_set` does, with its masks if the task needs them; also MMVP-VLM, which has no splits.

    A segmentation set is opened with the captions of its samples if the task reads captions.
    """
    kinds = TASKS[task].kinds if task else (None,)
    if kinds[0] in ("masks", "segmentation", "sugarcrepe"):
        return open_set(source, split, root, kinds[0])
    folder = set_folder(source, root)
    if kinds[0] == "mmvp" or (folder / QUESTIONS).is_file():
        if split != "test":
            raise InputError(f"{source} has no splits: leave --split out")
        return open_pairs(folder, set_name(source, folder))
    data = open_set(source, split, root)
    if data.kind == "segmentation" and "retrieval" in kinds:
        return open_set(source, split, root, "retrieval")
    if "masks" in kinds and data.kind not in kinds:
        return open_set(source, split, root, "masks")
    return data


def run_task(name: str | None, setting: Setting[Any]) -> list[Score]:
    """Run task `name` (None: the set's default task); broken images are left out, see `data.faults`. A set of a kind
    that the task does not read, of a single item, or otherwise unusable raises `InputError`.

    The facts of every score include the fields of its record about task, set and images.
    """
    data = setting.data
    name = _pick_task(name, data)
    if len(data) < 2:
        which = f"{data.name}/{data.split}"
        raise InputError(f"{which} has a single item, which says nothing about a model: give more")
    transform = setting.preprocess
    if TASKS[name].squash:
        transform = _replace_fields(transform, resize="squash")
    scores = TASKS[name].run(replace(setting, preprocess=transform))
    protocol = f"{scores[0].facts['protocol']}; {transform}"
    return with_facts(scores, task=name, dataset=data.name, split=data.split, protocol=protocol)


def lacking(task: str, model: Any) -> str | None:
    """Say in a line why `model` cannot do `task`; None if it can."""
    if "texts" in TASKS[task].needs and not getattr(model, "has_texts", True):
        return f"{task} compares images with texts, and {model.source} has no texts: use linear-probe or few-shot"
    if "maps" in TASKS[task].needs and not hasattr(model, "attention_layers"):
        return f"{task} needs attention maps, which are not known of {model.source}: use a CLIP that converts"
    return None


def _pick_task(name: str | None, data: EvaluationSet) -> str:
    default = next(task for task, definition in TASKS.items() if definition.kinds[0] == data.kind)
    name = name or default
    if data.kind not in TASKS[name].kinds:
        raise InputError(
            f"{data.name} is a set for {data.kind}, which {name} cannot use: try --task {default}"
        )
    return name


def _replace_fields(transform: Any, **fields: Any) -> Any:
    """Return the same preparation with some fields of `PreprocessConfig` changed; a library's own stays as it is."""
    if not isinstance(transform, EvalTransform):
        return transform
    return EvalTransform(transform.image_size, transform.preprocess.model_copy(update=fields))


@dataclass
class Sets:
    """Evaluation sets by entry, each opened once; `root` is the folder of published sets."""

    root: Path | None = None
    _opened: dict[object, EvaluationSet] = field(default_factory=dict)

    def add(self, entry: Entry, data: EvaluationSet) -> None:
        """Give the set of an entry, instead of opening it."""
        self._opened[self._key(entry)] = data

    @staticmethod
    def _key(entry: Entry) -> object:
        return entry.task and TASKS[entry.task].kinds, entry.dataset, entry.splits

    def open(self, entry: Entry) -> EvaluationSet:
        """Open the first split of an entry that its set has; a built-in set is drawn on first use."""
        key = self._key(entry)
        if key not in self._opened:
            if entry.dataset in BUILT_IN:
                draw_built_in()
            present = (split for split in entry.splits if has_split(entry.dataset, split, self.root))
            split = next(present, entry.splits[0])
            self._opened[key] = open_for(entry.task, entry.dataset, split, self.root)
        data = self._opened[key]
        # a copy, so that tasks do not share their lists of broken images
        return replace(data, faults=list(data.faults))


@dataclass(frozen=True)
class Measured:
    """A finished entry: its records, or the `error` that ended it, an `InputError` unless the program is to blame, or
    the reason why it was left out: the model cannot do the task."""

    entry: Entry
    draw: int
    records: Sequence[Record] = ()
    faults: Sequence[Fault] = ()
    seconds: float = 0.0
    reused: bool = False
    error: DiffCLIPError | None = None
    left_out: str | None = None


def run_entries(
    loaded: Loaded,
    entries: Sequence[Entry],
    results: ResultsFile,
    sets: Sets,
    draws: Sequence[int] = (0,),
    progress: Callable[[Entry], Progress] | None = None,
    batch_size: int = 64,
    workers: int = 0,
    prompt: str | None = None,
) -> Iterator[Measured]:
    """Run each entry on one model, in order. Tasks that draw at random are run once per draw.

    An error ends one entry, not the others, unless results cannot be written (`UnwritableResultsError`).

    Args:
        results: gets each result, and is written after it. A task is not run again if `results` holds it already,
            measured on the same weights and files in the same way.
        draws: seeds of the tasks that draw at random; other tasks are run once.
        progress: makes the progress report of an entry.
        batch_size, workers, prompt: as in `Setting`; `prompt` replaces the prompts and words of entries.
    """
    digest = weights_digest(loaded.model) if results.path else ""
    cache: dict[str, Encoded] = {}
    for entry in entries:
        preprocess = loaded.preprocess
        if entry.interpolation is not None:
            preprocess = _replace_fields(preprocess, interpolation=entry.interpolation)
        for draw in draws:
            try:
                setting = Setting(
                    model=loaded.model,
                    preprocess=preprocess,
                    tokenizer=loaded.tokenizer,
                    data=sets.open(entry),
                    batch_size=batch_size,
                    workers=workers,
                    progress=progress(entry) if progress else None,
                    draw=draw,
                    prompt=prompt or entry.prompt,
                    words={} if prompt else dict(entry.words),
                    init=loaded.init or "matched",
                    templates=entry.templates,
                    pool=entry.pool,
                    cache=cache,
                )
                measured = _measure(loaded, entry, setting, results, digest)
            except UnwritableResultsError:
                raise  # the next result could not be written either
            except Exception as error:
                # also a defect of the program: the results of the other tasks are still useful
                measured = Measured(entry, draw, error=_in_one_line(error))
            yield measured
            if not any(record.draw is not None for record in measured.records):
                break


def _measure(
    loaded: Loaded, entry: Entry, setting: Setting[Any], results: ResultsFile, digest: str
) -> Measured:
    """Run an entry, or find its records among the results."""
    started, data, transform = time.monotonic(), setting.data, setting.preprocess
    task = _pick_task(entry.task, data)
    if reason := lacking(task, loaded.model):
        return Measured(entry, setting.draw, left_out=reason)
    learned = (TRAIN, *VALIDATION) if task in LEARNING else ()
    splits = [data, *(data.beside(split) for split in learned if split != parts_of(data.split)[0])]
    config = getattr(loaded.model, "config", None)
    # everything that a result depends on except the draw: draws with one stamp may be averaged
    facts = [
        *(__version__, task, loaded.label, loaded.weights, loaded.seed, loaded.init, loaded.data),
        *(loaded.steps, digest, repr(loaded.model) if config is None else config.model_dump(mode="json")),
        *(getattr(setting, name) for name in ("templates", *TASKS[task].options)),
        *(transform.identity, transform.preprocess),
        *(split.identity for split in splits if split is not None),
    ]
    stamp = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    if finished := results.find(stamp, setting.draw):
        return Measured(entry, setting.draw, finished, reused=True)
    scores = run_task(task, setting)
    seconds = time.monotonic() - started
    model = {name: getattr(loaded, name) for name in ("weights", "seed", "init", "data", "steps")}
    model |= {"model": loaded.label, "digest": digest[:16] or None, "seconds": round(seconds, 3)}
    records = results.add(scores, stamp, **model)
    return Measured(entry, setting.draw, records, data.faults, seconds)


def _in_one_line(error: Exception) -> DiffCLIPError:
    """Convert an error to one with a one-line message: an `InputError` unless the program is to blame."""
    line = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, torch.OutOfMemoryError):
        return InputError(f"out of memory: use a smaller --batch-size ({line})")
    if isinstance(error, (InputError, OSError)):
        return InputError(line)
    if isinstance(error, DiffCLIPError):
        return DiffCLIPError(line)
    traceback.print_exc()
    return DiffCLIPError(f"{type(error).__name__}: {line}")

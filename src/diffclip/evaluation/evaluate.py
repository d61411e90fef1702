"""`diffclip.evaluate`: one task on one model, in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffclip.data.dataset import dataset_set
from diffclip.data.evaluation_set import EvaluationSet
from diffclip.errors import InputError, unknown_name
from diffclip.evaluation.records import Record
from diffclip.evaluation.results_file import ResultsFile
from diffclip.evaluation.run import TASKS, Sets, run_entries
from diffclip.evaluation.suite import Entry
from diffclip.model import CLIP
from diffclip.sources.load import Loaded, load_with_origin, name_of_model, pick_device, prepare
from diffclip.sources.wrapped import wrap


def evaluate(
    model: Any,
    task: str | None,
    data: Any,
    split: str = "test",
    *,
    name: str = "dataset",
    root: str | Path | None = None,
    classnames: Sequence[str] = (),
    templates: Sequence[str] = ("a photo of a {c}",),
    train: Any = None,
    draw: int = 0,
    batch_size: int = 64,
    workers: int = 0,
    output: str | Path | None = None,
    device: str | None = None,
) -> list[Record]:
    """Measure a model with a task, as `diffclip evaluate` does.

    Args:
        model: what the command takes as MODEL; a `CLIP`; or the triple of `diffclip.load`, also with a module of one's
            own that has `encode_image` and `encode_text`.
        task: the name of a task; None: the one that fits the data.
        data: a folder in clip_benchmark's layout, the name of a set, or a map-style dataset of (image, captions) or
            (image, class), see `diffclip.data.dataset`.
        split: the split to measure; for a dataset only its name in the records.
        name: the name of a dataset in the records.
        root: the folder of published sets.
        classnames: names by class of a dataset; by default `data.classes`.
        templates: prompts with `{c}` for the class name.
        train: the dataset that a linear probe or few-shot learns from.
        draw: the seed of what the task draws.
        output: a file of records to add to; None: none is written.
        device: where to compute; None: a CUDA device if there is one, but a given module stays where it is.

    Returns:
        The records of the task.

    Raises:
        InputError: the model cannot do the task, or the data cannot be used.
    """
    if task not in (None, *TASKS):
        raise unknown_name("task", task, TASKS)
    loaded = _load(model, device)
    sets = Sets(None if root is None else Path(root))
    is_source = isinstance(data, str | Path)
    entry = Entry(task, str(data) if is_source else name, (split,))
    if not is_source:
        is_set = isinstance(data, EvaluationSet)
        sets.add(entry, data if is_set else dataset_set(data, split, name, classnames, templates, train))
    results = ResultsFile(None if output is None else Path(output))
    (measured,) = run_entries(loaded, [entry], results, sets, (draw,), batch_size=batch_size, workers=workers)
    if measured.error is not None:
        raise measured.error
    if measured.left_out is not None:
        raise InputError(measured.left_out)
    return list(measured.records)


def _load(model: Any, device: str | None) -> Loaded:
    if isinstance(model, Loaded):
        return model
    if isinstance(model, str | Path):
        loaded = load_with_origin(str(model), only_clip=False)
        loaded.model.to(pick_device(device or "auto"))
        return loaded
    parts = prepare(model) if isinstance(model, CLIP) else model
    if not isinstance(parts, tuple) or len(parts) != 3:
        advice = "give a model's name, a CLIP, or (model, preprocess, tokenizer)"
        raise InputError(f"the model is a {type(model).__name__}: {advice}")
    module, preprocess, tokenizer = parts
    if not isinstance(module, CLIP):
        module, preprocess, tokenizer = wrap(type(module).__name__, module, preprocess, tokenizer)
    if device is not None:
        module.to(pick_device(device))
    return Loaded(module, preprocess, tokenizer, name_of_model(module), weights="in memory")

"""Whether a run could start: its data is there and can be read, its weights fit, its folder is free.

Everything that a run opens is opened, and a few pictures are read; no GPU is touched.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from diffclip.data.caption_sets import CAPTION_SETS
from diffclip.data.corpus import Corpus
from diffclip.data.samples import Fault, captions_of, pixels_of, sample_fault
from diffclip.data.transforms import eval_transform
from diffclip.errors import DiffCLIPError, InputError, require_group
from diffclip.training.data import open_training_data, open_validation_data
from diffclip.training.recipe import Recipe, WeightedShards
from diffclip.training.run_folder import check_free, check_resumable
from diffclip.training.start import build_model, take_weights

# pictures of each split that are read, from the first to the last shard; of remote shards, each is fetched whole
_LOOKED_AT = 8
_LOOKED_AT_REMOTE = 2
_NAMED = 3


@dataclass
class Ready:
    """What was found, in lines for people.

    Attributes:
        samples: how many samples an epoch shows; None where the training data could not be opened.
        found: what is there.
        notes: what is broken or odd, and does not keep the run from starting.
        problems: what does; empty for a run that could start.
    """

    samples: int | None = None
    found: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_ready(recipe: Recipe, run: Path | None = None, resume: bool = False, world: int = 1) -> Ready:
    """Open and look at what a run of `recipe` in the folder `run` with `world` processes would use."""
    ready = Ready()
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"workers": 0})})
    for check in (_tools, _training_data, _validation_data, _weights):
        try:
            check(recipe, world, ready)
        except DiffCLIPError as error:
            ready.problems.append(str(error))
    if run is not None:
        try:
            _folder(recipe, run, resume, ready)
        except DiffCLIPError as error:
            ready.problems.append(str(error))
    return ready


def how_to_get(recipe: Recipe) -> str | None:
    """The command that fetches the training data, where it lies in a folder that has a published set's name."""
    train = recipe.data.train
    for source in train if isinstance(train, list) else [train]:
        shards = source.shards if isinstance(source, WeightedShards) else source
        for path in map(Path, [shards] if isinstance(shards, str) else shards):
            for folder in (path, *path.parents):
                if folder.name in CAPTION_SETS and not path.exists():
                    return f"diffclip data download {folder.name} --root {shlex.quote(str(folder.parent))}"
    return None


def _tools(recipe: Recipe, world: int, ready: Ready) -> None:
    require_group("train", "lightning", "tensorboard")


def _training_data(recipe: Recipe, world: int, ready: Ready) -> None:
    try:
        loader = open_training_data(recipe, 0, world)
    except DiffCLIPError as error:
        command = how_to_get(recipe)
        way = f"; to get it: {command}" if command else ""
        ready.problems.append(f"training data: {error}{way}")
        return
    ready.samples = loader.samples
    dropped = f", {loader.dropped:,} left out of each" if loader.dropped else ""
    ready.found.append(
        f"training data: {loader.samples:,} samples an epoch in {loader.batches_per_epoch:,} batches{dropped}"
    )
    _note_faults("training data", loader.faults, ready)
    expected = recipe.data.expected_samples
    if expected is not None and abs(loader.samples - expected) > 0.02 * expected:
        ready.notes.append(f"training data: {loader.samples:,} samples where the recipe expects {expected:,}")
    tried = _LOOKED_AT if not loader.corpus.is_remote else _LOOKED_AT_REMOTE
    chosen = sorted({round(i * (loader.corpus.samples - 1) / (tried - 1)) for i in range(tried)})
    faults = [fault for fault in (_read(loader.corpus, i) for i in chosen) if fault is not None]
    loader.corpus.close()
    _tell_read("training data", len(chosen) - len(faults), faults, ready)


def _read(corpus: Corpus, i: int) -> Fault | None:
    """What is wrong with sample `i`, if anything."""
    sample = corpus.read(i)
    if isinstance(sample, Fault):
        return sample
    try:
        captions_of(sample.members, sample.name, corpus.caption_key)
        pixels_of(sample.members, sample.name)
    except InputError as error:
        return sample_fault(sample.name, error)
    return None


def _validation_data(recipe: Recipe, world: int, ready: Ready) -> None:
    data = open_validation_data(recipe)
    if data is None:
        ready.notes.append("validation data: none, so that no checkpoint is kept as the best (data.val)")
        return
    texts = sum(map(len, data.captions))
    ready.found.append(f"validation data: {len(data):,} pictures with {texts:,} captions")
    _note_faults("validation data", data.faults, ready)
    step = max(1, len(data) // _LOOKED_AT)
    chosen = range(0, len(data), step)[:_LOOKED_AT]
    data.indices, data.captions = [data.indices[i] for i in chosen], [data.captions[i] for i in chosen]
    data.faults = []
    config = recipe.config()
    transform = eval_transform(config.vision.image_size, config.preprocess)
    read = sum(len(batch.positions) for batch in data.batches(transform, _LOOKED_AT))
    _tell_read("validation data", read, data.faults, ready)


def _weights(recipe: Recipe, world: int, ready: Ready) -> None:
    if recipe.weights is not None:
        take_weights(build_model(recipe), recipe.weights)
        ready.found.append(f"weights: {recipe.weights} fits the model")


def _folder(recipe: Recipe, run: Path, resume: bool, ready: Ready) -> None:
    if resume:
        check_resumable(recipe, run)
        ready.found.append(f"run: {run} can be resumed")
    else:
        check_free(recipe, run)


def _note_faults(what: str, faults: Iterable[Fault], ready: Ready) -> None:
    faults = list(faults)
    ready.notes += [f"{what}: {fault}" for fault in faults[:_NAMED]]
    if len(faults) > _NAMED:
        ready.notes.append(f"{what}: {len(faults) - _NAMED:,} more shards or samples are skipped")


def _tell_read(what: str, read: int, faults: list[Fault], ready: Ready) -> None:
    _note_faults(what, faults, ready)
    line = f"{what}: {read} of {read + len(faults)} pictures that were tried can be read"
    (ready.found if read else ready.problems).append(line)

"""K-fold cross-validation: the data in folds, and the learning rate that was best in the other folds (Stone 1974).

The rate of a run is chosen without that run's fold, so that an interval over folds includes the choice.
"""

from __future__ import annotations

import json
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from diffclip.data.captions import CAPTION_KEY, caption_members
from diffclip.data.images import IMAGE
from diffclip.data.shards import Shards, add_member, expand_shards
from diffclip.errors import InputError
from diffclip.evaluation.records import Record
from diffclip.files import digest_of, write_atomically, write_text

if TYPE_CHECKING:
    from diffclip.study.spec import Study

_ABOUT_FILE = "folds.json"


def fold_split(fold: int) -> str:
    """Return the name of a fold as a split of a set."""
    return f"fold{fold}"


def write_folds(source: Path, count: int, folder: Path) -> None:
    """Write the captioned images of a set as another set, with a split for each of `count` folds.

    The samples are those of the splits train and val; sample i is in fold i mod `count`. Folds that are there already
    stay. `InputError` is raised if they are of other samples, or if there are fewer samples than folds.
    """
    splits = [source / split for split in ("train", "val") if (source / split).is_dir()]
    shards = Shards(expand_shards(splits))
    samples = shards.usable({"image": IMAGE, "caption": caption_members(CAPTION_KEY)})[0].tolist()
    if len(samples) < count:
        raise InputError(f"{source} has {len(samples)} captioned images: give fewer folds than that")
    names = digest_of([shards.name(i).rpartition("/")[2] for i in samples])
    about = json.dumps({"folds": count, "samples": len(samples), "names": names}) + "\n"
    if (folder / _ABOUT_FILE).is_file():
        if (folder / _ABOUT_FILE).read_text("utf-8") != about:
            raise InputError(
                f"{folder} holds folds of other samples than {source}: remove it, or choose other --runs"
            )
        return
    for fold in range(count):
        split = folder / fold_split(fold)
        with write_atomically(split / "0.tar") as temporary, tarfile.open(temporary, "w") as tar:
            for i in samples[fold::count]:
                for extension, content in shards.sample(i).items():
                    add_member(tar, f"{i:07d}.{extension}", content)
        write_text(split / "nshards.txt", "1\n")
    write_text(folder / "dataset_type.txt", "retrieval\n")
    write_text(folder / _ABOUT_FILE, about)  # last: without it, folds are written again


def with_chosen_rates(records: Iterable[Record], study: Study, finished: Mapping[str, int]) -> list[Record]:
    """Return the records with those of each arm at its chosen rate, for arms that have finished all runs at all rates.

    For each run the rate is the one with the highest mean of the primary endpoint in the other folds (without folds:
    with the other seeds). The records of the run at that rate are repeated under the arm's own name. A rate at which a
    run diverged is not chosen.

    Args:
        finished: the number of finished runs by arm at a rate (`CLIP@5e-4`), those that diverged included.
    """
    grids = {arm: grid for grid in study.grids.values() for arm in grid.arms if grid.rates(arm)}
    kept = [record for record in records if record.model not in grids]
    by_model: dict[str, list[Record]] = defaultdict(list)
    for record in kept:
        by_model[record.model].append(record)
    for arm, grid in grids.items():
        runs = len(grid.seeds) * (study.folds or 1)
        if all(finished.get(name, 0) == runs for name in grid.rates(arm)):
            by_rate = [by_model[name] for name in grid.rates(arm)]
            kept += [record.model_copy(update={"model": arm}) for record in _choose(by_rate, study, runs)]
    return kept


def _choose(by_rate: list[list[Record]], study: Study, runs: int) -> list[Record]:
    """Choose for each run among the records of an arm at its rates; empty if runs diverged at every rate."""
    primary = study.endpoints.primary
    measure = (primary.task, primary.dataset, primary.metric)
    scores: list[
        dict[int, list[float]]
    ] = []  # by rate, the values of each seed: of several draws, if the task draws
    for records in by_rate:
        values = defaultdict(list)
        for record in records:
            if (record.task, record.dataset, record.metric) == measure and record.value is not None:
                values[record.seed or 0].append(record.value)
        scores.append(values)
    candidates = [rate for rate, values in enumerate(scores) if len(values) == runs]
    chosen: list[Record] = []
    for seed in scores[candidates[0]] if candidates else ():
        others = [
            other
            for other in scores[candidates[0]]
            if (other != seed if study.folds is None else (other - seed) % study.folds)
        ]
        best = max(candidates, key=lambda rate: fmean(fmean(scores[rate][other]) for other in others))
        chosen += [record for record in by_rate[best] if record.seed == seed]
    return chosen
